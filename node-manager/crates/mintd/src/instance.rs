// SPDX-License-Identifier: Apache-2.0
//! One daemon on a node: two would settle each other's operations. The kernel gives a
//! lock back when its holder dies, however it dies (flock(2)).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use tokio::time::Instant;
use tracing::debug;

use crate::run_error::{RunError, file_error};

/// A daemon that was killed in a call to the kernel holds its lock until that call ends.
const DYING_WITHIN: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(100);

fn path(root: &Path) -> PathBuf {
    root.join("run/mint/mintd.lock")
}

/// Takes the lock of this node's daemon. It is held until the file is closed.
///
/// # Errors
/// [`RunError::Running`] when another one holds it.
pub(crate) fn lock(root: &Path) -> Result<File, RunError> {
    let path = path(root);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(file_error(folder))?;
    }
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(file_error(&path))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(error) if io::Error::from(error).kind() == io::ErrorKind::WouldBlock => {
            Err(RunError::Running { path })
        }
        Err(error) => Err(file_error(&path)(error.into())),
    }
}

/// Waits for a daemon that does not serve its socket any more: it is on its way out.
///
/// # Errors
/// [`RunError::Running`] when one serves the socket, or does not come to its end.
pub(crate) async fn await_end_of_another(root: &Path, socket: &Path) -> Result<(), RunError> {
    let deadline = Instant::now() + DYING_WITHIN;
    loop {
        match lock(root).map(drop) {
            Err(RunError::Running { path }) => {
                if UnixStream::connect(socket).is_ok() || Instant::now() >= deadline {
                    return Err(RunError::Running { path });
                }
                debug!("waiting for the end of another mintd");
                tokio::time::sleep(POLL).await;
            }
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_has_one_holder_and_ends_with_it() {
        let root = tempfile::tempdir().unwrap();
        let held = lock(root.path()).unwrap();
        assert!(matches!(lock(root.path()), Err(RunError::Running { .. })));
        drop(held);
        lock(root.path()).unwrap();
    }

    #[test]
    fn daemon_that_is_dying_is_waited_for_and_one_that_serves_is_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let root = tempfile::tempdir().unwrap();
        let socket = root.path().join("socket");
        let held = lock(root.path()).unwrap();
        runtime.block_on(async {
            let ends = tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(300)).await;
                drop(held);
            });
            await_end_of_another(root.path(), &socket).await.unwrap();
            ends.await.unwrap();
            let _held = lock(root.path()).unwrap();
            let _serves = std::os::unix::net::UnixListener::bind(&socket).unwrap();
            let refused = await_end_of_another(root.path(), &socket).await;
            assert!(matches!(refused, Err(RunError::Running { .. })));
        });
    }
}
