// SPDX-License-Identifier: Apache-2.0
//! A machine in memory that follows the kernel's rules, with faults on demand.
//! Two NUMA nodes of three cores each, a pool of free memory, two disks, a NIC,
//! a bridge and an old device without MSI.

mod peers;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use mint_ops::fake::Fuse;
use mint_sys::{ConsoleChunk, KillReport, MoveFailure, SysError};
use mint_types::{
    Bdf, BlockPages, Kind, Load, MachineInfo, NodeId, NodeName, NodeState, NodeStatus, PageKind,
    PagesOfKind, ResState, Resource, ResourceFlags, ResourceKey,
};

use crate::machine::Machine;
use mint_host::Host;
use mint_image::{Bundle, BundleError, BundleFile};

/// Size of the fake's memory blocks.
pub const BLOCK_BYTES: u64 = 128 << 20;
/// First free block of NUMA node 0, and how many.
pub const POOL0: (u32, u32) = (16, 8);
/// First free block of NUMA node 1, and how many.
pub const POOL1: (u32, u32) = (32, 14);

#[derive(Clone, Default)]
struct State {
    /// For how many nodes there is room.
    node_max: u32,
    resources: BTreeMap<ResourceKey, Resource>,
    nodes: BTreeMap<NodeId, NodeStatus>,
    drivers: BTreeMap<Bdf, String>,
    users: BTreeMap<Bdf, Vec<String>>,
    groups: BTreeMap<Bdf, Vec<Bdf>>,
    /// Blocks whose content cannot be moved.
    pinned: BTreeMap<u32, u64>,
    /// Memory blocks that only the try shows to stay.
    stuck: BTreeSet<u32>,
    /// What is in blocks that stay, by their address.
    pages: BTreeMap<u64, BlockPages>,
    /// Cores that a guest is pinned to.
    with_guests: BTreeSet<u32>,
    /// Calls that fail: `claim cpu 3 1` (for node 1), `load node 1`; `try release cpu 3 1`:
    /// not the dry run.
    faults: BTreeSet<String>,
    /// The call that panics, once.
    panics: Option<String>,
    /// Resources that the kernel does not release, and its `enum mint_refusal`.
    refused: BTreeMap<ResourceKey, u32>,
    /// All calls that changed something, in order.
    calls: Vec<String>,
    consoles: BTreeMap<NodeId, Vec<u8>>,
    /// What each node was last loaded with.
    initrds: BTreeMap<NodeId, Vec<u8>>,
}

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

/// After so many calls that change something the caller is dead: it never comes back from
/// the next one, and does nothing more.
#[derive(Default)]
struct Doom {
    calls_left: Mutex<Option<u32>>,
    dead: AtomicBool,
}

impl Doom {
    fn reached(&self) {
        {
            let mut left = self.calls_left.lock().expect("nothing panics in here");
            match left.as_mut() {
                None => return,
                Some(0) => {}
                Some(left) => {
                    *left -= 1;
                    return;
                }
            }
        }
        self.dead.store(true, Ordering::Relaxed);
        loop {
            std::thread::park();
        }
    }
}

fn errno(call: &'static str, subject: impl ToString, number: i32) -> SysError {
    SysError::Call {
        call,
        subject: subject.to_string(),
        source: std::io::Error::from_raw_os_error(number),
    }
}

const ENOENT: i32 = 2;
const ESTALE: i32 = 116;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const EPERM: i32 = 1;
const EOPNOTSUPP: i32 = 95;
const ENODATA: i32 = 61;

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

    /// Changes a node's state, as its kernel would.
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

impl State {
    /// What in that memory block cannot be moved; none if it is of the movable zone.
    fn immovable(&self, block: u32) -> Option<Vec<PagesOfKind>> {
        let part = |&kib: &u64| PagesOfKind { kind: PageKind::Slab, kib };
        self.pinned
            .get(&block)
            .map(|kib| Some(kib).filter(|&&kib| kib > 0).map(part).into_iter().collect())
    }

