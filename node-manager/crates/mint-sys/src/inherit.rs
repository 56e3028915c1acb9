// SPDX-License-Identifier: Apache-2.0
//! Descriptors that a process was started with.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};

static TAKEN: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());

/// Takes a descriptor that the parent has left open for this process, by its number; once. What
/// this process starts does not get it.
///
/// Call it before anything else opens descriptors: the number is then the parent's.
///
/// # Errors
/// When there is none, it is one of the standard ones, was taken before, or is this process's
/// own: those close when another program starts, the parent's do not.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    let bad = || io::Error::from_raw_os_error(libc::EBADF);
    if number <= libc::STDERR_FILENO {
        return Err(bad());
    }
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: it is only asked whether there is one; nothing closes it meanwhile.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    let flags = fcntl_getfd(borrowed)?;
    if flags.contains(FdFlags::CLOEXEC) || !taken.insert(number) {
        return Err(bad());
    }
    fcntl_setfd(borrowed, FdFlags::CLOEXEC)?;
    // SAFETY: it is open, was left open on purpose, and is taken once.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::{AsRawFd, IntoRawFd};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn only_what_was_left_open_is_taken_and_once() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        assert!(inherited(writer.as_raw_fd()).is_err(), "this process's own");
        fcntl_setfd(&writer, FdFlags::empty()).unwrap();
        let number = writer.into_raw_fd();
        let taken = inherited(number).unwrap();
        assert_eq!(fcntl_getfd(&taken).unwrap(), FdFlags::CLOEXEC);
        assert!(inherited(number).is_err(), "once");
        drop(taken);
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        assert!(inherited(0).is_err() && inherited(-1).is_err() && inherited(1 << 20).is_err());
    }
}
