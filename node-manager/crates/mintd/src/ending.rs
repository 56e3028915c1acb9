// SPDX-License-Identifier: Apache-2.0
//! How operations end: on the wire, and in their entries.

use mint_api::{ErrorBody, ErrorCode};
use mint_node::{ApplyError, OpError};
use mint_ops::{End, Entry, JournalError, NoRoom, Op};
use mint_types::{Refusal, RefusalCode};
use serde::Serialize;
use serde_json::Value;
use tracing::{info, warn};

/// An operation's error on the wire.
pub(crate) fn op_error(error: OpError) -> ErrorBody {
    if error.is_cancelled() {
        return ErrorBody::from_error(ErrorCode::Cancelled, &error);
    }
    match error {
        OpError::Journal(ref journal) | OpError::Apply(ApplyError::Journal(ref journal))
            if journal.no_room().is_some() =>
        {
            journal_error(journal)
        }
        OpError::Refused(refusals) => ErrorBody::refused(refusals),
        OpError::Apply(ApplyError::Step { ref refusals, .. }) => {
            let refusals = refusals.clone();
            ErrorBody { refusals, ..ErrorBody::from_error(ErrorCode::Failed, &error) }
        }
        other => ErrorBody::from_error(ErrorCode::Failed, &other),
    }
}

/// The journal's error on the wire: without room for its intent an operation has not begun.
pub(crate) fn journal_error(error: &JournalError) -> ErrorBody {
    let Some(why) = error.no_room() else {
        return ErrorBody::from_error(ErrorCode::Failed, error);
    };
    let hint = match why {
        NoRoom::TooLong { .. } => "do it in several requests, with fewer resources in each",
        NoRoom::Full { .. } => "wait for one: mintctl operation list",
    };
    let refusal = Refusal::new(RefusalCode::IntentRoom, "control area", why);
    ErrorBody::refused(vec![refusal.hint(hint)])
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