    fn put(
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

    fn add_node(&mut self, id: u32, name: &str, state: NodeState) {
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

    fn fault(&self, call: &'static str, subject: &str) -> Result<(), SysError> {
        if self.faults.contains(&format!("{call} {subject}")) {
            return Err(errno(call, subject, EBUSY));
        }
        Ok(())
    }

    fn is_live(&self, id: NodeId) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.state.is_live())
    }

    fn move_fault(
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

fn refuse(
    call: &'static str,
    key: ResourceKey,
    errno: i32,
    reason: u32,
    owner: Option<NodeId>,
) -> SysError {
    SysError::Move { call, key, failure: MoveFailure { errno, reason, owner } }
}

impl Machine for FakeMachine {
    fn info(&self) -> Result<MachineInfo, SysError> {
        Ok(MachineInfo {
            node: NodeId::new(self.here).expect("constant"),
            node_max: self.lock().node_max,
            numa_nodes: 2,
            mem_block_bytes: BLOCK_BYTES,
            boot_id: 42,
            abi_version: 1,
        })
    }

    fn resources(&self, kind: Kind) -> Result<Vec<Resource>, SysError> {
        Ok(self.lock().resources.values().filter(|r| r.key.kind == kind).cloned().collect())
    }

    fn node(&self, id: NodeId) -> Result<Option<NodeStatus>, SysError> {
        Ok(self.lock().nodes.get(&id).cloned())
    }

    fn create(&self, id: NodeId, name: &str) -> Result<(), SysError> {
        self.fuse.act();
        self.doom.reached();
        let mut state = self.lock();
        state.fault("create", &format!("node {id}"))?;
        if state.nodes.contains_key(&id) || state.nodes.values().any(|node| node.name == name) {
            return Err(errno("create", id, EEXIST));
        }
        state.calls.push(format!("create {id} {name}"));
        state.add_node(id.as_u32(), name, NodeState::Stopped);
        Ok(())
    }

    fn destroy(&self, id: NodeId) -> Result<(), SysError> {
        self.fuse.act();
        self.doom.reached();
        let mut state = self.lock();
        state.fault("destroy", &format!("node {id}"))?;
        if state.resources.values().any(|r| r.owner == Some(id)) || state.is_live(id) {
            return Err(errno("destroy", id, EBUSY));
        }
        state.calls.push(format!("destroy {id}"));
        state.nodes.remove(&id).map(drop).ok_or_else(|| errno("destroy", id, ENOENT))
    }

    fn load(
        &self,
        id: NodeId,
        _: &File,
        initrd: Option<&File>,
        cmdline: &str,
    ) -> Result<(), SysError> {
        let read = |mut file: &File| {
            let mut bytes = Vec::new();
            let read = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
            read.map(|_| bytes).expect("what is loaded can be read")
        };
        let bytes = initrd.map(read).unwrap_or_default();
        self.fuse.act();
        self.doom.reached();
        let mut state = self.lock();
        state.fault("load", &format!("node {id}"))?;
        state.calls.push(format!("load {id} {cmdline}"));
        let node = state.nodes.get_mut(&id).ok_or_else(|| errno("load", id, ENOENT))?;
        if node.state.is_live() {
            return Err(errno("load", id, EBUSY));
        }
        node.state = NodeState::Loaded;
        state.initrds.insert(id, bytes);
        Ok(())
    }

    fn unload(&self, id: NodeId) -> Result<(), SysError> {
        self.fuse.act();
        let mut state = self.lock();
        match state.nodes.get_mut(&id) {
            Some(node) if node.state == NodeState::Loaded => {
                node.state = NodeState::Stopped;
                Ok(())
            }
            _ => Err(errno("unload", id, ENOENT)),
        }
    }

    fn start(&self, id: NodeId) -> Result<(), SysError> {
        self.fuse.act();
        self.doom.reached();
        let mut state = self.lock();
        state.fault("start", &format!("node {id}"))?;
        state.calls.push(format!("start {id}"));
        match state.nodes.get_mut(&id) {
            Some(node) if node.state == NodeState::Loaded => {
                node.state = NodeState::Running;
                node.boots += 1;
                Ok(())
            }
            _ => Err(errno("start", id, EBUSY)),
        }
    }

    fn shutdown(&self, id: NodeId) -> Result<(), SysError> {
        self.fuse.act();
        let mut state = self.lock();
        state.fault("shutdown", &format!("node {id}"))?;
        match state.nodes.get_mut(&id) {
            Some(node) if node.state.is_live() => {
                node.state = NodeState::Halted;
                Ok(())
            }
            _ => Err(errno("shutdown", id, EBUSY)),
        }
    }

    fn kill(&self, id: NodeId, boots: u32) -> Result<KillReport, SysError> {
        self.fuse.act();
        self.doom.reached();
        let mut state = self.lock();
        state.fault("kill", &format!("node {id}"))?;
        state.calls.push(format!("kill {id}"));
        let cpus = state
            .resources
            .values()
            .filter(|r| r.key.kind == Kind::Cpu && r.owner == Some(id))
            .count();
        let cpus = u32::try_from(cpus).unwrap_or(u32::MAX);
        let node = state.nodes.get_mut(&id).ok_or_else(|| errno("kill", id, ENOENT))?;
        if boots != 0 && boots != node.boots {
            return Err(errno("kill", id, ESTALE));
        }
        // one that has ended keeps its own word for it
        if node.state.is_live() {
            node.state = NodeState::Killed;
        }
        for cpu in state.resources.values_mut() {
            if cpu.key.kind == Kind::Cpu && cpu.owner == Some(id) {
                cpu.flags.parked = true;
            }
        }
        Ok(KillReport { parked: cpus, cpus, fenced: 0 })
    }

    fn claim(&self, key: ResourceKey, node: NodeId, dry_run: bool) -> Result<(), SysError> {
        if !dry_run {
            self.fuse.act();
            self.doom.reached();
        }
        let mut state = self.lock();
        if !dry_run && state.panics.take_if(|call| *call == format!("claim {key} {node}")).is_some()
        {
            drop(state);
            panic!("a bug, on purpose");
        }
        let here = self.here;
        if node.as_u32() != here && state.is_live(node) {
            return Err(refuse("claim", key, EBUSY, 9, Some(node)));
        }
        state.move_fault("claim", key, node)?;
        let Some(resource) = state.resources.get_mut(&key) else {
            return Err(refuse("claim", key, ENOENT, 1, None));
        };
        if resource.state != ResState::Free {
            return Err(refuse("claim", key, EBUSY, 3, resource.owner));
        }
        if dry_run {
            return Ok(());
        }
        resource.state = ResState::Owned;
        resource.owner = Some(node);
        resource.changes += 1;
        state.calls.push(format!("claim {key} {node}"));
        Ok(())
    }

    fn release(&self, key: ResourceKey, node: NodeId, dry_run: bool) -> Result<(), SysError> {
        if !dry_run {
            self.fuse.act();
            self.doom.reached();
        }
        let mut state = self.lock();
        let here = self.here;
        if node.as_u32() != here && state.is_live(node) {
            return Err(refuse("release", key, EBUSY, 9, Some(node)));
        }
        state.move_fault("release", key, node)?;
        let has_driver = key.bdf().is_some_and(|bdf| state.drivers.contains_key(&bdf));
        let refused = state.refused.get(&key).copied();
        let Some(resource) = state.resources.get_mut(&key) else {
            return Err(refuse("release", key, ENOENT, 1, None));
        };
        if resource.state == ResState::Moving && node.as_u32() != here {
            // the kernel that moved it has died
            resource.state = ResState::Owned;
        }
        if resource.owner != Some(node) {
            return Err(refuse("release", key, EPERM, 2, resource.owner));
        }
        if let Some(reason) = refused {
            return Err(refuse("release", key, EOPNOTSUPP, reason, Some(node)));
        }
        if node.as_u32() == here && has_driver {
            return Err(refuse("release", key, EBUSY, 6, Some(node)));
        }
        if key.kind == Kind::Memory && node == NodeId::ZERO {
            return Err(refuse("release", key, EBUSY, 5, Some(node)));
        }
        if dry_run {
            return Ok(());
        }
        state.move_fault("try release", key, node)?;
        let resource = state.resources.get_mut(&key).expect("found above");
        resource.state = ResState::Free;
        resource.owner = None;
        resource.changes += 1;
        state.calls.push(format!("release {key} {node}"));
        Ok(())
    }

    fn console_read(&self, id: NodeId, pos: u64) -> Result<ConsoleChunk, SysError> {
        let state = self.lock();
        if !state.nodes.contains_key(&id) {
            return Err(errno("console_read", id, ENOENT));
        }
        let all = state.consoles.get(&id).map_or(&[][..], Vec::as_slice);
        let at = usize::try_from(pos).unwrap_or(usize::MAX).min(all.len());
        Ok(ConsoleChunk { bytes: all[at..].to_vec(), next: all.len() as u64, boots: 1 })
    }

    /// What is written comes back, as from a shell that echoes.
    fn console_write(&self, id: NodeId, bytes: &[u8]) -> Result<usize, SysError> {
        let mut state = self.lock();
        state.consoles.entry(id).or_default().extend(bytes);
        Ok(bytes.len())
    }

    /// The console of a node that has ended stands for its memory.
    fn vmcore(&self, id: NodeId) -> Result<(File, u64), SysError> {
        let state = self.lock();
        if state.is_live(id) {
            return Err(errno("vmcore", id, EBUSY));
        }
        let Some(bytes) = state.consoles.get(&id) else {
            return Err(errno("vmcore", id, ENODATA));
        };
        let file = mint_sys::sealed_file(&[bytes]).expect("this system has memfd");
        Ok((file, bytes.len() as u64))
    }
}

impl Host for FakeMachine {
    fn driver(&self, bdf: Bdf) -> Option<String> {
        self.lock().drivers.get(&bdf).cloned()
    }

    fn users(&self, bdf: Bdf) -> Vec<String> {
        self.lock().users.get(&bdf).cloned().unwrap_or_default()
    }

    fn group_peers(&self, bdf: Bdf) -> Vec<Bdf> {
        self.lock().groups.get(&bdf).cloned().unwrap_or_default()
    }

    fn pinned_vcpus(&self, apic_id: u32) -> Vec<String> {
        let pinned = self.lock().with_guests.contains(&apic_id);
        pinned.then(|| "vCPU 0 of guest demo".to_owned()).into_iter().collect()
    }

    fn block_pages(&self, phys: Range<u64>, timed_out: bool) -> Option<BlockPages> {
        let pages = self.lock().pages.get(&phys.start).cloned()?;
        Some(BlockPages { timed_out, ..pages })
    }

    fn is_movable(&self, block: u32) -> bool {
        !self.lock().pinned.contains_key(&block)
    }

    fn immovable(&self, phys: Range<u64>) -> Option<Vec<PagesOfKind>> {
        let block = u32::try_from(phys.start / BLOCK_BYTES).ok()?;
        Some(self.lock().immovable(block).unwrap_or_default())
    }

    fn load(&self) -> Load {
        Load { uptime_ms: 1000, cpu_busy_ms: 250, cpu_idle_ms: 750, ..Load::default() }
    }

    fn unbind(&self, bdf: Bdf) -> std::io::Result<()> {
        self.fuse.act();
        self.doom.reached();
        let mut state = self.lock();
        if state.faults.contains(&format!("unbind {bdf}")) {
            return Err(std::io::Error::from_raw_os_error(EBUSY));
        }
        state.drivers.remove(&bdf);
        Ok(())
    }

    fn bind(&self, bdf: Bdf, driver: Option<&str>) -> std::io::Result<()> {
        self.fuse.act();
        self.doom.reached();
        self.lock().drivers.insert(bdf, driver.unwrap_or("probed").into());
        Ok(())
    }
}

impl Bundle for FakeMachine {
    fn files(&self, node: NodeId, name: &NodeName) -> Result<Vec<BundleFile>, BundleError> {
        if node == NodeId::ZERO {
            return Ok(Vec::new());
        }
        let data = format!("name = \"{name}\"\nid = {node}\n").into_bytes();
        Ok(vec![BundleFile { name: "node.toml".into(), data }])
    }
}
