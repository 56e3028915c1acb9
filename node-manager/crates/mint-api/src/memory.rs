// SPDX-License-Identifier: Apache-2.0
//! Memory of guests that is split over several nodes. Sizes are bytes.

use mint_types::{NodeId, PagingPolicy};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where the memory of a running guest is, and what its pager has done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct VmMemory {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// Node that runs it: its main host.
    #[schema(value_type = u32)]
    pub node: NodeId,
    /// That node's name.
    pub node_name: String,
    /// All of it.
    pub memory_bytes: u64,
    /// What its main host has for it.
    pub main_bytes: u64,
    /// Of a chunk, by which it goes and comes.
    pub chunk_bytes: u64,
    /// How its pager chooses what goes to other hosts.
    #[serde(default)]
    pub policy: PagingPolicy,
    /// What was used lately of it: in the last half minute, or since the hand of the clock passed;
    /// nothing where the kernel does not tell.
    #[serde(default)]
    pub used_bytes: Option<u64>,
    /// Nobody has touched it.
    pub untouched_bytes: u64,
    /// On its main host.
    pub here_bytes: u64,
    /// On its main host, on the way to other hosts.
    pub leaving_bytes: u64,
    /// On other hosts.
    pub elsewhere_bytes: u64,
    /// On other hosts, on the way to its main host.
    pub coming_bytes: u64,
    /// How often the guest waited for a page, since this pager began.
    pub faults: u64,
    /// Pages that came from other hosts since.
    pub page_ins: u64,
    /// Pages that went there since.
    pub page_outs: u64,
    /// Chunks that came before the guest asked for them, as it read one after the other, since.
    #[serde(default)]
    pub prefetches: u64,
    /// How often the guest waited for a page that came from another host, since.
    #[serde(default)]
    pub waits: u64,
    /// How long it did so, in all: each wait from the fault to the page.
    #[serde(default)]
    pub waited_ns: u64,
    /// Other hosts have lost it: the guest waits for it for ever.
    pub lost_bytes: u64,
    /// The other hosts.
    pub hosts: Vec<VmMemoryHost>,
}

/// A picture of where the memory of a running guest is, and when it was used.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct VmMemoryMap {
    /// The guest's name.
    pub name: String,
    /// Its main host.
    pub node_name: String,
    /// Other hosts; `elsewhere` of a cell has their numbers in this list.
    pub hosts: Vec<String>,
    /// Bytes of a cell; the last one may have fewer.
    pub cell_bytes: u64,
    /// The guest's memory, from its first page to its last.
    pub cells: Vec<VmMemoryCell>,
}

/// A part of a guest's memory.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct VmMemoryCell {
    /// Nobody has touched it.
    pub untouched_bytes: u64,
    /// On its main host.
    pub here_bytes: u64,
    /// On each of the other hosts that has some.
    pub elsewhere: Vec<VmMemoryShare>,
    /// How lately any of it was used: 8 is in the period that runs (4 s), 1 seven periods before, 0
    /// not since. What a clock's hand has passed, and was not used since, is 0.
    pub heat: u8,
}

/// What a host has of a part of a guest's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct VmMemoryShare {
    /// Which, by its number in the list of hosts.
    pub host: u32,
    /// So much.
    pub bytes: u64,
}

/// What a node keeps of guests that other nodes run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct NodeKeeps {
    /// How many guests have something there.
    pub guests: u64,
    /// So much.
    pub kept_bytes: u64,
    /// What it has promised to keep at most.
    pub limit_bytes: u64,
    /// What it could promise besides; nothing from an older daemon.
    #[serde(default)]
    pub free_bytes: Option<u64>,
    /// What its settings let it promise besides; nothing: they do not bound that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may_bytes: Option<u64>,
    /// Of those that another node has the same of, how much that may not have yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<KeptMirror>,
}

impl NodeKeeps {
    /// What it would promise besides.
    #[must_use]
    pub fn room_bytes(&self) -> u64 {
        self.free_bytes.unwrap_or(0).min(self.may_bytes.unwrap_or(u64::MAX))
    }
}

/// A copy of what a node keeps of a guest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct KeptMirror {
    /// The guest's UUID.
    pub uuid: String,
    /// What it may not have yet.
    pub behind_bytes: u64,
}

/// A host that keeps memory of a guest that another one runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct VmMemoryHost {
    /// Its node, as the guest's definition names it.
    pub node: String,
    /// What it may keep.
    pub limit_bytes: u64,
    /// Chunks of which it has something.
    pub chunks: u64,
    /// Whether the guest's pager can talk with it.
    pub is_connected: bool,
    /// Node that has the same; nothing: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
    /// What that may not have yet; nothing where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror_behind_bytes: Option<u64>,
}
