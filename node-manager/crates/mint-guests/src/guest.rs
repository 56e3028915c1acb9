// SPDX-License-Identifier: Apache-2.0
//! A guest: what was asked for, checked against what its node has.

use std::path::PathBuf;

use mint_types::{PagingPolicy, parse_bytes};

use crate::cpus::CpuList;
use crate::description::Description;
use crate::failure::Failure;
use crate::split::{self, Split};

const MIB: u64 = 1 << 20;
const PAGE_BYTES: u64 = 4096;
/// What a node keeps for itself (kernel, libvirtd, mintd) when guests are sized.
const NODE_RESERVE_BYTES: u64 = 192 * MIB;
/// QEMU's own memory beside the guest's.
const QEMU_OVERHEAD_BYTES: u64 = 48 * MIB;
/// The least that a Linux guest boots with.
const GUEST_BYTES_MIN: u64 = 32 * MIB;
/// Longest name of a guest.
const NAME_BYTES_MAX: usize = 31;

/// What a guest is asked to be, as text from a command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GuestRequest {
    /// Its name.
    pub name: String,
    /// How many vCPUs.
    pub vcpus: String,
    /// A size like `128M`.
    pub memory: String,
    /// Hosts of its memory and their shares, like `main=256M,node2=rest`; none: this node has
    /// all of it.
    pub split: Option<String>,
    /// A size: chunks that pages of a split memory go and come by.
    pub chunk: String,
    /// How its pager chooses what goes.
    pub policy: PagingPolicy,
    /// Hosts that have each page of a split memory that this node has not: 1 or 2.
    pub copies: u32,
    /// CPUs of the node for its vCPUs, in this order; none: the node's own order, the first last.
    pub pin: Option<String>,
    /// Kernel on the node to boot; else it boots from its disk.
    pub kernel: Option<String>,
    /// Initrd to boot with it.
    pub initrd: Option<String>,
    /// Kernel command line to boot with.
    pub cmdline: Option<String>,
    /// Absolute path of its disk on the node.
    pub disk: Option<String>,
    /// Absolute path of a second disk: what cloud-init is told.
    pub seed: Option<String>,
    /// Whether each vCPU has a CPU of the node.
    pub is_pinned: bool,
    /// Which network card it has.
    pub network: Network,
    /// MAC address of the card.
    pub mac: Option<String>,
    /// What starts its disk's system.
    pub firmware: Firmware,
    /// Whether its host can talk with QEMU's guest agent in it.
    pub has_agent: bool,
}

/// What starts the system that a guest's disk holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Firmware {
    /// `SeaBIOS`.
    #[default]
    Bios,
    /// OVMF, as libvirt finds it, without Secure Boot.
    Uefi,
}

/// Network card of a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Network {
    /// None.
    #[default]
    None,
    /// On the node's bridge.
    Bridge,
    /// QEMU's own, behind the node's addresses.
    User,
}

/// What a guest boots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Boot {
    /// A kernel that lies on the node.
    Kernel {
        /// Path of the kernel.
        kernel: String,
        /// Path of its initrd.
        initrd: Option<String>,
        /// Its command line.
        cmdline: Option<String>,
    },
    /// What its disk holds.
    Disk(Firmware),
}

/// A disk of a guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disk {
    /// File or block device on the node.
    pub path: String,
    /// Whether it is a block device.
    pub is_block: bool,
    /// `raw` or `qcow2`.
    pub format: &'static str,
}

/// A guest that its node can have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Guest {
    /// Its name.
    pub name: String,
    /// Its memory, in KiB.
    pub memory_kib: u64,
    /// How that is split; none: this node has all of it.
    pub split: Option<Split>,
    /// The node's CPUs, as libvirt reads a list.
    pub node_cpus: String,
    /// How many vCPUs it has.
    pub vcpus: usize,
    /// The node's CPU of each vCPU; none when they are not pinned.
    pub vcpu_pins: Vec<u32>,
    /// Whether it is told of a TSC deadline timer.
    pub tsc_deadline: bool,
    /// What it boots.
    pub boot: Boot,
    /// Its disk.
    pub disk: Option<Disk>,
    /// A second disk: what cloud-init is told.
    pub seed: Option<String>,
    /// Its network card.
    pub network: Network,
    /// MAC address of the card; libvirt chooses if there is none.
    pub mac: Option<String>,
    /// Whether its host can talk with QEMU's guest agent in it.
    pub has_agent: bool,
}

