// SPDX-License-Identifier: Apache-2.0
//! Memory that outlives a process: a file of a tmpfs, mapped.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

mod sealed {
    pub trait Sealed {}
    impl Sealed for u8 {}
    impl Sealed for u16 {}
    impl Sealed for u32 {}
}

/// What any bytes are a value of.
pub trait Plain: sealed::Sealed + Copy {}
impl Plain for u8 {}
impl Plain for u16 {}
impl Plain for u32 {}

/// The words that a file holds, for as long as this process lives: what is written to them is in
/// the file at once, and its successor finds it. The file is made if it is not there, gets the
/// length that it takes, and is locked, so that one process has it, and that once.
///
/// # Errors
/// `WouldBlock` when somebody has it; or when it cannot be mapped.
pub fn shared_words<T: Plain>(path: &Path, count: usize) -> io::Result<&'static mut [T]> {
    let bytes = count
        .checked_mul(size_of::<T>())
        .filter(|&bytes| bytes > 0)
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut how = OpenOptions::new();
    let file = how.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    file.set_len(bytes as u64)?;
    // SAFETY: a new mapping, at an address that the kernel chooses, of a file that is as long.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // it keeps its lock
    std::mem::forget(file);
    // SAFETY: the mapping is of `count` values, aligned to a page, and never ended; any bytes
    // are a value. Who has the lock alone writes to the file: this one call, as each opens the
    // file anew, and a lock is of what was opened.
    Ok(unsafe { std::slice::from_raw_parts_mut(at.cast::<T>(), count) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_in_the_file_and_nobody_else_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("words");
        let words = shared_words::<u32>(&path, 3).unwrap();
        assert_eq!(words, [0, 0, 0]);
        words[2] = 0x0403_0201;
        assert_eq!(std::fs::read(&path).unwrap(), [0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]);
        let error = shared_words::<u32>(&path, 3).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(shared_words::<u16>(&folder.path().join("other"), 0).is_err());
    }
}
