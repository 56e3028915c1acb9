// SPDX-License-Identifier: Apache-2.0
//! Requests and replies. Sizes are bytes; times say their unit.

use mint_types::{
    Gift, Load, MachineId, NodeId, NodeSpec, NodeState, PeerId, Refusal, ResourceKey, RestartPolicy,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::ErrorBody;

/// What a node was started with.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct BootView {
    /// Its kernel's command line.
    pub cmdline: String,
    /// When a peer starts it again without being asked.
    #[schema(value_type = String)]
    pub restart: RestartPolicy,
}

/// A node ends because somebody asked for it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OrderedEnd {
    /// Id of the node whose end was ordered.
    #[schema(value_type = u32)]
    pub node: NodeId,
    /// Which start of it: the next one is another matter.
    pub boots: u32,
}

/// What a repair did.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Repaired {
    /// In words; nothing if nothing was half done.
    pub done: Vec<String>,
    /// The machine afterwards.
    pub report: DoctorReport,
}

/// What running nodes use.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct LoadList {
    /// By id.
    pub nodes: Vec<NodeLoad>,
}

/// What a running node uses.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct NodeLoad {
    /// Its id.
    #[schema(value_type = u32)]
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Machine numbers of its cores, as a list.
    pub cpus: String,
    /// What its daemon says; nothing when that does not answer.
    #[schema(value_type = Option<Object>)]
    pub load: Option<Load>,
}

/// A line of an operation's answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// What is being done.
    Progress(String),
    /// It is done; the last line.
    Result(serde_json::Value),
    /// It was not; the last line.
    Error(ErrorBody),
}

/// Who answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Hello {
    /// Version of the program.
    pub version: String,
    /// The newest version of this interface that it speaks.
    pub api_version: u32,
    /// The oldest.
    #[serde(default = "first_version")]
    pub api_oldest: u32,
    /// Id of the node.
    #[schema(value_type = u32)]
    pub node: NodeId,
    /// Its machine; none if it serves no other nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub machine: Option<MachineId>,
    /// Its name.
    pub name: String,
    /// Public host keys of its ssh server.
    #[serde(default)]
    pub ssh_host_keys: Vec<String>,
}

/// What daemons spoke before they told a range.
fn first_version() -> u32 {
    1
}

/// A node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    /// Its id.
    #[schema(value_type = u32)]
    pub id: NodeId,
    /// Its name.
    pub name: String,
    /// Its machine, if it is a linked one; its name has that one's before it then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub machine: Option<MachineId>,
    /// Its state.
    #[schema(value_type = String)]
    pub state: NodeState,
    /// `ok`, `degraded` (its heartbeat is late, or fewer cores are online than it owns),
    /// `hung` (its heartbeat stands still), or `-` when it does not run.
    pub health: String,
    /// Whether it is the node that answers.
    #[serde(rename = "self")]
    pub is_self: bool,
    /// Machine numbers of its cores, as a list.
    pub cpus: String,
    /// How many cores it owns.
    pub cpu_count: u32,
    /// How many are online, as it last said.
    pub cpus_online: u32,
    /// Memory that it owns.
    pub memory_bytes: u64,
    /// NUMA nodes of the machine that it has a part of.
    pub numa: Vec<u32>,
    /// Its PCI functions, bridges and platform parts left out.
    pub devices: Vec<String>,
    /// Its address on `mint0`.
    pub address: String,
    /// `ok`, `no answer`, `other version` (it speaks none of those that the answering node
    /// does), or `-` when it does not run.
    pub mintd: String,
    /// How many starts since it was made.
    pub boots: u32,
    /// Grows every 250 ms while it runs.
    pub heartbeat: u64,
    /// Wall clock of the last change of state, ns since 1970.
    pub state_change_ns: u64,
    /// Its `uname -r`.
    pub release: String,
    /// Last words.
    pub reason: String,
}

/// All nodes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct NodeList {
    /// By rising id.
    pub nodes: Vec<NodeView>,
}

