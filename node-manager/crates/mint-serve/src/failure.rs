// SPDX-License-Identifier: Apache-2.0
//! An error as an answer.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mint_api::{ErrorBody, ErrorCode};

/// An error as an answer: its body, with the status that fits its code.
#[derive(Debug)]
pub struct Failure(pub ErrorBody);

impl From<ErrorBody> for Failure {
    fn from(body: ErrorBody) -> Self {
        Self(body)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = match self.0.code {
            _ if self.0.is_absent() => StatusCode::NOT_FOUND,
            ErrorCode::PlanRefused | ErrorCode::Cancelled | ErrorCode::VersionMismatch => {
                StatusCode::CONFLICT
            }
            ErrorCode::NotAllowed => StatusCode::FORBIDDEN,
            ErrorCode::BadRequest | ErrorCode::ConfigBad => StatusCode::BAD_REQUEST,
            ErrorCode::MintdDown | ErrorCode::GuestdDown | ErrorCode::PeerUnreachable => {
                StatusCode::BAD_GATEWAY
            }
            ErrorCode::StartTimeout => StatusCode::GATEWAY_TIMEOUT,
            ErrorCode::NotFound | ErrorCode::ExecFailed | ErrorCode::Failed => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        };
        (status, Json(self.0)).into_response()
    }
}
