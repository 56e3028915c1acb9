// SPDX-License-Identifier: Apache-2.0
//! Memory of one NUMA node alone, and threads of one CPU alone: what reads are timed with.

use std::io;
use std::num::NonZero;
use std::ptr::NonNull;

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::mempolicy::{PageAt, bind, where_pages_are};

/// Pages are looked at so far from each other: the smallest that a kernel has.
const PAGE: usize = 4096;
/// As memory is read; a word of it.
const WORD: usize = size_of::<u64>();

/// Words that are all in memory of one NUMA node. They begin on a page, and as zeros.
pub struct BoundMemory {
    start: NonNull<u64>,
    words: usize,
    numa: u32,
}

impl BoundMemory {
    /// Has it there. Blocks until each page has come.
    ///
    /// # Arguments
    /// * `bytes` - how much, in whole pages.
    /// * `numa` - the kernel's number of the NUMA node.
    ///
    /// # Errors
    /// When there is no such NUMA node, the kernel gives no memory or has no memory policies, or a page came elsewhere.
    pub fn of(bytes: NonZero<usize>, numa: u32) -> io::Result<Self> {
        let length = bytes.get();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let anywhere = std::ptr::null_mut();
        // SAFETY: the kernel chooses an address where nothing is; no file.
        let memory = unsafe { libc::mmap(anywhere, length, protection, how, -1, 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(memory.cast::<u64>()).ok_or(io::ErrorKind::InvalidData)?;
        let mut bound = Self { start, words: length / WORD, numa };
        // with small pages, looks at page tables would be timed, too; a kernel without large ones refuses
        // SAFETY: the range was just mapped, and nothing is in it that could change.
        let _small = unsafe { libc::madvise(memory, length, libc::MADV_HUGEPAGE) };
        // SAFETY: the range was just mapped, and is this one's alone.
        unsafe { bind(memory, length, numa) }?;
        for page in bound.words().chunks_mut(PAGE / WORD) {
            // what is only read is everybody's page of zeros
            page[0] = 0;
        }
        bound.check()?;
        Ok(bound)
    }

    /// All of it.
    pub fn words(&mut self) -> &mut [u64] {
        // SAFETY: mapped with that many words until it is dropped, zeros at first, and borrowed as long as this is.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.words) }
    }

    /// Whether each page is where it is to be.
    fn check(&self) -> io::Result<()> {
        let start = self.start.addr().get() as u64;
        let pages = (0..self.words * WORD).step_by(PAGE);
        let addresses: Vec<u64> = pages.map(|at| start + at as u64).collect();
        let found = where_pages_are(std::process::id(), &addresses)?;
        let elsewhere = found.iter().filter(|at| **at != PageAt::Numa(self.numa)).count();
        if elsewhere == 0 {
            return Ok(());
        }
        let (all, numa) = (found.len(), self.numa);
        Err(io::Error::other(format!(
            "{elsewhere} of {all} pages did not come to NUMA node {numa}"
        )))
    }
}

impl Drop for BoundMemory {
    fn drop(&mut self) {
        let start = self.start.as_ptr().cast::<libc::c_void>();
        // SAFETY: mapped when it was made, and whoever borrowed it has given it back.
        let unmapped = unsafe { libc::munmap(start, self.words * WORD) };
        debug_assert_eq!(unmapped, 0, "what was mapped is unmapped");
    }
}

/// The calling thread runs on that CPU alone from now on.
///
/// # Errors
/// When there is no such CPU, or this process may not run on it.
pub fn run_on(cpu: u32) -> io::Result<()> {
    let cpu = usize::try_from(cpu).map_err(io::Error::other)?;
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut only = CpuSet::new();
    only.set(cpu);
    Ok(sched_setaffinity(None, &only)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: NonZero<usize> = NonZero::new(3 << 20).unwrap();

    /// Whether this host's kernel lets memory be bound; a container's may not.
    fn bound(numa: u32) -> Option<io::Result<BoundMemory>> {
        let made = BoundMemory::of(BYTES, numa);
        let refused = [libc::ENOSYS, libc::EPERM].map(Some);
        match &made {
            Err(error) if refused.contains(&error.raw_os_error()) => None,
            _ => Some(made),
        }
    }

    #[test]
    fn memory_comes_to_its_numa_node_and_holds_what_is_written() {
        let Some(memory) = bound(0) else { return };
        let mut memory = memory.unwrap();
        assert_eq!(memory.words().len(), (3 << 20) / 8);
        assert!(memory.words().iter().all(|word| *word == 0));
        memory.words()[7] = 9;
        assert_eq!(memory.words()[7], 9);
        memory.check().unwrap();
        // as though it had been asked for elsewhere
        memory.numa = 900;
        let error = memory.check().unwrap_err();
        assert_eq!(error.to_string(), "768 of 768 pages did not come to NUMA node 900");
    }

    #[test]
    fn memory_of_a_numa_node_that_is_not_there_is_an_error() {
        let Some(none) = bound(900) else { return };
        assert!(none.is_err());
        assert!(BoundMemory::of(BYTES, u32::MAX).is_err());
    }

    #[test]
    fn thread_runs_on_its_cpu_alone() {
        let ran = std::thread::spawn(|| {
            let may = rustix::thread::sched_getaffinity(None).unwrap();
            let cpu = (0..CpuSet::MAX_CPU).rfind(|&cpu| may.is_set(cpu)).unwrap();
            run_on(u32::try_from(cpu).unwrap()).unwrap();
            let only = rustix::thread::sched_getaffinity(None).unwrap();
            assert_eq!((only.count(), only.is_set(cpu)), (1, true));
            assert!(run_on(u32::MAX).is_err(), "no kernel has so many");
            rustix::thread::sched_getcpu() == cpu
        });
        assert!(ran.join().unwrap());
    }
}
