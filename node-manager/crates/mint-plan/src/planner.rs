// SPDX-License-Identifier: Apache-2.0
//! From a description to steps, or to every reason why not.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use mint_types::{
    Bdf, Kind, MemoryRequest, NodeId, NodeSpec, Plan, Refusal, RefusalCode, ResState, Resource,
    ResourceKey, Step,
};

use crate::facts::Facts;
use crate::inventory::Inventory;
use crate::refusals::{being_moved, boot_core, busy};

/// Resources that are asked for in one question, at least.
const ASKED_AT_ONCE: usize = 64;
/// What a plan is made from.
pub struct Planner<'a> {
    /// The ledger.
    pub inventory: &'a Inventory,
    /// What the ledger does not say.
    pub facts: &'a dyn Facts,
    /// Memory blocks that their owners have tried to give up in vain.
    pub stay: BTreeSet<ResourceKey>,
    /// What owners have said for this plan: a resource is asked for once.
    pub answers: RefCell<BTreeMap<(ResourceKey, NodeId), Result<(), Refusal>>>,
    /// Guests get other cores than those that go: that some are pinned there is no refusal.
    pub repins: bool,
}

/// A plan as it grows.
pub(crate) struct Draft {
    pub node: NodeId,
    pub donors: BTreeSet<NodeId>,
    /// Donors whose memory may be taken although they run.
    pub from_running: BTreeSet<NodeId>,
    pub steps: Vec<Step>,
    pub notes: Vec<String>,
    pub refusals: Vec<Refusal>,
}

impl<'a> Planner<'a> {
    /// One that knows nothing yet of what stays.
    pub fn new(inventory: &'a Inventory, facts: &'a dyn Facts) -> Self {
        let (stay, answers) = (BTreeSet::new(), RefCell::default());
        Self { inventory, facts, stay, answers, repins: false }
    }
}

