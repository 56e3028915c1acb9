// SPDX-License-Identifier: Apache-2.0
use mint_types::CpuSet;

use super::*;
use crate::domain::tests::{WEB, with_nvram};

const DISK: &str = "/var/lib/mint/web.qcow2";
const UUID: &str = "6f5d2f2c-3a76-4a4e-9a0e-0b9f6a1f8d11";

fn node(id: u32) -> NodeId {
    NodeId::new(id).unwrap()
}

fn own_file(allocated_bytes: u64) -> FileFacts {
    FileFacts { allocated_bytes, ..FileFacts::default() }
}

fn departure() -> Departure {
    Departure {
        from: node(1),
        machine: None,
        from_name: "node1".into(),
        xml: WEB.into(),
        persistent_xml: Some(WEB.into()),
        is_active: true,
        has_job: false,
        on_machine_ethernet: Some(true),
        host_cpu_xml: None,
        files: BTreeMap::from([(DISK.into(), own_file(40 << 20))]),
        spread: None,
        layout: None,
    }
}

/// A node that can have the guest.
fn ground() -> Ground {
    let boot = ["/boot/vmlinuz-mint", "/boot/guest.initrd"];
    Ground {
        node: node(2),
        name: "node2".into(),
        is_ending: false,
        cpus: HostCpus {
            online: "0-1".parse().unwrap(),
            taken: CpuSet::default(),
            numa_nodes: "0".parse().unwrap(),
        },
        free_memory_bytes: 1 << 30,
        guests: Vec::new(),
        networks: vec!["mint".into()],
        devices: vec!["mint0".into()],
        on_machine_ethernet: true,
        machine: Ok(()),
        cpu: CpuVerdict::Fits,
        files: boot.map(|path| (path.to_owned(), own_file(1))).into(),
        pools: BTreeMap::from([("/var/lib/mint".into(), 1 << 30)]),
    }
}

fn refusals(departure: &Departure, ground: &Ground) -> Vec<Refusal> {
    match plan(departure, ground) {
        Err(ArrivalError::Refused(refusals)) => refusals,
        other => panic!("{other:?}"),
    }
}

fn codes(departure: &Departure, ground: &Ground) -> Vec<RefusalCode> {
    refusals(departure, ground).iter().map(|refusal| refusal.code).collect()
}

/// The only refusal once the departure is changed so.
fn departing(change: impl FnOnce(&mut Departure)) -> RefusalCode {
    let mut departure = departure();
    change(&mut departure);
    let codes = codes(&departure, &ground());
    assert_eq!(codes.len(), 1, "{codes:?}");
    codes[0]
}

/// The only refusal once the node is changed so.
fn arriving(change: impl FnOnce(&mut Ground)) -> RefusalCode {
    let mut ground = ground();
    change(&mut ground);
    let refusals = refusals(&departure(), &ground);
    assert_eq!(refusals.len(), 1, "{refusals:?}");
    assert!(!refusals[0].hint.is_empty(), "{refusals:?}");
    refusals[0].code
}

/// The only refusal with another device.
fn with(device: &str) -> RefusalCode {
    departing(|departure| {
        departure.xml = WEB.replace("</devices>", &format!("{device}</devices>"));
    })
}

#[test]
fn guest_comes_with_pins_of_its_new_node_and_its_disk_is_copied() {
    let plan = plan(&departure(), &ground()).unwrap();
    assert_eq!((plan.name.as_str(), plan.memory_bytes), ("web", 512 << 20));
    let disk = DiskCopy { target: "vda".into(), path: DISK.into(), bytes: 40 << 20 };
    assert_eq!(plan.disks, [disk]);
    assert!(plan.changes.contains(&"vCPU 1: CPU 3 -> CPU 1".to_owned()), "{plan:?}");
    for xml in [&plan.xml, plan.persistent_xml.as_ref().unwrap()] {
        assert!(xml.contains("vcpu=\"1\" cpuset=\"1\""), "{xml}");
    }
}

