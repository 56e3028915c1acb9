// SPDX-License-Identifier: Apache-2.0
//! What the processes around a guest's memory are told: a lease for a memory server, and for the
//! keeper and the pager the guest itself.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use mint_types::{MachineId, PagingPolicy};
use serde::{Deserialize, Serialize};

use crate::geometry::{Geometry, GeometryError, PAGE_BYTES};

/// A guest's UUID, its bytes in the order of its text.
pub type Uuid = [u8; 16];

/// What a guest may keep at a memory server, and who speaks for it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lease {
    /// The guest.
    pub uuid: Uuid,
    /// What its main host says to show that it is.
    pub secret: [u8; 16],
    /// Of the main host that was here last: it grows with each.
    pub epoch: u64,
    /// Of the guest.
    pub memory_bytes: u64,
    /// What it may keep here.
    pub limit_bytes: u64,
    /// The start of its main host's node: that of another one has no such guest.
    pub main: NodeStart,
    /// What is kept here of the guest stays; else it is of an earlier life, and goes.
    #[serde(default)]
    pub stays: bool,
    /// Another memory server that is to have the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<Mirror>,
    /// The linked machine of its main host; none: this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineId>,
}

/// A memory server that has the same as another one, and what it wants to hear.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mirror {
    /// Where it listens.
    pub address: SocketAddr,
    /// What it wants to hear.
    pub secret: [u8; 16],
}

/// How far a mirror is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct MirrorView {
    /// Whether there is a connection, and it is known what the mirror has.
    pub is_connected: bool,
    /// Pages that are kept, the main host knows, and the mirror may not have.
    pub behind_pages: u64,
}

/// A node that runs since one of its starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeStart {
    /// Its number.
    pub node: u32,
    /// How many starts since it was made.
    pub boots: u32,
}

/// A lease is not wanted any more.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeaseEnd {
    /// The guest.
    pub uuid: Uuid,
    /// Of the lease that is meant.
    pub secret: [u8; 16],
    /// Of the main host that does not want it any more: one that another main host has is meant
    /// by none but that. None: whoever has it.
    #[serde(default)]
    pub epoch: Option<u64>,
}

/// A lease, as others are told of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeaseView {
    /// The guest.
    pub uuid: Uuid,
    /// Which lease.
    pub secret: [u8; 16],
    /// Of the main host that was here last; none where that is not told.
    #[serde(default)]
    pub epoch: Option<u64>,
    /// The start of its main host's node.
    pub main: NodeStart,
    /// What it may keep here.
    pub limit_bytes: u64,
    /// What it does keep.
    pub kept_bytes: u64,
    /// How far its mirror is; none: it has none.
    #[serde(default)]
    pub mirror: Option<MirrorView>,
    /// The linked machine of its main host; none: this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineId>,
}

/// Where a node's memory server listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServerAddress {
    /// Address and port.
    pub address: SocketAddr,
    /// The node, and its start: with it ends what is kept there. None of an older one.
    #[serde(default)]
    pub start: Option<NodeStart>,
    /// It sees to the mirror that the lease names.
    #[serde(default)]
    pub mirrors: bool,
}

/// A memory server of a guest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Server {
    /// Its node, as the user calls it.
    pub node: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// What it wants to hear.
    pub secret: [u8; 16],
    /// What it may keep.
    pub limit_bytes: u64,
    /// What it keeps is to go elsewhere.
    #[serde(default)]
    pub leaves: bool,
    /// The start of its node: what it keeps ends with that. None where that was not told.
    #[serde(default)]
    pub start: Option<NodeStart>,
    /// Who has the same.
    #[serde(default)]
    pub mirror: Option<ServerMirror>,
    /// The linked machine that its node is of: pages go there under TLS, through both mintds. None:
    /// this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineId>,
}

/// A memory server of a guest that has the same as another one of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServerMirror {
    /// Its node, as the user calls it.
    pub node: String,
    /// Where it listens, and what it wants to hear.
    #[serde(flatten)]
    pub at: Mirror,
    /// The start of its node.
    pub start: Option<NodeStart>,
}

impl Server {
    /// Whether it keeps nothing any more, and has no lease: only its number is left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.leaves && self.limit_bytes == 0
    }

    /// Of one of a linked machine: what mintd of this node is asked for, to reach it.
    #[must_use]
    pub fn way(&self) -> Option<String> {
        let (machine, start) = (self.machine?, self.start?);
        Some(format!("/v1/nodes/{machine}%2F{}/pages", start.node))
    }
}

