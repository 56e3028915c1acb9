// SPDX-License-Identifier: Apache-2.0
//! How a command ends when it does not do what it was asked for.

use std::fmt;
use std::process::ExitCode;

/// Why a command did not do what it was asked for; each kind has an exit code.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// It was tried and did not work: exit code 1.
    Failed(String),
    /// The command line, or a file that it names, is not what it must be: exit code 2.
    Usage(String),
    /// The node has not got what was asked for: exit code 3. Nothing was changed.
    Refused(String),
}

impl Failure {
    /// 1 failed, 2 usage, 3 refused.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::Refused(_) => 3,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(text) | Self::Usage(text) => f.write_str(text),
            Self::Refused(text) => write!(f, "refused: {text}"),
        }
    }
}

impl std::error::Error for Failure {}
