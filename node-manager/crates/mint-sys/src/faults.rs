// SPDX-License-Identifier: Apache-2.0
//! userfaultfd(2): who touches a hole in a range of memory waits, and whoever has the
//! descriptor fills it. The memory may be another process's.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const API: u64 = 0xaa;
const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const FEATURE_MINOR_SHMEM: u64 = 1 << 10;
const FEATURE_WP_SHMEM: u64 = 1 << 12;
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const MODE_MISSING: u64 = 1;
const MODE_WP: u64 = 1 << 1;
const MODE_MINOR: u64 = 1 << 2;
const EVENT_PAGEFAULT: u8 = 0x12;
const EVENT_REMOVE: u8 = 0x15;
const USER_MODE_ONLY: libc::c_int = 1;
const MESSAGE_BYTES: usize = 32;
const MESSAGES: usize = 64;

/// Something has happened in the watched memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryEvent {
    /// Somebody waits for a page, which holds this address.
    Fault {
        /// In the watched process.
        address: u64,
    },
    /// The watched process has given pages back: they are holes.
    Removed {
        /// The first address.
        start: u64,
        /// The one after the last.
        end: u64,
    },
}

/// What of memory is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Watch {
    /// Who touches a hole waits.
    Holes,
    /// The same; and [`crate::Written`] tells which pages are written to.
    HolesAndWrites,
    /// Who touches any page waits that was not touched before through this mapping, whatever the
    /// file has there by now.
    All,
}

impl Watch {
    fn mode(self) -> u64 {
        match self {
            Self::Holes => MODE_MISSING,
            Self::HolesAndWrites => MODE_MISSING | MODE_WP,
            Self::All => MODE_MISSING | MODE_MINOR,
        }
    }
}

/// A userfaultfd.
#[derive(Debug)]
pub struct Faults(File);

#[repr(C)]
struct ApiArgument {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct RangeArgument {
    start: u64,
    bytes: u64,
}

#[repr(C)]
struct RegisterArgument {
    range: RangeArgument,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct CopyArgument {
    to: u64,
    from: u64,
    bytes: u64,
    mode: u64,
    copied: i64,
}

#[repr(C)]
struct ZeroArgument {
    range: RangeArgument,
    mode: u64,
    zeroed: i64,
}

/// Direction, size, type and number as in <asm-generic/ioctl.h>.
const fn request<T>(direction: u64, number: u64) -> u64 {
    direction << 30 | (size_of::<T>() as u64) << 16 | API << 8 | number
}

const UFFDIO_API: u64 = request::<ApiArgument>(3, 0x3f);
const UFFDIO_REGISTER: u64 = request::<RegisterArgument>(3, 0);
const UFFDIO_WAKE: u64 = request::<RangeArgument>(2, 2);
const UFFDIO_COPY: u64 = request::<CopyArgument>(3, 3);
const UFFDIO_ZEROPAGE: u64 = request::<ZeroArgument>(3, 4);

const _: () = assert!(UFFDIO_API == 0xc018_aa3f && UFFDIO_COPY == 0xc028_aa03);

impl Faults {
    /// Of this process, and of faults outside the kernel alone: for tests.
    ///
    /// # Errors
    /// When the system forbids it.
    pub fn own() -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: userfaultfd(2) takes a number, and touches no memory of ours.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let fd = libc::c_int::try_from(fd).map_err(io::Error::other)?;
        // SAFETY: `fd` was just returned by the kernel and nobody else has it.
        Self::new(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// One that nobody has used yet.
    ///
    /// # Errors
    /// When the kernel does not know what is wanted of it.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let faults = Self::used(fd);
        let features = FEATURE_MISSING_SHMEM
            | FEATURE_EVENT_REMOVE
            | FEATURE_MINOR_SHMEM
            | FEATURE_WP_SHMEM
            | FEATURE_WP_UNPOPULATED
            | FEATURE_WP_ASYNC;
        let mut argument = ApiArgument { api: API, features, ioctls: 0 };
        faults.call(UFFDIO_API, &mut argument)?;
        Ok(faults)
    }

