// SPDX-License-Identifier: Apache-2.0
//! Pages that the guest uses for the first time: zeros. A fault costs far more than a page of
//! zeros, so that more and more come at once where it uses one after the other.

use mint_split::{PageNo, Place, Victims};

use super::Pager;
use super::room::PagerError;
use crate::memory::Memory;

/// So many pages at most come at once, and this part of the room that is left.
const PAGES_MAX: u64 = 512;
const ROOM_PART: u64 = 4;

impl<M: Memory, V: Victims> Pager<'_, M, V> {
    /// The guest has zeros in a page that was nowhere, and in pages behind it that are nowhere, too.
    pub(super) fn fill_fresh(&mut self, page: PageNo) -> Result<(), PagerError> {
        let end = page.0 + self.fresh_pages(page);
        self.memory.fill_zeros(page, end - page.0)?;
        for page in (page.0..end).map(PageNo) {
            self.places.filled(page);
            self.victims.came(self.places.geometry().chunk_of(page));
        }
        (page.0 + 1..end).for_each(|page| self.victims.came_unasked(PageNo(page)));
        Ok(())
    }

    /// How many pages get zeros with this one: as many as are here just before it.
    fn fresh_pages(&self, page: PageNo) -> u64 {
        // a guest that moves has told its next host what it uses, or is about to
        if self.is_held || self.ahead.is_some() {
            return 1;
        }
        let left = self.budget.pages.saturating_sub(self.places.counts().resident()) / ROOM_PART;
        let is = |page: u64, place: Place| self.places.place(PageNo(page)) == Some(place);
        let most = PAGES_MAX.min(left);
        let before = (0..page.0).rev().take_while(|&page| is(page, Place::Local));
        let most = before.take(usize::try_from(most).unwrap_or(usize::MAX)).count();
        let behind = (page.0 + 1..).take_while(|&page| is(page, Place::Virgin));
        1 + behind.take(most.saturating_sub(1)).zip(0_u64..).count() as u64
    }
}
