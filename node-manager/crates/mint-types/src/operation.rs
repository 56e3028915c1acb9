// SPDX-License-Identifier: Apache-2.0
//! Operations: what a daemon was asked to change, as users and journals name it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::NodeId;

/// Number of an operation, in its daemon's order; never used twice while any is kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct OperationId(pub u64);

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl FromStr for OperationId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// What is changed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// A node is made, and started.
    Add,
    /// A node is started.
    Start,
    /// A node is ended in an orderly way.
    Stop,
    /// A node is stopped and started.
    Restart,
    /// A node is ended by force.
    Kill,
    /// A node is taken apart.
    Remove,
    /// A node gets more or less.
    Resize,
    /// Described nodes are brought up.
    Apply,
    /// What is half done is healed.
    Repair,
    /// A guest goes to another node while it runs.
    Migrate,
    /// All guests that run on a node go to others.
    Evacuate,
    /// Guests of a node get other CPUs, and their memory other NUMA nodes.
    Layout,
}

impl fmt::Display for OperationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Add => "add",
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
            Self::Kill => "kill",
            Self::Remove => "remove",
            Self::Resize => "resize",
            Self::Apply => "apply",
            Self::Repair => "repair",
            Self::Migrate => "migrate",
            Self::Evacuate => "evacuate",
            Self::Layout => "layout",
        })
    }
}

/// How far an operation is, or how it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    /// Waits for its turn: what it needs is another one's. It has changed nothing.
    Queued,
    /// Is carried out.
    Running,
    /// Was carried out.
    Done,
    /// Was not carried out: a part of it failed.
    Failed,
    /// Was not carried out: validation said no, and nothing was changed.
    Refused,
    /// Somebody cancelled it before its point of no return; what it had done was taken
    /// back.
    Cancelled,
    /// Its daemon died before its point of no return; what it had done was taken back.
    Undone,
}

impl OperationState {
    /// Whether it will not change any more.
    pub fn is_over(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }
}

impl fmt::Display for OperationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Cancelled => "cancelled",
            Self::Undone => "undone",
        })
    }
}

/// Who asked for an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asker {
    /// A user of this node, by user id; none where the kernel did not tell.
    User(Option<u32>),
    /// The daemon of another node; none where its certificate did not tell.
    Peer(Option<NodeId>),
    /// This daemon, e.g. by a node's restart policy.
    Daemon,
}

impl fmt::Display for Asker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(Some(0)) => f.write_str("root"),
            Self::User(Some(uid)) => write!(f, "uid {uid}"),
            Self::User(None) => f.write_str("a user"),
            Self::Peer(Some(node)) => write!(f, "node {node}"),
            Self::Peer(None) => f.write_str("a peer"),
            Self::Daemon => f.write_str("mintd"),
        }
    }
}