/// A guest whose memory has a main host and memory servers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SplitGuest {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: Uuid,
    /// Of all of it.
    pub memory_bytes: u64,
    /// What its main host has for it.
    pub main_bytes: u64,
    /// Of a chunk.
    pub chunk_bytes: u64,
    /// How many main hosts it has had.
    pub epoch: u64,
    /// Process id of its QEMU.
    pub qemu: u32,
    /// Those that keep what its main host has no room for.
    pub servers: Vec<Server>,
    /// The start of its main host's node; none of one that an older daemon has begun.
    #[serde(default)]
    pub main: Option<NodeStart>,
    /// Where its QEMU has a monitor of ours; none: it does not move.
    #[serde(default)]
    pub monitor: Option<PathBuf>,
    /// How its pager chooses what goes.
    #[serde(default)]
    pub policy: PagingPolicy,
    /// Hosts that have each page that its main host has not: 1, or 2 with mirrors.
    #[serde(default = "one")]
    pub copies: u32,
    /// Nodes that are to keep nothing of it any more, as long as they run.
    #[serde(default)]
    pub left: Vec<NodeStart>,
    /// What a memory server that leaves has is asked for no faster than so many bytes a second; none:
    /// as fast as it goes. What somebody waits for comes beside that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_bytes_s: Option<u64>,
    /// It is about to move, and hosts have given what it is to have there: how it was before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lent: Option<Lent>,
}

/// How a guest's memory was to be before its hosts changed for a move.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lent {
    /// As [`SplitGuest::main_bytes`].
    pub main_bytes: u64,
    /// As [`SplitGuest::policy`].
    pub policy: PagingPolicy,
    /// As [`SplitGuest::copies`].
    pub copies: u32,
    /// Of each of the memory servers that there were, [`Server::leaves`].
    pub leaves: Vec<bool>,
}

impl SplitGuest {
    /// The guest stays where it is: its memory is to be as it was before hosts gave something for its
    /// move. Those that gave it keep nothing in the end.
    #[must_use]
    pub fn taken_back(mut self) -> Self {
        let Some(lent) = self.lent.take() else { return self };
        for (number, server) in self.servers.iter_mut().enumerate() {
            if !server.is_over() {
                server.leaves = lent.leaves.get(number).copied().unwrap_or(true);
            }
        }
        let Lent { main_bytes, policy, copies, .. } = lent;
        Self { main_bytes, policy, copies, ..self }
    }
}

fn one() -> u32 {
    1
}

/// A guest that comes: what its new host is told beforehand.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Arrival {
    /// As it will be there, but for its QEMU.
    pub guest: SplitGuest,
    /// How to get its pages.
    pub source: Source,
}

/// Where a host that a guest leaves gives its pages to the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Source {
    /// Address and port.
    pub address: SocketAddr,
    /// What that wants to hear.
    pub secret: [u8; 16],
    /// At most so many bytes a second, from all hosts together that have some of it.
    #[serde(default)]
    pub bandwidth_bytes_s: Option<u64>,
}

/// How a guest leaves a host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Leave {
    /// Where its pages are given.
    pub source: Source,
    /// At most so many bytes a second.
    pub bandwidth_bytes_s: Option<u64>,
    /// What its next main host has for it: the rest goes to memory servers ahead of the guest. None:
    /// it has room for all that is here.
    #[serde(default)]
    pub main_bytes: Option<u64>,
}

/// What a pager is asked for on its socket `go.sock`, as a line of JSON.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PagerCall {
    /// The guest is about to move: give its pages to who says this secret.
    Go {
        /// Address to listen on.
        ip: IpAddr,
        /// The secret.
        secret: [u8; 16],
        /// At most so many bytes a second.
        bandwidth_bytes_s: Option<u64>,
        /// As [`Leave::main_bytes`].
        #[serde(default)]
        main_bytes: Option<u64>,
    },
    /// It stays.
    Stay,
}

/// What a pager answers, as JSON.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PagerAnswer {
    /// It gives the guest's pages there.
    Goes(SocketAddr),
    /// Nothing of it goes any more.
    Stays,
    /// It does not, because of this.
    Cannot(String),
}

