// SPDX-License-Identifier: Apache-2.0
//! Whether a running guest can come to another host, and how: a plan, or every reason why not.
//! Pure: what the guest is comes with it ([`Departure`]), what the host has is told by the
//! caller ([`Ground`]).

use std::collections::BTreeMap;

use mint_layout::{Bind, Profile, Relocation};
use mint_types::{CpuSet, LayoutPolicy, MachineId, NodeId, Refusal, RefusalCode, format_bytes};
use serde::{Deserialize, Serialize};

use crate::domain::{Card, Disk, Domain, DomainError};
use crate::ethernet::BRIDGE;
use crate::landing::{HostCpus, land};
use crate::xml::POOL;

/// What QEMU needs beside its guest's memory: its own, page tables, the migration's buffers.
pub const OVERHEAD_BYTES: u64 = 64 << 20;

/// A guest that is to leave its host, as that host tells it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Departure {
    /// Node that it is on.
    pub from: NodeId,
    /// That node's machine, if it is another one.
    #[serde(default)]
    pub machine: Option<MachineId>,
    /// That node's name.
    pub from_name: String,
    /// Its XML, as libvirt gives it for a migration.
    pub xml: String,
    /// XML of its definition; none of a guest without one.
    #[serde(default)]
    pub persistent_xml: Option<String>,
    /// Whether it runs or is paused.
    pub is_active: bool,
    /// Whether a job (a migration, a backup, a dump) is on it.
    pub has_job: bool,
    /// The host's CPU, as XML for libvirt's comparison.
    #[serde(default)]
    pub host_cpu_xml: Option<String>,
    /// Its disks' files, by path; those that are not there are left out.
    #[serde(default)]
    pub files: BTreeMap<String, FileFacts>,
    /// Whether the node's bridge is on the one Ethernet of all nodes, and not on a card's; none
    /// when it is not told.
    #[serde(default)]
    pub on_machine_ethernet: Option<bool>,
    /// Of a guest whose memory is split, what its new main host is to have; none of others, and
    /// from hosts that such guests do not leave.
    #[serde(default)]
    pub spread: Option<Spread>,
    /// Of a guest that is to have a place on its next host's NUMA nodes before it comes.
    #[serde(default)]
    pub layout: Option<LayoutWish>,
}

/// A guest is to have a place on its next host's NUMA nodes before it comes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LayoutWish {
    /// Who finds it.
    pub policy: LayoutPolicy,
    /// What the guest is like.
    pub profile: Profile,
}

/// A guest's place on its next host's NUMA nodes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Placement {
    /// Who found it.
    pub policy: LayoutPolicy,
    /// CPUs of each of its vCPUs.
    pub pins: Vec<CpuSet>,
    /// NUMA nodes of its memory.
    pub binds: Vec<Bind>,
    /// Memory of other guests that goes first.
    pub evictions: Vec<Relocation>,
    /// How much less the work of all guests there is to cost than without that.
    pub gain: f64,
}

/// A guest whose memory is split, and can go to another main host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Spread {
    /// What its main host has of it.
    pub main_bytes: u64,
    /// Nodes that keep the rest, and go on with that.
    pub hosts: Vec<NodeId>,
}

impl Departure {
    /// Whether the guest is on that node of the machine that it is to come to.
    fn is_on(&self, node: NodeId) -> bool {
        self.machine.is_none() && self.from == node
    }

    /// Memory that it takes of its host.
    fn taken_bytes(&self, domain: &Domain) -> u64 {
        self.spread.as_ref().map_or(domain.memory_bytes, |spread| spread.main_bytes)
    }
}

/// A file of a host.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FileFacts {
    /// What it takes on its disk.
    pub allocated_bytes: u64,
    /// Whether it is a block device.
    #[serde(default)]
    pub is_device: bool,
    /// The network file system that it is on, e.g. `nfs4 server:/guests`; none of a host's own.
    #[serde(default)]
    pub network: Option<String>,
}

