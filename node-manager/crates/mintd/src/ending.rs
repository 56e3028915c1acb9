// SPDX-License-Identifier: Apache-2.0
//! How operations end: on the wire, and in their entries.

use mint_api::{ErrorBody, ErrorCode};
use mint_node::{ApplyError, OpError};
use mint_ops::{End, Entry, Op};
use serde::Serialize;
use serde_json::Value;
use tracing::{info, warn};

/// An operation's error on the wire.
pub(crate) fn op_error(error: OpError) -> ErrorBody {
    if error.is_cancelled() {
        return ErrorBody::from_error(ErrorCode::Cancelled, &error);
    }
    match error {
        OpError::Refused(refusals) => ErrorBody::refused(refusals),
        OpError::Apply(ApplyError::Step { ref refusals, .. }) => {
            let refusals = refusals.clone();
            ErrorBody { refusals, ..ErrorBody::from_error(ErrorCode::Failed, &error) }
        }
        other => ErrorBody::from_error(ErrorCode::Failed, &other),
    }
}

/// Plain data as JSON.
pub(crate) fn value(data: &impl Serialize) -> Value {
    serde_json::to_value(data).expect("replies are plain data")
}

/// Writes down how an operation ended.
pub(crate) fn finish<T: Serialize>(op: &Op, result: &Result<T, ErrorBody>) {
    let end = match result {
        Ok(result) => End::Done(value(result)),
        Err(error) => {
            info!(operation = %op.id(), code = ?error.code, causes = ?error.causes, "{}",
                error.message);
            let why = value(error);
            match error.code {
                ErrorCode::Cancelled => End::Cancelled(why),
                ErrorCode::PlanRefused
                | ErrorCode::BadRequest
                | ErrorCode::ConfigBad
                | ErrorCode::NotFound => End::Refused(why),
                _ => End::Failed(why),
            }
        }
    };
    end_with(op, end);
}

/// Writes down that end.
pub(crate) fn end_with(op: &Op, end: End) {
    if let Err(error) = op.finish(end) {
        warn!(operation = %op.id(), %error, "how it ended is not kept");
    }
}

/// Why an operation was not carried out; none if it was.
pub(crate) fn error_of(entry: &Entry) -> Option<ErrorBody> {
    let error = entry.error.clone()?;
    let unknown = |error| ErrorBody::from_error(ErrorCode::Failed, &error);
    Some(serde_json::from_value(error).unwrap_or_else(unknown))
}
