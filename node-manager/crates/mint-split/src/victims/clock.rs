// SPDX-License-Identifier: Apache-2.0
//! A hand goes round through the guest's memory; what it passes has to be used again before it
//! comes back (4-3, 4-5).

use std::collections::BTreeSet;

use super::arrivals::Arrivals;
use super::order::Order;
use crate::ages::Ages;
use crate::geometry::ChunkNo;

/// Chunks that are looked at for one that goes: of so many, the one of which the fewest pages were
/// used goes, if all were.
const WINDOW: usize = 64;

/// Chunks in the order of their numbers.
pub(super) struct Clock {
    here: BTreeSet<u64>,
    hand: u64,
    arrivals: Arrivals,
}

impl Clock {
    /// Of a guest of so many chunks.
    pub fn new(chunks: usize) -> Self {
        Self { here: BTreeSet::new(), hand: 0, arrivals: Arrivals::new(chunks) }
    }
}

impl Order for Clock {
    fn came(&mut self, chunk: ChunkNo) {
        self.here.insert(chunk.0);
        self.arrivals.came(chunk);
    }

    fn next(&mut self, ages: &mut Ages<'_>) -> Option<ChunkNo> {
        let mut least: Option<(usize, u64)> = None;
        let round = self.here.range(self.hand..).chain(self.here.range(..self.hand));
        let mut passed = Vec::new();
        for &chunk in round.take(WINDOW) {
            let used = match self.arrivals.has(ChunkNo(chunk)) {
                true => usize::MAX,
                false => ages.used_in(ChunkNo(chunk)),
            };
            passed.push(chunk);
            if least.is_none_or(|(fewest, _)| used < fewest) {
                least = Some((used, chunk));
            }
            if used == 0 {
                break;
            }
        }
        let (_, goes) = least?;
        self.hand = passed.last().map_or(0, |last| last + 1);
        for chunk in passed.into_iter().filter(|&chunk| chunk != goes) {
            ages.clear(ChunkNo(chunk));
        }
        self.here.remove(&goes);
        Some(ChunkNo(goes))
    }

    fn rank(&self, ages: &Ages<'_>, chunk: ChunkNo) -> u64 {
        let all = || ages.geometry().chunk_pages();
        if self.arrivals.has(chunk) { all() } else { ages.used_in(chunk) as u64 }
    }

    fn looked(&mut self, _ages: &Ages<'_>) {
        self.arrivals.looked();
    }
}
