// SPDX-License-Identifier: Apache-2.0
//! Answers that grow: lines of JSON in a body that is sent as it comes.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::Frame;
use mint_api::{ErrorBody, Line};
use serde::Serialize;
use tokio::sync::mpsc;

/// Where lines go. Sending never blocks; a client that is gone is no error.
#[derive(Clone)]
pub(crate) struct Lines(mpsc::UnboundedSender<Bytes>);

impl Lines {
    /// Sends any value as a line; false when nobody listens any more.
    pub fn send(&self, value: &impl Serialize) -> bool {
        let mut text = serde_json::to_vec(value).expect("replies are plain data");
        text.push(b'\n');
        self.0.send(text.into()).is_ok()
    }

    /// Says what is being done.
    pub fn progress(&self, text: impl Into<String>) {
        self.send(&Line::Progress(text.into()));
    }
}

struct LinesBody(mpsc::UnboundedReceiver<Bytes>);

impl hyper::body::Body for LinesBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|next| next.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// An answer whose lines are written by a task of its own: what was begun goes
/// on when the client hangs up.
pub(crate) fn respond<F>(work: impl FnOnce(Lines) -> F) -> Response
where
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(work(Lines(sender)));
    let mut response = Response::new(Body::new(LinesBody(receiver)));
    let kind = axum::http::HeaderValue::from_static("application/x-ndjson");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// An operation's answer: progress, then its result or error.
pub(crate) fn operation<T, F>(work: impl FnOnce(Lines) -> F) -> Response
where
    T: Serialize,
    F: Future<Output = Result<T, ErrorBody>> + Send + 'static,
{
    respond(move |lines| {
        let work = work(lines.clone());
        async move {
            lines.send(&match work.await {
                Ok(value) => {
                    Line::Result(serde_json::to_value(value).expect("replies are plain data"))
                }
                Err(error) => {
                    tracing::info!(code = ?error.code, causes = ?error.causes, "{}", error.message);
                    Line::Error(error)
                }
            });
        }
    })
}