    /// One that a process before this one has used.
    #[must_use]
    pub fn used(fd: OwnedFd) -> Self {
        Self(File::from(fd))
    }

    /// Watches memory, which is a mapping of a tmpfs file, from now on in this way. Who waits
    /// because of another way before goes on waiting until it is woken ([`Faults::wake`]). The
    /// kernel leaves a way as it is that has all of the new one: [`Watch::Holes`] changes
    /// neither of the others.
    ///
    /// # Errors
    /// When it is no such memory.
    pub fn watch(&self, start: u64, bytes: u64, what: Watch) -> io::Result<()> {
        let range = RangeArgument { start, bytes };
        let mut argument = RegisterArgument { range, mode: what.mode(), ioctls: 0 };
        self.call(UFFDIO_REGISTER, &mut argument)
    }

    /// What has happened since; nothing if nothing has.
    ///
    /// # Errors
    /// When the watched process has ended, or something happens that nobody asked for.
    pub fn read(&self) -> io::Result<Vec<MemoryEvent>> {
        let mut bytes = [0; MESSAGE_BYTES * MESSAGES];
        let length = match (&self.0).read(&mut bytes) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        bytes[..length].chunks_exact(MESSAGE_BYTES).map(event).collect()
    }

    /// Fills holes with these bytes, whole pages; who waits for them goes on.
    ///
    /// # Errors
    /// `AlreadyExists` when there is no hole.
    pub fn copy(&self, to: u64, bytes: &[u8]) -> io::Result<()> {
        let mut argument = CopyArgument {
            to,
            from: bytes.as_ptr().addr() as u64,
            bytes: bytes.len() as u64,
            mode: 0,
            copied: 0,
        };
        self.call(UFFDIO_COPY, &mut argument)
    }

    /// Fills holes with zeros; who waits for them goes on.
    ///
    /// # Errors
    /// `AlreadyExists` when there is no hole.
    pub fn zero(&self, start: u64, bytes: u64) -> io::Result<()> {
        let range = RangeArgument { start, bytes };
        self.call(UFFDIO_ZEROPAGE, &mut ZeroArgument { range, mode: 0, zeroed: 0 })
    }

    /// Who waits looks again; if there is still a hole, that is told again.
    ///
    /// # Errors
    /// When this is no watched memory.
    pub fn wake(&self, start: u64, bytes: u64) -> io::Result<()> {
        self.call(UFFDIO_WAKE, &mut RangeArgument { start, bytes })
    }