impl GuestRequest {
    /// A guest of that name with one vCPU, 128 MiB and nothing else.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            vcpus: "1".to_owned(),
            memory: "128M".to_owned(),
            split: None,
            chunk: split::CHUNK.to_owned(),
            policy: PagingPolicy::default(),
            copies: 1,
            pin: None,
            kernel: None,
            initrd: None,
            cmdline: None,
            disk: None,
            seed: None,
            is_pinned: true,
            network: Network::None,
            mac: None,
            firmware: Firmware::Bios,
            has_agent: false,
        }
    }

    /// The guest, if the node can have it.
    ///
    /// # Errors
    /// [`Failure::Usage`] when a value is none that it may be, [`Failure::Refused`] when the
    /// node has not got so much.
    pub fn on(self, node: &Description) -> Result<Guest, Failure> {
        check_name(&self.name)?;
        let name = self.name.as_str();
        let vcpus = parse_vcpus(&self.vcpus)?;
        let bytes = memory_bytes(&self.memory)?;
        let split = match &self.split {
            None => None,
            Some(words) => {
                let split = Split::parse(words, &self.chunk, bytes);
                let split = split.map_err(|error| Failure::Usage(format!("--split: {error}")))?;
                if split.shares.iter().any(|share| share.node == node.name) {
                    return Err(Failure::Usage(format!(
                        "--split: node {} is the one that runs the guest: call it main",
                        node.name
                    )));
                }
                Some(Split { policy: self.policy, copies: self.copies, ..split })
            }
        };
        let here = split.as_ref().map_or(bytes, |split| split.main_bytes);
        check_room(name, here, node)?;
        // as many as there are CPUs at most, pinned or not
        let pins = self.pins(vcpus, node)?;
        if let Some(mac) = &self.mac {
            check_mac(mac)?;
        }
        let disk = self.disk.map(Disk::of_path).transpose()?;
        let boot = match self.kernel {
            Some(kernel) => Boot::Kernel { kernel, initrd: self.initrd, cmdline: self.cmdline },
            None if disk.is_some() => Boot::Disk(self.firmware),
            None => {
                let text = format!("guest {name} needs --kernel or --disk to boot from");
                return Err(Failure::Usage(text));
            }
        };
        Ok(Guest {
            memory_kib: bytes >> 10,
            split,
            node_cpus: node.cpus.as_str().to_owned(),
            vcpus,
            vcpu_pins: if self.is_pinned { pins } else { Vec::new() },
            seed: self.seed,
            tsc_deadline: node.tsc_deadline == 1,
            boot,
            disk,
            network: self.network,
            mac: self.mac,
            has_agent: self.has_agent,
            name: self.name,
        })
    }

    fn pins(&self, vcpus: usize, node: &Description) -> Result<Vec<u32>, Failure> {
        let (text, mut pins) = match &self.pin {
            Some(text) => {
                let list = CpuList::parse(text).ok_or_else(|| {
                    Failure::Usage(format!("--pin must be a list like 0-1,4, not '{text}'"))
                })?;
                (text.as_str(), list.numbers().to_vec())
            }
            // A node's first core has most of its own work (interrupts, libvirtd), and in
            // node 0 it is the machine's boot core: it comes last.
            None => (node.cpus.as_str(), node.cpus.first_last()),
        };
        if let Some(cpu) = pins.iter().find(|cpu| !node.cpus.numbers().contains(cpu)) {
            return Err(Failure::Refused(format!(
                "CPU {cpu} is not node {}'s (it owns CPUs {}); choose of those",
                node.name, node.cpus
            )));
        }
        if vcpus > pins.len() {
            return Err(Failure::Refused(format!(
                "guest {} wants {vcpus} vCPUs, but there are {} CPUs on node {} to pin them to \
                 ({text}); ask for fewer or give the node more cores",
                self.name,
                pins.len(),
                node.name
            )));
        }
        pins.truncate(vcpus);
        Ok(pins)
    }
}

impl Disk {
    fn of_path(path: String) -> Result<Self, Failure> {
        if !PathBuf::from(&path).is_absolute() {
            return Err(Failure::Usage(format!("--disk must be an absolute path, not '{path}'")));
        }
        let format = if path.ends_with(".qcow2") { "qcow2" } else { "raw" };
        Ok(Self { is_block: path.starts_with("/dev/"), format, path })
    }
}

fn check_name(name: &str) -> Result<(), Failure> {
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if name.is_empty() || name.starts_with('-') || !name.bytes().all(good) {
        return Err(Failure::Usage(format!(
            "a guest's name must be made of a-z, 0-9 and '-', not '{name}'"
        )));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Failure::Usage(format!(
            "a guest's name '{name}' is longer than {NAME_BYTES_MAX} characters"
        )));
    }
    Ok(())
}

fn parse_vcpus(text: &str) -> Result<usize, Failure> {
    text.parse()
        .ok()
        .filter(|&vcpus| vcpus > 0)
        .ok_or_else(|| Failure::Usage(format!("--vcpus must be a number above 0, not '{text}'")))
}

/// The most memory that a guest of a node can have.
pub fn memory_bytes_max(node: &Description) -> u64 {
    node.memory_bytes.saturating_sub(NODE_RESERVE_BYTES + QEMU_OVERHEAD_BYTES)
}

fn memory_bytes(text: &str) -> Result<u64, Failure> {
    let bytes = parse_bytes(text).map_err(|_| {
        Failure::Usage(format!("--memory must be a size like 128M or 1G, not '{text}'"))
    })?;
    if bytes < GUEST_BYTES_MIN {
        return Err(Failure::Usage(format!(
            "--memory {text} is less than the {}M a Linux guest boots with",
            GUEST_BYTES_MIN / MIB
        )));
    }
    // libvirt counts in KiB, and memory is whole pages
    Ok(bytes.next_multiple_of(PAGE_BYTES))
}

