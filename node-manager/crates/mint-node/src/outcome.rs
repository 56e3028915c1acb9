// SPDX-License-Identifier: Apache-2.0
//! How operations end.

use mint_ops::{Cancelled, JournalError};
use mint_sys::SysError;
use mint_types::{NodeId, Refusal};
use serde::{Deserialize, Serialize};

use crate::specs::SpecError;
use crate::steps::{ApplyError, StepError};

/// Who gets cores and devices of a removed node. Memory stays free: it is the
/// pool that new nodes are made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GiveBack {
    /// That node.
    To(NodeId),
    /// Nobody.
    KeepFree,
}

/// How long the parts of an operation took, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Times {
    /// Validation.
    pub plan_ms: u64,
    /// Moves of resources.
    pub apply_ms: u64,
    /// Image checks, bundle and `kexec_file_load`.
    pub load_ms: u64,
    /// `MINT_IOC_NODE_START`.
    pub start_ms: u64,
}

/// An operation that was carried out (or planned, if only that was asked for).
#[derive(Clone, PartialEq, Debug)]
pub struct Done {
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Steps, in words.
    pub steps: Vec<String>,
    /// What the user should know.
    pub notes: Vec<String>,
    /// How long it took.
    pub times: Times,
}

/// An operation was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum OpError {
    /// Validation said no, and nothing was changed.
    #[error("{}", refusals_text(.0))]
    Refused(Vec<Refusal>),
    /// Steps of the plan.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// The image could not be loaded or started; for a new node everything was
    /// taken back.
    #[error("could not {action} {node}{}{}", hint_text(.hint), left_text(.left))]
    Boot {
        /// `load` or `start`.
        action: &'static str,
        /// Label of the node.
        node: String,
        /// What it means.
        hint: &'static str,
        /// What could not be taken back, in words.
        left: Vec<String>,
        /// What failed below.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A call to the kernel.
    #[error("could not {action}")]
    Kernel {
        /// What was tried.
        action: String,
        /// What the kernel said.
        #[source]
        source: SysError,
    },
    /// Whoever asked for several resources went away before the last.
    #[error("nobody waits for it any more")]
    Unwanted,
    /// Somebody wanted it to end before it had changed anything.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
    /// Not all cores of a killed node were caught.
    #[error("{node} was killed, but only {parked} of its {cpus} cores are in the park loop")]
    NotParked {
        /// Label of the node.
        node: String,
        /// Cores in the park loop.
        parked: u32,
        /// Cores that it owns.
        cpus: u32,
    },
    /// A step outside of a plan.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The store of descriptions.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

fn refusals_text(refusals: &[Refusal]) -> String {
    refusals.iter().map(Refusal::to_string).collect::<Vec<_>>().join("\n")
}

fn hint_text(hint: &str) -> String {
    if hint.is_empty() { String::new() } else { format!(" ({hint})") }
}

fn left_text(left: &[String]) -> String {
    if left.is_empty() { String::new() } else { format!("; not taken back: {}", left.join("; ")) }
}

impl OpError {
    /// Whether it ended because somebody wanted it to.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Cancelled(_) | Self::Apply(ApplyError::Cancelled { .. }))
    }
}

impl From<Refusal> for OpError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(vec![refusal])
    }
}
