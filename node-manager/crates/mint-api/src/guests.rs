// SPDX-License-Identifier: Apache-2.0
//! Guests of nodes: requests and replies of `/v1/vms…`. Sizes are bytes; times say their
//! unit. `mint-guestd` answers them; `mintd` passes them on.

use mint_types::{LayoutPolicy, LayoutWhen, MachineId, NodeId, PagingPolicy, PinChange, Taken};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Socket of this node's `mint-guestd`, for `mintd` alone.
pub const GUESTD_SOCKET_PATH: &str = "/run/mint/guestd.sock";

/// Path of a guest, by name or UUID, below `/v1/vms` or `/v1/nodes/NODE/vms`; libvirt lets
/// names have any sign but a slash.
pub fn vm_path(below: &str, vm: &str) -> String {
    format!("{below}/{}", utf8_percent_encode(vm, NON_ALPHANUMERIC))
}

/// A guest, as its node's libvirt has it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct VmView {
    /// Its name, as its node's libvirt knows it.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// Id of the node that it is on.
    #[schema(value_type = u32)]
    pub node: NodeId,
    /// That node's name; of a linked machine with that one's: `b/node1`.
    pub node_name: String,
    /// The node's machine, if it is a linked one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub machine: Option<MachineId>,
    /// libvirt's word: `running`, `paused`, `shut off`, `crashed`, …
    pub state: String,
    /// How many vCPUs it has.
    pub vcpus: u32,
    /// Its memory.
    pub memory_bytes: u64,
    /// Whether its definition outlives it.
    pub persistent: bool,
    /// Whether libvirt starts it at the node's boot.
    pub autostart: bool,
    /// Whether it is being moved, saved, copied or dumped.
    #[serde(default)]
    pub is_busy: bool,
}

/// Guests of one node, or of all.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct VmList {
    /// By node and name.
    pub vms: Vec<VmView>,
    /// Nodes that run and did not say what guests they have.
    #[serde(default)]
    pub silent: Vec<SilentNode>,
}

/// A node that runs and does not say what guests it has.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SilentNode {
    /// Its id.
    #[schema(value_type = u32)]
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Why it says nothing.
    pub reason: String,
}

/// What is to be done with a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VmVerb {
    /// Start it.
    Start,
    /// Ask it to end; its own system does so, or does not.
    Shutdown,
    /// End it at once, as if its power was cut.
    Destroy,
    /// End its way to another node: it stays.
    Cancel,
    /// Define it anew: from its next start its memory can be split.
    Prepare,
}

impl VmVerb {
    /// The last word of its path.
    pub fn word(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Shutdown => "shutdown",
            Self::Destroy => "destroy",
            Self::Cancel => "cancel",
            Self::Prepare => "prepare",
        }
    }
}

/// A disk image is to become a guest of a node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportRequest {
    /// The guest's name.
    pub name: String,
    /// Absolute path of the image on that node: raw, qcow2, vmdk, vdi, vhdx or vpc.
    pub image: String,
    /// The image was sent for this alone (it is in [`UPLOAD_FOLDER`]), and goes in any case.
    #[serde(default)]
    pub is_upload: bool,
    /// How many vCPUs it gets.
    pub vcpus: u32,
    /// Its memory.
    pub memory_bytes: u64,
    /// Size of its disk; nothing: the image's.
    #[serde(default)]
    pub disk_bytes: Option<u64>,
    /// cloud-init's user data; nothing: it is told nothing.
    #[serde(default)]
    pub user_data: Option<String>,
    /// It is started by UEFI, not by a BIOS.
    #[serde(default)]
    pub uefi: bool,
}

/// Images that are sent to a node.
pub const UPLOAD_FOLDER: &str = "/var/lib/mint/uploads";

/// A guest is to go to another node while it runs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MigrateRequest {
    /// Where to: name, `nodeN` or id; of a linked machine `MACHINE/NODE`.
    pub to: String,
    /// Plan only.
    #[serde(default)]
    pub dry_run: bool,
    /// At most so many bytes a second; nothing: as fast as it goes.
    #[serde(default)]
    pub bandwidth_bytes_s: Option<u64>,
    /// The guest may stand still for so long; nothing: QEMU's default, 300 ms.
    #[serde(default)]
    pub downtime_ms: Option<u64>,
    /// So many streams beside each other; nothing: one.
    #[serde(default)]
    pub parallel: Option<u32>,
    /// Memory is compressed (zstd) on its way, which takes streams: two, if `parallel` is nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub compress: bool,
    /// After so long the guest goes on there, whatever is not there yet, and fetches memory as it
    /// needs it; nothing: it goes when all memory has gone.
    #[serde(default)]
    pub post_copy_after_s: Option<u64>,
    /// Of a guest whose memory is split: all of it comes to that node, which may be its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub merge: bool,
    /// Of a guest whose memory is split: what other hosts keep stays there, which it does anyway
    /// unless it is split anew; one of which no other host keeps anything is refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub main_only: bool,
    /// Its memory is split anew first, like `main=256M,node1=rest`: `main` is the node that it goes
    /// to, which may be its own. `auto`: that node has what there is room for, others the rest; if it
    /// has room for all, all comes there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<String>,
    /// With that: how its pager chooses what goes to other hosts from now on; nothing: as before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PagingPolicy>,
    /// With that: hosts that have each page that its main host has not, 1 or 2; nothing: as before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<u32>,
    /// With that: bytes of a chunk, by which pages go and come from now on, a power of two from 4096
    /// to 2 MiB; nothing: as before. Another size than before needs a guest of which no other host
    /// keeps anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk_bytes: Option<u64>,
    /// When it gets its place on the NUMA nodes of its next host; nothing: before it comes, if it can have one there. If
    /// it cannot, it goes without, and `changes` of the result say why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<LayoutWhen>,
    /// Who finds it; nothing: `simple`. Alone it asks for a place before it comes, and a guest that can have none is
    /// refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout_policy: Option<LayoutPolicy>,
}