/// Where a guest's pages are and what its pager has done, as it tells who asks.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct MemoryView {
    /// Pages that nobody has touched.
    pub virgin_pages: u64,
    /// Pages in the guest's memory.
    pub local_pages: u64,
    /// Pages on their way to memory servers.
    pub leaving_pages: u64,
    /// Pages at memory servers.
    pub remote_pages: u64,
    /// Pages on their way here.
    pub coming_pages: u64,
    /// How often somebody waited for a page, since this pager began.
    pub faults: u64,
    /// Pages that came from memory servers since.
    pub page_ins: u64,
    /// Pages that went there since.
    pub page_outs: u64,
    /// Chunks that were asked for since before anybody waited for them.
    #[serde(default)]
    pub prefetches: u64,
    /// How long whoever waited did so for pages that came from memory servers, in all.
    pub waited_ns: u64,
    /// How often.
    pub waits: u64,
    /// How long pages were taken out, in all: faults wait for that.
    pub taking_ns: u64,
    /// How long pages were put in, in all.
    pub filling_ns: u64,
    /// Pages that a memory server should have and has not: the guest waits for them for ever.
    pub lost_pages: u64,
    /// Each memory server, in the guest's order of them.
    pub servers: Vec<ServerView>,
    /// How its pager chooses what goes.
    #[serde(default)]
    pub policy: PagingPolicy,
    /// Of a chunk, by which pages go and come; none of an older pager, and while it comes.
    #[serde(default)]
    pub chunk_bytes: Option<u64>,
    /// What is known of the use of its pages; none: nothing, as the kernel does not tell.
    #[serde(default)]
    pub looks: Option<LooksView>,
    /// While it comes from another host.
    #[serde(default)]
    pub arrival: Option<ArrivalView>,
    /// While it goes to another host.
    #[serde(default)]
    pub departure: Option<DepartureView>,
}

/// What a pager knows of the use of its guest's pages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct LooksView {
    /// How often it has looked at all that is here, since it began.
    pub count: u64,
    /// How long that took, in all.
    pub took_ns: u64,
    /// Pages that were used in the last eight periods, or since the hand of the clock was there.
    pub used_pages: u64,
}

/// How far a guest is that goes to another host.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct DepartureView {
    /// How often all that had changed was sent.
    pub rounds: u32,
    /// Pages that were sent, some of them again.
    pub sent_pages: u64,
    /// Pages that had changed when the last round began.
    pub rest_pages: u64,
    /// Pages that are here, and that memory servers have for its next main host.
    #[serde(default)]
    pub ahead_pages: u64,
    /// How often its next host has begun to get the last of it, for which it stands still.
    #[serde(default)]
    pub finals: u32,
}

/// How far a guest is that comes from another host.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct ArrivalView {
    /// Pages that came, some of them again.
    pub pages: u64,
    /// Pages that came from memory servers while the last main host sent what it had.
    #[serde(default)]
    pub early_pages: u64,
    /// Little is left: its QEMU may begin.
    pub is_ready: bool,
    /// Why it will not come.
    pub failed: Option<String>,
}

/// A memory server, as a pager sees it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct ServerView {
    /// Chunks of which pages are there, or on their way there or back.
    pub chunks: u64,
    /// Whether there is a connection.
    pub is_connected: bool,
}

/// Part of a guest's pages that may be on their way to memory servers.
const LEAVING_PART: u64 = 16;
/// They are as many chunks at least.
const LEAVING_CHUNKS: u64 = 2;

impl SplitGuest {
    /// How its memory is divided.
    ///
    /// # Errors
    /// When it cannot be.
    pub fn geometry(&self) -> Result<Geometry, GeometryError> {
        Geometry::new(self.memory_bytes, self.chunk_bytes)
    }

    /// Pages that its main host may have.
    #[must_use]
    pub fn budget_pages(&self) -> u64 {
        self.main_bytes / PAGE_BYTES
    }

    /// Pages of these that may be on their way to memory servers.
    #[must_use]
    pub fn leaving_pages(&self) -> u64 {
        leaving_bytes(self.main_bytes, self.chunk_bytes) / PAGE_BYTES
    }
}

/// What a main host is to have that has all of a guest: room for each chunk, and for as many more as
/// may be on their way.
#[must_use]
pub fn whole_bytes(memory_bytes: u64, chunk_bytes: u64) -> u64 {
    let all = memory_bytes.div_ceil(chunk_bytes).saturating_add(LEAVING_CHUNKS + 2);
    let all = all.saturating_mul(chunk_bytes);
    all.saturating_add(all / (LEAVING_PART - 1)).next_multiple_of(chunk_bytes)
}

fn leaving_bytes(main_bytes: u64, chunk_bytes: u64) -> u64 {
    (main_bytes / LEAVING_PART).max(LEAVING_CHUNKS * chunk_bytes)
}

/// The lease of a memory server that is to have a share of a guest: what is on its way is kept
/// twice for a while, and the main host has room for whole chunks alone.
#[must_use]
pub fn limit_bytes(share_bytes: u64, main_bytes: u64, chunk_bytes: u64) -> u64 {
    let spare = leaving_bytes(main_bytes, chunk_bytes) + 3 * chunk_bytes;
    share_bytes.div_ceil(chunk_bytes).saturating_mul(chunk_bytes).saturating_add(spare)
}
