// SPDX-License-Identifier: Apache-2.0
//! Files that a user names as a node's image. Whatever the path leads to, mintd neither
//! waits for it nor reads more of it than the node could hold.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use mint_types::format_bytes;

/// `open(2)` returns at once, should a FIFO have taken the file's place.
const O_NONBLOCK: i32 = 0o4000;

/// Why a file is not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageFileError {
    /// It cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A device, FIFO, folder…
    #[error("it is not a regular file")]
    NotRegular,
    /// The node's memory cannot hold it.
    #[error(
        "it has {}, and the memory of the node is {}", format_bytes(*bytes), format_bytes(*memory_bytes)
    )]
    TooLarge {
        /// Size of the file, in bytes.
        bytes: u64,
        /// What there is for it.
        memory_bytes: u64,
    },
}

/// Opens a regular file of at most so many bytes.
pub(crate) fn open(path: &Path, memory_bytes: u64) -> Result<(File, Metadata), ImageFileError> {
    // a device may do something when it is opened
    regular(&fs::metadata(path)?)?;
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)?;
    let found = file.metadata()?;
    regular(&found)?;
    if found.len() > memory_bytes {
        return Err(ImageFileError::TooLarge { bytes: found.len(), memory_bytes });
    }
    Ok((file, found))
}

fn regular(found: &Metadata) -> Result<(), ImageFileError> {
    if found.is_file() { Ok(()) } else { Err(ImageFileError::NotRegular) }
}

/// A file with its content: another one, or a change, gives another value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileId {
    pub fn of(found: &Metadata) -> Self {
        Self {
            device: found.dev(),
            inode: found.ino(),
            bytes: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_that_fit_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        fs::write(&path, [0; 100]).unwrap();
        assert!(open(&path, 100).is_ok());
        assert!(matches!(open(&path, 99), Err(ImageFileError::TooLarge { bytes: 100, .. })));
        let fifo = folder.path().join("fifo");
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        for other in [&fifo, Path::new("/dev/zero"), folder.path()] {
            assert!(matches!(open(other, u64::MAX), Err(ImageFileError::NotRegular)), "{other:?}");
        }
        assert!(matches!(open(&folder.path().join("x"), 100), Err(ImageFileError::Io(_))));
    }
}
