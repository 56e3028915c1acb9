// SPDX-License-Identifier: Apache-2.0
//! The memory of a node that ended, as a stream: mint-kvm 2.2, independent end of
//! nodes. Any node's daemon can give it, because the memory stays where it was.

use std::fs::File;
use std::io::{self, Read};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use mint_api::{ErrorBody, ErrorCode};
use mint_sys::errno_name;
use mint_types::{NodeStatus, Refusal, RefusalCode};
use tokio::sync::mpsc;

use crate::app::App;

/// What one read asks for, and how many of them may wait for the client.
const CHUNK_BYTES: usize = 256 << 10;
const CHUNKS_WAITING: usize = 8;

/// Why there is nothing to dump, by what the kernel says.
fn refused(node: &NodeStatus, errno: i32) -> Option<Refusal> {
    let label = node.label();
    let name = node.display_name();
    let refuse = |code, why: &str, hint: String| {
        Some(Refusal::new(code, &label, format_args!("{label} {why}")).hint(hint))
    };
    match errno_name(errno).as_str() {
        "EBUSY" => refuse(
            RefusalCode::NodeRunning,
            "runs: only the memory of a node that ended can be dumped",
            format!("end it, and keep its memory as it is: mintctl node kill {name}"),
        ),
        "EAGAIN" => refuse(
            RefusalCode::NodeRunning,
            "has cores that are not parked yet",
            format!("try again, or force them: mintctl node kill {name}"),
        ),
        "ENODATA" => refuse(
            RefusalCode::NodeNotRunning,
            "has no dead kernel in its memory: none has run there since it was made or loaded",
            String::new(),
        ),
        _ => None,
    }
}

/// The answer: the file's bytes, as they are read.
///
/// # Errors
/// Refused when the node runs or nothing has run; failed when the call fails.
pub(crate) async fn respond(app: Arc<App>, node: NodeStatus) -> Result<Response, ErrorBody> {
    let id = node.id;
    let opened = tokio::task::spawn_blocking(move || app.machine.vmcore(id))
        .await
        .map_err(|error| ErrorBody::from_error(ErrorCode::Failed, &error))?;
    let (file, bytes) =
        opened.map_err(|error| match error.errno().and_then(|errno| refused(&node, errno)) {
            Some(refusal) => ErrorBody::refused(vec![refusal]),
            None => ErrorBody::from_error(ErrorCode::Failed, &error),
        })?;
    Ok(stream(file, bytes))
}

/// An answer that is a file's bytes, as they are read.
pub(crate) fn stream(file: File, bytes: u64) -> Response {
    let (sender, receiver) = mpsc::channel(CHUNKS_WAITING);
    tokio::task::spawn_blocking(move || pump(file, &sender));
    let mut response = Response::new(Body::new(Stream { receiver, left: bytes }));
    let kind = HeaderValue::from_static("application/octet-stream");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Reads until the end, an error, or until the client has gone.
fn pump(mut file: File, to: &mpsc::Sender<io::Result<Bytes>>) {
    loop {
        let mut chunk = vec![0; CHUNK_BYTES];
        let piece = match file.read(&mut chunk) {
            Ok(0) => return,
            Ok(count) => {
                chunk.truncate(count);
                Ok(Bytes::from(chunk))
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                tracing::warn!(%error, "a stream ends before its end");
                Err(error)
            }
        };
        let failed = piece.is_err();
        if to.blocking_send(piece).is_err() || failed {
            return;
        }
    }
}

/// A body of known length: one that ends early is seen as broken.
struct Stream {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    left: u64,
}

impl hyper::body::Body for Stream {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.receiver.poll_recv(context).map(|next| {
            next.map(|piece| {
                piece.map(|bytes| {
                    self.left = self.left.saturating_sub(bytes.len() as u64);
                    Frame::data(bytes)
                })
            })
        })
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
