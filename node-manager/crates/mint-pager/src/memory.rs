// SPDX-License-Identifier: Apache-2.0
//! What a pager wants of the kernel.

use std::io;
use std::ops::Range;

use mint_split::{PAGE, PageNo};

/// A guest's memory, and beside it copies of pages that are leaving. Both outlive the pager.
pub trait Memory {
    /// Numbers of the pages that are no holes, lowest first.
    ///
    /// # Errors
    /// When that cannot be seen.
    fn here(&self) -> io::Result<Vec<Range<u64>>>;

    /// Of the pages that have a copy.
    ///
    /// # Errors
    /// When that cannot be seen.
    fn copies(&self) -> io::Result<Vec<Range<u64>>>;

    /// Whether a page is no hole.
    ///
    /// # Errors
    /// When that cannot be seen.
    fn is_here(&self, page: PageNo) -> io::Result<bool>;

    /// A page that is no hole; of one that is, zeros.
    ///
    /// # Errors
    /// When it cannot be read.
    fn page(&self, page: PageNo, bytes: &mut [u8; PAGE]) -> io::Result<()>;

    /// Pages that follow each other, as many as there are bytes for.
    ///
    /// # Errors
    /// When they cannot be read.
    fn pages(&self, first: PageNo, bytes: &mut [[u8; PAGE]]) -> io::Result<()> {
        (first.0..).map(PageNo).zip(bytes).try_for_each(|(page, bytes)| self.page(page, bytes))
    }

    /// Makes holes of these pages, and a copy of each, in one step for whoever writes to them.
    /// Gives those that went: one that a device writes to stays.
    ///
    /// # Errors
    /// When it cannot go on; what had gone has its copy.
    fn take_out(&mut self, pages: &[PageNo]) -> io::Result<Vec<PageNo>>;

    /// A copy.
    ///
    /// # Errors
    /// When it cannot be read.
    fn copy(&self, page: PageNo, bytes: &mut [u8; PAGE]) -> io::Result<()>;

    /// Copies of pages that follow each other, as many as there are bytes for.
    ///
    /// # Errors
    /// When they cannot be read.
    fn copied(&self, first: PageNo, bytes: &mut [[u8; PAGE]]) -> io::Result<()> {
        (first.0..).map(PageNo).zip(bytes).try_for_each(|(page, bytes)| self.copy(page, bytes))
    }

    /// A copy is not needed any more.
    ///
    /// # Errors
    /// When it stays.
    fn drop_copy(&mut self, page: PageNo) -> io::Result<()>;

    /// A hole gets these bytes, or zeros; who waits for it goes on.
    ///
    /// # Errors
    /// When it stays a hole.
    fn fill(&mut self, page: PageNo, bytes: Option<&[u8]>) -> io::Result<()>;

    /// Holes that follow each other get these bytes.
    ///
    /// # Errors
    /// When one of them stays a hole; others may not.
    fn fill_all(&mut self, first: PageNo, bytes: &[u8]) -> io::Result<()> {
        let mut pages = (first.0..).map(PageNo).zip(bytes.chunks_exact(PAGE));
        pages.try_for_each(|(page, bytes)| self.fill(page, Some(bytes)))
    }

    /// So many holes that follow each other get zeros; who waits for them goes on.
    ///
    /// # Errors
    /// When one of them stays a hole; others may not.
    fn fill_zeros(&mut self, first: PageNo, count: u64) -> io::Result<()> {
        (first.0..first.0 + count).try_for_each(|page| self.fill(PageNo(page), None))
    }

    /// Who waits for a page that is there goes on.
    ///
    /// # Errors
    /// When they cannot be told.
    fn wake(&mut self, page: PageNo) -> io::Result<()>;
}
