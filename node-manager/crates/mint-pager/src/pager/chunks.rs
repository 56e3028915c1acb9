// SPDX-License-Identifier: Apache-2.0
//! A guest whose pages are to go and come in chunks of another size.

use mint_split::{PAGE_BYTES, Victims};

use super::Pager;
use super::room::PagerError;
use crate::memory::Memory;

impl<M: Memory, V: Victims> Pager<'_, M, V> {
    /// Whether they are to be of another size than they are: another pager begins with them then.
    ///
    /// # Errors
    /// When pages are elsewhere, in the chunks that they have.
    pub(crate) fn is_of_other_chunks(&self, chunk_bytes: u64) -> Result<bool, PagerError> {
        if chunk_bytes == self.places.geometry().chunk_pages() * PAGE_BYTES {
            return Ok(false);
        }
        match self.places.counts().elsewhere() {
            0 => Ok(true),
            pages => Err(PagerError::Chunks(pages)),
        }
    }
}
