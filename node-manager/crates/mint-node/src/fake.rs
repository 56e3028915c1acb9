// SPDX-License-Identifier: Apache-2.0
//! A machine in memory that follows the kernel's rules, with faults on demand.
//! Two NUMA nodes of three cores each, a pool of free memory, two disks, a NIC,
//! a bridge and an old device without MSI.

mod doom;
mod host;
mod machine;
mod peers;
mod state;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use mint_ops::fake::Fuse;
use mint_types::{Bdf, BlockPages, NodeId, NodeState, NodeStatus, ResState, ResourceKey};

use self::doom::Doom;
use self::state::State;

pub use self::state::BLOCK_BYTES;

/// First free block of NUMA node 0, and how many.
pub const POOL0: (u32, u32) = (16, 8);
/// First free block of NUMA node 1, and how many.
pub const POOL1: (u32, u32) = (32, 14);

/// The fake; also plays host, peers and bundle maker.
#[derive(Default)]
pub struct FakeMachine {
    /// Every call that changes something is an act: see [`Fuse`].
    pub fuse: Fuse,
    state: Arc<Mutex<State>>,
    /// The node that it is seen from.
    here: u32,
    /// When whoever uses this handle dies.
    doom: Arc<Doom>,
}

impl FakeMachine {
    /// The machine described above, seen from node 0.
    pub fn new() -> Self {
        let fake = Self::default();
        {
            let mut state = fake.lock();
            state.node_max = 4;
            for cpu in 0..6 {
                state.put(ResourceKey::cpu(cpu), Some(0), cpu / 3, |resource| {
                    resource.flags.boot = cpu == 0;
                });
            }
            for block in 0..16 {
                state.put(ResourceKey::memory(block), Some(0), 0, |_| {});
            }
            for ((first, count), numa) in [(POOL0, 0), (POOL1, 1)] {
                for block in first..first + count {
                    state.put(ResourceKey::memory(block), None, numa, |_| {});
                }
            }
            for (text, class, driver) in [
                ("0000:01:00.0", 0x01_00_00, "virtio-pci"),
                ("0000:02:00.0", 0x01_00_00, "virtio-pci"),
                ("0000:03:00.0", 0x01_08_02, "nvme"),
                ("0000:05:00.0", 0x02_00_00, "e1000e"),
                ("0000:00:01.0", 0x06_04_00, "pcieport"),
                ("0000:00:1f.0", 0x06_01_00, "lpc_ich"),
                ("0000:06:00.0", 0x04_03_00, "old"),
            ] {
                let bdf: Bdf = text.parse().expect("constant");
                state.put(ResourceKey::device(bdf), Some(0), 0, |resource| {
                    resource.hw_class = class;
                    resource.flags.bridge = class == 0x06_04_00;
                    resource.flags.platform = class == 0x06_01_00;
                    resource.flags.msi = class >> 16 < 4;
                });
                state.drivers.insert(bdf, driver.into());
            }
            state.users.insert(
                "0000:01:00.0".parse().expect("constant"),
                vec!["vda1 holds the root file system".into()],
            );
            state.add_node(0, "", NodeState::Running);
        }
        fake
    }

    /// Sees the machine from another node.
    pub fn seen_from(mut self, node: u32) -> Self {
        self.here = node;
        self
    }

    /// The same machine, as another node sees it at the same time.
    pub fn also_from(&self, node: u32) -> Self {
        Self {
            fuse: self.fuse.clone(),
            state: self.state.clone(),
            here: node,
            doom: Arc::default(),
        }
    }

    /// Adds a running node that owns these.
    pub fn with_node(self, id: u32, name: &str, owned: &[ResourceKey]) -> Self {
        {
            let mut state = self.lock();
            state.add_node(id, name, NodeState::Running);
            let node = NodeId::new(id).expect("constant");
            for key in owned {
                let resource = state.resources.get_mut(key).expect("constant");
                resource.owner = Some(node);
                resource.state = ResState::Owned;
            }
        }
        self
    }

    /// A machine with room for so many nodes.
    pub fn with_room(self, nodes: u32) -> Self {
        self.lock().node_max = nodes;
        self
    }