/// What libvirt says of the guest's CPU on a host.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum CpuVerdict {
    /// The host has all of it, or more.
    Fits,
    /// The host lacks something; in libvirt's words.
    Differs(String),
    /// It cannot be told: QEMU will.
    #[default]
    Unknown,
}

/// Another guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// Whether it runs or is paused.
    pub is_active: bool,
}

/// The host that a guest is to come to.
#[derive(Clone, PartialEq, Debug)]
pub struct Ground {
    /// Its node.
    pub node: NodeId,
    /// The node's name.
    pub name: String,
    /// Whether somebody has asked for its end.
    pub is_ending: bool,
    /// CPUs and NUMA nodes.
    pub cpus: HostCpus,
    /// Memory that guests may have.
    pub free_memory_bytes: u64,
    /// Guests that it has.
    pub guests: Vec<Neighbour>,
    /// Networks of libvirt that are active.
    pub networks: Vec<String>,
    /// Network devices, bridges among them.
    pub devices: Vec<String>,
    /// Whether the node's bridge is on the one Ethernet of all nodes, and not on a card's.
    pub on_machine_ethernet: bool,
    /// Whether it can run that type of machine with that type of domain; else why not.
    pub machine: Result<(), String>,
    /// The guest's CPU there.
    pub cpu: CpuVerdict,
    /// Files that the guest needs and that are there.
    pub files: BTreeMap<String, FileFacts>,
    /// Folders of libvirt's storage pools, and what their file systems have free, in bytes.
    pub pools: BTreeMap<String, u64>,
}

/// A disk that is copied with its guest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DiskCopy {
    /// What the guest calls it.
    pub target: String,
    /// Its file, on both hosts.
    pub path: String,
    /// What is copied: holes stay holes.
    pub bytes: u64,
}

/// How a guest comes to another host.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The guest's name.
    pub name: String,
    /// Its memory; of a guest whose memory is split what its main host has of it.
    pub memory_bytes: u64,
    /// Disks that are copied.
    pub disks: Vec<DiskCopy>,
    /// The file of its firmware's settings, if it is copied, too.
    #[serde(default)]
    pub nvram: Option<String>,
    /// XML that it runs with there.
    pub xml: String,
    /// XML that it is defined with there.
    pub persistent_xml: Option<String>,
    /// What is another there, in words.
    pub changes: Vec<String>,
    /// Memory that guests may have there, this one included.
    #[serde(default)]
    pub free_memory_bytes: u64,
    /// Its place on the NUMA nodes there, if it was to have one; none from hosts that give none.
    #[serde(default)]
    pub layout: Option<Placement>,
}

impl Plan {
    /// What it takes of the host's memory.
    pub fn needed_bytes(&self) -> u64 {
        self.memory_bytes.saturating_add(OVERHEAD_BYTES)
    }
}

/// There is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArrivalError {
    /// The guest's XML is no good.
    #[error(transparent)]
    Domain(#[from] DomainError),
    /// Every reason why it cannot come.
    #[error("refused for {} reasons", .0.len())]
    Refused(Vec<Refusal>),
}

/// Plans a guest's arrival.
///
/// # Errors
/// [`ArrivalError::Refused`] with every reason why it cannot come; nothing is changed.
pub fn plan(departure: &Departure, ground: &Ground) -> Result<Plan, ArrivalError> {
    let domain = Domain::parse(&departure.xml)?;
    let mut found = Found { domain: &domain, departure, ground, refusals: Vec::new() };
    found.guest();
    let is_here = departure.is_on(ground.node);
    // what it has there is what it has here
    let (disks, nvram) = if is_here { (Vec::new(), None) } else { found.arrival() };
    if !found.refusals.is_empty() {
        return Err(ArrivalError::Refused(found.refusals));
    }
    let running = land(&departure.xml, &ground.cpus)?;
    let persistent =
        departure.persistent_xml.as_deref().map(|xml| land(xml, &ground.cpus)).transpose()?;
    let memory_bytes = departure.taken_bytes(&domain);
    Ok(Plan {
        memory_bytes,
        disks,
        nvram,
        xml: running.xml,
        persistent_xml: persistent.map(|landing| landing.xml),
        changes: running.changes,
        free_memory_bytes: ground.free_memory_bytes,
        layout: None,
        name: domain.name,
    })
}

