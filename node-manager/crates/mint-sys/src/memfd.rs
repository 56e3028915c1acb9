// SPDX-License-Identifier: Apache-2.0
//! Files that exist in memory only.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// A file with these parts in sequence, open for reading only and with no name
/// in any file system: an initrd with a node's private key has to leave no
/// trace on a disk.
///
/// # Errors
/// When memory or `/proc` is missing.
pub fn sealed_file(parts: &[&[u8]]) -> io::Result<File> {
    let mut parts: Vec<&[u8]> = parts.to_vec();
    let mut readers: Vec<&mut dyn Read> = Vec::new();
    for part in &mut parts {
        readers.push(part);
    }
    sealed_copy(&mut readers)
}

/// The same, of parts that are read to their ends.
///
/// # Errors
/// When a part cannot be read, memory or `/proc` is missing.
pub fn sealed_copy(parts: &mut [&mut dyn Read]) -> io::Result<File> {
    // SAFETY: the name is a NUL-terminated constant.
    let fd = unsafe { libc::memfd_create(c"mint-initrd".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just returned by the kernel and nobody else has it.
    let mut file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    for part in parts {
        io::copy(part, &mut file)?;
    }
    // The kernel refuses to load from a file that somebody could write to.
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn parts_follow_each_other_and_cannot_be_written() {
        let mut file = sealed_file(&[b"one", b"two"]).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "onetwo");
        assert!(file.write_all(b"x").is_err());
    }
}
