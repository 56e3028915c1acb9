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
use serde::Serialize;
use tokio::sync::mpsc;

/// So many lines wait for a client that does not read.
const LINES_WAITING: usize = 256;

/// Where lines go. A client that is gone is no error.
#[derive(Clone, Debug)]
pub struct Lines(mpsc::Sender<Bytes>);

fn line(value: &impl Serialize) -> Bytes {
    let mut text = serde_json::to_vec(value).expect("replies are plain data");
    text.push(b'\n');
    text.into()
}

impl Lines {
    /// Sends any value as a line, when there is room for it; false when nobody listens any
    /// more.
    pub async fn send(&self, value: &impl Serialize) -> bool {
        self.0.send(line(value)).await.is_ok()
    }
}

struct LinesBody(mpsc::Receiver<Bytes>);

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
pub fn respond<F>(work: impl FnOnce(Lines) -> F) -> Response
where
    F: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(LINES_WAITING);
    tokio::spawn(work(Lines(sender)));
    let mut response = Response::new(Body::new(LinesBody(receiver)));
    let kind = axum::http::HeaderValue::from_static("application/x-ndjson");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::BodyExt;

    use super::*;

    const MANY: usize = 10_000;

    fn test(work: impl AsyncFnOnce()) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work());
    }

    /// Until all tasks wait for us.
    async fn settle() {
        for _ in 0..10 * MANY {
            tokio::task::yield_now().await;
        }
    }

    async fn all(response: Response) -> Vec<String> {
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        std::str::from_utf8(&bytes).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn client_that_does_not_read_holds_its_lines_up() {
        test(async || {
            let sent = Arc::new(AtomicUsize::new(0));
            let counted = sent.clone();
            let response = respond(|lines| async move {
                for number in 0..MANY {
                    lines.send(&number).await;
                    counted.store(number + 1, Ordering::Relaxed);
                }
            });
            settle().await;
            assert_eq!(sent.load(Ordering::Relaxed), LINES_WAITING);
            let numbers: Vec<String> = (0..MANY).map(|number| number.to_string()).collect();
            assert!(all(response).await == numbers, "and none is lost");
        });
    }
}
