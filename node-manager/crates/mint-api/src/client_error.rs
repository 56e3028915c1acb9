// SPDX-License-Identifier: Apache-2.0
//! Why a request had no good answer.

use std::io;

use crate::error::ErrorBody;

/// A request had no good answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no connection.
    #[error("cannot connect to {endpoint}")]
    Connect {
        /// Where to.
        endpoint: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The connection broke, or what came is not HTTP.
    #[error("the connection to {endpoint} broke")]
    Broken {
        /// Where to.
        endpoint: String,
        /// What HTTP or the connection said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The answer is not what it should be.
    #[error("{endpoint} answered what this program does not understand")]
    Answer {
        /// The daemon's socket or address.
        endpoint: String,
        /// What is wrong with the answer.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The daemon says that it did not work.
    #[error("{0}")]
    Refused(Box<ErrorBody>),
}