/// A resource of the ledger. Fields that say nothing for its kind are left out.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ResourceView {
    /// `cpu`, `memory` or `device`.
    pub kind: String,
    /// Id within its kind.
    pub id: u32,
    /// `free`, `owned` or `moving`.
    pub state: String,
    /// Who owns it.
    pub owner: Option<u32>,
    /// Name of the owner.
    pub owner_name: Option<String>,
    /// While moving: to whom.
    pub target: Option<u32>,
    /// NUMA node of the machine.
    pub numa: Option<u32>,
    /// What is special about it.
    pub flags: Vec<String>,
    /// How often its ledger word changed.
    pub changes: u32,
    /// Core: APIC id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apic_id: Option<u32>,
    /// Core: physical package.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<u32>,
    /// Core: number within its package.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<u32>,
    /// Memory: physical address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phys: Option<u64>,
    /// Memory: size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// A PCI function.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeviceView {
    /// Its place in the ledger.
    #[serde(flatten)]
    pub resource: ResourceView,
    /// Its address.
    pub bdf: String,
    /// Class code, six digits.
    pub class: String,
    /// Class in words.
    pub class_name: String,
    /// Vendor id, four digits.
    pub vendor: String,
    /// Device id, four digits.
    pub device: String,
    /// Driver, if it is the answering node's.
    pub driver: Option<String>,
    /// Of a virtual function (SR-IOV): its physical one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub physfn: Option<String>,
    /// Whether it has MSI or MSI-X.
    pub msi: bool,
    /// Whether it is a bridge.
    pub bridge: bool,
    /// Whether it stays with the platform.
    pub platform: bool,
}

/// PCI functions.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeviceList {
    /// By rising address.
    pub devices: Vec<DeviceView>,
}

/// All cores of the machine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct CpuList {
    /// By rising number.
    pub cpus: Vec<ResourceView>,
}

/// Memory blocks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct MemoryList {
    /// By rising address.
    pub memory: Vec<ResourceView>,
}

/// What a node owns.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct NodeResources {
    /// Cores that it owns.
    pub cpus: Vec<ResourceView>,
    /// Memory blocks.
    pub memory: Vec<ResourceView>,
    /// PCI functions.
    pub devices: Vec<DeviceView>,
}

/// A node with all that is known of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct NodeDetail {
    /// The node.
    pub node: NodeView,
    /// What it owns.
    pub resources: NodeResources,
    /// Its description, if the answering daemon has it.
    #[schema(value_type = Option<Object>)]
    pub spec: Option<NodeSpec>,
}

/// What an operation waits for before it is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WaitFor {
    /// The node's daemon answers.
    #[default]
    Mintd,
    /// Its kernel runs: for images without a daemon.
    Running,
    /// Nothing.
    Nothing,
}

/// `POST /v1/nodes`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddRequest {
    /// What the node shall be.
    #[schema(value_type = Object)]
    pub spec: NodeSpec,
    /// Only say what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// What to wait for.
    #[serde(default)]
    pub wait: WaitFor,
    /// How long, in seconds; else what mint.toml says.
    #[serde(default, deserialize_with = "mint_types::limit_s_or_none")]
    pub wait_s: Option<u64>,
}

/// `POST /v1/nodes/NODE/start` and `/restart`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartRequest {
    /// What to wait for.
    #[serde(default)]
    pub wait: WaitFor,
    /// How long, in seconds; else what mint.toml says.
    #[serde(default, deserialize_with = "mint_types::limit_s_or_none")]
    pub wait_s: Option<u64>,
    /// Restart: how long the node may take to stop, in seconds.
    #[serde(default, deserialize_with = "mint_types::limit_s_or_none")]
    pub timeout_s: Option<u64>,
    /// Boots what mint.toml says, whatever the node was added with.
    #[serde(default)]
    pub default_image: bool,
    /// Restart: also when memory of other nodes' guests that it keeps ends with its kernel.
    #[serde(default)]
    pub force: bool,
}

/// `POST /v1/nodes/NODE/stop`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StopRequest {
    /// How long before it is killed, in seconds; else what mint.toml says.
    #[serde(default, deserialize_with = "mint_types::limit_s_or_none")]
    pub timeout_s: Option<u64>,
    /// Also when virtual functions that other nodes have, or memory of their guests that it
    /// keeps, end with its kernel.
    #[serde(default)]
    pub force: bool,
}

/// `POST /v1/nodes/NODE/remove`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoveRequest {
    /// Kill it if it runs.
    #[serde(default)]
    pub force: bool,
    /// Who gets its cores and devices; else node 0.
    #[serde(default)]
    pub to: Option<String>,
    /// Nobody gets them.
    #[serde(default)]
    pub keep_free: bool,
}

/// How long the parts of an operation took, in milliseconds; those that were not
/// part of it are left out.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct TimesView {
    /// Validation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_ms: Option<u64>,
    /// Moves of resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apply_ms: Option<u64>,
    /// Checks of images, bundle, load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_ms: Option<u64>,
    /// The kernel's start call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_ms: Option<u64>,
    /// From there until its kernel ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_ms: Option<u64>,
    /// From there until its daemon answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mintd_ms: Option<u64>,
    /// Until it had ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_ms: Option<u64>,
}

