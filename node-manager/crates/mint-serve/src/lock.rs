// SPDX-License-Identifier: Apache-2.0
//! One daemon of a kind on a node.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// A daemon's lock cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The file.
    #[error("cannot use {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Another one runs on this node.
    #[error("another one runs on this node: it holds {}", path.display())]
    Running {
        /// Its lock file.
        path: PathBuf,
    },
}

/// Takes the lock of this node's daemon; the kernel gives it back when we die.
///
/// # Errors
/// When another one has it, or the file cannot be used.
pub fn lock(path: &Path) -> Result<File, LockError> {
    let failed = |source: io::Error| LockError::File { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).open(path).map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(error) if io::Error::from(error).kind() == io::ErrorKind::WouldBlock => {
            Err(LockError::Running { path: path.to_owned() })
        }
        Err(error) => Err(failed(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_daemon_runs_on_a_node() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/guestd.lock");
        let held = lock(&path).unwrap();
        assert!(matches!(lock(&path), Err(LockError::Running { .. })));
        drop(held);
        lock(&path).unwrap();
    }
}