    fn call<T>(&self, request: u64, argument: &mut T) -> io::Result<()> {
        debug_assert_eq!(request >> 16 & 0x3fff, size_of::<T>() as u64);
        loop {
            // SAFETY: the descriptor is open for as long as `self` lives; `argument` is an
            // exclusive reference to a structure whose size is part of `request`. Addresses in
            // it are of watched memory, which is filled only where it is a hole, but for the
            // source of a copy: a slice that lives through the call.
            let result =
                unsafe { libc::ioctl(self.0.as_raw_fd(), request, std::ptr::from_mut(argument)) };
            if result >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            // the watched memory's layout changes: in a moment it is done
            let is_passing = error.raw_os_error() == Some(libc::EAGAIN);
            if !is_passing && error.kind() != ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

impl AsFd for Faults {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn event(message: &[u8]) -> io::Result<MemoryEvent> {
    let number = |at: usize| {
        let bytes = message.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u64::from_ne_bytes).ok_or_else(|| io::Error::from(ErrorKind::InvalidData))
    };
    match message.first() {
        Some(&EVENT_PAGEFAULT) => Ok(MemoryEvent::Fault { address: number(16)? }),
        Some(&EVENT_REMOVE) => Ok(MemoryEvent::Removed { start: number(8)?, end: number(16)? }),
        other => Err(io::Error::other(format!("userfaultfd tells event {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::Written;

    const PAGE: usize = 4096;

    /// Memory of a tmpfs file that is all holes.
    struct Holes {
        memory: *mut u8,
        bytes: usize,
    }

    impl Holes {
        fn new(pages: usize) -> Self {
            // SAFETY: a mapping without a file, at an address that the kernel chooses; shared
            // ones lie in a tmpfs.
            unsafe { Self::mapped(pages, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1) }
        }

        fn of(file: &File, pages: usize) -> Self {
            // SAFETY: a mapping of a file that is as long, at an address that the kernel chooses.
            unsafe { Self::mapped(pages, libc::MAP_SHARED, file.as_raw_fd()) }
        }

        /// # Safety
        /// That of mmap(2) without an address.
        unsafe fn mapped(pages: usize, flags: libc::c_int, file: libc::c_int) -> Self {
            let bytes = pages * PAGE;
            // SAFETY: the caller's.
            let memory = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    bytes,
                    libc::PROT_READ | libc::PROT_WRITE,
                    flags,
                    file,
                    0,
                )
            };
            assert_ne!(memory, libc::MAP_FAILED);
            Self { memory: memory.cast(), bytes }
        }

        fn address(&self, page: usize) -> u64 {
            self.memory.addr() as u64 + (page * PAGE) as u64
        }

        /// Another thread touches a page.
        fn touch(&self, page: usize) -> std::thread::JoinHandle<u8> {
            let at = self.memory.addr() + page * PAGE;
            std::thread::spawn(move || {
                let at = std::ptr::with_exposed_provenance::<u8>(at);
                // SAFETY: the mapping lives until the test has joined this thread.
                unsafe { at.read_volatile() }
            })
        }

        fn give_back(&self, page: usize) {
            // SAFETY: the page is part of the mapping.
            let at = unsafe { self.memory.add(page * PAGE) };
            // SAFETY: nobody has a reference to what is in it.
            assert_eq!(unsafe { libc::madvise(at.cast(), PAGE, libc::MADV_REMOVE) }, 0);
        }
    }

    impl Drop for Holes {
        fn drop(&mut self) {
            // SAFETY: it was mapped by `new`, and nobody uses it any more.
            unsafe { libc::munmap(self.memory.cast(), self.bytes) };
        }
    }

    fn next(faults: &Faults) -> Vec<MemoryEvent> {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let events = faults.read().unwrap();
            if !events.is_empty() || Instant::now() > end {
                return events;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn watched(pages: usize) -> (Holes, Faults) {
        let (holes, faults) = (Holes::new(pages), Faults::own().unwrap());
        _ = holes.memory.expose_provenance();
        faults.watch(holes.address(0), holes.bytes as u64, Watch::Holes).unwrap();
        (holes, faults)
    }

    impl Holes {
        fn write(&self, page: usize, byte: u8) {
            // SAFETY: the page is part of the mapping.
            let at = unsafe { self.memory.add(page * PAGE) };
            // SAFETY: nobody has a reference to what is in it.
            unsafe { at.write_volatile(byte) };
        }

        fn end(&self) -> u64 {
            self.address(0) + self.bytes as u64
        }
    }

    #[test]
    fn page_that_is_written_to_is_told_once() {
        let (holes, faults) = watched(8);
        faults.watch(holes.address(0), holes.bytes as u64, Watch::HolesAndWrites).unwrap();
        let written = Written::of(std::process::id()).unwrap();
        for page in 0..4 {
            faults.copy(holes.address(page), &[1; PAGE]).unwrap();
        }
        let all = written.since(holes.address(0), holes.end()).unwrap();
        assert!(all.iter().any(|range| range.contains(&holes.address(3))), "{all:x?}");
        assert_eq!(written.since(holes.address(0), holes.end()).unwrap(), []);
        holes.write(1, 9);
        holes.write(2, 9);
        let told = std::slice::from_ref(&(holes.address(1)..holes.address(3))).to_vec();
        assert_eq!(written.since(holes.address(0), holes.end()).unwrap(), told);
        assert_eq!(written.since(holes.address(0), holes.end()).unwrap(), []);
        // one that comes is written, too, and one that was only read is not
        faults.copy(holes.address(6), &[5; PAGE]).unwrap();
        assert_eq!(holes.touch(3).join().unwrap(), 1);
        let told = std::slice::from_ref(&(holes.address(6)..holes.address(7))).to_vec();
        assert_eq!(written.since(holes.address(0), holes.end()).unwrap(), told);
    }

    #[test]
    fn page_that_is_there_waits_too_until_it_may_be_seen() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(2 * PAGE as u64).unwrap();
        let (holes, faults) = (Holes::of(&file, 2), Faults::own().unwrap());
        _ = holes.memory.expose_provenance();
        faults.watch(holes.address(0), holes.bytes as u64, Watch::All).unwrap();
        file.write_all_at(&[4; PAGE], 0).unwrap();
        let waits = holes.touch(0);
        assert_eq!(next(&faults), [MemoryEvent::Fault { address: holes.address(0) }]);
        // what it waits for is not what is there now
        file.write_all_at(&[6; PAGE], 0).unwrap();
        assert!(!waits.is_finished());
        faults.watch(holes.address(0), holes.bytes as u64, Watch::HolesAndWrites).unwrap();
        faults.wake(holes.address(0), holes.bytes as u64).unwrap();
        assert_eq!(waits.join().unwrap(), 6);
        let hole = holes.touch(1);
        assert_eq!(next(&faults), [MemoryEvent::Fault { address: holes.address(1) }]);
        faults.zero(holes.address(1), PAGE as u64).unwrap();
        assert_eq!(hole.join().unwrap(), 0);
    }

    #[test]
    fn who_touches_a_hole_waits_for_what_it_is_filled_with() {
        let (holes, faults) = watched(4);
        assert_eq!(faults.read().unwrap(), []);
        let (first, second) = (holes.touch(1), holes.touch(1));
        let fault = MemoryEvent::Fault { address: holes.address(1) };
        assert!(next(&faults).iter().all(|event| *event == fault));
        assert!(!first.is_finished());
        faults.copy(holes.address(1), &[7; PAGE]).unwrap();
        assert_eq!((first.join().unwrap(), second.join().unwrap()), (7, 7));
        let zero = holes.touch(3);
        let mut told = next(&faults);
        told.retain(|event| *event != fault);
        let told = if told.is_empty() { next(&faults) } else { told };
        assert_eq!(told, [MemoryEvent::Fault { address: holes.address(3) }]);
        faults.zero(holes.address(3), PAGE as u64).unwrap();
        assert_eq!(zero.join().unwrap(), 0);
        // what is there is not written over
        let error = faults.copy(holes.address(1), &[9; PAGE]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!(holes.touch(1).join().unwrap(), 7);
    }

    #[test]
    fn who_is_woken_before_a_hole_is_filled_is_told_again() {
        let (holes, faults) = watched(1);
        let waits = holes.touch(0);
        let fault = [MemoryEvent::Fault { address: holes.address(0) }];
        assert_eq!(next(&faults), fault);
        faults.wake(holes.address(0), PAGE as u64).unwrap();
        assert_eq!(next(&faults), fault);
        faults.copy(holes.address(0), &[3; PAGE]).unwrap();
        assert_eq!(waits.join().unwrap(), 3);
    }

    #[test]
    fn page_that_is_given_back_is_told() {
        let (holes, faults) = watched(2);
        faults.copy(holes.address(1), &[1; PAGE]).unwrap();
        let (start, end) = (holes.address(1), holes.address(2));
        std::thread::scope(|scope| {
            // it waits until that is read
            let memory = holes.memory.expose_provenance();
            let bytes = holes.bytes;
            let giver = scope.spawn(move || {
                let memory = std::ptr::with_exposed_provenance_mut::<u8>(memory);
                let holes = std::mem::ManuallyDrop::new(Holes { memory, bytes });
                holes.give_back(1);
            });
            assert_eq!(next(&faults), [MemoryEvent::Removed { start, end }]);
            giver.join().unwrap();
        });
        let waits = holes.touch(1);
        assert_eq!(next(&faults), [MemoryEvent::Fault { address: start }]);
        faults.zero(start, PAGE as u64).unwrap();
        assert_eq!(waits.join().unwrap(), 0);
    }
}
