// SPDX-License-Identifier: Apache-2.0
//! Pages of guests: where they are, and where they go.

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::path::Path;

use mint_guests::residents::Pages;
use mint_layout::NumaId;
use mint_sys::PageAt;

/// Who sees to pages; the kernel, or a fake of it in tests. All of it blocks.
pub(crate) trait Memory: Pages + Send + Sync {
    /// Has pages of a process go to a NUMA node. Gives where each is then, which is where it was if there is no room; none of one that is not there.
    ///
    /// # Errors
    /// When the process has ended, or there is no such NUMA node.
    fn relocate(
        &self,
        process: u32,
        addresses: &[u64],
        to: NumaId,
    ) -> io::Result<Vec<Option<NumaId>>>;

    /// Has pages of a file that come from now on be of a NUMA node.
    ///
    /// # Errors
    /// When it cannot be opened, or there is no such NUMA node.
    fn prefer(&self, file: &Path, offset: u64, bytes: u64, numa: NumaId) -> io::Result<()>;
}

/// This node's kernel.
pub(super) struct Kernel;

fn node(page: PageAt) -> Option<NumaId> {
    match page {
        PageAt::Numa(numa) => Some(NumaId(numa)),
        PageAt::Nowhere | PageAt::Stays(_) => None,
    }
}

impl Pages for Kernel {
    fn numas(&self, process: u32, addresses: &[u64]) -> io::Result<Vec<Option<NumaId>>> {
        let found = mint_sys::where_pages_are(process, addresses)?;
        Ok(found.into_iter().map(node).collect())
    }
}

impl Memory for Kernel {
    fn relocate(
        &self,
        process: u32,
        addresses: &[u64],
        to: NumaId,
    ) -> io::Result<Vec<Option<NumaId>>> {
        match mint_sys::relocate_pages(process, addresses, to.0) {
            Ok(found) => Ok(found.into_iter().map(node).collect()),
            // some may have gone
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
                self.numas(process, addresses)
            }
            Err(error) => Err(error),
        }
    }

    fn prefer(&self, file: &Path, offset: u64, bytes: u64, numa: NumaId) -> io::Result<()> {
        let Some(bytes) = NonZero::new(bytes) else { return Ok(()) };
        mint_sys::prefer(&File::open(file)?, offset, bytes, numa.0)
    }
}
