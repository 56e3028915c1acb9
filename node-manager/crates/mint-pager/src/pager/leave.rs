// SPDX-License-Identifier: Apache-2.0
//! A memory server that is to keep nothing of the guest any more: what it has goes by the main
//! host to the others (partial migration by memory servers alone, 3-2). The guest runs on.

use mint_split::{ChunkNo, Frame, Place, SubNo, Victims};

use super::room::{Budget, PagerError, Sub, SubState, room};
use super::{Order, Pager};
use crate::memory::Memory;

/// Chunks that are on their way here at once.
const AT_ONCE: usize = 4;

impl<M: Memory, V: Victims> Pager<'_, M, V> {
    /// The guest's budget and memory servers are these from now on: those there were, in their
    /// order, and new ones behind them.
    ///
    /// # Errors
    /// When they have no room for the guest, or the guest's memory cannot be changed.
    pub fn change(&mut self, subs: &[Sub], budget: Budget) -> Result<Vec<Order>, PagerError> {
        room(self.places.geometry(), budget, subs)?;
        self.budget = budget;
        let chunk = self.places.geometry().chunk_pages();
        for (number, sub) in subs.iter().enumerate() {
            match self.subs.get_mut(number) {
                Some(state) => {
                    state.room_chunks = sub.limit_pages / chunk;
                    state.leaves = sub.leaves;
                }
                None => self.subs.push(SubState::new(sub, chunk)),
            }
        }
        self.make_room_again()
    }

    /// Whether what a memory server has is to go elsewhere.
    pub(super) fn leaves(&self, sub: SubNo) -> bool {
        self.subs.get(usize::from(sub.0)).is_some_and(|state| state.leaves)
    }

    /// Asks for some of what is to go elsewhere, if there is room for it on its way.
    pub(super) fn drain(&mut self, orders: &mut Vec<Order>) -> Result<(), PagerError> {
        if self.is_held || !self.subs.iter().any(|sub| sub.leaves && sub.used_chunks > 0) {
            self.draining.clear();
            return Ok(());
        }
        let places = &self.places;
        self.draining.retain(|&chunk| places.is_coming(chunk));
        while self.draining.len() < AT_ONCE && self.has_room() {
            let Some((chunk, from)) = self.next_to_drain() else { break };
            let runs = self.places.fetch(chunk);
            orders.extend(runs.into_iter().map(|run| Order { to: from, frame: Frame::In(run) }));
            self.draining.insert(chunk);
            self.make_room(orders)?;
        }
        Ok(())
    }

    /// A chunk of which nothing is on its way is here, and nobody waited for it: it goes on.
    pub(super) fn pass_on(
        &mut self,
        chunk: ChunkNo,
        orders: &mut Vec<Order>,
    ) -> Result<(), PagerError> {
        if self.places.is_coming(chunk) || !self.draining.remove(&chunk) {
            return Ok(());
        }
        // else its turn comes, as that of any other
        if self.may_leave() {
            self.take_out(chunk, orders)?;
        }
        Ok(())
    }

    /// The next chunk of which a memory server has pages that is to have none, in a round through
    /// the guest's memory.
    fn next_to_drain(&mut self) -> Option<(ChunkNo, SubNo)> {
        let chunks = self.places.geometry().chunks();
        for _ in 0..chunks {
            let chunk = ChunkNo(self.drained_to % chunks);
            self.drained_to = self.drained_to.wrapping_add(1);
            let Some(sub) = self.places.sub_with(chunk).filter(|&sub| self.leaves(sub)) else {
                continue;
            };
            let is_connected =
                self.subs.get(usize::from(sub.0)).is_some_and(|state| state.is_connected);
            let mut pages = self.places.geometry().pages_of(chunk).map(mint_split::PageNo);
            let is_there =
                pages.any(|page| matches!(self.places.place(page), Some(Place::Remote { .. })));
            if is_connected && is_there && !self.places.is_coming(chunk) {
                return Some((chunk, sub));
            }
        }
        None
    }
}
