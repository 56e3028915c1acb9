// SPDX-License-Identifier: Apache-2.0
//! Guests of a node on its NUMA nodes, and what a layout policy would change.

use mint_types::{CpuSet, LayoutPolicy, NodeId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A node's guests on its NUMA nodes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct NodeLayout {
    /// Id of the node.
    #[schema(value_type = u32)]
    pub node: NodeId,
    /// Its name.
    pub node_name: String,
    /// Its NUMA nodes.
    pub numa: Vec<NumaView>,
    /// Its guests that run.
    pub vms: Vec<VmLayout>,
    /// When what can be undone was done, seconds since 1970; nothing if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo_from_s: Option<u64>,
    /// What plans take distances and bandwidths from; nothing: they go by the kernel's table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<NumaMeasured>,
}

/// How long CPUs wait for memory of each NUMA node, and how fast they read it, as it was measured.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct NumaMeasured {
    /// When, seconds since 1970.
    pub at_s: u64,
    /// The CPU, as /proc/cpuinfo has it.
    pub cpu_model: String,
    /// NUMA nodes that the node had, by the machine's numbers.
    pub numas: Vec<u32>,
    /// Each NUMA node with CPUs, and each with memory.
    pub pairs: Vec<NumaPair>,
}

/// CPUs of a NUMA node read memory of one.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct NumaPair {
    /// Number of that whose CPU read.
    pub cpus_of: u32,
    /// Number of that whose memory was read.
    pub memory_of: u32,
    /// The CPU that read.
    pub cpu: u32,
    /// How much was read again and again.
    pub buffer_bytes: u64,
    /// Whether caches may have answered instead of memory: the buffer is not several times as large as the last one.
    pub may_be_cached: bool,
    /// From one load to the next that needs its result, nanoseconds.
    pub latency_ns: f64,
    /// What one CPU read in sequence, millions of bytes a second.
    pub read_mb_s: u32,
}

/// A node is to measure memory of its NUMA nodes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MeasureRequest {
    /// Of each NUMA node read so many MiB; nothing: several times what the last-level caches have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mib: Option<u32>,
    /// Measure nothing, and forget what was measured.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub forget: bool,
}

/// What plans of a node go by from now on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct MeasureResult {
    /// Id of the node.
    #[schema(value_type = u32)]
    pub node: NodeId,
    /// What was measured; nothing: it was forgotten, and plans go by the kernel's table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<NumaMeasured>,
}

/// A NUMA node, as the kernel of an OS node has it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct NumaView {
    /// Its number, the machine's.
    pub numa: u32,
    /// CPUs that share a last-level cache, each list by itself.
    #[schema(value_type = Vec<String>)]
    pub caches: Vec<CpuSet>,
    /// Memory that processes may have.
    pub free_bytes: u64,
    /// Memory that guests have.
    pub guests_bytes: u64,
    /// How far it is to the memory of each NUMA node, in their order, as plans have it: 10 is its own. The kernel's
    /// table, or [what was measured](NodeLayout::measured).
    pub distances: Vec<u32>,
}

/// A guest on the NUMA nodes of its node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct VmLayout {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// Whether its memory stays where it is: a device has it, it is locked, or of huge pages.
    pub is_fixed: bool,
    /// Its vCPUs.
    pub vcpus: Vec<VcpuLayout>,
    /// Its memory, by NUMA nodes, as far as pages were looked at.
    pub memory: Vec<NumaMemory>,
    /// Of that, what is on the NUMA nodes that its vCPUs run on.
    pub near_bytes: u64,
    /// Why it is where it is; nothing of one that no layout has placed since it runs here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<LayoutReason>,
}

/// A vCPU.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct VcpuLayout {
    /// Its number.
    pub vcpu: u32,
    /// The CPU that it ran on last.
    pub cpu: u32,
    /// The NUMA node of that, or of those that it may run on.
    pub numa: u32,
    /// CPUs that it may run on.
    #[schema(value_type = String)]
    pub allowed: CpuSet,
    /// Who says so: nobody, its owner, or a layout.
    pub kept_by: KeptBy,
    /// What it did, second by second, the oldest first.
    pub samples: Vec<VcpuSample>,
}