/// Reasons, as they are found.
struct Found<'facts> {
    domain: &'facts Domain,
    departure: &'facts Departure,
    ground: &'facts Ground,
    refusals: Vec<Refusal>,
}

impl Found<'_> {
    fn vm(&self) -> String {
        format!("vm {}", self.domain.name)
    }

    fn refuse(&mut self, code: RefusalCode, text: String, hint: &str) {
        self.refusals.push(Refusal::new(code, self.vm(), text).hint(hint));
    }

    /// The guest itself.
    fn guest(&mut self) {
        let (name, here) = (&self.domain.name, &self.departure.from_name);
        if self.departure.is_on(self.ground.node) {
            let text = format!("vm {name} is on {here} already");
            self.refuse(RefusalCode::VmHere, text, "name another node: mintctl node list");
        }
        if !self.departure.is_active {
            let text = format!("vm {name} does not run on {here}");
            self.refuse(RefusalCode::VmNotRunning, text, "start it first: mintctl vm start");
        }
        if self.departure.has_job {
            let text = format!("vm {name} is being moved, saved or dumped already");
            let hint = "wait for the end of that, or end it: virsh domjobabort";
            self.refuse(RefusalCode::VmBusy, text, hint);
        }
    }

    /// Another node; gives the disks and the firmware's settings that are copied to it.
    fn arrival(&mut self) -> (Vec<DiskCopy>, Option<String>) {
        self.node();
        self.ties();
        (self.disks(), self.nvram())
    }

    /// What the node has.
    fn node(&mut self) {
        let (vm, there) = (self.domain.name.clone(), self.ground.name.clone());
        if self.ground.is_ending {
            let text = format!("{there} is about to end");
            let refusal = Refusal::new(RefusalCode::NodeEnding, format_args!("node {there}"), text);
            self.refusals.push(refusal.hint("choose another node, or start it again first"));
        }
        let uuid = self.domain.uuid.as_deref();
        let taken = self.ground.guests.iter().find(|other| {
            // its own definition, left behind there, is replaced
            let is_same = Some(other.uuid.as_str()) == uuid;
            (other.name == vm) != is_same || (is_same && other.is_active)
        });
        if let Some(other) = taken {
            let text = format!("{there} has another guest {} ({})", other.name, other.uuid);
            self.refuse(RefusalCode::VmNameTaken, text, "rename one of them: virsh domrename");
        }
        if let Err(why) = &self.ground.machine {
            let text = format!(
                "{there} cannot run vm {vm} ({}, machine type {}): {why}",
                self.domain.kind, self.domain.machine
            );
            self.refuse(RefusalCode::VmMachine, text, "start nodes from the same image");
        }
        if let CpuVerdict::Differs(why) = &self.ground.cpu {
            let text = format!("vm {vm} has a CPU that {there} cannot give it: {why}");
            let hint = "give it a model that both have (virsh hypervisor-cpu-baseline), and \
                        start it anew";
            self.refuse(RefusalCode::VmCpu, text, hint);
        }
        let (wants, has) = (
            self.departure.taken_bytes(self.domain).saturating_add(OVERHEAD_BYTES),
            self.ground.free_memory_bytes,
        );
        if wants > has {
            let text = format!(
                "vm {vm} needs {}, and {there} has {} free",
                format_bytes(wants),
                format_bytes(has)
            );
            let hint = "give the node more (mintctl node resize --memory), or move a guest away";
            self.refuse(RefusalCode::MemoryShort, text, hint);
        }
        if self.domain.has_huge_pages {
            let text = format!("vm {vm} has huge pages; how many {there} has is not known");
            self.refuse(RefusalCode::VmTied, text, "virsh migrate does not ask");
        }
    }

    /// Memory that is split stays where it is kept; what the main host has goes along.
    fn spread(&mut self) {
        if !self.domain.is_split {
            return;
        }
        let (vm, there) = (self.domain.name.clone(), self.ground.name.clone());
        let Some(spread) = &self.departure.spread else {
            let text = format!(
                "the memory of vm {vm} is split over several hosts, and it has no monitor for its move"
            );
            let hint = "give its domain one (docs/split-memory.md, or mint-guest --print), and start it anew";
            self.refuse(RefusalCode::VmTied, text, hint);
            return;
        };
        if self.departure.machine.is_some() {
            let text = format!("the memory of vm {vm} is split over nodes of another machine");
            self.refuse(RefusalCode::VmTied, text, "move it to another node of its machine");
        } else if spread.hosts.contains(&self.ground.node) {
            let text = format!("{there} keeps a part of the memory of vm {vm}");
            let hint = "mintctl memory evacuate that node first, or move it to another one";
            self.refuse(RefusalCode::VmTied, text, hint);
        }
    }

    /// What ties it to its host.
    fn ties(&mut self) {
        let (vm, there) = (self.domain.name.clone(), self.ground.name.clone());
        for device in &self.domain.passed {
            let text = format!("vm {vm} has {device} of {} for itself", self.departure.from_name);
            let hint = "take it from the guest first: virsh detach-device --live";
            self.refuse(RefusalCode::VmPassthrough, text, hint);
        }
        for folder in &self.domain.folders {
            let text = format!("vm {vm} sees the folder {folder} of {}", self.departure.from_name);
            let hint = "take it from the guest first: virsh detach-device --live";
            self.refuse(RefusalCode::VmFolder, text, hint);
        }
        for part in &self.domain.tied {
            let text =
                format!("vm {vm} has {part}, whose state is on {}", self.departure.from_name);
            self.refuse(RefusalCode::VmTied, text, "end it, and start it there");
        }
        self.spread();
        for Card { kind, source } in &self.domain.cards {
            let Some(source) = source else { continue };
            let known = match kind.as_str() {
                "network" => &self.ground.networks,
                "bridge" | "direct" => &self.ground.devices,
                _ => continue,
            };
            if !known.contains(source) {
                let text =
                    format!("vm {vm} is on the {kind} {source}, which {there} does not have");
                let hint = "make it there (virsh net-define, net-start; mint-kvm-config apply)";
                self.refuse(RefusalCode::VmNetwork, text, hint);
                continue;
            }
            let is_ours =
                (kind == "network" && source == POOL) || (kind == "bridge" && source == BRIDGE);
            let Some(here) = self.departure.on_machine_ethernet.filter(|_| is_ours) else {
                continue;
            };
            if here != self.ground.on_machine_ethernet {
                let which = |is_machine: bool| {
                    if is_machine { "the machine's own Ethernet" } else { "that of its uplink" }
                };
                let text = format!(
                    "vm {vm} would lose its network: guests of {} are on {}, those of {there} on {}",
                    self.departure.from_name,
                    which(here),
                    which(self.ground.on_machine_ethernet)
                );
                let hint = "let both have an uplink, or none (/etc/mint/kvm.toml)";
                self.refuse(RefusalCode::VmNetwork, text, hint);
            }
        }
        for path in &self.domain.boot_files {
            if !self.ground.files.contains_key(path) {
                let text = format!("vm {vm} boots from {path}, which {there} does not have");
                self.refuse(RefusalCode::VmBootFile, text, "copy the file there");
            }
        }
    }

    /// Disks: those that both see stay, a host's own files are copied.
    fn disks(&mut self) -> Vec<DiskCopy> {
        let mut copies: Vec<DiskCopy> = Vec::new();
        let mut wanted: BTreeMap<String, u64> = BTreeMap::new();
        for disk in &self.domain.disks {
            let Some(path) = &disk.path else {
                if disk.kind != "file" && disk.kind != "network" {
                    self.disk_missing(disk, "is none that has a path");
                }
                continue;
            };
            let here = self.departure.files.get(path);
            let there = self.ground.files.get(path);
            match (here, there) {
                (Some(here), Some(there)) if here.is_shared_with(there) => {}
                // the image that a drive holds is the same for all who have it
                (_, Some(_)) if disk.is_readonly => {}
                (_, None) if disk.is_readonly => {
                    self.disk_missing(disk, "is not there, and is only read");
                }
                (None, _) => self.disk_missing(disk, "cannot be looked at where it is"),
                (Some(FileFacts { is_device: true, .. }), _) => {
                    self.disk_missing(disk, "is a device of the node that it is on");
                }
                _ if disk.is_shareable => {
                    self.disk_missing(disk, "is shared with other guests where it is");
                }
                (Some(_), Some(_)) => {
                    let text = format!(
                        "{} has a file {path} already, and vm {}'s {} would be copied over it",
                        self.ground.name, self.domain.name, disk.target
                    );
                    let hint = "move it away there, if nobody needs it";
                    self.refuse(RefusalCode::VmDiskTaken, text, hint);
                }
                (Some(here), None) => {
                    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
                    if !self.ground.pools.contains_key(folder) {
                        self.disk_missing(disk, "lies in a folder that is no storage pool there");
                        continue;
                    }
                    let wanted = wanted.entry(folder.to_owned()).or_default();
                    *wanted = wanted.saturating_add(here.allocated_bytes);
                    copies.push(DiskCopy {
                        target: disk.target.clone(),
                        path: path.clone(),
                        bytes: here.allocated_bytes,
                    });
                }
            }
        }
        for (folder, wants) in wanted {
            let has = self.ground.pools.get(&folder).copied().unwrap_or(0);
            if wants > has {
                let text = format!(
                    "vm {}'s disks take {} of {folder}, and {} has {} free there",
                    self.domain.name,
                    format_bytes(wants),
                    self.ground.name,
                    format_bytes(has)
                );
                self.refuse(RefusalCode::VmDiskShort, text, "make room there");
            }
        }
        copies
    }

    /// The firmware's settings: QEMU sends them as a part of the guest's memory, and writes them
    /// to the file there.
    fn nvram(&mut self) -> Option<String> {
        let path = self.domain.nvram.as_ref()?;
        let here = self.departure.files.get(path).cloned().unwrap_or_default();
        match self.ground.files.get(path) {
            Some(there) if here.is_shared_with(there) => None,
            Some(_) => {
                let text = format!(
                    "{} has a file {path} already, and the settings of vm {}'s firmware would be \
                     written over it",
                    self.ground.name, self.domain.name
                );
                self.refuse(
                    RefusalCode::VmDiskTaken,
                    text,
                    "move it away there, if nobody needs it",
                );
                None
            }
            None => Some(path.clone()),
        }
    }

    fn disk_missing(&mut self, disk: &Disk, why: &str) {
        let text = format!(
            "{} cannot have the disk {} of vm {}: {} {why}",
            self.ground.name,
            disk.target,
            self.domain.name,
            disk.path.as_deref().unwrap_or(&disk.kind)
        );
        let hint = "put it on a path that both nodes see (NFS), or into a pool that both have \
                    (virsh pool-list)";
        self.refuse(RefusalCode::VmDiskMissing, text, hint);
    }
}

impl FileFacts {
    /// Whether both are the same file, on a file system that both hosts have.
    fn is_shared_with(&self, other: &Self) -> bool {
        self.network.is_some() && self.network == other.network
    }
}

#[cfg(test)]
#[path = "tests/arrival.rs"]
mod tests;
