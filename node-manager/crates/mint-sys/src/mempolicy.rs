// SPDX-License-Identifier: Apache-2.0
//! On which NUMA node memory is: mbind(2) of a file's pages and move_pages(2) of a process's (the kernel's
//! Documentation/admin-guide/mm/numa_memory_policy.rst).

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::os::fd::AsRawFd;

/// Pages that the kernel is asked about at once.
const BATCH: usize = 512;
/// NUMA nodes that a mask has room for; as many as Linux can be built for.
const NUMA_MAX: u32 = 1024;
const WORD: u32 = u64::BITS;
/// MPOL_MF_MOVE_ALL of <linux/mempolicy.h>
const MOVE_ALL: i32 = 1 << 2;

/// Where a page of a process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageAt {
    /// On this NUMA node, by the kernel's number.
    Numa(u32),
    /// The process has none there.
    Nowhere,
    /// It did not go where it was to go, or cannot be told: an error number.
    Stays(i32),
}

/// Pages of a range of a file that are not there yet come from a NUMA node from now on, whoever touches
/// them, and from another one where that has none free. For a file of a tmpfs, and a memfd without huge pages: the
/// range keeps that as long as there is the file.
///
/// # Arguments
/// * `offset`, `bytes` - the range, in whole pages.
/// * `numa` - the kernel's number of the node.
///
/// # Errors
/// When there is no such NUMA node, the range is none, or the kernel has no memory policies.
pub fn prefer(file: &File, offset: u64, bytes: NonZero<u64>, numa: u32) -> io::Result<()> {
    let length = usize::try_from(bytes.get()).map_err(io::Error::other)?;
    let mask = mask(numa)?;
    let memory = map(file, offset, length, libc::PROT_NONE)?;
    // SAFETY: the range was just mapped, and `mask` has as many bits as are told and one more,
    // as the kernel's own manual wants it; both outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            memory,
            length,
            libc::MPOL_PREFERRED,
            mask.as_ptr(),
            u64::from(NUMA_MAX),
            0,
        )
    };
    let result = if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    // SAFETY: mapped above, and nobody has its address.
    let unmapped = unsafe { libc::munmap(memory, length) };
    debug_assert_eq!(unmapped, 0, "what was mapped is unmapped");
    result
}

/// Pages of a range of this process's memory that are not there yet come from a NUMA node, or not at all.
///
/// # Errors
/// When there is no such NUMA node, or the kernel has no memory policies.
///
/// # Safety
/// The range is mapped, and nobody else's: a page that is missing there ends whoever touches it.
pub(crate) unsafe fn bind(memory: *mut libc::c_void, length: usize, numa: u32) -> io::Result<()> {
    let mask = mask(numa)?;
    // SAFETY: the caller's range, and a mask of as many bits as are told and more; both outlive the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            memory,
            length,
            libc::MPOL_BIND,
            mask.as_ptr(),
            u64::from(NUMA_MAX),
            0,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A mask of one NUMA node.
fn mask(numa: u32) -> io::Result<[u64; (NUMA_MAX / WORD) as usize]> {
    let mut mask = [0_u64; (NUMA_MAX / WORD) as usize];
    let word = usize::try_from(numa / WORD).ok().and_then(|at| mask.get_mut(at));
    *word.ok_or(io::ErrorKind::InvalidInput)? = 1 << (numa % WORD);
    Ok(mask)
}

/// Maps a range of a file for all who have it, at an address of the kernel's choice.
fn map(file: &File, offset: u64, length: usize, protection: i32) -> io::Result<*mut libc::c_void> {
    let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
    let (anywhere, fd) = (std::ptr::null_mut(), file.as_raw_fd());
    // SAFETY: the kernel chooses an address where nothing is; the file is open for the call.
    let memory = unsafe { libc::mmap(anywhere, length, protection, libc::MAP_SHARED, fd, offset) };
    if memory == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(memory) }
}

/// Where pages of a process are.
///
/// # Arguments
/// * `process` - a process that this one may ptrace.
/// * `addresses` - one of each page.
///
/// # Errors
/// When there is no such process, or it is not ours to look at.
pub fn where_pages_are(process: u32, addresses: &[u64]) -> io::Result<Vec<PageAt>> {
    each_page(process, addresses, None)
}

