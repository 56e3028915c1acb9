// SPDX-License-Identifier: Apache-2.0
//! The chunk goes whose youngest page was used longest ago (4-3, 4-5).

use std::collections::VecDeque;

use super::arrivals::Arrivals;
use super::order::Order;
use crate::ages::Ages;
use crate::geometry::ChunkNo;

/// Chunks by the age of their youngest page. Looks make them younger without telling: where a
/// chunk lies here it is as old as it may be, and is put right when its turn comes.
pub(super) struct Aging {
    /// Of each age the chunks, those that are that old for longer first.
    by_age: Vec<VecDeque<ChunkNo>>,
    /// Where each one is; none: nowhere.
    at: Vec<Option<u8>>,
    arrivals: Arrivals,
}

impl Aging {
    /// Of a guest of so many chunks.
    pub fn new(chunks: usize) -> Self {
        let by_age = vec![VecDeque::new(); usize::from(u8::MAX) + 1];
        Self { by_age, at: vec![None; chunks], arrivals: Arrivals::new(chunks) }
    }

    fn put(&mut self, chunk: ChunkNo, age: u8) {
        let Some(at) = index(chunk).and_then(|at| self.at.get_mut(at)) else { return };
        *at = Some(age);
        if let Some(chunks) = self.by_age.get_mut(usize::from(age)) {
            chunks.push_back(chunk);
        }
    }
}

fn index(chunk: ChunkNo) -> Option<usize> {
    usize::try_from(chunk.0).ok()
}

impl Order for Aging {
    fn came(&mut self, chunk: ChunkNo) {
        if let Some(at) = index(chunk).and_then(|at| self.at.get_mut(at)) {
            // where it lay nobody finds it any more
            *at = None;
            self.arrivals.came(chunk);
        }
    }

    fn next(&mut self, ages: &mut Ages<'_>) -> Option<ChunkNo> {
        for age in 0..=u8::MAX {
            while let Some(chunk) = self.by_age[usize::from(age)].pop_front() {
                let Some(at) = index(chunk).and_then(|at| self.at.get_mut(at)) else { continue };
                if *at != Some(age) {
                    continue;
                }
                *at = None;
                let is = ages.youngest(chunk);
                if is <= age {
                    return Some(chunk);
                }
                self.put(chunk, is);
            }
        }
        self.arrivals.next()
    }

    fn rank(&self, ages: &Ages<'_>, chunk: ChunkNo) -> u64 {
        if self.arrivals.has(chunk) { u64::from(u8::MAX) } else { ages.youngest(chunk).into() }
    }

    fn looked(&mut self, ages: &Ages<'_>) {
        for chunk in self.arrivals.looked() {
            self.put(chunk, ages.youngest(chunk));
        }
    }

    fn period(&mut self) {
        for age in 0..=u8::MAX {
            let mut chunks = std::mem::take(&mut self.by_age[usize::from(age)]);
            chunks.retain(|chunk| {
                let at = index(*chunk).and_then(|at| self.at.get_mut(at));
                let is_here = at.filter(|at| **at == Some(age));
                is_here.map(|at| *at = Some(age >> 1)).is_some()
            });
            self.by_age[usize::from(age >> 1)].append(&mut chunks);
        }
    }
}
