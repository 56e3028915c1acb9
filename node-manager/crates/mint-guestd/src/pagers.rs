// SPDX-License-Identifier: Apache-2.0
//! What pagers of this node's guests are asked.

use std::io;
use std::path::Path;
use std::time::Duration;

use mint_split::{MemoryMap, MemoryView, PagerAnswer, PagerCall};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// For a pager to say where everything is.
const TOLD_WITHIN: Duration = Duration::from_secs(20);
/// For one to end what it does for a move.
const DONE_WITHIN: Duration = Duration::from_secs(60);

async fn ask<T: DeserializeOwned>(socket: &Path, line: &str) -> io::Result<T> {
    let mut answer = Vec::new();
    let mut pager = UnixStream::connect(socket).await?;
    if !line.is_empty() {
        pager.write_all(line.as_bytes()).await?;
    }
    pager.read_to_end(&mut answer).await?;
    Ok(serde_json::from_slice(&answer)?)
}

/// What a guest's pager says of its pages.
///
/// # Errors
/// When it does not answer.
pub(crate) async fn view(folder: &Path) -> io::Result<MemoryView> {
    let socket = folder.join("pager.sock");
    timeout(TOLD_WITHIN, ask(&socket, "")).await.map_err(io::Error::from)?
}

/// The same, as a picture.
///
/// # Errors
/// When it does not answer; one of an older image has none.
pub(crate) async fn map(folder: &Path) -> io::Result<MemoryMap> {
    let socket = folder.join("map.sock");
    timeout(TOLD_WITHIN, ask(&socket, "")).await.map_err(io::Error::from)?
}

/// The guest is to go, or to stay.
///
/// # Errors
/// When its pager does not answer.
pub(crate) async fn call(folder: &Path, call: &PagerCall) -> io::Result<PagerAnswer> {
    let line = serde_json::to_string(call)? + "\n";
    let socket = folder.join("go.sock");
    timeout(DONE_WITHIN, ask(&socket, &line)).await.map_err(io::Error::from)?
}