/// Has pages of a process go to a NUMA node, also those that others map. Gives where each is then: one that a
/// device writes to, and one for which there is no room, stays.
///
/// # Errors
/// As [`where_pages_are`], and when there is no such NUMA node.
pub fn relocate_pages(process: u32, addresses: &[u64], numa: u32) -> io::Result<Vec<PageAt>> {
    each_page(process, addresses, Some(numa))
}

fn each_page(process: u32, addresses: &[u64], to: Option<u32>) -> io::Result<Vec<PageAt>> {
    let process = i32::try_from(process).map_err(io::Error::other)?;
    let to = to.map(i32::try_from).transpose().map_err(io::Error::other)?;
    let mut found = Vec::with_capacity(addresses.len());
    for addresses in addresses.chunks(BATCH) {
        let nodes = to.map(|to| vec![to; addresses.len()]);
        // not what a node is called, should the kernel leave one out
        let mut status = vec![-libc::EAGAIN; addresses.len()];
        let nodes = nodes.as_ref().map_or(std::ptr::null(), Vec::as_ptr);
        // SAFETY: each array has as many entries as are told, of the sizes that the kernel expects
        // (pointers and ints), and outlives the call; the addresses are another process's and are not
        // read by this one.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                process,
                addresses.len(),
                addresses.as_ptr(),
                nodes,
                status.as_mut_ptr(),
                MOVE_ALL,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        found.extend(status.into_iter().map(|status| match u32::try_from(status) {
            Ok(numa) => PageAt::Numa(numa),
            Err(_) if status == -libc::ENOENT => PageAt::Nowhere,
            Err(_) => PageAt::Stays(-status),
        }));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::MemfdFlags;

    const PAGE: usize = 4096;
    const PAGES: usize = 700; // more than one batch

    fn file() -> File {
        let file = File::from(rustix::fs::memfd_create("pages", MemfdFlags::CLOEXEC).unwrap());
        file.set_len((PAGES * PAGE) as u64).unwrap();
        file
    }

    /// Whether this host's kernel has what is tested; a rig's node has.
    fn can() -> bool {
        let done = prefer(&file(), 0, NonZero::new(4096).unwrap(), 0);
        !done.is_err_and(|error| {
            [libc::ENOSYS, libc::EPERM].map(Some).contains(&error.raw_os_error())
        })
    }

    #[test]
    fn pages_that_come_are_told_and_go() {
        if !can() {
            return;
        }
        let file = file();
        prefer(&file, 0, NonZero::new((PAGES * PAGE) as u64).unwrap(), 0).unwrap();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let memory = map(&file, 0, PAGES * PAGE, protection).unwrap().cast::<u8>();
        for page in (0..PAGES).step_by(2) {
            // SAFETY: within what was just mapped.
            unsafe { memory.wrapping_add(page * PAGE).write_volatile(1) };
        }
        let start = memory.addr() as u64;
        let addresses: Vec<u64> = (0..PAGES as u64).map(|page| start + page * 4096).collect();
        let expected: Vec<PageAt> = (0..PAGES)
            .map(|page| if page % 2 == 0 { PageAt::Numa(0) } else { PageAt::Nowhere })
            .collect();
        let me = std::process::id();
        assert_eq!(where_pages_are(me, &addresses).unwrap(), expected);
        assert_eq!(relocate_pages(me, &addresses, 0).unwrap(), expected);
        // SAFETY: mapped above, and not used any more.
        let unmapped = unsafe { libc::munmap(memory.cast(), PAGES * PAGE) };
        assert_eq!(unmapped, 0);
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        if !can() {
            return;
        }
        let page = NonZero::new(4096).unwrap();
        assert!(prefer(&file(), 0, page, 900).is_err(), "no host of a test has so many");
        assert!(prefer(&file(), 0, page, NUMA_MAX).is_err());
        assert!(prefer(&file(), 1, page, 0).is_err(), "no page begins there");
        assert!(where_pages_are(u32::MAX, &[0]).is_err());
        // beyond what any process can be called
        assert!(where_pages_are(0x7fff_fffe, &[0]).is_err());
        assert!(relocate_pages(std::process::id(), &[0], 900).is_err());
    }
}
