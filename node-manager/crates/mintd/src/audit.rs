// SPDX-License-Identifier: Apache-2.0
//! Who asked this daemon for what, when, and what came of it: `audit.jsonl` in the
//! state folder, one line of JSON a request. What only reads is left out. Bounded: a
//! file that is full becomes `audit.jsonl.1`, and the one of that name goes.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::Body;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use mint_api::{ErrorBody, ErrorCode, Line};
use serde::Serialize;
use tracing::warn;

use crate::caller::Caller;
use crate::events::now_ns;

/// A file is not longer; there are two.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Of a path, so many bytes are kept.
const PATH_BYTES_MAX: usize = 256;

/// A line of the file.
#[derive(Serialize)]
struct Record<'a> {
    /// When it was asked for, ns since 1970.
    time_ns: u64,
    caller: &'a Caller,
    method: &'a str,
    path: &'a str,
    /// HTTP status of the answer.
    status: u16,
    /// `done`, an error's code, or `left`: the caller went before the answer was whole.
    result: Outcome,
    /// How long it took until then.
    took_ms: u64,
}

#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(untagged)]
enum Outcome {
    Word(&'static str),
    Error(ErrorCode),
}

#[derive(Debug)]
struct Open {
    path: PathBuf,
    file: File,
    bytes: u64,
}

/// The log. Without a file nothing is written.
#[derive(Clone, Debug)]
pub(crate) struct AuditLog(Option<Arc<Mutex<Open>>>);

fn open(path: &Path) -> io::Result<Open> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let bytes = file.metadata()?.len();
    Ok(Open { path: path.to_owned(), file, bytes })
}

impl Open {
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        if self.bytes > 0 && self.bytes + line.len() as u64 > FILE_BYTES_MAX {
            let mut old = self.path.as_os_str().to_owned();
            old.push(".1");
            std::fs::rename(&self.path, &old)?;
            *self = open(&self.path)?;
        }
        self.file.write_all(line)?;
        self.bytes += line.len() as u64;
        Ok(())
    }
}

impl AuditLog {
    /// Goes on with the file in that folder.
    pub fn open(folder: &Path) -> Self {
        let path = folder.join("audit.jsonl");
        let opened = open(&path)
            .map_err(|error| warn!(path = %path.display(), %error, "nothing is audited"));
        Self(opened.ok().map(|open| Arc::new(Mutex::new(open))))
    }

    fn write(&self, record: &Record<'_>) {
        let Some(open) = &self.0 else { return };
        let mut line = serde_json::to_vec(record).expect("records are plain data");
        line.push(b'\n');
        let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = open.write(&line) {
            warn!(%error, path = record.path, "request not audited");
        }
    }

    /// A request that is to be written down when it is answered.
    pub fn begin(&self, caller: &Caller, method: &Method, path: &str) -> Asked {
        let mut path = path.to_owned();
        let end = (0..=PATH_BYTES_MAX.min(path.len())).rev().find(|&at| path.is_char_boundary(at));
        path.truncate(end.unwrap_or(0));
        Asked {
            log: self.clone(),
            time_ns: now_ns(),
            began: Instant::now(),
            caller: caller.clone(),
            method: method.clone(),
            path,
            status: StatusCode::OK,
            outcome: None,
        }
    }
}

/// A request on its way to its answer. Written when it is dropped.
pub(crate) struct Asked {
    log: AuditLog,
    time_ns: u64,
    began: Instant,
    caller: Caller,
    method: Method,
    path: String,
    status: StatusCode,
    outcome: Option<Outcome>,
}

impl Asked {
    /// Follows the answer to its end: of an operation, that tells how it went.
    pub fn answered(mut self, response: Response) -> Response {
        self.status = response.status();
        if self.status == StatusCode::SWITCHING_PROTOCOLS {
            self.outcome = Some(Outcome::Word("done"));
            return response;
        }
        let (head, body) = response.into_parts();
        Response::from_parts(head, Body::new(Followed { body, asked: self }))
    }

    /// What a piece of the answer says.
    fn seen(&mut self, piece: &[u8]) {
        if !self.status.is_success() {
            if let Ok(body) = serde_json::from_slice::<ErrorBody>(piece) {
                self.outcome = Some(Outcome::Error(body.code));
            }
        } else if piece.starts_with(b"{\"error\":") {
            // an operation's lines are sent one by one
            if let Ok(Line::Error(body)) = serde_json::from_slice(piece) {
                self.outcome = Some(Outcome::Error(body.code));
            }
        }
    }

    fn ended(&mut self) {
        self.outcome.get_or_insert(match self.status.is_success() {
            true => Outcome::Word("done"),
            false => Outcome::Error(ErrorCode::Failed),
        });
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.log.write(&Record {
            time_ns: self.time_ns,
            caller: &self.caller,
            method: self.method.as_str(),
            path: &self.path,
            status: self.status.as_u16(),
            result: self.outcome.unwrap_or(Outcome::Word("left")),
            took_ms: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
        });
    }
}

struct Followed {
    body: Body,
    asked: Asked,
}

impl hyper::body::Body for Followed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let next = Pin::new(&mut self.body).poll_frame(context);
        match &next {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.asked.seen(data);
                }
                // a body of known length is not polled once more
                if self.body.is_end_stream() {
                    self.asked.ended();
                }
            }
            Poll::Ready(None) => self.asked.ended(),
            _ => {}
        }
        next
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_is_bounded_private_and_goes_on() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let caller = Caller::User { uid: 0, pid: Some(7) };
        let lines = |path: &Path| std::fs::read_to_string(path).unwrap().lines().count();
        let log = AuditLog::open(folder.path());
        drop(log.begin(&caller, &Method::POST, "/v1/nodes"));
        drop(AuditLog::open(folder.path()).begin(&caller, &Method::POST, "/v1/nodes"));
        assert_eq!(lines(&path), 2);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let long = format!("/{}", "ä".repeat(10_000));
        let log = AuditLog::open(folder.path());
        let mut written = 2;
        while !folder.path().join("audit.jsonl.1").exists() {
            drop(log.begin(&caller, &Method::POST, &long));
            written += 1;
            assert!(written < 100_000);
        }
        let old = folder.path().join("audit.jsonl.1");
        assert_eq!((lines(&old), lines(&path)), (written - 1, 1));
        assert!(std::fs::metadata(&old).unwrap().len() <= FILE_BYTES_MAX);
        let text = std::fs::read_to_string(&path).unwrap();
        let record: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(record["caller"]["user"]["uid"], 0);
        assert_eq!((&record["result"], &record["method"]), (&"left".into(), &"POST".into()));
    }
}
