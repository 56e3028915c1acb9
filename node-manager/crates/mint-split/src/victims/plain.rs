// SPDX-License-Identifier: Apache-2.0
//! Policies that know nothing: what others are measured against.

use std::collections::BTreeSet;

use super::arrivals::Arrivals;
use super::fifo::Fifo;
use super::order::{Order, Victims};
use crate::ages::Ages;
use crate::geometry::ChunkNo;

/// Any chunk, the same ones for the same comings.
pub(super) struct Random {
    here: Vec<ChunkNo>,
    /// Where each chunk is in that; none: it is not here.
    at: Vec<Option<usize>>,
    seed: u64,
}

impl Random {
    /// Of a guest of so many chunks.
    pub fn new(chunks: usize) -> Self {
        Self { here: Vec::new(), at: vec![None; chunks], seed: 0x9e37_79b9_7f4a_7c15 }
    }

    /// Marsaglia's xorshift64.
    fn random(&mut self) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed
    }

    fn place(&mut self, chunk: ChunkNo) -> Option<&mut Option<usize>> {
        self.at.get_mut(usize::try_from(chunk.0).ok()?)
    }
}

impl Order for Random {
    fn came(&mut self, chunk: ChunkNo) {
        let end = self.here.len();
        let Some(at) = self.place(chunk).filter(|at| at.is_none()) else { return };
        *at = Some(end);
        self.here.push(chunk);
    }

    fn next(&mut self, _ages: &mut Ages<'_>) -> Option<ChunkNo> {
        let count = u64::try_from(self.here.len()).ok().filter(|&count| count > 0)?;
        let at = usize::try_from(self.random() % count).ok()?;
        let chunk = self.here.swap_remove(at);
        if let Some(moved) = self.here.get(at).copied() {
            *self.place(moved)? = Some(at);
        }
        *self.place(chunk)? = None;
        Some(chunk)
    }
}

/// The chunk with the highest address: its lower part is what a guest keeps.
#[derive(Default)]
pub(super) struct Address {
    here: BTreeSet<u64>,
}

impl Order for Address {
    fn came(&mut self, chunk: ChunkNo) {
        self.here.insert(chunk.0);
    }

    fn next(&mut self, _ages: &mut Ages<'_>) -> Option<ChunkNo> {
        self.here.pop_last().map(ChunkNo)
    }
}

/// Another policy, which hears of what has come once that was looked at: what it would take out at once
/// would come again at once, and the guest would stand still.
pub(super) struct Later<O> {
    arrivals: Arrivals,
    order: O,
}

impl<O> Later<O> {
    /// Of a guest of so many chunks.
    pub fn new(order: O, chunks: usize) -> Self {
        Self { arrivals: Arrivals::new(chunks), order }
    }
}

impl<O: Order> Order for Later<O> {
    fn came(&mut self, chunk: ChunkNo) {
        self.arrivals.came(chunk);
    }

    fn next(&mut self, ages: &mut Ages<'_>) -> Option<ChunkNo> {
        while let Some(chunk) = self.order.next(ages) {
            // it has come again since, and is told again
            if !self.arrivals.has(chunk) {
                return Some(chunk);
            }
        }
        self.arrivals.next()
    }

    fn looked(&mut self, _ages: &Ages<'_>) {
        for chunk in self.arrivals.looked() {
            self.order.came(chunk);
        }
    }
}

impl Order for Fifo {
    fn came(&mut self, chunk: ChunkNo) {
        Victims::came(self, chunk);
    }

    fn next(&mut self, _ages: &mut Ages<'_>) -> Option<ChunkNo> {
        Victims::next(self)
    }
}
