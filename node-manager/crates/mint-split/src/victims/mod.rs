// SPDX-License-Identifier: Apache-2.0
//! Which chunk is taken out next (4-5).

mod aging;
mod arrivals;
mod clock;
mod fifo;
mod order;
mod plain;

use std::ops::Range;

use mint_types::PagingPolicy;

use crate::ages::Ages;
use crate::geometry::{ChunkNo, PageNo};

use aging::Aging;
use clock::Clock;
pub use fifo::Fifo;
use order::Order;
pub use order::Victims;
use plain::{Address, Later, Random};

/// A bit each.
const PAGES_OF_WORD: u64 = 64;

/// A policy, and what it knows of the guest's pages.
pub struct Policy<'a> {
    policy: PagingPolicy,
    ages: Ages<'a>,
    order: Box<dyn Order + Send>,
    /// A bit for each page that came unasked, and was not seen to be used since: the first time says
    /// that it has come.
    unasked: Vec<u64>,
}

fn order(policy: PagingPolicy, chunks: u64) -> Box<dyn Order + Send> {
    let chunks = usize::try_from(chunks).unwrap_or(usize::MAX);
    match policy {
        PagingPolicy::Aging => Box::new(Aging::new(chunks)),
        PagingPolicy::Clock => Box::new(Clock::new(chunks)),
        PagingPolicy::Fifo => Box::new(Fifo::new(chunks)),
        PagingPolicy::Random => Box::new(Later::new(Random::new(chunks), chunks)),
        PagingPolicy::Address => Box::new(Later::new(Address::default(), chunks)),
    }
}

impl<'a> Policy<'a> {
    /// Nothing is here yet; what was used when is known from before.
    #[must_use]
    pub fn new(policy: PagingPolicy, ages: Ages<'a>) -> Self {
        let order = order(policy, ages.geometry().chunks());
        let words = usize::try_from(ages.geometry().pages().div_ceil(PAGES_OF_WORD));
        let unasked = vec![0; words.unwrap_or(usize::MAX)];
        Self { policy, ages, order, unasked }
    }

    /// Which.
    #[must_use]
    pub fn policy(&self) -> PagingPolicy {
        self.policy
    }

    /// Another one from now on; these chunks are here.
    pub fn change(&mut self, policy: PagingPolicy, here: impl Iterator<Item = ChunkNo>) {
        self.policy = policy;
        self.order = order(policy, self.ages.geometry().chunks());
        here.for_each(|chunk| self.order.came(chunk));
    }

    /// What is known of the use of pages.
    #[must_use]
    pub fn ages(&self) -> &Ages<'a> {
        &self.ages
    }

    /// Pages were used since they were looked at last, as [`Ages::used`] takes them; the first is that
    /// of a word.
    pub fn used(&mut self, first: PageNo, bits: &[u64]) {
        let at = usize::try_from(first.0 / PAGES_OF_WORD).unwrap_or(usize::MAX);
        let unasked = self.unasked.get_mut(at..).unwrap_or_default().iter_mut();
        let used = |(unasked, bits): (Option<&mut u64>, &u64)| match unasked {
            Some(unasked) => {
                let used = bits & !*unasked;
                *unasked &= !bits;
                used
            }
            None => *bits,
        };
        let unasked = unasked.map(Some).chain(std::iter::repeat_with(|| None));
        let used: Vec<u64> = unasked.zip(bits).map(used).collect();
        self.ages.used(first, &used);
    }

    /// All pages were looked at.
    pub fn looked(&mut self) {
        self.order.looked(&self.ages);
    }

    /// Another period begins for these pages, those from the first one on before others; gives how
    /// many of them were used in the last eight. The hand of a clock alone begins periods there.
    pub fn period(&mut self, pages: Range<u64>) -> u64 {
        let begins = self.policy != PagingPolicy::Clock;
        if pages.start == 0 && begins {
            // what is known to be young may be older than that, and never the other way round
            self.order.period();
        }
        self.ages.period(pages, begins)
    }
}

impl Victims for Policy<'_> {
    fn came(&mut self, chunk: ChunkNo) {
        self.order.came(chunk);
    }

    fn came_unasked(&mut self, page: PageNo) {
        let at = usize::try_from(page.0 / PAGES_OF_WORD).ok();
        if let Some(word) = at.and_then(|at| self.unasked.get_mut(at)) {
            *word |= 1 << (page.0 % PAGES_OF_WORD);
        }
    }

    fn next(&mut self) -> Option<ChunkNo> {
        self.order.next(&mut self.ages)
    }

    fn rank(&self, chunk: ChunkNo) -> u64 {
        self.order.rank(&self.ages, chunk)
    }
}

#[cfg(test)]
#[path = "../tests/victims.rs"]
mod tests;
