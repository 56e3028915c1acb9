// SPDX-License-Identifier: Apache-2.0
//! Descriptions of nodes and the steps that bring one about.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{Bdf, CpuSet, MemoryRequest, NodeId, NodeName, NodeState, ResourceKey};

/// What a node shall be: the file `/etc/mint/nodes.d/NAME.toml`, and what
/// `mintctl node add` says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// Its name.
    pub name: NodeName,
    /// These cores, by machine CPU number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuSet>,
    /// Or so many cores, whichever are free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_count: Option<u32>,
    /// Where cores of `cpu_count` and memory without `@numaN` come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// Memory: sizes, each with the NUMA node that it is to be of, if any.
    #[serde(default, deserialize_with = "one_or_many")]
    pub memory: Vec<MemoryRequest>,
    /// PCI functions.
    #[serde(default)]
    pub devices: Vec<Bdf>,
    /// Kernel image; else that of mint.toml.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<PathBuf>,
    /// Initrd; else that of mint.toml.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initrd: Option<PathBuf>,
    /// Command line; else that of mint.toml.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cmdline: Option<String>,
    /// Nodes whose resources may be taken, besides free ones and those of the
    /// node where the plan is made.
    #[serde(default)]
    pub from: Vec<String>,
    /// When to start it again by itself.
    #[serde(default)]
    pub restart: RestartPolicy,
    /// Start it as soon as it is there.
    #[serde(default = "yes")]
    pub start: bool,
}

/// When a node that ended is started again by the daemon that added it. A node
/// that somebody stops or kills stays as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestartPolicy {
    /// Never.
    Never,
    /// When it reboots, as a machine's firmware would.
    #[default]
    OnReboot,
    /// When it reboots or crashes.
    OnCrash,
    /// Whenever it ends by itself, by a poweroff inside it, too.
    Always,
}

impl RestartPolicy {
    /// Whether a node that ended so is started again.
    pub fn covers(self, end: NodeState) -> bool {
        match end {
            NodeState::Reboot => self != Self::Never,
            NodeState::Crashed => matches!(self, Self::OnCrash | Self::Always),
            NodeState::Halted => self == Self::Always,
            _ => false,
        }
    }
}

fn yes() -> bool {
    true
}

/// `memory = "1G"` and `memory = ["1G@numa0", "1G@numa1"]` are both natural.
fn one_or_many<'de, D>(deserializer: D) -> Result<Vec<MemoryRequest>, D::Error>
where
    D: serde::Deserializer<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "an amount of memory, or a list of them, e.g. \"1G@numa1\"")]
    enum Either {
        One(String),
        Many(Vec<String>),
    }
    let parse = |text: &str| crate::parse_memory_list(text).map_err(serde::de::Error::custom);
    Ok(match Either::deserialize(deserializer)? {
        Either::One(text) => parse(&text)?,
        Either::Many(texts) => {
            texts.iter().map(|text| parse(text)).collect::<Result<Vec<_>, _>>()?.concat()
        }
    })
}

impl NodeSpec {
    /// A description with nothing but a name.
    pub fn named(name: NodeName) -> Self {
        Self {
            name,
            cpus: None,
            cpu_count: None,
            numa: None,
            memory: Vec::new(),
            devices: Vec::new(),
            kernel: None,
            initrd: None,
            cmdline: None,
            from: Vec::new(),
            restart: RestartPolicy::default(),
            start: true,
        }
    }
}

/// One step of a plan. Each has an undo step: see [`Step::undo`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum Step {
    /// Make a node that owns nothing.
    Create {
        /// Its id.
        node: NodeId,
        /// Its name.
        name: NodeName,
    },
    /// Remove a node that owns nothing.
    Destroy {
        /// Its id.
        node: NodeId,
        /// Its name.
        name: NodeName,
    },
    /// Owned by `node` -> free. Done by the mintd of `node` if that one runs.
    Release {
        /// The core, memory block or function that is released.
        key: ResourceKey,
        /// Whose it is.
        node: NodeId,
        /// Driver that was bound to the function, to be bound again by undo.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        driver: Option<String>,
    },
    /// Free -> owned by `node`. Done by the mintd of `node` if that one runs.
    Claim {
        /// The core, memory block or function that is claimed.
        key: ResourceKey,
        /// Whose it becomes.
        node: NodeId,
        /// Driver to bind to the function afterwards.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        driver: Option<String>,
    },
}

impl Step {
    /// The step that takes this one back.
    pub fn undo(&self) -> Self {
        match self.clone() {
            Self::Create { node, name } => Self::Destroy { node, name },
            Self::Destroy { node, name } => Self::Create { node, name },
            Self::Release { key, node, driver } => Self::Claim { key, node, driver },
            Self::Claim { key, node, driver } => Self::Release { key, node, driver },
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { node, name } => write!(f, "create node {node} ({name})"),
            Self::Destroy { node, name } => write!(f, "destroy node {node} ({name})"),
            Self::Release { key, node, driver: Some(driver) } => {
                write!(f, "unbind {driver} from {key} and release it from node {node}")
            }
            Self::Release { key, node, driver: None } => {
                write!(f, "release {key} from node {node}")
            }
            Self::Claim { key, node, .. } => write!(f, "claim {key} for node {node}"),
        }
    }
}

/// A validated way from here to a description.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Node that it is about.
    pub node: NodeId,
    /// Its name.
    pub name: NodeName,
    /// In this order.
    pub steps: Vec<Step>,
    /// What the user should know, e.g. that memory was rounded up.
    pub notes: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undo_of_undo_is_the_step() {
        let key = ResourceKey::cpu(3);
        let node = NodeId::ZERO;
        for step in [
            Step::Create { node, name: "web".parse().unwrap() },
            Step::Release { key, node, driver: None },
            Step::Claim { key, node, driver: Some("nvme".into()) },
        ] {
            assert_eq!(step.undo().undo(), step);
            assert_ne!(step.undo(), step);
        }
    }

    #[test]
    fn policies_cover_what_they_say() {
        let ends = [NodeState::Reboot, NodeState::Crashed, NodeState::Halted, NodeState::Killed];
        let covered = |policy: RestartPolicy| ends.map(|end| policy.covers(end));
        assert_eq!(covered(RestartPolicy::Never), [false; 4]);
        assert_eq!(covered(RestartPolicy::OnReboot), [true, false, false, false]);
        assert_eq!(covered(RestartPolicy::OnCrash), [true, true, false, false]);
        assert_eq!(covered(RestartPolicy::Always), [true, true, true, false]);
        let spec: NodeSpec =
            serde_json::from_str(r#"{"name":"web","restart":"on-crash"}"#).unwrap();
        assert_eq!(spec.restart, RestartPolicy::OnCrash);
    }

    #[test]
    fn unknown_key_is_refused() {
        let text = r#"{"name":"web","cpu":"2-3"}"#;
        let error = serde_json::from_str::<NodeSpec>(text).unwrap_err().to_string();
        assert!(error.contains("unknown field `cpu`"), "{error}");
    }

    #[test]
    fn memory_may_be_text_or_list() {
        let one: NodeSpec = serde_json::from_str(r#"{"name":"a","memory":"1G,1G@numa1"}"#).unwrap();
        let two: NodeSpec =
            serde_json::from_str(r#"{"name":"a","memory":["1G","1G@numa1"]}"#).unwrap();
        assert_eq!(one.memory, two.memory);
        assert_eq!(one.memory.len(), 2);
    }
}