#[test]
fn guest_that_cannot_go_is_refused() {
    assert_eq!(departing(|guest| guest.from = node(2)), RefusalCode::VmHere);
    assert_eq!(departing(|guest| guest.is_active = false), RefusalCode::VmNotRunning);
    assert_eq!(departing(|guest| guest.has_job = true), RefusalCode::VmBusy);
}

#[test]
fn node_that_lacks_something_is_refused() {
    assert_eq!(arriving(|node| node.is_ending = true), RefusalCode::NodeEnding);
    assert_eq!(arriving(|node| node.machine = Err("no KVM".into())), RefusalCode::VmMachine);
    let differs = CpuVerdict::Differs("avx".into());
    assert_eq!(arriving(|node| node.cpu = differs), RefusalCode::VmCpu);
    assert_eq!(arriving(|node| node.free_memory_bytes = 512 << 20), RefusalCode::MemoryShort);
    assert_eq!(arriving(|node| node.networks.clear()), RefusalCode::VmNetwork);
    assert_eq!(arriving(|node| node.on_machine_ethernet = false), RefusalCode::VmNetwork);
    let boot = "/boot/guest.initrd";
    assert_eq!(arriving(|node| _ = node.files.remove(boot)), RefusalCode::VmBootFile);
}

#[test]
fn guest_goes_between_uplinks_and_without_a_card_anywhere() {
    let (mut guest, mut node) = (departure(), ground());
    node.on_machine_ethernet = false;
    guest.on_machine_ethernet = Some(false);
    plan(&guest, &node).unwrap();
    // a peer that does not tell
    guest.on_machine_ethernet = None;
    plan(&guest, &node).unwrap();
    guest.on_machine_ethernet = Some(true);
    guest.xml = guest.xml.replace("network='mint'", "network='other'");
    node.networks.push("other".into());
    plan(&guest, &node).unwrap();
}

#[test]
fn name_and_uuid_are_not_taken_from_another_guest() {
    let other = |name: &str, uuid: &str, is_active| {
        let guest = Neighbour { name: name.into(), uuid: uuid.into(), is_active };
        move |ground: &mut Ground| ground.guests.push(guest)
    };
    assert_eq!(arriving(other("web", "another", false)), RefusalCode::VmNameTaken);
    assert_eq!(arriving(other("db", UUID, false)), RefusalCode::VmNameTaken);
    assert_eq!(arriving(other("web", UUID, true)), RefusalCode::VmNameTaken);
    let mut ground = ground();
    other("web", UUID, false)(&mut ground);
    other("db", "another", true)(&mut ground);
    plan(&departure(), &ground).unwrap();
}

#[test]
fn guest_that_is_tied_to_its_host_is_refused() {
    let passed = "<hostdev type='pci'><source><address bus='0x03' slot='0x00' function='0x1'/>\
                  </source></hostdev>";
    assert_eq!(with(passed), RefusalCode::VmPassthrough);
    assert_eq!(with("<interface type='hostdev'/>"), RefusalCode::VmPassthrough);
    assert_eq!(with("<filesystem><source dir='/srv'/></filesystem>"), RefusalCode::VmFolder);
    assert_eq!(with("<tpm><backend type='emulator'/></tpm>"), RefusalCode::VmTied);
    let bridge = "<interface type='bridge'><source bridge='br0'/></interface>";
    assert_eq!(with(bridge), RefusalCode::VmNetwork);
    let huge = WEB.replace("<os>", "<memoryBacking><hugepages/></memoryBacking><os>");
    assert_eq!(departing(|guest| guest.xml = huge), RefusalCode::VmTied);
}

#[test]
fn disk_on_a_path_that_both_see_stays() {
    let nfs =
        |server: &str| FileFacts { network: Some(format!("nfs4 {server}:/g")), ..own_file(9) };
    let (mut guest, mut node) = (departure(), ground());
    guest.files.insert(DISK.into(), nfs("a"));
    node.files.insert(DISK.into(), nfs("a"));
    assert_eq!(plan(&guest, &node).unwrap().disks, []);
    node.files.insert(DISK.into(), nfs("b"));
    assert_eq!(codes(&guest, &node), [RefusalCode::VmDiskTaken]);
}

