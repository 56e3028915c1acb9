// SPDX-License-Identifier: Apache-2.0
//! `/dev/mint-memory`: what a pager of guests' memory needs of the kernel beside userfaultfd.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

/// Where the kernel has it.
pub const MEMORY_DEVICE: &str = "/dev/mint-memory";

/// Pages that go at once, at most.
pub const TAKE_MAX: u32 = 512;

/// Pages whose use is told at once, at most.
pub const ACCESSED_MAX: u32 = 32768;

/// The device. Root's.
#[derive(Debug)]
pub struct MemoryDevice(File);

#[repr(C)]
struct FaultsArgument {
    pidfd: i32,
    flags: u32,
}

#[repr(C)]
struct TakeArgument {
    from: i32,
    to: i32,
    first: u64,
    count: u32,
    reserved: u32,
    taken: [u64; 8],
}

#[repr(C)]
struct HolesArgument {
    file: i32,
    stay: u32,
}

#[repr(C)]
struct AccessedArgument {
    pidfd: i32,
    count: u32,
    address: u64,
    bits: u64,
}

/// Direction, size, type and number as in <asm-generic/ioctl.h>.
const fn request<T>(direction: u64, number: u64) -> u64 {
    direction << 30 | (size_of::<T>() as u64) << 16 | (b'm' as u64) << 8 | number
}

const TAKE: u64 = request::<TakeArgument>(3, 0x40);
const FAULTS: u64 = request::<FaultsArgument>(1, 0x41);
const HOLES: u64 = request::<HolesArgument>(1, 0x42);

const ACCESSED: u64 = request::<AccessedArgument>(1, 0x43);

const _: () = assert!(size_of::<TakeArgument>() == 88);
const _: () = assert!(size_of::<AccessedArgument>() == 24);

impl MemoryDevice {
    /// Opens it.
    ///
    /// # Errors
    /// When the kernel has none.
    pub fn open() -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(Path::new(MEMORY_DEVICE))?;
        Ok(Self(file))
    }

    /// One that another process has opened.
    #[must_use]
    pub fn opened(fd: OwnedFd) -> Self {
        Self(File::from(fd))
    }

    /// A userfaultfd of another process, which this one may ptrace. Nobody has used it yet.
    ///
    /// # Errors
    /// When there is no such process, or it is not ours to watch.
    pub fn faults(&self, process: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let flags = u32::try_from(libc::O_CLOEXEC | libc::O_NONBLOCK).map_err(io::Error::other)?;
        let fd = self.call(FAULTS, &mut FaultsArgument { pidfd: process.as_raw_fd(), flags })?;
        // SAFETY: `fd` was just returned by the kernel and nobody else has it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Pages go from one file of a tmpfs to the same place in another. Gives for each whether it
    /// went: a hole, and a page that a device writes to, stay.
    ///
    /// # Errors
    /// When it cannot go on. Some pages may have gone: the files say which.
    pub fn take(&self, from: &File, to: &File, first: u64, count: u32) -> io::Result<Vec<bool>> {
        let mut argument = TakeArgument {
            from: from.as_raw_fd(),
            to: to.as_raw_fd(),
            first,
            count,
            reserved: 0,
            taken: [0; 8],
        };
        self.call(TAKE, &mut argument)?;
        let bits =
            argument.taken.iter().flat_map(|word| (0..64).map(move |bit| word >> bit & 1 == 1));
        Ok(bits.take(usize::try_from(count).unwrap_or(usize::MAX)).collect())
    }

    /// Whether who touches a hole of a file that no userfaultfd watches is killed, instead of
    /// being given zeros.
    ///
    /// # Errors
    /// When it is no file of a tmpfs.
    pub fn holes_stay(&self, file: &File, stay: bool) -> io::Result<()> {
        let mut argument = HolesArgument { file: file.as_raw_fd(), stay: stay.into() };
        self.call(HOLES, &mut argument).map(drop)
    }

    /// Which of so many pages from an address on another process, or a KVM guest in it, has used
    /// since this was asked last: a bit for each, the lowest of the first word first. This process
    /// may ptrace it.
    ///
    /// # Errors
    /// When there is no such process, or the kernel does not tell (`ENOTTY`).
    pub fn accessed(
        &self,
        process: BorrowedFd<'_>,
        address: u64,
        count: u32,
    ) -> io::Result<Vec<u64>> {
        let words = usize::try_from(count.min(ACCESSED_MAX).div_ceil(64)).unwrap_or_default();
        let mut bits = vec![0_u64; words];
        let mut argument = AccessedArgument {
            pidfd: process.as_raw_fd(),
            count: count.min(ACCESSED_MAX),
            address,
            bits: bits.as_mut_ptr().expose_provenance() as u64,
        };
        // SAFETY: the device is open for as long as `self` lives; `argument` is of the size that is
        // part of the request, and has the address of `bits` alone, which nobody else has and which
        // has a bit for each of the pages that the kernel writes one for, in whole words.
        let result =
            unsafe { libc::ioctl(self.0.as_raw_fd(), ACCESSED, std::ptr::from_mut(&mut argument)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(bits) }
    }

    /// The descriptor.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.0
    }

    fn call<T>(&self, request: u64, argument: &mut T) -> io::Result<i32> {
        debug_assert_eq!(request >> 16 & 0x3fff, size_of::<T>() as u64);
        // SAFETY: the device is open for as long as `self` lives; `argument` is an exclusive
        // reference to a structure whose size is part of `request`, without pointers.
        let result =
            unsafe { libc::ioctl(self.0.as_raw_fd(), request, std::ptr::from_mut(argument)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
    }
}
