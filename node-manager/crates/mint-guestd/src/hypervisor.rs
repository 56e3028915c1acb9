// SPDX-License-Identifier: Apache-2.0
//! What this node's hypervisor does for us: libvirt, or a fake of it in tests.

use mint_guests::arrival::{CpuVerdict, Neighbour};
use mint_guests::domain::VcpuPin;
use mint_types::{CpuSet, PinChange};

/// A guest, as the hypervisor has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GuestFacts {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// libvirt's word for its state.
    pub state: &'static str,
    /// Whether it has a process.
    pub active: bool,
    /// How many vCPUs it has.
    pub vcpus: u32,
    /// Its memory.
    pub memory_bytes: u64,
    /// Whether its definition outlives it.
    pub persistent: bool,
    /// Whether it is started at the node's boot.
    pub autostart: bool,
    /// Whether a job (a migration, a backup, a dump) is on it.
    pub has_job: bool,
    /// Whether it was stopped for the switch-over of a migration that nobody goes on with.
    pub is_stuck: bool,
}

/// A guest that is to leave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leaving {
    /// What it is.
    pub guest: GuestFacts,
    /// Its XML as another host is to get it.
    pub xml: String,
    /// The XML of its definition; none of a guest without one.
    pub persistent_xml: Option<String>,
    /// The host's CPU, as XML for a comparison.
    pub host_cpu_xml: Option<String>,
}

/// What this node's hypervisor has for a guest that may come.
#[derive(Clone, PartialEq, Debug)]
pub struct Room {
    /// CPUs that a vCPU of a running guest has for itself.
    pub pinned: CpuSet,
    /// Guests that are here.
    pub guests: Vec<Neighbour>,
    /// Networks of libvirt that are active.
    pub networks: Vec<String>,
    /// Folders of active storage pools.
    pub pools: Vec<String>,
    /// The guest's CPU on this host.
    pub cpu: CpuVerdict,
    /// Whether it can run that machine type with that kind of hypervisor; else why not.
    pub machine: Result<(), String>,
}

/// What a guest needs of its host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Needs {
    /// `kvm` or `qemu`.
    pub domain_type: String,
    /// Machine type.
    pub machine: String,
    /// Folders of its disks.
    pub folders: Vec<String>,
    /// CPU that the host must have all of, as XML; none where any will do.
    pub cpu_xml: Option<String>,
}

/// A guest's way to another host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Move {
    /// Its name.
    pub name: String,
    /// URI of the other host's libvirt.
    pub to_uri: String,
    /// Address that the other host takes its memory on.
    pub to_address: String,
    /// Whether memory and disks go under TLS.
    pub tls: bool,
    /// XML that it runs with there.
    pub xml: String,
    /// XML that it is defined with there; none of a guest without a definition.
    pub persistent_xml: Option<String>,
    /// Disks that are copied, as the guest calls them.
    pub disks: Vec<String>,
    /// At most so many bytes a second.
    pub bandwidth_bytes_s: Option<u64>,
    /// It may stand still for so long.
    pub downtime_ms: Option<u64>,
    /// So many streams.
    pub parallel: Option<u32>,
    /// They are compressed; then there are some.
    pub compress: bool,
    /// After so long it goes on there, whatever memory is not there yet.
    pub post_copy_after_s: Option<u64>,
}

/// How far a migration is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Since it began.
    pub elapsed_ms: u64,
    /// Memory and disk that is still to be sent.
    pub rest_bytes: u64,
    /// Memory and disk in all.
    pub total_bytes: u64,
    /// Disk that has been sent; none any more while libvirt ends the copies.
    pub disk_sent_bytes: u64,
    /// What is sent in a second.
    pub rate_bytes_s: u64,
    /// Memory that the guest changes in a second.
    pub dirty_bytes_s: u64,
    /// How often all changed memory has been sent.
    pub rounds: u64,
    /// Whether it runs there already.
    pub is_post_copy: bool,
}

/// How a migration ended, as the host that the guest came to counted it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// In all.
    pub total_ms: u64,
    /// While the guest ran nowhere.
    pub downtime_ms: u64,
    /// Memory that was sent.
    pub memory_sent_bytes: u64,
    /// Of disks that was sent.
    pub disk_sent_bytes: u64,
    /// How often changed memory was sent.
    pub rounds: u64,
}