#[test]
fn disk_that_cannot_be_copied_is_refused_and_nothing_is_overwritten() {
    let there = |ground: &mut Ground| _ = ground.files.insert(DISK.into(), own_file(1));
    assert_eq!(arriving(there), RefusalCode::VmDiskTaken);
    assert_eq!(arriving(|node| node.pools.clear()), RefusalCode::VmDiskMissing);
    let full = |ground: &mut Ground| _ = ground.pools.insert("/var/lib/mint".into(), 1 << 20);
    assert_eq!(arriving(full), RefusalCode::VmDiskShort);
    assert_eq!(departing(|guest| guest.files.clear()), RefusalCode::VmDiskMissing);
    let device = FileFacts { is_device: true, ..own_file(1) };
    let on_device = |guest: &mut Departure| _ = guest.files.insert(DISK.into(), device);
    assert_eq!(departing(on_device), RefusalCode::VmDiskMissing);
    let shared = WEB.replace("<backingStore/>", "<shareable/>");
    assert_eq!(departing(|guest| guest.xml = shared), RefusalCode::VmDiskMissing);
    let cd = "<disk type='file' device='cdrom'><source file='/srv/cd.iso'/><target dev='sdb'/>\
              <readonly/></disk>";
    assert_eq!(with(cd), RefusalCode::VmDiskMissing);
    assert_eq!(with("<disk type='volume'><source pool='p'/></disk>"), RefusalCode::VmDiskMissing);
}

#[test]
fn settings_of_the_firmware_go_with_the_guest_and_are_not_written_over_others() {
    const NVRAM: &str = "/nvram/web.fd";
    let (mut guest, mut node) = (departure(), ground());
    guest.xml = with_nvram(&format!("<nvram template='/VARS.fd'>{NVRAM}</nvram>"));
    guest.files.insert(NVRAM.into(), own_file(1));
    assert_eq!(codes(&guest, &node), [RefusalCode::VmBootFile; 2]);
    for file in ["/usr/share/OVMF/CODE.fd", "/VARS.fd"] {
        node.files.insert(file.into(), own_file(1));
    }
    let there = plan(&guest, &node).unwrap();
    assert_eq!(there.nvram.as_deref(), Some(NVRAM));
    assert_eq!(there.disks.len(), 1, "libvirt does not copy it");
    node.files.insert(NVRAM.into(), own_file(1));
    assert_eq!(codes(&guest, &node), [RefusalCode::VmDiskTaken]);
    let nfs = FileFacts { network: Some("nfs4 a:/g".into()), ..own_file(1) };
    for files in [&mut guest.files, &mut node.files] {
        files.insert(NVRAM.into(), nfs.clone());
    }
    assert_eq!(plan(&guest, &node).unwrap().nvram, None, "both see it");
}

#[test]
fn every_reason_is_told_at_once_and_says_who_and_where() {
    let mut ground = ground();
    ground.is_ending = true;
    ground.free_memory_bytes = 0;
    ground.networks.clear();
    let refusals = refusals(&departure(), &ground);
    let codes: Vec<_> = refusals.iter().map(|refusal| refusal.code).collect();
    let all = [RefusalCode::NodeEnding, RefusalCode::MemoryShort, RefusalCode::VmNetwork];
    assert_eq!(codes, all);
    assert!(refusals[1].message.contains("vm web needs 576M, and node2 has 0"), "{refusals:?}");
}

#[test]
fn peer_may_say_more_and_less() {
    let mut value = serde_json::to_value(departure()).unwrap();
    value["news"] = 1.into();
    for gone in ["persistent_xml", "host_cpu_xml", "files"] {
        value.as_object_mut().unwrap().remove(gone);
    }
    let read: Departure = serde_json::from_value(value).unwrap();
    assert_eq!((read.xml.as_str(), read.files.len()), (WEB, 0));
}
