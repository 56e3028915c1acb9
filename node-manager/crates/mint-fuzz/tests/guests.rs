// SPDX-License-Identifier: Apache-2.0
//! Guests that come from another node: what its daemon and its users wrote.

use std::collections::BTreeMap;

use mint_fuzz::{fuzz, fuzz_json};
use mint_guests::arrival::{
    ArrivalError, CpuVerdict, Departure, FileFacts, Ground, Neighbour, plan,
};
use mint_guests::domain::{Domain, terminal};
use mint_guests::landing::{HostCpus, land};
use mint_types::{CpuSet, NodeId};

const DOMAINS: [&str; 2] = [
    "<domain type='kvm' id='3'><name>web</name><uuid>6f5d2f2c-3a76-4a4e-9a0e-0b9f6a1f8d11</uuid>\
     <memory unit='KiB'>524288</memory><vcpu placement='static' cpuset='2-3,^3'>2</vcpu><cputune>\
     <vcpupin vcpu='0' cpuset='2'/><vcpupin vcpu='1' cpuset='3'/><emulatorpin cpuset='2-3'/>\
     <iothreadpin iothread='1' cpuset='2'/></cputune><numatune><memory mode='strict' nodeset='1'/>\
     </numatune><os><type arch='x86_64' machine='q35'>hvm</type><kernel>/boot/k</kernel></os>\
     <cpu mode='host-passthrough'><feature policy='disable' name='x'/></cpu><devices>\
     <disk type='file'><source file='/d/web'/><target dev='vda'/></disk><interface type='network'>\
     <source network='mint'/></interface><hostdev type='pci'><source><address bus='0x03' \
     slot='0x00' function='0x1'/></source></hostdev><console type='pty' tty='/dev/pts/1'>\
     <source path='/dev/pts/1'/></console></devices></domain>",
    "<domain type='qemu'><name>a &amp; b</name><memory unit='GiB'>1</memory><!-- c --></domain>",
];

fn host() -> HostCpus {
    let set = |text: &str| text.parse::<CpuSet>().expect("a list");
    HostCpus { online: set("0-1"), taken: CpuSet::default(), numa_nodes: set("0") }
}

#[test]
fn domains() {
    let seeds = DOMAINS.map(|xml| xml.as_bytes().to_vec());
    let tally = fuzz("domains", &seeds, |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return "no text".to_owned() };
        // whatever a domain says, nothing but a terminal is opened
        if let Some(path) = terminal(text) {
            let number = path.strip_prefix("/dev/pts/").map(str::parse::<u32>);
            assert!(matches!(number, Some(Ok(_))), "{path}");
        }
        let Ok(before) = Domain::parse(text) else { return "refused".to_owned() };
        let Ok(landing) = land(text, &host()) else { return "pins refused".to_owned() };
        if landing.changes.is_empty() {
            assert_eq!(landing.xml, text);
            return "stays".to_owned();
        }
        // it is the same guest, with pins that are there
        let after = Domain::parse(&landing.xml)
            .unwrap_or_else(|error| panic!("{error}\n{text}\n{}", landing.xml));
        assert_eq!(
            (&after.name, &after.disks, &after.cards),
            (&before.name, &before.disks, &before.cards)
        );
        let pins = after.vcpu_pins.iter().flat_map(|pin| pin.cpus.iter());
        assert!(pins.into_iter().all(|cpu| cpu < 2), "{text}\n{}", landing.xml);
        let again = land(&landing.xml, &host()).expect("it was read before");
        assert_eq!(again.changes, [] as [&str; 0], "{text}\n{}", landing.xml);
        "changed".to_owned()
    });
    tally.must_have(&["refused", "pins refused", "stays", "changed"]);
}

#[test]
fn departures() {
    let departure = |xml: &str| Departure {
        from: NodeId::new(1).expect("a node"),
        machine: None,
        from_name: "node1".into(),
        xml: xml.into(),
        persistent_xml: Some(xml.into()),
        is_active: true,
        has_job: false,
        on_machine_ethernet: None,
        spread: None,
        layout: None,
        host_cpu_xml: None,
        files: BTreeMap::from([("/d/web".into(), FileFacts::default())]),
    };
    let ground = Ground {
        node: NodeId::new(2).expect("a node"),
        name: "node2".into(),
        is_ending: false,
        cpus: host(),
        free_memory_bytes: 2 << 30,
        guests: vec![Neighbour { name: "db".into(), uuid: "u".into(), is_active: true }],
        networks: vec!["mint".into()],
        devices: Vec::new(),
        on_machine_ethernet: false,
        machine: Ok(()),
        cpu: CpuVerdict::Fits,
        files: BTreeMap::from([("/boot/k".into(), FileFacts::default())]),
        pools: BTreeMap::from([("/d".into(), 1 << 30)]),
    };
    let seeds = DOMAINS.map(|xml| serde_json::to_vec(&departure(xml)).expect("plain data"));
    let tally = fuzz_json("departures", &seeds, |bytes| {
        let Ok(departure) = serde_json::from_slice::<Departure>(bytes) else {
            return "no departure".to_owned();
        };
        match plan(&departure, &ground) {
            Ok(plan) => {
                // nothing is copied over what is there
                assert!(plan.disks.iter().all(|disk| !ground.files.contains_key(&disk.path)));
                "planned".to_owned()
            }
            Err(ArrivalError::Domain(_)) => "bad XML".to_owned(),
            Err(ArrivalError::Refused(refusals)) => {
                assert!(!refusals.is_empty());
                "refused".to_owned()
            }
        }
    });
    tally.must_have(&["no departure", "planned", "bad XML", "refused"]);
}
