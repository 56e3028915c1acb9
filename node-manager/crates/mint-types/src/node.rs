// SPDX-License-Identifier: Apache-2.0
//! Names, ids and states of nodes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// For how many nodes the kernels of this project have room (`MINT_NODE_MAX`). How many a
/// running one has it says itself (`MachineInfo::node_max`), and that counts.
pub const NODE_MAX: u32 = 16;

/// The kernel's interface has eight bits for an owner, and this word for none.
const NO_NODE: u8 = 0xff;

/// Bytes of a name, without the NUL that the kernel's field ends with.
const NAME_BYTES_MAX: usize = 31;

/// Id of a node. Node 0 is the one that firmware started.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct NodeId(u8);

/// Not the name or id of a node.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ParseNodeError {
    /// No node has an id so large.
    #[error("{0} is no node id: they are 0 to 254")]
    Id(u32),
    /// A name with other characters than those allowed.
    #[error("`{0}` is no node name: 1 to 31 of a-z, 0-9 and -, starting with a letter")]
    Name(String),
}

impl NodeId {
    /// The node that firmware started.
    pub const ZERO: Self = Self(0);

    /// # Errors
    /// When no node can have that id.
    pub fn new(id: u32) -> Result<Self, ParseNodeError> {
        match u8::try_from(id) {
            Ok(id) if id != NO_NODE => Ok(Self(id)),
            _ => Err(ParseNodeError::Id(id)),
        }
    }

    /// The ids of a machine with so many nodes.
    pub fn below(nodes: u32) -> impl Iterator<Item = Self> {
        (0..nodes).map_while(|id| Self::new(id).ok())
    }

    /// As the kernel's interface wants it.
    pub fn as_u32(self) -> u32 {
        u32::from(self.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl TryFrom<u32> for NodeId {
    type Error = ParseNodeError;
    fn try_from(id: u32) -> Result<Self, Self::Error> {
        Self::new(id)
    }
}

impl From<NodeId> for u32 {
    fn from(id: NodeId) -> Self {
        id.as_u32()
    }
}

/// Name of a node: usable as a host name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

impl NodeName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id that a name of the form `nodeN` stands for. Such a name may be
    /// given to node N only, else `node2` could mean two different nodes.
    pub fn stands_for(&self) -> Option<u32> {
        let digits = self.0.strip_prefix("node")?;
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        digits.parse().ok()
    }
}

impl FromStr for NodeName {
    type Err = ParseNodeError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let good = text.len() <= NAME_BYTES_MAX
            && text.starts_with(|c: char| c.is_ascii_lowercase())
            && !text.ends_with('-')
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if good { Ok(Self(text.to_owned())) } else { Err(ParseNodeError::Name(text.to_owned())) }
    }
}

impl TryFrom<String> for NodeName {
    type Error = ParseNodeError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> Self {
        name.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// State of a node, as the ledger has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// No such node.
    Unused,
    /// Exists, may own resources; no kernel runs or is loaded.
    Stopped,
    /// An image is in its memory.
    Loaded,
    /// Its first core left the park loop.
    Starting,
    /// Its kernel reached its device initcalls.
    Running,
    /// Ended by itself: halt, poweroff.
    Halted,
    /// Ended by itself and wants to be started again.
    Reboot,
    /// Panic.
    Crashed,
    /// Ended by a peer.
    Killed,
    /// Somebody writes an image into its memory.
    Loading,
}

impl NodeState {
    /// Whether a kernel executes on the node's cores.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Starting | Self::Running)
    }

    /// Whether resources of the node may be moved by a peer.
    pub fn is_at_rest(self) -> bool {
        !self.is_live() && !matches!(self, Self::Unused | Self::Loading)
    }
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unused => "unused",
            Self::Stopped => "stopped",
            Self::Loaded => "loaded",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Halted => "halted",
            Self::Reboot => "reboot",
            Self::Crashed => "crashed",
            Self::Killed => "killed",
            Self::Loading => "loading",
        })
    }
}

/// What the kernel says about a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeStatus {
    /// Its id.
    pub id: NodeId,
    /// Its name; empty when the kernel has none for it.
    pub name: String,
    /// Its state.
    pub state: NodeState,
    /// How many starts since it was created.
    pub boots: u32,
    /// Grows every 250 ms while the node runs.
    pub heartbeat: u64,
    /// Wall clock of the last change of state, ns since 1970.
    pub state_change_ns: u64,
    /// CPUs online, as the node last said.
    pub cpus_online: u32,
    /// Machine number of its boot CPU.
    pub boot_cpu: Option<u32>,
    /// Memory that it owns, in bytes.
    pub memory_bytes: u64,
    /// Its `uname -r`, once it runs.
    pub release: String,
    /// Last words.
    pub reason: String,
}

impl NodeStatus {
    /// `node 1 (web)`: how messages call the node.
    pub fn label(&self) -> String {
        if self.name.is_empty() || self.name == format!("node{}", self.id) {
            format!("node {}", self.id)
        } else {
            format!("node {} ({})", self.id, self.name)
        }
    }

    /// Its name, or `nodeN` when the kernel has none for it.
    pub fn display_name(&self) -> String {
        if self.name.is_empty() { format!("node{}", self.id) } else { self.name.clone() }
    }

    /// Whether `reference` (id, name or `nodeN`) means this node.
    pub fn is_meant_by(&self, reference: &str) -> bool {
        reference == self.name
            || reference.parse() == Ok(self.id.as_u32())
            || reference.strip_prefix("node").and_then(|digits| digits.parse().ok())
                == Some(self.id.as_u32())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_end_where_the_kernels_interface_does() {
        assert!(NodeId::new(254).is_ok());
        for bad in [255, 256, u32::MAX] {
            assert_eq!(NodeId::new(bad), Err(ParseNodeError::Id(bad)));
        }
        let ids = |nodes| NodeId::below(nodes).map(NodeId::as_u32).collect::<Vec<_>>();
        assert_eq!(ids(3), [0, 1, 2]);
        assert_eq!(ids(u32::MAX).len(), 255);
    }

    #[test]
    fn names_are_host_names() {
        for good in ["web", "db-2", "node1"] {
            assert!(good.parse::<NodeName>().is_ok(), "{good}");
        }
        for bad in ["", "1", "2nd", "Web", "a_b", "-a", "a-", "a b", &"x".repeat(32)] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_node_and_digits_stands_for_an_id() {
        let stands_for = |name: &str| name.parse::<NodeName>().unwrap().stands_for();
        assert_eq!(stands_for("node12"), Some(12));
        assert_eq!(stands_for("node"), None);
        assert_eq!(stands_for("node-1"), None);
        assert_eq!(stands_for("web"), None);
    }
}
