// SPDX-License-Identifier: Apache-2.0
//! Chunks that have come, and that nobody can have looked at since.

use std::collections::VecDeque;

use super::fifo::Fifo;
use super::order::Victims;
use crate::geometry::ChunkNo;

/// A look that was under way when a chunk came may have passed it: it counts as used until the
/// next one is over.
const LOOKS: u64 = 2;

/// In the order in which they came.
pub(super) struct Arrivals {
    looks: u64,
    order: Fifo,
    /// Of each coming, the looks until then, in their order.
    each: VecDeque<(ChunkNo, u64)>,
    /// Of each chunk, the looks when it came last; none: it is not one of these.
    last: Vec<Option<u64>>,
}

impl Arrivals {
    /// Of a guest of so many chunks.
    pub fn new(chunks: usize) -> Self {
        let (order, each) = (Fifo::new(chunks), VecDeque::new());
        Self { looks: 0, order, each, last: vec![None; chunks] }
    }

    /// One has come.
    pub fn came(&mut self, chunk: ChunkNo) {
        let looks = self.looks;
        let Some(last) = self.last(chunk) else { return };
        // one of the same time is there already
        if last.replace(looks) != Some(looks) {
            self.each.push_back((chunk, looks));
        }
        self.order.came(chunk);
    }

    /// Whether it is one of these.
    pub fn has(&self, chunk: ChunkNo) -> bool {
        let at = usize::try_from(chunk.0).ok();
        at.and_then(|at| self.last.get(at)).is_some_and(Option::is_some)
    }

    /// All pages were looked at; gives those that are none of these any more.
    pub fn looked(&mut self) -> Vec<ChunkNo> {
        self.looks += 1;
        let mut over = Vec::new();
        while let Some(&(chunk, came)) = self.each.front() {
            if self.looks < came + LOOKS {
                break;
            }
            self.each.pop_front();
            if let Some(last) = self.last(chunk).filter(|last| **last == Some(came)) {
                *last = None;
                self.order.forget(chunk);
                over.push(chunk);
            }
        }
        over
    }

    /// The one that came first.
    pub fn next(&mut self) -> Option<ChunkNo> {
        let chunk = self.order.next()?;
        *self.last(chunk)? = None;
        Some(chunk)
    }

    fn last(&mut self, chunk: ChunkNo) -> Option<&mut Option<u64>> {
        self.last.get_mut(usize::try_from(chunk.0).ok()?)
    }
}
