// SPDX-License-Identifier: Apache-2.0
//! Pages of a chunk, with what is in them, as a frame brings them.

use crate::geometry::{PAGE, PageNo, PageRun};
use crate::places::Version;

pub(crate) const ENTRY_BYTES: usize = 4;

/// Of a page that a frame brings: its version, and whether it is all zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// How often it was taken out.
    pub version: Version,
    /// It does not follow: all its bytes are zero.
    pub is_zero: bool,
}

const ZERO_FLAG: u32 = 1 << 31;

impl Entry {
    pub(crate) fn to_bytes(self) -> [u8; ENTRY_BYTES] {
        (self.version.0 | if self.is_zero { ZERO_FLAG } else { 0 }).to_le_bytes()
    }

    pub(crate) fn of(word: u32, least: Version) -> Option<Self> {
        let version = Version(word & !ZERO_FLAG);
        let is_zero = word & ZERO_FLAG != 0;
        (least..=Version::MAX).contains(&version).then_some(Self { version, is_zero })
    }
}

/// Pages of a chunk with what is in them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pages {
    /// The first.
    pub first: PageNo,
    /// Of each page, one after the other.
    pub entries: Vec<Entry>,
    /// Those that are not all zeros, one after the other.
    pub bytes: Vec<u8>,
}

impl Pages {
    /// None yet.
    #[must_use]
    pub fn from(first: PageNo) -> Self {
        Self { first, entries: Vec::new(), bytes: Vec::new() }
    }

    /// The next page.
    pub fn push(&mut self, version: Version, bytes: &[u8; PAGE]) {
        let is_zero = bytes.iter().all(|&byte| byte == 0);
        self.entries.push(Entry { version, is_zero });
        if !is_zero {
            self.bytes.extend(bytes);
        }
    }

    /// Each page with what is in it; none: zeros.
    pub fn each(&self) -> impl Iterator<Item = (PageNo, Version, Option<&[u8]>)> {
        let mut full = self.bytes.chunks_exact(PAGE);
        let pages = (self.first.0..).map(PageNo).zip(&self.entries);
        pages.map(move |(page, entry)| {
            let bytes = if entry.is_zero { None } else { full.next() };
            (page, entry.version, bytes)
        })
    }

    /// As many of them at a time as follow each other and are all zeros (none), or are not.
    pub fn runs(&self) -> impl Iterator<Item = (PageRun, Option<&[u8]>)> {
        let (mut at, mut begin) = (0, 0);
        std::iter::from_fn(move || {
            let is_zero = self.entries.get(at)?.is_zero;
            let same = self.entries[at..].iter().take_while(|entry| entry.is_zero == is_zero);
            let count = same.count();
            let first = PageNo(self.first.0 + at as u64);
            let end = if is_zero { begin } else { begin + count * PAGE };
            let bytes = self.bytes.get(begin..end).filter(|_| !is_zero);
            (at, begin) = (at + count, end);
            Some((PageRun { first, count: u32::try_from(count).unwrap_or(u32::MAX) }, bytes))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_all_pages_in_their_order() {
        let mut pages = Pages::from(PageNo(7));
        let bytes = [0, 0, 5, 6, 0, 7, 8, 9];
        bytes.iter().for_each(|&byte| pages.push(Version(1), &[byte; PAGE]));
        let runs: Vec<_> = pages.runs().collect();
        let run = |first, count| PageRun { first: PageNo(first), count };
        let firsts: Vec<PageRun> = runs.iter().map(|(run, _)| *run).collect();
        assert_eq!(firsts, [run(7, 2), run(9, 2), run(11, 1), run(12, 3)]);
        let full =
            |at: usize| runs[at].1.map(|bytes| (bytes[0], bytes[bytes.len() - 1], bytes.len()));
        assert_eq!(
            [0, 1, 2, 3].map(full),
            [None, Some((5, 6, 2 * PAGE)), None, Some((7, 9, 3 * PAGE))]
        );
        assert_eq!(Pages::from(PageNo(7)).runs().count(), 0);
    }
}
