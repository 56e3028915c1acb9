// SPDX-License-Identifier: Apache-2.0
//! How commands fail.

use mint_api::{ClientError, ErrorBody, ErrorCode};
use serde_json::json;

/// A command failed: an error to be told, or a reader of our output that left.
#[derive(Debug)]
pub enum Failure {
    /// To be told.
    Error(Box<ErrorBody>),
    /// Whoever read our output has gone: nobody wants to know.
    OutputClosed,
}

impl Failure {
    /// Usage that clap cannot see.
    pub fn usage(text: impl std::fmt::Display) -> Self {
        Self::Error(Box::new(ErrorBody::new(ErrorCode::BadRequest, text)))
    }

    /// Tells the error and gives the exit status.
    pub fn tell(&self, json: bool) -> u8 {
        match self {
            Self::OutputClosed => 1,
            Self::Error(body) => {
                if json {
                    eprintln!("{}", json!({ "error": body }));
                } else {
                    eprintln!("mintctl: {body}");
                }
                body.exit_status()
            }
        }
    }
}

impl From<ErrorBody> for Failure {
    fn from(body: ErrorBody) -> Self {
        Self::Error(Box::new(body))
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused(body) => Self::Error(body),
            ClientError::Connect { endpoint, source } => {
                let hint = match source.kind() {
                    std::io::ErrorKind::PermissionDenied => "only root may use it: try sudo",
                    _ => {
                        "is mintd running? Start it: systemctl start mintd, or in a node's shell: \
                         mintd &"
                    }
                };
                let text = format!("mintd of this node does not answer on {endpoint} ({hint})");
                let mut body = ErrorBody::new(ErrorCode::MintdDown, text);
                body.causes.push(source.to_string());
                body.into()
            }
            other => ErrorBody::from_error(ErrorCode::Failed, &other).into(),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::OutputClosed;
        }
        ErrorBody::from_error(ErrorCode::Failed, &error).into()
    }
}
