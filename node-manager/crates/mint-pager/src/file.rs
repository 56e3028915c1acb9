// SPDX-License-Identifier: Apache-2.0
//! A guest's memory as it is: two files of a tmpfs, a userfaultfd of QEMU's mapping of the first,
//! and `/dev/mint-memory`.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mint_split::{PAGE, PAGE_BYTES, PageNo};
use mint_sys::{Faults, MemoryDevice, TAKE_MAX};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use crate::memory::Memory;
use crate::step::step;

/// Of one guest.
#[derive(Debug)]
pub struct GuestMemory {
    /// What QEMU maps.
    pub ram: File,
    /// Copies of pages that are leaving, at the same places.
    pub copies: File,
    /// Of QEMU.
    pub faults: Arc<Faults>,
    /// The kernel's.
    pub device: MemoryDevice,
    /// Where the first page is in QEMU.
    pub base: u64,
    /// Of the guest.
    pub pages: u64,
    /// What that took until now.
    pub took: Took,
}

/// Time that was spent in calls of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Took {
    /// Pages were taken out.
    pub taking: Duration,
    /// Pages were put in.
    pub filling: Duration,
}

impl GuestMemory {
    fn address(&self, page: PageNo) -> u64 {
        self.base + page.0 * PAGE_BYTES
    }

    /// The page at an address in QEMU.
    #[must_use]
    pub fn page_at(&self, address: u64) -> Option<PageNo> {
        let page = address.checked_sub(self.base)? / PAGE_BYTES;
        (page < self.pages).then_some(PageNo(page))
    }

    fn data(&self, file: &File) -> io::Result<Vec<Range<u64>>> {
        let (mut all, mut at) = (Vec::new(), 0);
        while at < self.pages * PAGE_BYTES {
            let begin = match seek(file, SeekFrom::Data(at)) {
                Ok(begin) => begin,
                Err(Errno::NXIO) => break,
                Err(error) => return Err(error.into()),
            };
            let end = seek(file, SeekFrom::Hole(begin))?;
            all.push(begin / PAGE_BYTES..end.div_ceil(PAGE_BYTES).min(self.pages));
            at = end;
        }
        Ok(all)
    }
}

/// Pages that follow each other, as many as go at once.
fn runs(pages: &[PageNo]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some(run) if run.end == page.0 && run.end - run.start < u64::from(TAKE_MAX) => {
                run.end += 1
            }
            _ => runs.push(page.0..page.0 + 1),
        }
    }
    runs
}

impl Memory for GuestMemory {
    fn here(&self) -> io::Result<Vec<Range<u64>>> {
        self.data(&self.ram)
    }

    fn copies(&self) -> io::Result<Vec<Range<u64>>> {
        self.data(&self.copies)
    }

    fn is_here(&self, page: PageNo) -> io::Result<bool> {
        let at = page.0 * PAGE_BYTES;
        match seek(&self.ram, SeekFrom::Data(at)) {
            Ok(begin) => Ok(begin == at),
            Err(Errno::NXIO) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn page(&self, page: PageNo, bytes: &mut [u8; PAGE]) -> io::Result<()> {
        self.ram.read_exact_at(bytes, page.0 * PAGE_BYTES)
    }

    fn pages(&self, first: PageNo, bytes: &mut [[u8; PAGE]]) -> io::Result<()> {
        self.ram.read_exact_at(bytes.as_flattened_mut(), first.0 * PAGE_BYTES)
    }

    fn take_out(&mut self, pages: &[PageNo]) -> io::Result<Vec<PageNo>> {
        let mut gone = Vec::new();
        for run in runs(pages) {
            let count = u32::try_from(run.end - run.start).map_err(io::Error::other)?;
            step("pager-take");
            let begin = Instant::now();
            let taken = self.device.take(&self.ram, &self.copies, run.start, count)?;
            self.took.taking += begin.elapsed();
            step("pager-taken");
            gone.extend(run.zip(taken).filter(|(_, gone)| *gone).map(|(page, _)| PageNo(page)));
        }
        Ok(gone)
    }

    fn copy(&self, page: PageNo, bytes: &mut [u8; PAGE]) -> io::Result<()> {
        self.copies.read_exact_at(bytes, page.0 * PAGE_BYTES)
    }

    fn copied(&self, first: PageNo, bytes: &mut [[u8; PAGE]]) -> io::Result<()> {
        self.copies.read_exact_at(bytes.as_flattened_mut(), first.0 * PAGE_BYTES)
    }

    fn drop_copy(&mut self, page: PageNo) -> io::Result<()> {
        step("pager-drop");
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.copies, how, page.0 * PAGE_BYTES, PAGE_BYTES)?)
    }

    fn fill(&mut self, page: PageNo, bytes: Option<&[u8]>) -> io::Result<()> {
        let at = self.address(page);
        step("pager-fill");
        let begin = Instant::now();
        let filled = match bytes {
            Some(bytes) => self.faults.copy(at, bytes),
            None => self.faults.zero(at, PAGE_BYTES),
        };
        self.took.filling += begin.elapsed();
        step("pager-filled");
        match filled {
            // QEMU has written to the file by another way
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                self.faults.wake(at, PAGE_BYTES)
            }
            filled => filled,
        }
    }

    fn fill_all(&mut self, first: PageNo, bytes: &[u8]) -> io::Result<()> {
        step("pager-fill");
        let begin = Instant::now();
        let filled = self.faults.copy(self.address(first), bytes);
        self.took.filling += begin.elapsed();
        if filled.is_ok() {
            step("pager-filled");
            return Ok(());
        }
        // a page of them is no hole, or the kernel has stopped amid them: one by one it says which
        let mut pages = (first.0..).map(PageNo).zip(bytes.chunks_exact(PAGE));
        pages.try_for_each(|(page, bytes)| self.fill(page, Some(bytes)))
    }

    fn fill_zeros(&mut self, first: PageNo, count: u64) -> io::Result<()> {
        step("pager-fill");
        let begin = Instant::now();
        let filled = self.faults.zero(self.address(first), count * PAGE_BYTES);
        self.took.filling += begin.elapsed();
        if filled.is_ok() {
            step("pager-filled");
            return Ok(());
        }
        // as above
        (first.0..first.0 + count).try_for_each(|page| self.fill(PageNo(page), None))
    }

    fn wake(&mut self, page: PageNo) -> io::Result<()> {
        self.faults.wake(self.address(page), PAGE_BYTES)
    }
}
