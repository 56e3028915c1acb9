// SPDX-License-Identifier: Apache-2.0
//! What commands begin with, and what they end with.

use mint_api::Client;

use crate::failure::Failure;

/// What a command runs with.
pub struct Context {
    /// This node's daemon.
    pub client: Client,
    /// Whether to print JSON.
    pub json: bool,
}

/// Exit status of the command.
pub type Outcome = Result<u8, Failure>;
