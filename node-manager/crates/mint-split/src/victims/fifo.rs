// SPDX-License-Identifier: Apache-2.0
//! What came first goes first.

use std::collections::VecDeque;

use super::order::Victims;
use crate::geometry::ChunkNo;

/// First in, first out: knows nothing of what is used. What has come last goes last, so that
/// who waited for it has its turn.
#[derive(Debug)]
pub struct Fifo {
    /// Chunks, each with the number of its last coming; those with an older one do not count.
    order: VecDeque<(ChunkNo, u64)>,
    /// Of each chunk that number; 0: it is not here.
    last: Vec<u64>,
    comings: u64,
}

impl Fifo {
    /// For a guest of so many chunks.
    #[must_use]
    pub fn new(chunks: usize) -> Self {
        Self { order: VecDeque::new(), last: vec![0; chunks], comings: 0 }
    }

    /// A chunk does not go any more.
    pub(super) fn forget(&mut self, chunk: ChunkNo) {
        if let Some(last) = self.last(chunk) {
            *last = 0;
        }
    }

    fn last(&mut self, chunk: ChunkNo) -> Option<&mut u64> {
        self.last.get_mut(usize::try_from(chunk.0).ok()?)
    }

    /// Forgets the comings that do not count, once they are most of all.
    fn tidy(&mut self) {
        if self.order.len() > 2 * self.last.len() {
            let last = &self.last;
            self.order.retain(|(chunk, coming)| {
                usize::try_from(chunk.0).is_ok_and(|at| last.get(at) == Some(coming))
            });
        }
    }
}

impl Victims for Fifo {
    fn came(&mut self, chunk: ChunkNo) {
        let coming = self.comings + 1;
        let Some(last) = self.last(chunk) else { return };
        *last = coming;
        self.comings = coming;
        self.order.push_back((chunk, coming));
        self.tidy();
    }

    fn next(&mut self) -> Option<ChunkNo> {
        loop {
            let (chunk, coming) = self.order.pop_front()?;
            if let Some(last) = self.last(chunk).filter(|last| **last == coming) {
                *last = 0;
                return Some(chunk);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_came_last_goes_last_and_each_once() {
        let mut fifo = Fifo::new(4);
        for chunk in [2, 0, 2, 3, 0, 9] {
            fifo.came(ChunkNo(chunk));
        }
        let gone: Vec<u64> = std::iter::from_fn(|| fifo.next()).map(|chunk| chunk.0).collect();
        assert_eq!(gone, [2, 3, 0]);
        fifo.came(ChunkNo(2));
        assert_eq!(fifo.next(), Some(ChunkNo(2)));
    }

    #[test]
    fn it_takes_no_more_memory_than_there_are_chunks() {
        let mut fifo = Fifo::new(4);
        for number in 0..1000 {
            fifo.came(ChunkNo(number % 3));
        }
        assert!(fifo.order.len() <= 9, "{}", fifo.order.len());
        let gone: Vec<u64> = std::iter::from_fn(|| fifo.next()).map(|chunk| chunk.0).collect();
        assert_eq!(gone, [1, 2, 0]);
    }
}