/// Result of an operation on a node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct NodeResult {
    /// The node, as it is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeView>,
    /// Only planned.
    #[serde(default)]
    pub dry_run: bool,
    /// Name of the removed node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed: Option<String>,
    /// Its id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
    /// What was done, in words.
    pub steps: Vec<String>,
    /// What the user should know.
    pub notes: Vec<String>,
    /// How long it took.
    pub times: TimesView,
}

/// `POST /v1/apply`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyRequest {
    /// Folder with descriptions, on the node that answers.
    #[serde(default)]
    pub dir: Option<String>,
    /// What to wait for, for each node.
    #[serde(default)]
    pub wait: WaitFor,
}

/// What became of one description.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Applied {
    /// Name of the node.
    pub name: String,
    /// `added`, `started`, `unchanged` or `failed`.
    pub result: String,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorBody>,
}

/// What became of all descriptions.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ApplyResult {
    /// In the order of their files.
    pub nodes: Vec<Applied>,
}

/// One check of `doctor`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct CheckView {
    /// Its name: stable.
    pub name: String,
    /// `ok`, `warn` or `fail`.
    pub status: String,
    /// What was seen.
    pub detail: String,
}

/// All checks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DoctorReport {
    /// Whether none failed.
    pub ok: bool,
    /// The checks.
    pub checks: Vec<CheckView>,
}

/// An event. Also a line of `/run/mint/events.jsonl`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    /// Number in this daemon's stream, growing by one.
    pub seq: u64,
    /// When it happened, ns since 1970, by the kernel that reported it.
    pub time_ns: u64,
    /// When this daemon saw it, ns since 1970.
    pub seen_ns: u64,
    /// `state`, `degraded`, `hung`, `recovered`, `migrated` (a guest came to the node; `old` is the
    /// node it came from), or `lost` (events were dropped).
    pub event: String,
    /// Which node.
    pub node: u32,
    /// Its name.
    pub name: String,
    /// State before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// State after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
    /// Last words, or what is known.
    pub reason: String,
}

/// `POST /v1/local/release`: a peer wants resources of this node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseRequest {
    /// Which, in the order in which they are released.
    #[schema(value_type = Vec<Object>)]
    pub keys: Vec<ResourceKey>,
}

/// `POST /v1/local/releasable`: could this node release these resources of its own?
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleasableRequest {
    /// The resources that are asked for.
    #[schema(value_type = Vec<Object>)]
    pub keys: Vec<ResourceKey>,
}

/// Answer to it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Releasable {
    /// For each that was asked for, in that order: why not, or null where it could.
    pub refusals: Vec<Option<Refusal>>,
}

/// Answer to a [`ReleaseRequest`] or [`ClaimRequest`]: up to the first failure all is done.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Moved {
    /// The first that was not moved, if there is one: the others up to it were.
    pub stopped: Option<StoppedAt>,
}

/// Where it ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct StoppedAt {
    /// Which of those asked for, counted from 0.
    pub at: usize,
    /// Why the request failed.
    pub error: ErrorBody,
}

/// `POST /v1/local/claim`: a peer gives free resources to this node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimRequest {
    /// Which, in the order in which they are claimed.
    pub gifts: Vec<Gift>,
}

/// A node as another one knows it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Introduction {
    /// Its machine.
    #[schema(value_type = String)]
    pub machine: MachineId,
    /// Its id.
    #[schema(value_type = u32)]
    pub node: NodeId,
    /// For which of its starts, counted since it was made, its key was made.
    pub start: u32,
    /// Its certificate, as PEM. Those that it makes later have the same key.
    pub certificate: String,
    /// A node 0 whose state is in memory: its key ends with it, and who starts it again
    /// gives it another one, as to any node.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub needs_key: bool,
}

impl Introduction {
    /// Who is introduced.
    pub fn id(&self) -> PeerId {
        PeerId { machine: self.machine, node: self.node }
    }
}

/// `GET` and `POST /v1/local/introductions`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Introductions {
    /// Who answers, or asks, and all that it knows.
    pub known: Vec<Introduction>,
}

/// Answer to those.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Introduced {
    /// Which were not believed, and why.
    pub refused: Vec<String>,
}

/// `GET /v1/local/specs/NODE`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SpecReply {
    /// The description, if this daemon has it.
    #[schema(value_type = Option<Object>)]
    pub spec: Option<NodeSpec>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_with_unknown_fields_are_bad() {
        let bad = r#"{"timeout":3}"#;
        assert!(serde_json::from_str::<StopRequest>(bad).is_err());
        assert!(serde_json::from_str::<StopRequest>("{}").is_ok());
    }
}
