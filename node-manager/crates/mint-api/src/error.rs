// SPDX-License-Identifier: Apache-2.0
//! Errors on the wire: a stable code, a sentence, and what led to it.

use std::error::Error;
use std::fmt;

use mint_types::{Refusal, RefusalCode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Stable code of an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// Validation said no; nothing was changed. `refusals` tells why.
    PlanRefused,
    /// The request makes no sense.
    BadRequest,
    /// A configuration file is no good; nothing was done.
    ConfigBad,
    /// There is no such path or node.
    NotFound,
    /// The daemon of this node does not answer.
    MintdDown,
    /// The daemon for guests of this node, or its libvirt, does not answer.
    GuestdDown,
    /// The daemon of another node does not answer.
    PeerUnreachable,
    /// The node was started, but did not answer in time.
    StartTimeout,
    /// Somebody cancelled the operation; what it had done was taken back.
    Cancelled,
    /// The command could not be run.
    ExecFailed,
    /// Whoever asked may not ask for that, or this node does not do it for anybody.
    NotAllowed,
    /// Two daemons have no version of the interface in common.
    VersionMismatch,
    /// Something went wrong while it was done. Codes of newer daemons are read as this.
    #[serde(other)]
    Failed,
}

/// An error, as answers hold it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What scripts compare.
    pub code: ErrorCode,
    /// What people read.
    pub message: String,
    /// Each reason of a refusal; of a change that failed and was taken back, what the
    /// owners of its resources said.
    #[serde(default)]
    pub refusals: Vec<Refusal>,
    /// What led to it, nearest first.
    #[serde(default)]
    pub causes: Vec<String>,
}

impl ErrorBody {
    /// An error without causes.
    pub fn new(code: ErrorCode, message: impl fmt::Display) -> Self {
        Self { code, message: message.to_string(), refusals: Vec::new(), causes: Vec::new() }
    }

    /// With what to do about it, as the last line of the message.
    #[must_use]
    pub fn hint(mut self, hint: impl fmt::Display) -> Self {
        self.message.push_str(&format!("\n  {hint}"));
        self
    }

    /// Any error with its chain of causes.
    pub fn from_error(code: ErrorCode, error: &dyn Error) -> Self {
        let mut body = Self::new(code, error);
        let mut next = error.source();
        while let Some(cause) = next {
            body.causes.push(cause.to_string());
            next = cause.source();
        }
        body
    }

    /// A refusal.
    pub fn refused(refusals: Vec<Refusal>) -> Self {
        let message = match refusals.as_slice() {
            [one] => format!("refused: {}", one.message),
            many => format!("refused for {} reasons; nothing was changed", many.len()),
        };
        Self { code: ErrorCode::PlanRefused, message, refusals, causes: Vec::new() }
    }

    /// Whether it is about something that is not there.
    pub fn is_absent(&self) -> bool {
        let absent = |refusal: &Refusal| {
            matches!(refusal.code, RefusalCode::NodeAbsent | RefusalCode::VmAbsent)
        };
        self.code == ErrorCode::NotFound
            || (!self.refusals.is_empty() && self.refusals.iter().all(absent))
    }

    /// Exit status of a command that ends with this error.
    pub fn exit_status(&self) -> u8 {
        match self.code {
            ErrorCode::PlanRefused | ErrorCode::NotAllowed => 3,
            ErrorCode::BadRequest | ErrorCode::ConfigBad => 2,
            _ => 1,
        }
    }
}

impl fmt::Display for ErrorBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        // of a change that failed, the refusals tell what led to it, and more
        if self.refusals.is_empty() || self.code == ErrorCode::PlanRefused {
            for cause in &self.causes {
                write!(f, ": {cause}")?;
            }
        }
        let only = match self.refusals.as_slice() {
            [one] if self.code == ErrorCode::PlanRefused => Some(one),
            _ => None,
        };
        if let Some(one) = only {
            // the message is its own
            if !one.hint.is_empty() {
                write!(f, "\n  {}", one.hint)?;
            }
        } else {
            for refusal in &self.refusals {
                write!(f, "\n- {}", refusal.message)?;
                if !refusal.hint.is_empty() {
                    write!(f, "\n  {}", refusal.hint)?;
                }
            }
        }
        Ok(())
    }
}

impl Error for ErrorBody {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_is_kept_and_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Link(&'static str, #[source] Option<Box<Link>>);
        let disk = Link("disk on fire", None);
        let file = Link("cannot write journal", Some(Box::new(disk)));
        let body = ErrorBody::from_error(ErrorCode::Failed, &Link("add", Some(Box::new(file))));
        assert_eq!(body.causes, ["cannot write journal", "disk on fire"]);
        assert_eq!(body.to_string(), "add: cannot write journal: disk on fire");
    }

    #[test]
    fn codes_of_newer_daemons_are_failures() {
        let newer = r#"{"code": "out_of_luck", "message": "no"}"#;
        let body: ErrorBody = serde_json::from_str(newer).unwrap();
        assert_eq!((body.code, body.exit_status()), (ErrorCode::Failed, 1));
        assert_eq!(serde_json::to_value(ErrorCode::NotAllowed).unwrap(), "not_allowed");
    }

    #[test]
    fn change_that_failed_tells_each_resource_that_stayed() {
        let stays = |block: u32| {
            let text = format!("memory {block} cannot be released");
            Refusal::new(RefusalCode::MemoryBusy, format_args!("memory {block}"), text)
                .hint("choose another one")
        };
        let mut failed = ErrorBody::new(ErrorCode::Failed, "could not release memory 7");
        failed.causes.push("node 1 refused: memory 7 cannot be released".into());
        let body = ErrorBody { refusals: vec![stays(7)], ..failed.clone() };
        assert_eq!(body.exit_status(), 1);
        assert_eq!(
            body.to_string(),
            "could not release memory 7\n- memory 7 cannot be released\n  choose another one"
        );
        let body = ErrorBody { refusals: vec![stays(8), stays(7)], ..failed };
        assert_eq!(body.to_string().matches("\n- memory").count(), 2);
    }

    #[test]
    fn refusal_tells_resource_owner_and_way_out() {
        let refusal = Refusal::new(RefusalCode::CpuOwned, "cpu 4", "cpu 4 is owned by node 1")
            .owned_by("node 1")
            .hint("choose another one");
        let body = ErrorBody::refused(vec![refusal]);
        assert_eq!(body.exit_status(), 3);
        assert_eq!(body.to_string(), "refused: cpu 4 is owned by node 1\n  choose another one");
        let json = serde_json::to_value(&body).unwrap();
        assert_eq!(json["code"], "plan_refused");
        assert_eq!(json["refusals"][0]["code"], "cpu_owned");
        assert_eq!(json["refusals"][0]["owner"], "node 1");
    }
}