/// Guests that run on a node are to go to others: all of them, or those in the way of something.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EvacuateRequest {
    /// Plan only.
    pub dry_run: bool,
    /// At most so many bytes a second; nothing: as fast as it goes.
    pub bandwidth_bytes_s: Option<u64>,
    /// A guest may stand still for so long; nothing: QEMU's default, 300 ms.
    pub downtime_ms: Option<u64>,
    /// So many streams beside each other; nothing: one.
    pub parallel: Option<u32>,
    /// See [`MigrateRequest::compress`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub compress: bool,
    /// See [`MigrateRequest::post_copy_after_s`].
    pub post_copy_after_s: Option<u64>,
    /// The node loses that: guests that use its cores get others of the node, and as many go as
    /// have no memory there afterwards. Nothing: all go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken: Option<Taken>,
    /// The node is to end then: for a minute no guest comes to it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ends: bool,
    /// Also if it keeps memory of other nodes' guests, which is lost when it ends.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// Not its guests go, but what it keeps of the memory of other nodes' guests.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub memory: bool,
}

/// A node without its guests, or the plan of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct EvacuateResult {
    /// Id of the node.
    #[schema(value_type = u32)]
    pub node: NodeId,
    /// Guests that go, in their order.
    pub vms: Vec<MigrateResult>,
    /// Guests that stay, with other CPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repinned: Vec<VmPins>,
    /// Guests of other nodes whose memory it kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<KeptGone>,
}

/// What a node kept of a guest of another node is elsewhere.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct KeptGone {
    /// The guest's name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// The node that keeps it now; none if it was on its way already.
    #[serde(default)]
    pub to: Option<String>,
}

/// A node is to keep nothing of a guest any more.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HostLeaves {
    /// Id of the node.
    #[schema(value_type = u32)]
    pub host: NodeId,
    /// Its machine; nothing: that of the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub machine: Option<MachineId>,
    /// Plan only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// At most so many bytes a second; nothing: as fast as it goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_bytes_s: Option<u64>,
}

/// Other CPUs for a guest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VmPins {
    /// The guest's name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// For each of its threads that gets others.
    #[schema(value_type = Vec<Object>)]
    pub changes: Vec<PinChange>,
}

/// Guests of a node get CPUs: of each thread those that are said now, whatever it had.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PinRequest {
    /// Which, and what they get.
    pub vms: Vec<VmPins>,
}

/// A disk that is copied with its guest.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DiskCopyView {
    /// What the guest calls it, e.g. `vda`.
    pub target: String,
    /// Its file or device on both nodes.
    pub path: String,
    /// What is to be copied.
    pub bytes: u64,
}

/// A guest's way to another node, before or after it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct MigrateResult {
    /// The guest's name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// Id of the node that it was on.
    #[schema(value_type = u32)]
    pub from: NodeId,
    /// Id of the node that it goes to.
    #[schema(value_type = u32)]
    pub to: NodeId,
    /// That node's name; of a linked machine with that one's: `b/node1`.
    #[serde(default)]
    pub to_name: String,
    /// That node's machine, if it is a linked one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub to_machine: Option<MachineId>,
    /// Its memory.
    pub memory_bytes: u64,
    /// Disks that are copied.
    pub disks: Vec<DiskCopyView>,
    /// What is another on the destination: CPUs that vCPUs are pinned to, and such.
    pub changes: Vec<String>,
    /// What it took; nothing of a plan.
    pub took: Option<MigrateFigures>,
    /// All of its memory is at one node, or would be.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub merged: bool,
    /// Its place on the NUMA nodes of its next host; nothing of a guest that gets none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<LayoutView>,
}

/// A guest's place on the NUMA nodes of its next host.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct LayoutView {
    /// Who found it.
    pub policy: LayoutPolicy,
    /// How much less the work of all guests there is to cost than without that, by a model: 0.05 is a twentieth.
    pub expected_gain: f64,
    /// Memory of other guests that has to make room.
    pub to_evict_bytes: u64,
    /// What came of it; nothing of a plan.
    pub took: Option<LayoutFigures>,
}

/// What came of a guest's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct LayoutFigures {
    /// Its memory that is where it was to be.
    pub placed_bytes: u64,
    /// Of that, what was relocated after the guest had come.
    pub relocated_bytes: u64,
    /// Its memory that is elsewhere.
    pub elsewhere_bytes: u64,
    /// Memory of other guests that was to make room.
    pub evicted_bytes: u64,
}

/// What a migration took, as libvirt counted it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct MigrateFigures {
    /// From the request to the guest at its destination.
    pub total_ms: u64,
    /// While the guest ran nowhere.
    pub downtime_ms: u64,
    /// Memory that was sent.
    pub memory_sent_bytes: u64,
    /// Of disks that was sent.
    pub disk_sent_bytes: u64,
    /// How often changed memory was sent again.
    pub rounds: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_is_one_part_of_a_path() {
        assert_eq!(vm_path("/v1/vms", "web-1"), "/v1/vms/web%2D1");
        assert_eq!(vm_path("/v1/vms", "a/b c?"), "/v1/vms/a%2Fb%20c%3F");
    }
}