/// The hypervisor did not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HypervisorError {
    /// It does not answer.
    #[error("libvirt of this node does not answer: {0}")]
    Silent(String),
    /// It knows no such guest.
    #[error("there is no guest {0} on this node")]
    NoGuest(String),
    /// It said no.
    #[error("libvirt: {0}")]
    Said(String),
}

/// This node's hypervisor. All of it blocks.
pub trait Hypervisor: Send + Sync {
    /// All guests, by name.
    ///
    /// # Errors
    /// When the hypervisor does not answer.
    fn guests(&self) -> Result<Vec<GuestFacts>, HypervisorError>;

    /// One guest, by name or UUID.
    ///
    /// # Errors
    /// When there is none, or the hypervisor does not answer.
    fn guest(&self, reference: &str) -> Result<GuestFacts, HypervisorError>;

    /// XML that a guest is defined with, secrets included.
    ///
    /// # Errors
    /// When there is none, or it has no definition.
    fn definition(&self, reference: &str) -> Result<String, HypervisorError>;

    /// Defines a guest.
    ///
    /// # Errors
    /// As libvirt says.
    fn define(&self, xml: &str) -> Result<(), HypervisorError>;

    /// Starts it.
    ///
    /// # Errors
    /// As libvirt says.
    fn start(&self, reference: &str) -> Result<(), HypervisorError>;

    /// Lets its CPUs go on.
    ///
    /// # Errors
    /// As libvirt says.
    fn resume(&self, reference: &str) -> Result<(), HypervisorError>;

    /// Asks its system to end.
    ///
    /// # Errors
    /// As libvirt says.
    fn shutdown(&self, reference: &str) -> Result<(), HypervisorError>;

    /// Ends it at once.
    ///
    /// # Errors
    /// As libvirt says.
    fn destroy(&self, reference: &str) -> Result<(), HypervisorError>;

    /// The terminal of its serial console.
    ///
    /// # Errors
    /// When it does not run, or has no such console.
    fn console(&self, reference: &str) -> Result<String, HypervisorError>;

    /// What another host has to know of a guest.
    ///
    /// # Errors
    /// When there is none, or libvirt says no.
    fn leaving(&self, reference: &str) -> Result<Leaving, HypervisorError>;

    /// Memory of this host that a running guest's process has now; 0 when that is not known.
    ///
    /// # Errors
    /// When there is none, or the hypervisor does not answer.
    fn resident_bytes(&self, reference: &str) -> Result<u64, HypervisorError>;

    /// Keeps a thread of a guest to other CPUs of this host.
    ///
    /// # Errors
    /// As libvirt says.
    fn pin(&self, reference: &str, change: &PinChange) -> Result<(), HypervisorError>;

    /// Writes down, as long as a guest runs, which CPUs a layout keeps its vCPUs to.
    ///
    /// # Errors
    /// As libvirt says.
    fn mark(&self, reference: &str, pins: &[VcpuPin]) -> Result<(), HypervisorError>;

    /// What this host has for a guest that needs that.
    ///
    /// # Errors
    /// When the hypervisor does not answer.
    fn room(&self, needs: &Needs) -> Result<Room, HypervisorError>;

    /// Moves a running guest, and tells how far it is about twice a second. When it returns,
    /// the guest runs there, or, with an error, here.
    ///
    /// # Errors
    /// As libvirt says.
    fn migrate(
        &self,
        what: &Move,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), HypervisorError>;

    /// Ends the job that is on a guest: a migration is taken back.
    ///
    /// # Errors
    /// When there is none, or libvirt says no.
    fn cancel(&self, reference: &str) -> Result<(), HypervisorError>;

    /// Forgets the definition of a guest that has no process.
    ///
    /// # Errors
    /// As libvirt says.
    fn undefine(&self, reference: &str) -> Result<(), HypervisorError>;

    /// Deletes a disk's file that no guest here has any more.
    ///
    /// # Errors
    /// When it cannot be deleted.
    fn drop_disk(&self, path: &str) -> Result<(), HypervisorError>;

    /// How the last migration of a guest to this host went; none if it came by none.
    ///
    /// # Errors
    /// When there is no such guest, or libvirt says no.
    fn arrived(&self, reference: &str) -> Result<Option<Figures>, HypervisorError>;
}
