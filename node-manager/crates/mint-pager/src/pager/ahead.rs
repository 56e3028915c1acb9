// SPDX-License-Identifier: Apache-2.0
//! What a guest's next main host has no room for: which chunks that is, and what memory servers have
//! of them.

use std::cmp::Reverse;

use mint_split::{ChunkNo, PageNo};

/// A chunk that goes ahead already is worth this power of two less than it is known to be worth: it
/// does not come and go with each look.
const GRACE: u32 = 2;

/// What memory servers have of a page that is here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum There {
    /// Not this page, whatever they have.
    No,
    /// It was sent.
    Said,
    /// It, in its version.
    Kept,
}

/// What goes ahead of a guest.
pub(super) struct Ahead {
    /// Of each page.
    pages: Vec<There>,
    /// Whether the next main host has no room for a chunk.
    chunks: Vec<bool>,
    /// How many were sent and not answered.
    pub said: u64,
    /// How many are there.
    pub kept: u64,
}

impl Ahead {
    /// Nothing goes ahead.
    pub fn new(pages: u64, chunks: u64) -> Self {
        let size = |count| usize::try_from(count).unwrap_or(usize::MAX);
        let (pages, chunks) = (vec![There::No; size(pages)], vec![false; size(chunks)]);
        Self { pages, chunks, said: 0, kept: 0 }
    }

    /// What is known of pages is not known any more.
    pub fn forget_pages(&mut self) {
        self.pages.fill(There::No);
        (self.said, self.kept) = (0, 0);
    }

    /// Whether the next main host has no room for a chunk.
    pub fn is_away(&self, chunk: ChunkNo) -> bool {
        usize::try_from(chunk.0).ok().and_then(|at| self.chunks.get(at)).copied().unwrap_or(false)
    }

    /// The next main host has no room for a chunk, or has.
    pub fn set_away(&mut self, chunk: ChunkNo, is_away: bool) {
        if let Some(known) = usize::try_from(chunk.0).ok().and_then(|at| self.chunks.get_mut(at)) {
            *known = is_away;
        }
    }

    /// What memory servers have of a page.
    pub fn get(&self, page: PageNo) -> There {
        let at = usize::try_from(page.0).ok();
        at.and_then(|at| self.pages.get(at)).copied().unwrap_or(There::No)
    }

    /// They have this of it.
    pub fn set(&mut self, page: PageNo, there: There) {
        let at = usize::try_from(page.0).ok();
        let Some(known) = at.and_then(|at| self.pages.get_mut(at)) else { return };
        match std::mem::replace(known, there) {
            There::No => {}
            There::Said => self.said -= 1,
            There::Kept => self.kept -= 1,
        }
        match there {
            There::No => {}
            There::Said => self.said += 1,
            There::Kept => self.kept += 1,
        }
    }
}

/// A chunk that is here, or a part of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Candidate {
    pub chunk: ChunkNo,
    /// Pages of it that are here.
    pub pages: u64,
    /// What it is worth ([`Victims::rank`]).
    pub rank: u64,
    /// It goes ahead already.
    pub is_away: bool,
}

/// Which of these chunks are to go ahead, so that so many pages do: those that are worth least, and
/// of the same worth the last. Gives those for which that is news.
pub(crate) fn choose(mut all: Vec<Candidate>, away_pages: u64) -> Vec<(ChunkNo, bool)> {
    all.sort_unstable_by_key(|candidate| {
        let Candidate { chunk, rank, is_away, .. } = *candidate;
        (if is_away { rank >> GRACE } else { rank }, !is_away, Reverse(chunk))
    });
    let mut news = Vec::new();
    let mut pages = 0_u64;
    for candidate in all {
        let is_away = pages < away_pages;
        if is_away {
            pages += candidate.pages;
        }
        if is_away != candidate.is_away {
            news.push((candidate.chunk, is_away));
        }
    }
    news
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(chunk: u64, rank: u64, is_away: bool) -> Candidate {
        Candidate { chunk: ChunkNo(chunk), pages: 4, rank, is_away }
    }

    #[test]
    fn what_is_worth_least_goes_ahead_and_stays_so_until_it_is_worth_much_more() {
        let all = [candidate(0, 8, false), candidate(1, 0, false), candidate(2, 1, false)];
        let away = |pages| choose(all.to_vec(), pages);
        assert_eq!(away(0), []);
        assert_eq!(away(1), [(ChunkNo(1), true)]);
        assert_eq!(away(5), [(ChunkNo(1), true), (ChunkNo(2), true)]);
        assert_eq!(away(100).len(), 3);
        // of the same worth the last
        let same = vec![candidate(3, 0, false), candidate(4, 0, false)];
        assert_eq!(choose(same, 4), [(ChunkNo(4), true)]);
        let used = |rank| choose(vec![candidate(5, rank, true), candidate(6, 8, false)], 4);
        assert_eq!(used(32), []);
        assert_eq!(used(64), [(ChunkNo(6), true), (ChunkNo(5), false)]);
        // there is room for it by now
        assert_eq!(choose(vec![candidate(5, 0, true)], 0), [(ChunkNo(5), false)]);
    }
}
