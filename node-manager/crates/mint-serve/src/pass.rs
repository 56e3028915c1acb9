// SPDX-License-Identifier: Apache-2.0
//! Answers of another daemon, passed on as they come.

use axum::body::Body;
use axum::http::HeaderName;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use hyper::body::Incoming;
use mint_api::OPERATION_HEADER;

/// Another daemon's answer as ours: status, kind, operation, and the body piece by piece.
pub fn pass_on(answer: hyper::Response<Incoming>) -> Response {
    let (head, body) = answer.into_parts();
    let mut response = Response::new(Body::new(body));
    *response.status_mut() = head.status;
    for name in [CONTENT_TYPE, HeaderName::from_static(OPERATION_HEADER)] {
        if let Some(value) = head.headers.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    response
}
