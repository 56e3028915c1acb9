// SPDX-License-Identifier: Apache-2.0
//! What the ledger holds.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{Bdf, NodeId, format_bytes};

/// Kind of a resource.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A core; the id is its machine CPU number.
    Cpu,
    /// A block of memory; the id is its physical address / block size.
    Memory,
    /// A PCI function; the id is its packed address.
    Device,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Memory, Self::Device];
}

/// A resource's place in the ledger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ResourceKey {
    /// Kind.
    pub kind: Kind,
    /// Id within the kind.
    pub id: u32,
}

impl ResourceKey {
    /// The core with that machine CPU number.
    pub fn cpu(id: u32) -> Self {
        Self { kind: Kind::Cpu, id }
    }

    /// The memory block with that number.
    pub fn memory(id: u32) -> Self {
        Self { kind: Kind::Memory, id }
    }

    /// The PCI function at that address.
    pub fn device(bdf: Bdf) -> Self {
        Self { kind: Kind::Device, id: bdf.ledger_id() }
    }

    /// The address, if this is a PCI function.
    pub fn bdf(self) -> Option<Bdf> {
        (self.kind == Kind::Device).then(|| Bdf::from_ledger_id(self.id))
    }
}

impl fmt::Display for ResourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Cpu => write!(f, "cpu {}", self.id),
            Kind::Memory => write!(f, "memory block {}", self.id),
            Kind::Device => write!(f, "device {}", Bdf::from_ledger_id(self.id)),
        }
    }
}

/// A free resource for a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Gift {
    /// The resource that is given.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub key: ResourceKey,
    /// Driver to bind; a device without one gets any that fits.
    #[serde(default, deserialize_with = "driver_name")]
    pub driver: Option<String>,
}

/// Longest name of a driver.
const DRIVER_NAME_BYTES_MAX: usize = 64;

/// Whether a name can be that of a PCI driver: a folder in `/sys/bus/pci/drivers`, and
/// nothing that leads out of there.
pub fn is_driver_name(name: &str) -> bool {
    (1..=DRIVER_NAME_BYTES_MAX).contains(&name.len())
        && !name.starts_with('.')
        && name.bytes().all(|byte| byte != b'/' && (byte == b' ' || byte.is_ascii_graphic()))
}

fn driver_name<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let name: Option<String> = Deserialize::deserialize(from)?;
    match name {
        Some(name) if !is_driver_name(&name) => {
            Err(serde::de::Error::custom(format_args!("{name:?} is no name of a driver")))
        }
        name => Ok(name),
    }
}

/// State of a resource: exactly one at any time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ResState {
    /// No such thing, or not Mint's to move.
    Absent,
    /// Nobody's.
    Free,
    /// Its owner's.
    Owned,
    /// The owner gives it up or takes it in.
    Moving,
}

/// What is special about a resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ResourceFlags {
    /// Core: boot core of a running node, or of the machine.
    pub boot: bool,
    /// PCI: a bridge.
    pub bridge: bool,
    /// PCI: part of the platform, which stays with node 0.
    pub platform: bool,
    /// PCI: has MSI.
    pub msi: bool,
    /// PCI: has MSI-X.
    pub msix: bool,
    /// PCI: can be reset alone.
    pub flr: bool,
    /// Core: is in the park loop.
    pub parked: bool,
    /// PCI: a virtual function (SR-IOV).
    pub vf: bool,
    /// Core: took INIT when its node was killed, and never came to the park loop: nobody's.
    #[serde(default)]
    pub fenced: bool,
}

impl ResourceFlags {
    /// Names of those that are set.
    pub fn names(self) -> Vec<&'static str> {
        [
            (self.boot, "boot"),
            (self.bridge, "bridge"),
            (self.platform, "platform"),
            (self.msi, "msi"),
            (self.msix, "msix"),
            (self.flr, "flr"),
            (self.parked, "parked"),
            (self.vf, "vf"),
            (self.fenced, "fenced"),
        ]
        .into_iter()
        .filter_map(|(set, name)| set.then_some(name))
        .collect()
    }
}

/// An entry of the ledger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resource {
    /// Its kind, and its number among those of its kind.
    pub key: ResourceKey,
    /// Whether it is free, owned or on its way.
    pub state: ResState,
    /// Who owns it.
    pub owner: Option<NodeId>,
    /// While moving: to whom.
    pub target: Option<NodeId>,
    /// NUMA node of the machine.
    pub numa: Option<u32>,
    /// What is special about it.
    pub flags: ResourceFlags,
    /// How often its ledger word changed.
    pub changes: u32,
    /// Core: APIC id; PCI: vendor << 16 | device.
    pub hw_id: u32,
    /// PCI: class code; core: package << 16 | core id.
    pub hw_class: u32,
    /// Memory: physical address.
    pub phys: u64,
    /// Virtual function: the physical one, whose kernel makes and ends it.
    pub physfn: Option<Bdf>,
}

/// Facts of the machine and of the calling node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MachineInfo {
    /// The caller's node.
    pub node: NodeId,
    /// How many node ids exist on this machine.
    pub node_max: u32,
    /// NUMA nodes of the machine.
    pub numa_nodes: u32,
    /// Size of a memory block.
    pub mem_block_bytes: u64,
    /// Of this boot of the machine.
    pub boot_id: u64,
    /// Version of the kernel's interface.
    pub abi_version: u32,
}

impl MachineInfo {
    /// Physical addresses of a memory block.
    #[must_use]
    pub fn block_range(&self, block: u32) -> Range<u64> {
        let start = u64::from(block).saturating_mul(self.mem_block_bytes);
        start..start.saturating_add(self.mem_block_bytes)
    }
}

impl Resource {
    /// How people call it: memory with its size and address.
    pub fn label(&self, info: &MachineInfo) -> String {
        match self.key.kind {
            Kind::Memory => {
                format!("memory {} at {:#x}", format_bytes(info.mem_block_bytes), self.phys)
            }
            Kind::Cpu | Kind::Device => self.key.to_string(),
        }
    }
}
