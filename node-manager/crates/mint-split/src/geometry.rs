// SPDX-License-Identifier: Apache-2.0
//! A guest's memory as pages, and the chunks that go from host to host.

use std::fmt;
use std::ops::Range;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = PAGE as u64;

/// The same, as the length of a slice.
pub const PAGE: usize = 4096;

/// Pages of the largest chunk: 2 MiB.
pub const CHUNK_PAGES_MAX: u64 = CHUNK_MAX as u64;

/// The same, as the length of a slice.
pub const CHUNK_MAX: usize = 512;

/// A page of a guest's memory, counted from the beginning of its RAM file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageNo(pub u64);

/// A chunk of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChunkNo(pub u64);

impl fmt::Display for PageNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {}", self.0)
    }
}

/// Pages one after the other, none of which is of another chunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PageRun {
    /// The first.
    pub first: PageNo,
    /// How many, at least one.
    pub count: u32,
}

impl PageRun {
    /// Each of them.
    pub fn pages(self) -> impl Iterator<Item = PageNo> {
        (self.first.0..self.first.0.saturating_add(u64::from(self.count))).map(PageNo)
    }
}

/// How many pages a guest has, and how many of them are a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    pages: u64,
    chunk_shift: u32,
}

/// Memory cannot be divided like this.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GeometryError {
    /// Not whole pages, or none.
    #[error("{0} bytes of memory are no whole pages of {PAGE_BYTES}")]
    Memory(u64),
    /// Not a power of two from a page to 2 MiB.
    #[error("a chunk of {0} bytes: want a power of two from 4 KiB to 2 MiB")]
    Chunk(u64),
}

impl Geometry {
    /// Of memory and chunks of so many bytes.
    ///
    /// # Errors
    /// When one of them is no such number.
    pub fn new(memory_bytes: u64, chunk_bytes: u64) -> Result<Self, GeometryError> {
        if memory_bytes == 0 || memory_bytes % PAGE_BYTES != 0 {
            return Err(GeometryError::Memory(memory_bytes));
        }
        let in_range = (PAGE_BYTES..=PAGE_BYTES * CHUNK_PAGES_MAX).contains(&chunk_bytes);
        if !in_range || !chunk_bytes.is_power_of_two() {
            return Err(GeometryError::Chunk(chunk_bytes));
        }
        let chunk_shift = (chunk_bytes / PAGE_BYTES).trailing_zeros();
        Ok(Self { pages: memory_bytes / PAGE_BYTES, chunk_shift })
    }

    /// Pages of the guest.
    #[must_use]
    pub fn pages(self) -> u64 {
        self.pages
    }

    /// Chunks of it; the last may have fewer pages than the others.
    #[must_use]
    pub fn chunks(self) -> u64 {
        self.pages.div_ceil(self.chunk_pages())
    }

    /// Pages of a chunk.
    #[must_use]
    pub fn chunk_pages(self) -> u64 {
        1 << self.chunk_shift
    }

    /// Whether there is such a page.
    #[must_use]
    pub fn has(self, page: PageNo) -> bool {
        page.0 < self.pages
    }

    /// Whether all of these are pages of the guest, and of one chunk.
    #[must_use]
    pub fn has_run(self, run: PageRun) -> bool {
        let last = run.first.0.checked_add(u64::from(run.count).saturating_sub(1));
        let inside = last
            .map(PageNo)
            .is_some_and(|last| self.has(last) && self.chunk_of(last) == self.chunk_of(run.first));
        run.count > 0 && inside
    }

    /// The chunk that a page is of.
    #[must_use]
    pub fn chunk_of(self, page: PageNo) -> ChunkNo {
        ChunkNo(page.0 >> self.chunk_shift)
    }

    /// Numbers of a chunk's pages.
    #[must_use]
    pub fn pages_of(self, chunk: ChunkNo) -> Range<u64> {
        let first = chunk.0.saturating_mul(self.chunk_pages()).min(self.pages);
        first..first.saturating_add(self.chunk_pages()).min(self.pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_chunk_has_what_is_left() {
        let geometry = Geometry::new(10 * PAGE_BYTES, 4 * PAGE_BYTES).unwrap();
        assert_eq!((geometry.pages(), geometry.chunks(), geometry.chunk_pages()), (10, 3, 4));
        assert_eq!(geometry.chunk_of(PageNo(7)), ChunkNo(1));
        assert_eq!(geometry.pages_of(ChunkNo(2)), 8..10);
        assert_eq!(geometry.pages_of(ChunkNo(3)), 10..10);
        assert!(geometry.has(PageNo(9)) && !geometry.has(PageNo(10)));
    }

    #[test]
    fn run_is_within_a_chunk_of_the_guest() {
        let geometry = Geometry::new(10 * PAGE_BYTES, 4 * PAGE_BYTES).unwrap();
        let has = |first, count| geometry.has_run(PageRun { first: PageNo(first), count });
        assert!(has(4, 4) && has(9, 1));
        assert!(!has(4, 5) && !has(9, 2) && !has(10, 1) && !has(0, 0));
        assert!(!has(u64::MAX, 1) && !has(u64::MAX, u32::MAX));
    }

    #[test]
    fn odd_sizes_are_refused() {
        assert_eq!(Geometry::new(0, 4096), Err(GeometryError::Memory(0)));
        assert_eq!(Geometry::new(4097, 4096), Err(GeometryError::Memory(4097)));
        for chunk in [0, 2048, 12 << 10, 4 << 20] {
            assert_eq!(Geometry::new(1 << 20, chunk), Err(GeometryError::Chunk(chunk)));
        }
    }
}
