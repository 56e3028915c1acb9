// SPDX-License-Identifier: Apache-2.0
//! A guest's memory servers, its budget or its policy change while it runs: its file is written
//! anew, and its pager reads it.

use std::io;
use std::path::Path;
use std::time::Duration;

use mint_split::SplitGuest;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use crate::memory::write;

/// For a pager, which may be starting, to read its guest's memory servers again.
const READ_WITHIN: Duration = Duration::from_secs(20);
const AGAIN: Duration = Duration::from_millis(200);

/// They have not changed, or not yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unchanged {
    /// They are as before, because of this.
    #[error("{0}")]
    Undone(String),
    /// Its pager has not said that it has read them: it, or its successor, reads them later.
    #[error("its pager reads it later: {0}")]
    Later(io::Error),
}

/// Changes them.
///
/// # Errors
/// When its pager does not say that it has.
pub(crate) async fn change(
    folder: &Path,
    before: &SplitGuest,
    after: &SplitGuest,
) -> Result<(), Unchanged> {
    let unwritten = |error| Unchanged::Undone(format!("its file cannot be written: {error}"));
    write(folder, after).map_err(unwritten)?;
    match reread(folder).await {
        Ok(()) => Ok(()),
        Err(Unread::Refused(why)) => match write(folder, before) {
            Ok(()) => Err(Unchanged::Undone(format!("its pager says: {why}"))),
            Err(error) => Err(Unchanged::Later(error)),
        },
        Err(Unread::Silent(error)) => Err(Unchanged::Later(error)),
    }
}

/// A pager has not read its guest's memory servers.
#[derive(Debug, thiserror::Error)]
enum Unread {
    /// It has, and cannot work with them: it goes on as before.
    #[error("{0}")]
    Refused(String),
    /// Nobody knows.
    #[error("it does not")]
    Silent(#[source] io::Error),
}

/// The guest's pager reads its memory servers again.
async fn reread(folder: &Path) -> Result<(), Unread> {
    let asked = async {
        let mut said = String::new();
        let mut pager = UnixStream::connect(folder.join("again.sock")).await?;
        pager.read_to_string(&mut said).await?;
        Ok::<String, io::Error>(said)
    };
    let asked = async { timeout(READ_WITHIN, asked).await.map_err(io::Error::from)? };
    match asked.await.map_err(Unread::Silent)?.as_str() {
        "done" => Ok(()),
        // it ended before it had said anything
        "" => Err(Unread::Silent(io::ErrorKind::UnexpectedEof.into())),
        why => Err(Unread::Refused(why.to_owned())),
    }
}

/// A guest's pager talks to those that its file names now.
pub(crate) async fn read_again(folder: &Path, guest: &SplitGuest) {
    let end = Instant::now() + READ_WITHIN;
    while let Err(error) = reread(folder).await {
        if Instant::now() >= end {
            // its successor reads the same
            warn!(guest = guest.name, ?error, "its pager does not read its memory servers again");
            return;
        }
        sleep(AGAIN).await;
    }
}

/// Whether a guest's pager has read what its file says now.
pub(crate) async fn has_read(folder: &Path) -> bool {
    reread(folder).await.is_ok()
}
