// SPDX-License-Identifier: Apache-2.0
//! Nodes as plans: validate the whole, describe it, journal, apply, roll back.
//!
//! ```text
//!   NodeSpec --planner--> Plan --apply--> ledger
//!                |           |   operation: begin, commit (mint-ops)
//!            refusals        undo of the done steps, last first
//! ```
//! Nothing here knows of sockets or tasks: [`Nodes`] is shared by the threads that carry
//! out operations, each of which holds what it changes.

mod boot;
pub mod config;
pub mod doctor;
mod facts;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod files;
mod for_peers;
mod lifecycle;
pub mod machine;
mod nodes;
mod outcome;
pub mod peers;
mod settle;
pub mod specs;
mod steps;
mod takeover;
mod turn;

pub use config::Config;
pub use doctor::{Check, CheckStatus};
pub use machine::{KernelMachine, Machine, read_ledger};
pub use nodes::{Nodes, about, not_running};
pub use outcome::{Done, GiveBack, OpError, Times};
pub use peers::{PeerError, Peers, Stopped};
pub use settle::Settled;
pub use specs::{SpecStore, no_description};
pub use steps::ApplyError;

#[cfg(test)]
mod tests;
