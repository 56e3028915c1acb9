// SPDX-License-Identifier: Apache-2.0
//! Connections that become streams of frames ([`mint_api::frame`]) by an HTTP upgrade.

use axum::extract::Request;
use axum::http::header::{CONNECTION, UPGRADE as UPGRADE_HEADER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use mint_api::{ErrorBody, ErrorCode, UPGRADE};
use tracing::debug;

use crate::failure::Failure;

/// Answers 101 and goes on with the connection in a task of its own.
///
/// # Errors
/// When the request does not ask for frames.
pub fn upgraded<F>(
    mut request: Request,
    work: impl FnOnce(TokioIo<Upgraded>) -> F + Send + 'static,
) -> Result<Response, Failure>
where
    F: Future<Output = ()> + Send,
{
    let asked = request.headers().get(UPGRADE_HEADER).map(HeaderValue::as_bytes);
    if asked != Some(UPGRADE.as_bytes()) {
        let text = format!("this path is for connections that are upgraded to {UPGRADE}");
        return Err(Failure(ErrorBody::new(ErrorCode::BadRequest, text)));
    }
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match upgrade.await {
            Ok(io) => work(TokioIo::new(io)).await,
            Err(error) => debug!(%error, "no upgrade"),
        }
    });
    let mut response = StatusCode::SWITCHING_PROTOCOLS.into_response();
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE_HEADER, HeaderValue::from_static(UPGRADE));
    Ok(response)
}
