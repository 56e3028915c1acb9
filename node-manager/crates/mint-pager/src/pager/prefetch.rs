// SPDX-License-Identifier: Apache-2.0
//! What a guest reads one chunk after the other comes before it is asked for (S-memV, 4-5): a fault
//! takes longer than a chunk's way.

use mint_split::{ChunkNo, Frame, PageNo, Place, Victims};

use super::room::PagerError;
use super::{Order, Pager};
use crate::memory::Memory;

/// So many pages at most come before they are asked for, and this part of the budget.
const PAGES_MAX: u64 = 512;
const ROOM_PART: u64 = 4;

impl<M: Memory, V: Victims> Pager<'_, M, V> {
    /// Notes that somebody waits for a page of a chunk that is elsewhere, or on its way here.
    pub(super) fn follow_fault(&mut self, chunk: ChunkNo) {
        // what comes takes the room of what is here: little of that
        let pages = PAGES_MAX.min(self.budget.pages / ROOM_PART);
        self.streak.fault(chunk, pages / self.places.geometry().chunk_pages());
    }

    /// Asks for what is likely to be wanted next, if there is room for it.
    pub(super) fn prefetch(&mut self, orders: &mut Vec<Order>) -> Result<(), PagerError> {
        if self.is_held {
            return Ok(());
        }
        while !self.streak.is_over() && self.has_room() {
            let Some(chunk) = self.streak.next() else { break };
            let Some(from) = self.places.sub_with(chunk) else { continue };
            let mut pages = self.places.geometry().pages_of(chunk).map(PageNo);
            let is_there =
                pages.any(|page| matches!(self.places.place(page), Some(Place::Remote { .. })));
            let is_connected =
                self.subs.get(usize::from(from.0)).is_some_and(|state| state.is_connected);
            if !is_there || !is_connected {
                continue;
            }
            let runs = self.places.fetch(chunk);
            orders.extend(runs.into_iter().map(|run| Order { to: from, frame: Frame::In(run) }));
            self.done.prefetches += 1;
            self.make_room(orders)?;
        }
        Ok(())
    }
}