impl Planner<'_> {
    /// The plan that makes the node of `spec`.
    ///
    /// # Errors
    /// With all refusals.
    pub fn add(&self, spec: &NodeSpec) -> Result<Plan, Vec<Refusal>> {
        let mut draft = Draft {
            node: NodeId::ZERO,
            donors: BTreeSet::from([self.inventory.info.node]),
            from_running: BTreeSet::new(),
            steps: Vec::new(),
            notes: Vec::new(),
            refusals: Vec::new(),
        };
        match self.choose_id(spec) {
            Ok(id) => draft.node = id,
            Err(refusal) => draft.refusals.push(refusal),
        }
        for reference in &spec.from {
            match self.inventory.resolve(reference) {
                Ok(node) => {
                    draft.donors.insert(node.id);
                    draft.from_running.insert(node.id);
                }
                Err(refusal) => draft.refusals.push(refusal),
            }
        }
        draft.steps.push(Step::Create { node: draft.node, name: spec.name.clone() });
        // devices first: they are the most likely to be in use after all
        for &bdf in &spec.devices.iter().copied().collect::<BTreeSet<Bdf>>() {
            self.device(&mut draft, &spec.devices, bdf);
        }
        let cpus = self.cpus(&mut draft, spec);
        self.memory(&mut draft, spec, &cpus);
        self.images(&mut draft, spec);
        if draft.refusals.is_empty() {
            Ok(Plan {
                node: draft.node,
                name: spec.name.clone(),
                steps: draft.steps,
                notes: draft.notes,
            })
        } else {
            Err(draft.refusals)
        }
    }

    fn choose_id(&self, spec: &NodeSpec) -> Result<NodeId, Refusal> {
        let name = &spec.name;
        let resource = format!("node {name}");
        if let Some(taken) = self.inventory.nodes.iter().find(|node| node.name == name.as_str()) {
            return Err(Refusal::new(
                RefusalCode::NameTaken,
                &resource,
                format_args!("there is a node {name} already: node {}, {}", taken.id, taken.state),
            )
            .owned_by(taken.label())
            .hint(format_args!("choose another name, or first: mintctl node remove {name}")));
        }
        let is_unused = |id: NodeId| self.inventory.node(id).is_none();
        let exists = |id: NodeId| id.as_u32() < self.inventory.info.node_max;
        if let Some(number) = name.stands_for() {
            return match NodeId::new(number) {
                Ok(id) if exists(id) && is_unused(id) => Ok(id),
                Ok(id) if exists(id) => Err(Refusal::new(
                    RefusalCode::NameTaken,
                    &resource,
                    format_args!(
                        "{name} stands for node {id}, which is {}",
                        self.inventory.label(id)
                    ),
                )
                .owned_by(self.inventory.label(id))
                .hint("choose another name")),
                _ => Err(Refusal::new(
                    RefusalCode::NameBad,
                    &resource,
                    format_args!("{name} stands for node {number}, and there can be none"),
                )
                .hint(format_args!("ids are 0 to {}", self.inventory.info.node_max - 1))),
            };
        }
        let mut all = NodeId::below(self.inventory.info.node_max);
        all.find(|&id| is_unused(id)).ok_or_else(|| {
            Refusal::new(
                RefusalCode::NoFreeNode,
                &resource,
                format_args!("all {} node ids are in use", self.inventory.info.node_max),
            )
            .hint("remove a node: mintctl node list")
        })
    }

    fn cpus(&self, draft: &mut Draft, spec: &NodeSpec) -> Vec<u32> {
        let wanted: Vec<u32> = match (&spec.cpus, spec.cpu_count) {
            (Some(list), _) => list.iter().collect(),
            (None, Some(count)) => self.choose_cpus(draft, spec.numa, count as usize),
            (None, None) => Vec::new(),
        };
        if wanted.is_empty() && spec.cpu_count.unwrap_or(0) == 0 {
            draft.refusals.push(
                Refusal::new(RefusalCode::CpuShort, "cpus", "a node needs at least one core")
                    .hint("give --cpus 2-3 or --cpu-count 2"),
            );
        }
        self.take_cpus(draft, &wanted);
        wanted
    }

    /// Steps that bring these cores to the node.
    pub(crate) fn take_cpus(&self, draft: &mut Draft, wanted: &[u32]) {
        let last_of = self.robbed_donors(draft, wanted);
        for &cpu in wanted {
            self.cpu(draft, cpu, &last_of);
        }
        for donor in last_of {
            let label = self.inventory.label(donor);
            let cpus = self.inventory.cpus_of(donor);
            draft.refusals.push(
                Refusal::new(
                    RefusalCode::CpuLast,
                    format_args!("cpus {cpus}"),
                    format_args!("{label} runs and would lose its last core (it owns cpus {cpus})"),
                )
                .owned_by(&label)
                .hint("leave it at least its boot core"),
            );
        }
    }

    /// Live donors that would be left without a core.
    fn robbed_donors(&self, draft: &Draft, wanted: &[u32]) -> BTreeSet<NodeId> {
        let is_robbed = |donor: NodeId| {
            let owned = self.inventory.cpus_of(donor);
            !owned.is_empty() && owned.iter().all(|cpu| wanted.contains(&cpu))
        };
        draft
            .donors
            .iter()
            .copied()
            .filter(|&donor| self.inventory.is_live(donor) && is_robbed(donor))
            .collect()
    }

    fn cpu(&self, draft: &mut Draft, cpu: u32, last_of: &BTreeSet<NodeId>) {
        let key = ResourceKey::cpu(cpu);
        let Some(resource) = self.inventory.find(key) else {
            let all: mint_types::CpuSet = self.inventory.cpus.iter().map(|r| r.key.id).collect();
            draft.refusals.push(
                Refusal::new(
                    RefusalCode::CpuAbsent,
                    key,
                    format_args!("cpu {cpu} does not exist: this machine has cpus {all}"),
                )
                .hint("see mintctl cpu list"),
            );
            return;
        };
        if let Some(owner) = resource.owner {
            if last_of.contains(&owner) {
                return; // told once per donor
            }
            if draft.donors.contains(&owner) && resource.flags.boot && self.inventory.is_live(owner)
            {
                let label = self.inventory.label(owner);
                draft.refusals.push(boot_core(key, &label));
                return;
            }
        }
        self.take(draft, resource, None);
    }

    /// Free cores first, then those of donors; highest numbers first, so that
    /// boot cores stay where they are.
    pub(crate) fn choose_cpus(
        &self,
        draft: &mut Draft,
        numa: Option<u32>,
        count: usize,
    ) -> Vec<u32> {
        let on_numa = |cpu: &&Resource| numa.is_none() || cpu.numa == numa;
        let free = |cpu: &&Resource| cpu.state == ResState::Free;
        let lendable = |cpu: &&Resource| {
            cpu.state == ResState::Owned
                && !cpu.flags.boot
                && cpu.owner.is_some_and(|owner| draft.donors.contains(&owner))
        };
        let ids = |cpus: &mut dyn Iterator<Item = &Resource>| -> Vec<u32> {
            let mut ids: Vec<u32> = cpus.map(|cpu| cpu.key.id).collect();
            ids.sort_unstable_by(|a, b| b.cmp(a));
            ids
        };
        let mut chosen = ids(&mut self.inventory.cpus.iter().filter(on_numa).filter(free));
        let lendable: Vec<&Resource> =
            self.inventory.cpus.iter().filter(on_numa).filter(lendable).collect();
        let missing = count.saturating_sub(chosen.len());
        chosen.extend(self.likely_to_go(&lendable, missing).iter().map(|cpu| cpu.key.id));
        if chosen.len() < count {
            let place = numa.map_or(String::new(), |numa| format!(" on numa{numa}"));
            draft.refusals.push(
                Refusal::new(
                    RefusalCode::CpuShort,
                    "cpus",
                    format_args!(
                        "{count} cores wanted{place}, {} are free or can be released",
                        chosen.len()
                    ),
                )
                .hint("see mintctl cpu list; --from NODE lets cores be taken from that node"),
            );
            return Vec::new();
        }
        chosen.truncate(count);
        chosen.sort_unstable();
        chosen
    }

    /// Steps that bring a function to the node; `together` are all that move with it.
    pub(crate) fn device(&self, draft: &mut Draft, together: &[Bdf], bdf: Bdf) {
        let key = ResourceKey::device(bdf);
        let Some(resource) = self.inventory.find(key) else {
            draft.refusals.push(
                Refusal::new(
                    RefusalCode::DeviceAbsent,
                    key,
                    format_args!("there is no PCI function {bdf} on this machine"),
                )
                .hint("see mintctl device list"),
            );
            return;
        };
        let platform = |code, why: &str| {
            Refusal::new(code, key, format_args!("device {bdf} {why}"))
                .owned_by(resource.owner.map_or(String::new(), |owner| self.inventory.label(owner)))
                .hint("choose a device behind it: mintctl device list")
        };
        if resource.flags.bridge {
            draft.refusals.push(platform(
                RefusalCode::DeviceBridge,
                "is a bridge: it stays with the platform",
            ));
            return;
        }
        if resource.flags.platform {
            draft.refusals.push(platform(
                RefusalCode::DevicePlatform,
                "is part of the platform, which stays with node 0",
            ));
            return;
        }
        if !resource.flags.msi && !resource.flags.msix {
            draft.refusals.push(platform(
                RefusalCode::DeviceNoMsi,
                "has neither MSI nor MSI-X: its interrupt line would stay with node 0",
            ));
            return;
        }
        for peer in self.facts.group_peers(bdf) {
            let stays = self
                .inventory
                .find(ResourceKey::device(peer))
                .is_some_and(|other| other.owner.is_some_and(|owner| owner != draft.node));
            if stays && !together.contains(&peer) {
                draft.refusals.push(
                    Refusal::new(
                        RefusalCode::DeviceGroup,
                        key,
                        format_args!("device {bdf} shares an IOMMU group with {peer}, which stays"),
                    )
                    .hint(format_args!("move both: add --device {peer}")),
                );
            }
        }
        let mut driver = None;
        if resource.owner == Some(self.inventory.info.node) {
            let users = self.facts.users(bdf);
            if !users.is_empty() {
                draft.refusals.push(busy(
                    key,
                    &self.inventory.label(self.inventory.info.node),
                    &users,
                ));
                return;
            }
            driver = self.facts.driver(bdf);
        }
        self.take(draft, resource, driver);
    }

    /// Steps that bring one resource to the new node, or the refusal.
    pub(crate) fn take(&self, draft: &mut Draft, resource: &Resource, driver: Option<String>) {
        let key = resource.key;
        match (resource.state, resource.owner) {
            (ResState::Free, _) => {
                draft.steps.push(Step::Claim { key, node: draft.node, driver: None });
            }
            (ResState::Owned, Some(owner)) if draft.donors.contains(&owner) => {
                if let Some(refusal) = self.stays(key, owner) {
                    draft.refusals.push(refusal);
                    return;
                }
                draft.steps.push(Step::Release { key, node: owner, driver });
                draft.steps.push(Step::Claim { key, node: draft.node, driver: None });
            }
            (ResState::Owned, Some(owner)) => {
                let code = match key.kind {
                    Kind::Cpu => RefusalCode::CpuOwned,
                    Kind::Memory => RefusalCode::MemoryShort,
                    Kind::Device => RefusalCode::DeviceOwned,
                };
                let label = self.inventory.label(owner);
                let name = self
                    .inventory
                    .node(owner)
                    .map_or_else(|| owner.to_string(), mint_types::NodeStatus::display_name);
                draft.refusals.push(
                    Refusal::new(code, key, format_args!("{key} is owned by {label}"))
                        .owned_by(label)
                        .hint(format_args!(
                            "choose another one, or let it be taken from there: --from {name}"
                        )),
                );
            }
            (ResState::Moving, owner) => {
                let label = owner.map_or("nobody".to_owned(), |owner| self.inventory.label(owner));
                draft.refusals.push(being_moved(key, &label));
            }
            (ResState::Owned | ResState::Absent, _) => {
                draft.refusals.push(Refusal::new(
                    RefusalCode::KernelRefused,
                    key,
                    format_args!("{key} is not Mint's to move"),
                ));
            }
        }
    }

    /// `count` of these, or all if there are fewer: those first that their owners
    /// say can go; then blocks with the least in them that stays, so that a kernel keeps
    /// memory for data of its own; each from the last on, as that and its boot core come
    /// first.
    pub(crate) fn likely_to_go<'a>(&self, all: &[&'a Resource], count: usize) -> Vec<&'a Resource> {
        let (mut sure, mut unsure) = (Vec::new(), Vec::new());
        let mut rest = all.iter().rev().filter(|one| !self.stay.contains(&one.key)).copied();
        while sure.len() < count {
            let wanted = (count - sure.len()).max(ASKED_AT_ONCE);
            let next: Vec<&Resource> = rest.by_ref().take(wanted).collect();
            if next.is_empty() {
                break;
            }
            self.ask_owners(&next);
            for one in next {
                let goes = one.owner.is_some_and(|owner| self.can_release(one.key, owner).is_ok());
                if goes { &mut sure } else { &mut unsure }.push(one);
            }
            // to look at every page of a large node would take seconds
            let likely = unsure.iter().filter(|one| self.staying_kib(one) == 0).count();
            if sure.len() + likely >= count {
                break;
            }
        }
        unsure.sort_by_cached_key(|one| self.staying_kib(one));
        // after a try in vain only what is likely is tried: each may take its whole time
        let is_likely = |one: &&Resource| self.stay.is_empty() || self.staying_kib(one) == 0;
        sure.extend(unsure.into_iter().filter(is_likely));
        sure.truncate(count);
        sure
    }

    /// How much of a block stays, as its owner said; the most if it did not.
    fn staying_kib(&self, one: &Resource) -> u64 {
        let refusal = one.owner.and_then(|owner| self.can_release(one.key, owner).err());
        let pages = refusal.and_then(|refusal| refusal.pages);
        pages.map_or(u64::MAX, |pages| pages.kinds.iter().map(|part| part.kib).sum())
    }

    /// Asks who would have to give it up whether it could.
    ///
    /// # Errors
    /// With its reason.
    pub fn can_release(&self, key: ResourceKey, owner: NodeId) -> Result<(), Refusal> {
        if let Some(known) = self.answers.borrow().get(&(key, owner)) {
            return known.clone();
        }
        self.ask(owner, &[key]);
        self.answers.borrow()[&(key, owner)].clone()
    }

    /// Why a resource that was chosen cannot go after all.
    pub(crate) fn stays(&self, key: ResourceKey, owner: NodeId) -> Option<Refusal> {
        // of memory, only the try shows it: the likely blocks were chosen already
        if key.kind == Kind::Memory {
            return None;
        }
        let refusal = self.can_release(key, owner).err();
        refusal.filter(|why| !(self.repins && why.code == RefusalCode::CpuPinned))
    }

    /// Asks for several, each owner at once.
    fn ask_owners(&self, all: &[&Resource]) {
        let mut keys: BTreeMap<NodeId, Vec<ResourceKey>> = BTreeMap::new();
        for one in all {
            let Some(owner) = one.owner else { continue };
            if !self.answers.borrow().contains_key(&(one.key, owner)) {
                keys.entry(owner).or_default().push(one.key);
            }
        }
        keys.iter().for_each(|(&owner, keys)| self.ask(owner, keys));
    }

    fn ask(&self, owner: NodeId, keys: &[ResourceKey]) {
        let said: Vec<Result<(), Refusal>> =
            if owner != self.inventory.info.node && self.inventory.is_live(owner) {
                match self.facts.releasable(owner, keys) {
                    Ok(said) => said,
                    Err(error) => {
                        keys.iter().map(|&key| Err(self.not_asked(key, owner, &error))).collect()
                    }
                }
            } else {
                keys.iter().map(|&key| self.facts.can_release(self.inventory, key, owner)).collect()
            };
        let asked = keys.iter().map(|&key| (key, owner));
        self.answers.borrow_mut().extend(asked.zip(said));
    }

    fn not_asked(&self, key: ResourceKey, owner: NodeId, error: &str) -> Refusal {
        let label = self.inventory.label(owner);
        let text = format!("{label} cannot be asked for {key}: {error}");
        Refusal::new(RefusalCode::PeerUnreachable, key, text)
            .owned_by(label)
            .hint("look at it: mintctl node show; or choose another one")
    }

    fn images(&self, draft: &mut Draft, spec: &NodeSpec) {
        // in whole blocks, as it gets it
        let blocks = |request: &MemoryRequest| {
            request.bytes.div_ceil(self.inventory.info.mem_block_bytes.max(1))
        };
        let blocks = spec.memory.iter().map(blocks).fold(0, u64::saturating_add);
        // a node without memory is refused for that
        let memory_bytes = match blocks {
            0 => u64::MAX,
            blocks => blocks.saturating_mul(self.inventory.info.mem_block_bytes),
        };
        let (notes, refusals) = self.facts.check_images(spec, memory_bytes);
        draft.notes.extend(notes);
        draft.refusals.extend(refusals);
    }
}