    /// Virtual functions of a physical one, their owner's for now.
    pub fn with_vfs(self, physfn: Bdf, vfs: &[Bdf]) -> Self {
        {
            let mut state = self.lock();
            let owner = state.resources[&ResourceKey::device(physfn)].owner;
            for &vf in vfs {
                state.put(ResourceKey::device(vf), owner.map(NodeId::as_u32), 0, |resource| {
                    resource.hw_class = 0x02_00_00;
                    resource.flags.vf = true;
                    resource.flags.msix = true;
                    resource.physfn = Some(physfn);
                });
            }
        }
        self
    }

    /// The call (`claim cpu 3 1`, `load node 1`…) fails from now on.
    pub fn fail(&self, call: &str) {
        self.lock().faults.insert(call.into());
    }

    /// The call (`claim cpu 3 1`) panics, once: a bug of the daemon's, not of the kernel's.
    pub fn panic_at(&self, call: &str) {
        self.lock().panics = Some(call.into());
    }

    /// The kernel does not release it, for this reason (`enum mint_refusal`).
    pub fn refuse_release(&self, key: ResourceKey, reason: u32) {
        self.lock().refused.insert(key, reason);
    }

    /// Another machine in the same state, without an end.
    pub fn fork(&self) -> Self {
        let state = Arc::new(Mutex::new(self.lock().clone()));
        Self { fuse: Fuse::default(), state, here: self.here, doom: Arc::default() }
    }

    /// No call fails any more.
    pub fn heal(&self) {
        self.lock().faults.clear();
    }

    /// Puts a function into a group with others.
    pub fn group(&self, bdf: Bdf, peers: &[Bdf]) {
        self.lock().groups.insert(bdf, peers.to_vec());
    }

    /// That memory block is not of the movable zone, and so much of it cannot be moved.
    pub fn pin(&self, block: u32, kib: u64) {
        self.lock().pinned.insert(block, kib);
    }

    /// The content of that memory block proves immovable when it is tried.
    pub fn stick(&self, block: u32) {
        self.lock().stuck.insert(block);
    }

    /// The host says that of a memory block that stays.
    pub fn fill(&self, block: u32, pages: BlockPages) {
        self.lock().pages.insert(u64::from(block) * BLOCK_BYTES, pages);
    }

    /// A guest is pinned to that core.
    pub fn pin_guest(&self, cpu: u32) {
        self.lock().with_guests.insert(cpu);
    }

    /// Its owner's kernel has begun to move a resource.
    pub fn set_moving(&self, key: ResourceKey) {
        let mut state = self.lock();
        state.resources.get_mut(&key).expect("a resource of the machine").state = ResState::Moving;
    }

    /// A node changes its state by itself.
    pub fn set_state(&self, id: NodeId, new: NodeState) {
        if let Some(node) = self.lock().nodes.get_mut(&id) {
            node.state = new;
        }
    }

    /// A node's record is written over, so that there seems to be none.
    pub fn lose_record(&self, id: NodeId) -> NodeStatus {
        self.lock().nodes.remove(&id).expect("a node of the machine")
    }

    /// The record of a node is as it was.
    pub fn put_record(&self, node: NodeStatus) {
        self.lock().nodes.insert(node.id, node);
    }

    /// State and owner of every resource, and the nodes: for before == after.
    pub fn ledger(&self) -> Vec<String> {
        let state = self.lock();
        let mut lines: Vec<String> = state
            .resources
            .values()
            .map(|r| format!("{} {:?} {:?}", r.key, r.state, r.owner))
            .collect();
        lines.extend(state.nodes.values().map(|n| format!("{} {} {}", n.id, n.name, n.state)));
        lines.extend(state.drivers.iter().map(|(bdf, driver)| format!("{bdf} {driver}")));
        lines
    }

    /// Whoever uses this handle dies at the next call but so many that changes something.
    pub fn die_after(&self, calls: u32) {
        *self.doom.calls_left.lock().expect("nothing panics in here") = Some(calls);
    }

    /// Whether that has come to pass.
    pub fn is_dead(&self) -> bool {
        self.doom.dead.load(Ordering::Relaxed)
    }

    /// The initrd that a node was last loaded with, its bundle included.
    pub fn initrd(&self, id: NodeId) -> Option<Vec<u8>> {
        self.lock().initrds.get(&id).cloned()
    }

    /// Calls that changed something.
    pub fn calls(&self) -> Vec<String> {
        self.lock().calls.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while it holds the lock")
    }
}
