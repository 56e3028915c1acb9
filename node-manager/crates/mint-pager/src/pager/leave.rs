// SPDX-License-Identifier: Apache-2.0
//! A memory server that is to keep nothing of the guest any more: what it has goes by the main
//! host to the others (partial migration by memory servers alone, 3-2). The guest runs on.

use mint_split::{ChunkNo, Frame, Place, SubNo, Victims};

use super::drain::Drain;
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

    /// Whether there is a bound from now on to what is asked for to go elsewhere.
    pub fn bound_drain(&mut self, is_bounded: bool) {
        let may_pages = self.drain.may_pages.unwrap_or(0);
        self.drain.may_pages = is_bounded.then_some(may_pages);
    }

    /// So many pages more may be asked for to go elsewhere, if there is a bound. What was not used of
    /// what was allowed before is not added to them.
    ///
    /// # Errors
    /// When the guest's memory cannot be changed.
    pub fn may_drain(&mut self, pages: u64) -> Result<Vec<Order>, PagerError> {
        let more = i64::try_from(pages).unwrap_or(i64::MAX);
        let Some(may) = self.drain.may_pages else { return Ok(Vec::new()) };
        self.drain.may_pages = Some(may.saturating_add(more).min(more));
        let mut orders = Vec::new();
        self.go_on_draining(&mut orders)?;
        Ok(orders)
    }

    /// Asks for some of what is to go elsewhere, if there is room for it on its way.
    pub(super) fn go_on_draining(&mut self, orders: &mut Vec<Order>) -> Result<(), PagerError> {
        if self.is_held || !self.subs.iter().any(|sub| sub.leaves && sub.used_chunks > 0) {
            self.drain.chunks.clear();
            return Ok(());
        }
        let places = &self.places;
        self.drain.chunks.retain(|&chunk| places.is_coming(chunk));
        let may = |drain: &Drain| drain.may_pages.is_none_or(|pages| pages > 0);
        while self.drain.chunks.len() < AT_ONCE && may(&self.drain) && self.has_room() {
            let Some((chunk, from)) = self.next_to_drain() else { break };
            let runs = self.places.fetch(chunk);
            if let Some(may) = &mut self.drain.may_pages {
                let asked = runs.iter().map(|run| i64::from(run.count)).sum();
                *may = may.saturating_sub(asked);
            }
            orders.extend(runs.into_iter().map(|run| Order { to: from, frame: Frame::In(run) }));
            self.drain.chunks.insert(chunk);
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
        if self.places.is_coming(chunk) || !self.drain.chunks.remove(&chunk) {
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
            let chunk = ChunkNo(self.drain.to % chunks);
            self.drain.to = self.drain.to.wrapping_add(1);
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