/// What the guest takes of this node, which may be a part of its memory.
fn check_room(guest: &str, bytes: u64, node: &Description) -> Result<(), Failure> {
    let free = memory_bytes_max(node);
    if bytes <= free {
        return Ok(());
    }
    Err(Failure::Refused(format!(
        "guest {guest} wants {} MiB, but node {} has {} MiB of which a guest can have {}; \
         make the guest smaller, split its memory (--split) or give the node more memory",
        bytes / MIB,
        node.name,
        node.memory_bytes / MIB,
        free / MIB
    )))
}

fn check_mac(mac: &str) -> Result<(), Failure> {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    let octets: Vec<&str> = mac.split(':').collect();
    if octets.len() == 6 && octets.iter().all(|octet| octet.len() == 2 && octet.bytes().all(hex)) {
        Ok(())
    } else {
        Err(Failure::Usage(format!("--mac '{mac}' is no MAC address")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::tests::web;
    use proptest::prelude::*;

    fn request() -> GuestRequest {
        GuestRequest { kernel: Some("/boot/vmlinuz".to_owned()), ..GuestRequest::new("demo") }
    }

    #[test]
    fn first_core_comes_last_unless_pins_are_chosen() {
        let node = Description { cpus: CpuList::parse("0-3").unwrap(), ..web() };
        let pins = |vcpus: &str, pin: Option<&str>| {
            let pin = pin.map(str::to_owned);
            GuestRequest { vcpus: vcpus.to_owned(), pin, ..request() }.on(&node).unwrap().vcpu_pins
        };
        assert_eq!(pins("4", None), [1, 2, 3, 0]);
        assert_eq!(pins("1", None), [1]);
        assert_eq!(pins("2", Some("3,0-1")), [3, 0]);
        assert_eq!(pins("2", Some("1,1")), [1, 1]);
    }

    #[test]
    fn node_smaller_than_its_reserve_has_no_memory_for_guests() {
        let node = Description { memory_bytes: 100 * MIB, ..web() };
        let Err(Failure::Refused(text)) = request().on(&node) else { panic!() };
        assert!(text.contains("has 100 MiB of which a guest can have 0"), "{text}");
    }

    #[test]
    fn guest_larger_than_its_node_has_a_part_of_its_memory_there() {
        let node = Description { memory_bytes: 512 * MIB, ..web() };
        let large = GuestRequest { memory: "1G".to_owned(), ..request() };
        assert!(matches!(large.clone().on(&node), Err(Failure::Refused(_))));
        let split = |words: &str| GuestRequest { split: Some(words.to_owned()), ..large.clone() };
        let guest = split("main=256M,node2=rest").on(&node).unwrap();
        assert_eq!(guest.memory_kib, 1 << 20);
        assert_eq!(guest.split.unwrap().shares[0].bytes, 768 * MIB);
        assert!(matches!(split("main=300M,node2=rest").on(&node), Err(Failure::Refused(_))));
        for bad in ["main=256M", &format!("main=256M,{}=rest", node.name)] {
            assert!(matches!(split(bad).on(&node), Err(Failure::Usage(_))), "{bad}");
        }
    }

    #[test]
    fn names_and_addresses_that_are_none() {
        for name in ["", "-a", "A", "a b", "../a", &"a".repeat(32)] {
            let request = GuestRequest { name: name.to_owned(), ..request() };
            assert!(matches!(request.on(&web()), Err(Failure::Usage(_))), "{name}");
        }
        for mac in ["", "zz", "02:4d:49:47:01", "02:4D:49:47:01:0a", "02:4d:49:47:01:0a:0b"] {
            let request = GuestRequest { mac: Some(mac.to_owned()), ..request() };
            assert!(matches!(request.on(&web()), Err(Failure::Usage(_))), "{mac}");
        }
    }

    proptest! {
        /// Whatever is asked for: a guest is inside its node, or there is a reason.
        #[test]
        fn guests_stay_inside_their_node(
            vcpus in 0usize..9, mib in 0u64..2000, node_mib in 0u64..2000,
            first in 0u32..4, more in 0u32..4,
        ) {
            let cpus = CpuList::parse(&format!("{first}-{}", first + more)).unwrap();
            let node = Description { cpus, memory_bytes: node_mib * MIB, ..web() };
            let memory = format!("{mib}M");
            let asked = GuestRequest { vcpus: vcpus.to_string(), memory, ..request() };
            if let Ok(guest) = asked.on(&node) {
                prop_assert_eq!(guest.vcpu_pins.len(), vcpus);
                prop_assert!(guest.vcpu_pins.iter().all(|cpu| (first..=first + more).contains(cpu)));
                prop_assert!(guest.memory_kib * 1024 + NODE_RESERVE_BYTES < node.memory_bytes);
            } else {
                let fits = vcpus > 0 && vcpus <= more as usize + 1 && mib >= 32 && mib + 240 <= node_mib;
                prop_assert!(!fits);
            }
        }
    }
}
