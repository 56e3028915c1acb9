// SPDX-License-Identifier: Apache-2.0
//! When each page of a guest was used (4-3): eight bits a page, the highest for the period that
//! runs, each lower one for the period before.
//!
//! The bytes lie in memory that is lent: they outlive the process that writes them.

use std::ops::Range;

use crate::geometry::{ChunkNo, Geometry, PageNo};

/// A page that was used in the period that runs.
const NOW: u8 = 1 << 7;

/// The history of a guest's pages.
#[derive(Debug)]
pub struct Ages<'a> {
    geometry: Geometry,
    bytes: &'a mut [u8],
}

/// The memory that is lent is of another size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{bytes} bytes for the history of {pages} pages")]
pub struct AgesError {
    /// That were lent.
    pub bytes: usize,
    /// Of the guest.
    pub pages: u64,
}

impl<'a> Ages<'a> {
    /// What lies in this memory, a byte for each page. Zeros are pages that were never used.
    ///
    /// # Errors
    /// When it is of another size.
    pub fn open(geometry: Geometry, bytes: &'a mut [u8]) -> Result<Self, AgesError> {
        if bytes.len() as u64 != geometry.pages() {
            return Err(AgesError { bytes: bytes.len(), pages: geometry.pages() });
        }
        Ok(Self { geometry, bytes })
    }

    /// How the guest's memory is divided.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Pages were used: a bit for each from the first one on, the lowest of the first word first.
    /// Those that the guest has not are left out.
    pub fn used(&mut self, first: PageNo, bits: &[u64]) {
        let from = usize::try_from(first.0).unwrap_or(usize::MAX).min(self.bytes.len());
        for (bytes, &word) in self.bytes[from..].chunks_mut(64).zip(bits) {
            if word == 0 {
                continue;
            }
            for (bit, byte) in bytes.iter_mut().enumerate() {
                if word >> bit & 1 == 1 {
                    *byte |= NOW;
                }
            }
        }
    }

    /// Another period begins for these pages, if there is one to begin; gives how many of them
    /// were used in the last eight.
    pub fn period(&mut self, pages: Range<u64>, begins: bool) -> u64 {
        let end = self.bytes.len();
        let [from, to] = [pages.start, pages.end]
            .map(|page| usize::try_from(page).unwrap_or(usize::MAX).min(end));
        let mut used = 0;
        for byte in self.bytes.get_mut(from..to).unwrap_or_default() {
            used += u64::from(*byte != 0);
            if begins {
                *byte >>= 1;
            }
        }
        used
    }

    /// Of the page of a chunk that was used last (4-4).
    #[must_use]
    pub fn youngest(&self, chunk: ChunkNo) -> u8 {
        self.of(chunk).iter().copied().max().unwrap_or_default()
    }

    /// Pages of a chunk that were used since it was cleared.
    #[must_use]
    pub fn used_in(&self, chunk: ChunkNo) -> usize {
        self.of(chunk).iter().filter(|&&byte| byte != 0).count()
    }

    /// No page of a chunk was used.
    pub fn clear(&mut self, chunk: ChunkNo) {
        let pages = self.range(chunk);
        self.bytes.get_mut(pages).unwrap_or_default().fill(0);
    }

    /// The history of pages from the first one on, at most so many, for another host.
    #[must_use]
    pub fn told(&self, first: PageNo, most: usize) -> &[u8] {
        let from = usize::try_from(first.0).unwrap_or(usize::MAX).min(self.bytes.len());
        let rest = &self.bytes[from..];
        &rest[..most.min(rest.len())]
    }

    /// The same, of another host. Those that the guest has not are left out.
    pub fn take(&mut self, first: PageNo, told: &[u8]) {
        let from = usize::try_from(first.0).unwrap_or(usize::MAX).min(self.bytes.len());
        for (byte, told) in self.bytes[from..].iter_mut().zip(told) {
            *byte = *told;
        }
    }

    fn range(&self, chunk: ChunkNo) -> Range<usize> {
        let pages = self.geometry.pages_of(chunk);
        let [from, to] =
            [pages.start, pages.end].map(|page| usize::try_from(page).unwrap_or(usize::MAX));
        from..to
    }

    fn of(&self, chunk: ChunkNo) -> &[u8] {
        self.bytes.get(self.range(chunk)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::PAGE_BYTES;

    const CHUNK: u64 = 4;

    fn geometry(pages: u64) -> Geometry {
        Geometry::new(pages * PAGE_BYTES, CHUNK * PAGE_BYTES).unwrap()
    }

    #[test]
    fn page_grows_older_with_each_period_and_is_forgotten_after_eight() {
        let mut bytes = [0; 130];
        let mut ages = Ages::open(geometry(130), &mut bytes).unwrap();
        ages.used(PageNo(64), &[1 << 1 | 1 << 63, 1 << 1]);
        for period in 0..8 {
            assert_eq!(ages.youngest(ChunkNo(16)), 0x80 >> period);
            assert_eq!(ages.youngest(ChunkNo(31)), 0x80 >> period);
            assert_eq!(ages.youngest(ChunkNo(32)), 0x80 >> period);
            assert_eq!(ages.youngest(ChunkNo(17)), 0);
            assert_eq!(ages.period(0..130, true), 3);
        }
        assert_eq!(ages.period(0..130, true), 0);
    }

    #[test]
    fn chunk_is_as_young_as_its_youngest_page_and_counts_those_that_were_used() {
        let mut bytes = [0; 16];
        let mut ages = Ages::open(geometry(16), &mut bytes).unwrap();
        ages.used(PageNo(0), &[0b0011_0000]);
        ages.period(0..16, true);
        assert_eq!((ages.youngest(ChunkNo(1)), ages.used_in(ChunkNo(1))), (0x40, 2));
        ages.used(PageNo(6), &[1]);
        assert_eq!((ages.youngest(ChunkNo(1)), ages.used_in(ChunkNo(1))), (0x80, 3));
        // a look without a period changes nothing
        assert_eq!(ages.period(0..16, false), 3);
        assert_eq!(ages.youngest(ChunkNo(1)), 0x80);
        ages.clear(ChunkNo(1));
        assert_eq!((ages.youngest(ChunkNo(1)), ages.used_in(ChunkNo(1))), (0, 0));
    }

    #[test]
    fn what_another_host_tells_is_taken_over_as_far_as_there_are_pages() {
        let mut bytes = [0; 10];
        let mut ages = Ages::open(geometry(10), &mut bytes).unwrap();
        ages.take(PageNo(6), &[1, 2, 3, 4, 5, 6]);
        assert_eq!(ages.told(PageNo(5), 3), [0, 1, 2]);
        assert_eq!(ages.told(PageNo(8), 30), [3, 4]);
        ages.used(PageNo(9), &[u64::MAX]);
        ages.used(PageNo(u64::MAX), &[u64::MAX]);
        ages.take(PageNo(u64::MAX), &[1]);
        assert_eq!(ages.told(PageNo(9), 30), [0x84]);
        assert_eq!(ages.told(PageNo(10), 30), [0; 0]);
        let error = Ages::open(geometry(10), &mut [0; 9]).unwrap_err();
        assert_eq!(error, AgesError { bytes: 9, pages: 10 });
    }
}
