// SPDX-License-Identifier: Apache-2.0
//! From a change of what a node owns to steps, or to every reason why not.

use std::collections::BTreeSet;

use mint_types::{
    CpuChange, Kind, MemoryChange, MemoryRequest, NodeId, NodeStatus, Plan, Refusal, RefusalCode,
    ResState, ResizeSpec, Resource, ResourceKey, Step, format_bytes,
};

use crate::planner::{Draft, Planner};
use crate::refusals::{being_moved, boot_core, busy};

/// Who gets what the node gives up.
struct Takers {
    cores_and_devices: Option<NodeId>,
    memory: Option<NodeId>,
}

impl Planner<'_> {
    /// The plan that changes what `node` owns, or all refusals.
    ///
    /// What comes is taken before anything is given up, so that an exchange
    /// never leaves the node with less than both.
    pub fn resize(&self, node: &NodeStatus, spec: &ResizeSpec) -> Result<Plan, Vec<Refusal>> {
        let mut draft = Draft {
            node: node.id,
            donors: BTreeSet::new(),
            from_running: BTreeSet::new(),
            steps: Vec::new(),
            notes: Vec::new(),
            refusals: Vec::new(),
        };
        for reference in &spec.from {
            match self.inventory.resolve(reference) {
                Ok(giver) => {
                    draft.donors.insert(giver.id);
                    draft.from_running.insert(giver.id);
                }
                Err(refusal) => draft.refusals.push(refusal),
            }
        }
        if spec.from.is_empty() {
            draft.donors.insert(self.inventory.info.node);
        }
        // its own are not new to it
        draft.donors.remove(&node.id);
        let takers = self.takers(&mut draft, node.id, spec);

        let mut devices = BTreeSet::from_iter(spec.devices.iter().copied());
        devices.retain(|&bdf| !self.owns(node.id, ResourceKey::device(bdf)));
        for bdf in devices {
            self.device(&mut draft, &spec.devices, bdf);
        }
        let dropped_cpus = self.resize_cpus(&mut draft, node, spec);
        let dropped_memory = self.resize_memory(&mut draft, node, spec);

        for bdf in spec.drop_devices.iter().copied().collect::<BTreeSet<_>>() {
            self.give(&mut draft, ResourceKey::device(bdf), takers.cores_and_devices);
        }
        for cpu in dropped_cpus {
            self.give(&mut draft, ResourceKey::cpu(cpu), takers.cores_and_devices);
        }
        for block in dropped_memory {
            self.give(&mut draft, ResourceKey::memory(block), takers.memory);
        }
        self.takers_answer(&mut draft);
        if !draft.refusals.is_empty() {
            return Err(draft.refusals);
        }
        let name = node
            .display_name()
            .parse()
            .map_err(|error| vec![Refusal::new(RefusalCode::NameBad, node.label(), error)])?;
        Ok(Plan { node: node.id, name, steps: draft.steps, notes: draft.notes })
    }

    /// A running node takes what it gets itself: one whose mintd is deaf gets nothing, and
    /// nobody gives anything up for it.
    fn takers_answer(&self, draft: &mut Draft) {
        let mut asked = BTreeSet::new();
        for step in &draft.steps {
            let Step::Claim { key, node, .. } = step else { continue };
            let is_peer = *node != self.inventory.info.node && self.inventory.is_live(*node);
            if !is_peer || !asked.insert(*node) {
                continue;
            }
            let Err(error) = self.facts.releasable(*node, &[]) else { continue };
            let label = self.inventory.label(*node);
            let text = format!("{label} runs and cannot take {key}: {error}");
            draft.refusals.push(
                Refusal::new(RefusalCode::PeerUnreachable, key, text)
                    .owned_by(self.owner_of(*key))
                    .hint("see why its mintd does not answer: mintctl node console; or stop it"),
            );
        }
    }

    fn owner_of(&self, key: ResourceKey) -> String {
        let owner = self.inventory.find(key).and_then(|resource| resource.owner);
        owner.map_or_else(String::new, |owner| self.inventory.label(owner))
    }

    fn takers(&self, draft: &mut Draft, node: NodeId, spec: &ResizeSpec) -> Takers {
        let Some(reference) = &spec.to else {
            let zero = Some(NodeId::ZERO).filter(|&zero| zero != node);
            return Takers { cores_and_devices: zero, memory: None };
        };
        match self.inventory.resolve(reference) {
            Ok(taker) if taker.id != node => {
                Takers { cores_and_devices: Some(taker.id), memory: Some(taker.id) }
            }
            other => {
                draft.refusals.push(other.err().unwrap_or_else(|| {
                    Refusal::new(
                        RefusalCode::NodeSelf,
                        self.inventory.label(node),
                        "a node cannot give to itself",
                    )
                    .hint("name another node with --to")
                }));
                Takers { cores_and_devices: None, memory: None }
            }
        }
    }

    fn owns(&self, node: NodeId, key: ResourceKey) -> bool {
        self.inventory.find(key).is_some_and(|resource| resource.owner == Some(node))
    }

    /// Steps for the cores that come; gives those that go.
    fn resize_cpus(&self, draft: &mut Draft, node: &NodeStatus, spec: &ResizeSpec) -> Vec<u32> {
        let owned = self.inventory.cpus_of(node.id);
        let (more, less): (Vec<u32>, Vec<u32>) = match &spec.cpus {
            None => return Vec::new(),
            Some(CpuChange::To(list)) => (
                list.iter().filter(|&cpu| !owned.contains(cpu)).collect(),
                owned.iter().filter(|&cpu| !list.contains(cpu)).collect(),
            ),
            Some(CpuChange::More(count)) => {
                (self.choose_cpus(draft, spec.numa, *count as usize), Vec::new())
            }
            Some(CpuChange::Less(count)) => {
                let lendable: Vec<&Resource> = self
                    .inventory
                    .owned(node.id, Kind::Cpu)
                    .filter(|core| !core.flags.boot || !node.state.is_live())
                    .collect();
                let last = self.likely_to_go(&lendable, *count as usize);
                // a node that does not run has no boot core, but it could not start without any
                if last.len() < *count as usize || last.len() == owned.len() {
                    let label = node.label();
                    draft.refusals.push(
                        Refusal::new(
                            RefusalCode::CpuLast,
                            format_args!("cpus {owned}"),
                            format_args!(
                                "{label} has {} cores, of which it needs one to boot; {count} are to go",
                                owned.len()
                            ),
                        )
                        .owned_by(label)
                        .hint("leave it a core; to be rid of the node: mintctl node remove"),
                    );
                    return Vec::new();
                }
                (Vec::new(), last.iter().map(|core| core.key.id).collect())
            }
        };
        self.take_cpus(draft, &more);
        less
    }

    /// Steps for the memory that comes; gives the blocks that go.
    fn resize_memory(&self, draft: &mut Draft, node: &NodeStatus, spec: &ResizeSpec) -> Vec<u32> {
        let (mut gone, mut more) = (BTreeSet::new(), Vec::new());
        for change in &spec.memory {
            let (request, has) = match *change {
                MemoryChange::To(request) => (request, self.owned_bytes(node.id, request.numa)),
                MemoryChange::More(request) | MemoryChange::Less(request) => (request, 0),
            };
            let less = match change {
                MemoryChange::Less(request) => request.bytes,
                MemoryChange::To(request) => has.saturating_sub(request.bytes),
                MemoryChange::More(_) => 0,
            };
            if less > 0 {
                let numa = request.numa.or(spec.numa);
                self.choose_gone(draft, node, MemoryRequest { bytes: less, numa }, &mut gone);
            } else if request.bytes > has {
                let bytes = request.bytes - has;
                more.push(MemoryRequest { bytes, numa: request.numa });
            }
        }
        // all at once: no two of them may choose the same block
        let near: Vec<u32> = self.inventory.cpus_of(node.id).iter().collect();
        self.take_memory(draft, &more, spec.numa, &near);
        gone.into_iter().rev().collect()
    }

    fn owned_bytes(&self, node: NodeId, numa: Option<u32>) -> u64 {
        let blocks = self
            .inventory
            .owned(node, Kind::Memory)
            .filter(|block| numa.is_none() || block.numa == numa)
            .count();
        (blocks as u64).saturating_mul(self.inventory.info.mem_block_bytes)
    }

    /// Blocks that the node can spare.
    fn choose_gone(
        &self,
        draft: &mut Draft,
        node: &NodeStatus,
        less: MemoryRequest,
        gone: &mut BTreeSet<u32>,
    ) {
        let block_bytes = self.inventory.info.mem_block_bytes;
        // rounded down: a node never loses more than it was told
        let count = usize::try_from(less.bytes / block_bytes).unwrap_or(usize::MAX);
        draft.notes.extend(self.rounding("-", less.bytes, count));
        let blocks: Vec<&Resource> = self
            .inventory
            .owned(node.id, Kind::Memory)
            .filter(|block| less.numa.is_none() || block.numa == less.numa)
            .filter(|block| !gone.contains(&block.key.id))
            .collect();
        let likely = self.likely_to_go(&blocks, count);
        // all of a NUMA node may go, as long as some is left elsewhere
        let left = self.inventory.owned(node.id, Kind::Memory).count() - gone.len();
        if left <= count || likely.len() < count {
            let label = node.label();
            let bytes = |blocks: usize| format_bytes((blocks as u64).saturating_mul(block_bytes));
            let why = match left <= count {
                true => format!("has {}, which it cannot lose altogether", bytes(left)),
                false => format!(
                    "has {} there, of which {} can go",
                    bytes(blocks.len()),
                    bytes(likely.len())
                ),
            };
            draft.refusals.push(
                Refusal::new(
                    RefusalCode::MemoryShort,
                    format_args!("memory {less}"),
                    format_args!("{label} {why}"),
                )
                .owned_by(label)
                .hint("take less; to be rid of the node: mintctl node remove"),
            );
            return;
        }
        gone.extend(likely.iter().map(|block| block.key.id));
    }

    /// Steps that take one resource from the node, or the refusal.
    fn give(&self, draft: &mut Draft, key: ResourceKey, taker: Option<NodeId>) {
        let node = draft.node;
        let label = self.inventory.label(node);
        let Some(resource) = self.inventory.find(key).filter(|r| r.owner == Some(node)) else {
            draft.refusals.push(self.not_its_own(key, &label));
            return;
        };
        if let Some(refusal) = self.must_stay(resource, &label) {
            draft.refusals.push(refusal);
            return;
        }
        let mut driver = None;
        if let Some(bdf) = key.bdf().filter(|_| node == self.inventory.info.node) {
            let users = self.facts.users(bdf);
            if !users.is_empty() {
                draft.refusals.push(busy(key, &label, &users));
                return;
            }
            driver = self.facts.driver(bdf);
        }
        if let Some(refusal) = self.stays(key, node) {
            draft.refusals.push(refusal);
            return;
        }
        draft.steps.push(Step::Release { key, node, driver });
        if let Some(taker) = taker {
            draft.steps.push(Step::Claim { key, node: taker, driver: None });
        }
    }

    fn not_its_own(&self, key: ResourceKey, label: &str) -> Refusal {
        let owner = self.inventory.find(key).and_then(|resource| resource.owner);
        let (code, hint) = match key.kind {
            Kind::Cpu => (RefusalCode::CpuOwned, "see mintctl cpu list"),
            Kind::Memory => (RefusalCode::MemoryAbsent, "see mintctl memory list"),
            Kind::Device => (RefusalCode::DeviceOwned, "see mintctl device list"),
        };
        Refusal::new(code, key, format_args!("{label} does not own {key}: it cannot give it up"))
            .owned_by(owner.map_or(String::new(), |owner| self.inventory.label(owner)))
            .hint(hint)
    }

    fn must_stay(&self, resource: &Resource, label: &str) -> Option<Refusal> {
        let key = resource.key;
        if resource.state == ResState::Moving {
            return Some(being_moved(key, label));
        }
        let is_live = resource.owner.is_some_and(|owner| self.inventory.is_live(owner));
        if key.kind == Kind::Cpu && resource.flags.boot && is_live {
            return Some(boot_core(key, label));
        }
        if resource.flags.bridge || resource.flags.platform {
            return Some(
                Refusal::new(
                    RefusalCode::DevicePlatform,
                    key,
                    format_args!("{key} is part of the platform, which stays with node 0"),
                )
                .owned_by(label)
                .hint("choose a device behind it: mintctl device list"),
            );
        }
        None
    }
}
