// SPDX-License-Identifier: Apache-2.0
//! The ledger at one moment.

use std::collections::BTreeSet;

use mint_types::{
    CpuSet, Kind, MachineInfo, NodeId, NodeStatus, Refusal, RefusalCode, ResState, Resource,
    ResourceKey,
};

/// All resources and nodes, as read one after the other: the ledger goes on
/// changing, so every step of a plan is checked again by the kernel.
#[derive(Clone, Debug)]
pub struct Inventory {
    /// Facts of the machine, and which node we are.
    pub info: MachineInfo,
    /// Cores.
    pub cpus: Vec<Resource>,
    /// Memory blocks.
    pub memory: Vec<Resource>,
    /// PCI functions.
    pub devices: Vec<Resource>,
    /// Nodes that exist.
    pub nodes: Vec<NodeStatus>,
}

impl Inventory {
    /// Resources of one kind.
    pub fn of_kind(&self, kind: Kind) -> &[Resource] {
        match kind {
            Kind::Cpu => &self.cpus,
            Kind::Memory => &self.memory,
            Kind::Device => &self.devices,
        }
    }

    /// One resource.
    pub fn find(&self, key: ResourceKey) -> Option<&Resource> {
        self.of_kind(key.kind).iter().find(|resource| resource.key == key)
    }

    /// What a node owns of a kind.
    pub fn owned(&self, node: NodeId, kind: Kind) -> impl Iterator<Item = &Resource> {
        self.of_kind(kind).iter().filter(move |resource| {
            resource.state == ResState::Owned && resource.owner == Some(node)
        })
    }

    /// Everything a node owns.
    pub fn owned_by(&self, node: NodeId) -> impl Iterator<Item = &Resource> {
        Kind::ALL.into_iter().flat_map(move |kind| self.owned(node, kind))
    }

    /// Everything a node owns, be it on its way out or in.
    pub fn held_by(&self, node: NodeId) -> impl Iterator<Item = &Resource> {
        Kind::ALL.into_iter().flat_map(|kind| self.of_kind(kind)).filter(move |resource| {
            matches!(resource.state, ResState::Owned | ResState::Moving)
                && resource.owner == Some(node)
        })
    }

    /// Its cores.
    pub fn cpus_of(&self, node: NodeId) -> CpuSet {
        self.owned(node, Kind::Cpu).map(|cpu| cpu.key.id).collect()
    }

    /// NUMA nodes of the machine that its cores and memory are on.
    pub fn numa_of(&self, node: NodeId) -> BTreeSet<u32> {
        self.owned(node, Kind::Cpu)
            .chain(self.owned(node, Kind::Memory))
            .filter_map(|resource| resource.numa)
            .collect()
    }

    /// Virtual functions of that node's physical ones that others own: they end
    /// with its kernel.
    pub fn lent_by(&self, node: NodeId) -> impl Iterator<Item = &Resource> {
        self.devices.iter().filter(move |device| {
            let whose = |bdf| self.find(ResourceKey::device(bdf)).and_then(|one| one.owner);
            device.physfn.and_then(whose) == Some(node)
                && device.owner.is_some_and(|owner| owner != node)
        })
    }

    /// Why that node's kernel does not end in an orderly way now, if it has lent something.
    pub fn lends(&self, node: NodeId) -> Option<Refusal> {
        let lent: Vec<&Resource> = self.lent_by(node).collect();
        let first = lent.first()?;
        let label = self.label(node);
        let told = |device: &&Resource| {
            let owner = device.owner.map_or_else(String::new, |owner| self.label(owner));
            format!("{} (with {owner})", device.key)
        };
        let told: Vec<String> = lent.iter().map(told).collect();
        let text = format!(
            "{label} has the physical functions of {}: they would end with its kernel",
            told.join(", ")
        );
        let back = first.key.bdf().map(|bdf| bdf.to_string()).unwrap_or_default();
        let refusal = Refusal::new(RefusalCode::DeviceLent, first.key, text).owned_by(&label);
        Some(refusal.hint(format_args!("first: mintctl device move {back} --to node{node}")))
    }

    /// A node by id.
    pub fn node(&self, id: NodeId) -> Option<&NodeStatus> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// How messages call a node.
    pub fn label(&self, id: NodeId) -> String {
        self.node(id).map_or_else(|| format!("node {id}"), NodeStatus::label)
    }

    /// A node by id, name or `nodeN`.
    ///
    /// # Errors
    /// With `node_absent`.
    pub fn resolve(&self, reference: &str) -> Result<&NodeStatus, Refusal> {
        self.nodes.iter().find(|node| node.is_meant_by(reference)).ok_or_else(|| {
            let names: Vec<String> = self.nodes.iter().map(NodeStatus::display_name).collect();
            Refusal::new(
                RefusalCode::NodeAbsent,
                format_args!("node {reference}"),
                format_args!("there is no node {reference}"),
            )
            .hint(format_args!("nodes of this machine: {}", names.join(", ")))
        })
    }

    /// Whether a kernel runs as that node.
    pub fn is_live(&self, id: NodeId) -> bool {
        self.node(id).is_some_and(|node| node.state.is_live())
    }
}
