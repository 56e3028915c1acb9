// SPDX-License-Identifier: Apache-2.0
//! A guest that changes its main host: until that is sure, neither the one that it leaves nor the
//! one that it comes to changes what memory servers have. Both may ask them for pages.

use mint_split::{SubNo, Victims};

use super::room::PagerError;
use super::{Order, Pager};
use crate::memory::Memory;

impl<M: Memory, V: Victims> Pager<'_, M, V> {
    /// Nothing is taken out from now on, or again something is. What is said meanwhile but
    /// [`mint_split::Frame::In`] is not to be sent: when it goes on, each connection begins anew.
    pub fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    /// Whether nothing is taken out.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.is_held
    }

    /// There is a connection to a memory server that only gives pages. What was asked for on
    /// another one is asked for again.
    ///
    /// # Errors
    /// When the guest's memory cannot be changed.
    pub fn looks(&mut self, to: SubNo) -> Result<Vec<Order>, PagerError> {
        if let Some(sub) = self.sub(to) {
            sub.is_connected = true;
        }
        for page in self.places.not_coming(to) {
            self.waiting.push_back(page);
        }
        self.make_room_again()
    }
}
