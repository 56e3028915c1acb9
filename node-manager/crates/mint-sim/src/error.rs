// SPDX-License-Identifier: Apache-2.0
//! Why a case cannot be simulated.

use mint_layout::{LandingError, PolicyError, TopologyError};

/// What is wrong with a case, or with the constants of its machine.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimError {
    /// The host makes no sense.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A guest finds no place.
    #[error(transparent)]
    Landing(#[from] LandingError),
    /// The policy has no plan.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// No constants make the case what it is to be.
    #[error("no {0} gives what the fitted case is to give")]
    Unreachable(&'static str),
}
