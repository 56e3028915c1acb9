// SPDX-License-Identifier: Apache-2.0
//! What the played machine is: its ledger, and what is to go wrong with it.

use std::collections::{BTreeMap, BTreeSet};

use mint_sys::{MoveFailure, SysError};
use mint_types::{
    Bdf, BlockPages, NodeId, NodeState, NodeStatus, PageKind, PagesOfKind, ResState, Resource,
    ResourceFlags, ResourceKey,
};

/// Size of the fake's memory blocks.
pub const BLOCK_BYTES: u64 = 128 << 20;

#[derive(Clone, Default)]
pub(super) struct State {
    /// For how many nodes there is room.
    pub(super) node_max: u32,
    pub(super) resources: BTreeMap<ResourceKey, Resource>,
    pub(super) nodes: BTreeMap<NodeId, NodeStatus>,
    pub(super) drivers: BTreeMap<Bdf, String>,
    pub(super) users: BTreeMap<Bdf, Vec<String>>,
    pub(super) groups: BTreeMap<Bdf, Vec<Bdf>>,
    /// Blocks whose content cannot be moved.
    pub(super) pinned: BTreeMap<u32, u64>,
    /// Memory blocks that only the try shows to stay.
    pub(super) stuck: BTreeSet<u32>,
    /// What is in blocks that stay, by their address.
    pub(super) pages: BTreeMap<u64, BlockPages>,
    /// Cores that a guest is pinned to.
    pub(super) with_guests: BTreeSet<u32>,
    /// Calls that fail: `claim cpu 3 1` (for node 1), `load node 1`; `try release cpu 3 1`:
    /// not the dry run.
    pub(super) faults: BTreeSet<String>,
    /// The call that panics, once.
    pub(super) panics: Option<String>,
    /// Resources that the kernel does not release, and its `enum mint_refusal`.
    pub(super) refused: BTreeMap<ResourceKey, u32>,
    /// All calls that changed something, in order.
    pub(super) calls: Vec<String>,
    pub(super) consoles: BTreeMap<NodeId, Vec<u8>>,
    /// What each node was last loaded with.
    pub(super) initrds: BTreeMap<NodeId, Vec<u8>>,
}

pub(super) fn errno(call: &'static str, subject: impl ToString, number: i32) -> SysError {
    SysError::Call {
        call,
        subject: subject.to_string(),
        source: std::io::Error::from_raw_os_error(number),
    }
}

pub(super) const ENOENT: i32 = 2;
pub(super) const ESTALE: i32 = 116;
pub(super) const EBUSY: i32 = 16;
pub(super) const EEXIST: i32 = 17;
pub(super) const EPERM: i32 = 1;
pub(super) const EOPNOTSUPP: i32 = 95;
pub(super) const ENODATA: i32 = 61;

pub(super) fn refuse(
    call: &'static str,
    key: ResourceKey,
    errno: i32,
    reason: u32,
    owner: Option<NodeId>,
) -> SysError {
    SysError::Move { call, key, failure: MoveFailure { errno, reason, owner } }
}

impl State {
    /// What in that memory block cannot be moved; none if it is of the movable zone.
    pub(super) fn immovable(&self, block: u32) -> Option<Vec<PagesOfKind>> {
        let part = |&kib: &u64| PagesOfKind { kind: PageKind::Slab, kib };
        self.pinned
            .get(&block)
            .map(|kib| Some(kib).filter(|&&kib| kib > 0).map(part).into_iter().collect())
    }

    pub(super) fn put(
        &mut self,
        key: ResourceKey,
        owner: Option<u32>,
        numa: u32,
        change: impl FnOnce(&mut Resource),
    ) {
        let mut resource = Resource {
            key,
            state: if owner.is_some() { ResState::Owned } else { ResState::Free },
            owner: owner.map(|id| NodeId::new(id).expect("constant")),
            target: None,
            numa: Some(numa),
            flags: ResourceFlags::default(),
            changes: 0,
            hw_id: key.id,
            hw_class: 0,
            phys: u64::from(key.id) * BLOCK_BYTES,
            physfn: None,
        };
        change(&mut resource);
        self.resources.insert(key, resource);
    }

    pub(super) fn add_node(&mut self, id: u32, name: &str, state: NodeState) {
        let id = NodeId::new(id).expect("constant");
        self.nodes.insert(
            id,
            NodeStatus {
                id,
                name: name.into(),
                state,
                boots: u32::from(state == NodeState::Running),
                heartbeat: 1,
                state_change_ns: 1,
                cpus_online: 1,
                boot_cpu: None,
                memory_bytes: 0,
                release: "6.12.0-fake".into(),
                reason: String::new(),
            },
        );
    }

    pub(super) fn fault(&self, call: &'static str, subject: &str) -> Result<(), SysError> {
        if self.faults.contains(&format!("{call} {subject}")) {
            return Err(errno(call, subject, EBUSY));
        }
        Ok(())
    }

    pub(super) fn is_live(&self, id: NodeId) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.state.is_live())
    }

    pub(super) fn move_fault(
        &self,
        call: &'static str,
        key: ResourceKey,
        node: NodeId,
    ) -> Result<(), SysError> {
        if self.faults.contains(&format!("{call} {key} {node}")) {
            return Err(refuse(call, key, EBUSY, 10, None));
        }
        Ok(())
    }
}