/// Who keeps a vCPU to CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum KeptBy {
    /// Nobody.
    Nobody,
    /// Its owner: no layout changes that.
    Owner,
    /// A layout.
    Layout,
}

/// What a vCPU did since the sample before. What nothing counts is not there.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct VcpuSample {
    /// Since the sample before.
    pub span_ms: u32,
    /// For so much of that it ran.
    pub run_ms: u32,
    /// Instructions that the guest executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<u64>,
    /// Loads that its last-level cache did not have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub misses: Option<u64>,
    /// Cache lines that came from each NUMA node, in their order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fills: Option<Vec<u64>>,
}

/// Memory on a NUMA node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct NumaMemory {
    /// Its number.
    pub numa: u32,
    /// Bytes.
    pub bytes: u64,
}

/// Why a guest was given its place.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct LayoutReason {
    /// Whose plan it was.
    pub policy: LayoutPolicy,
    /// When, seconds since 1970.
    pub at_s: u64,
    /// Whether it was before the guest came here.
    pub before_it_came: bool,
    /// Its place among the guests that chose, the first being 1; 0 of one that did not have to.
    pub rank: usize,
    /// Misses per thousand instructions that gave it this rank.
    pub misses_per_kilo: f64,
    /// Whether these were taken to follow from something else that was measured.
    pub is_guessed: bool,
    /// How much less its work was to cost by that: 0.05 is a twentieth; below 0: more, for another guest's sake.
    pub expected_gain: f64,
    /// Its memory that went to another NUMA node, or, of one that came, that had its NUMA node told before.
    pub placed_bytes: u64,
    /// Memory of other guests that went by the same plan, to make room.
    pub evicted_bytes: u64,
    /// What it had on the NUMA nodes of its vCPUs before; nothing of one that came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near_bytes_before: Option<u64>,
    /// Instructions a second that it executed before, if something counted them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions_s_before: Option<f64>,
}

/// A node's guests are to be arranged anew, or as they were before.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LayoutRequest {
    /// Who arranges them.
    pub policy: LayoutPolicy,
    /// As they were before that was done last.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub undo: bool,
    /// Plan only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

/// Guests that are arranged anew, or would be.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct LayoutResult {
    /// Id of the node.
    #[schema(value_type = u32)]
    pub node: NodeId,
    /// Whose plan it is; nothing where one was undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<LayoutPolicy>,
    /// How much less the work of all guests is to cost, by a model: 0.05 is a twentieth.
    pub expected_gain: f64,
    /// Guests that change, the first to choose first.
    pub vms: Vec<VmLayoutChange>,
    /// Whether it was done.
    pub is_done: bool,
}

/// What changes of a guest.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct VmLayoutChange {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// As [`LayoutReason::rank`].
    pub rank: usize,
    /// As [`LayoutReason::misses_per_kilo`].
    pub misses_per_kilo: f64,
    /// As [`LayoutReason::is_guessed`].
    pub is_guessed: bool,
    /// As [`LayoutReason::expected_gain`].
    pub expected_gain: f64,
    /// vCPUs that get other CPUs.
    pub vcpus: Vec<VcpuChange>,
    /// Memory that goes to another NUMA node.
    pub memory: Vec<MemoryGoes>,
    /// Of that memory, what is there; nothing of a plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub went_bytes: Option<u64>,
    /// What of it waits, and why, if something does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
    /// Why it was left alone, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_alone: Option<String>,
}

/// A vCPU gets other CPUs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct VcpuChange {
    /// Its number.
    pub vcpu: u32,
    /// CPUs that it could run on.
    #[schema(value_type = String)]
    pub was: CpuSet,
    /// CPUs that it is kept to.
    #[schema(value_type = String)]
    pub now: CpuSet,
}

/// Memory goes from one NUMA node to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct MemoryGoes {
    /// Number of that which has it.
    pub from: u32,
    /// Number of that which gets it.
    pub to: u32,
    /// Bytes.
    pub bytes: u64,
}
