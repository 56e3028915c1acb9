// SPDX-License-Identifier: Apache-2.0
//! Who asks.

use std::fmt;

use mint_types::{MachineId, NodeId};
use serde::Serialize;

/// Who is at the other end of a connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Caller {
    /// A process of this node, on the socket, as the kernel tells it.
    User { uid: u32, pid: Option<i32> },
    /// Another node's daemon, by its certificate.
    Peer { node: NodeId },
    /// The daemon of a linked machine's node, by its certificate.
    Linked { machine: MachineId, node: NodeId },
}

tokio::task_local! {
    /// Set while a handler runs.
    pub(crate) static CALLER: Caller;
}

impl Caller {
    /// Who asked for what is being handled; nobody did outside of handlers.
    pub fn current() -> Option<Self> {
        CALLER.try_with(Clone::clone).ok()
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User { uid, pid: Some(pid) } => write!(f, "user {uid} (process {pid})"),
            Self::User { uid, pid: None } => write!(f, "user {uid}"),
            Self::Peer { node } => write!(f, "node {node}"),
            Self::Linked { machine, node } => write!(f, "node {node} of machine {machine}"),
        }
    }
}
