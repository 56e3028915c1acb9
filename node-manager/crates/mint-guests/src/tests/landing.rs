// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::domain::Domain;
use crate::domain::tests::WEB;

fn host(online: &str, taken: &str, numa_nodes: &str) -> HostCpus {
    let set = |text: &str| CpuSet::try_from(text.to_owned()).unwrap();
    HostCpus { online: set(online), taken: set(taken), numa_nodes: set(numa_nodes) }
}

fn pins(xml: &str) -> Vec<String> {
    Domain::parse(xml).unwrap().vcpu_pins.iter().map(|pin| pin.cpus.to_string()).collect()
}

#[test]
fn xml_of_a_host_with_the_same_cpus_stays_byte_by_byte() {
    let landing = land(WEB, &host("0-7", "", "0-1")).unwrap();
    assert_eq!((landing.xml.as_str(), landing.changes.len()), (WEB, 0));
    let plain = "<domain type='kvm'>\n <name>a &amp; b</name><vcpu>2</vcpu><!-- x --></domain>";
    assert_eq!(land(plain, &host("0", "", "0")).unwrap().xml, plain);
}

#[test]
fn pins_go_to_free_cpus_of_the_host_and_the_rest_stays() {
    let landing = land(WEB, &host("0-1", "", "0")).unwrap();
    assert_eq!(pins(&landing.xml), ["0", "1"]);
    assert_eq!(
        landing.changes,
        [
            "vCPUs: not kept to CPUs 2-3",
            "vCPU 0: CPU 2 -> CPU 0",
            "vCPU 1: CPU 3 -> CPU 1",
            "emulator threads: not pinned to 2-3",
            "memory: not kept to NUMA nodes 1",
        ]
    );
    assert!(landing.xml.contains("<vcpu placement=\"static\">2</vcpu>"), "{}", landing.xml);
    assert!(!landing.xml.contains("emulatorpin") && !landing.xml.contains("nodeset"));
    let tail = |xml: &str| xml[xml.find("<os>").unwrap()..].to_owned();
    assert_eq!(tail(&landing.xml), tail(WEB));
}

#[test]
fn cpu_that_another_guest_has_is_not_taken_and_one_that_is_free_is_kept() {
    let landing = land(WEB, &host("0-7", "2", "0-1")).unwrap();
    assert_eq!(pins(&landing.xml), ["0", "3"]);
    assert_eq!(landing.changes, ["vCPU 0: CPU 2 -> CPU 0"]);
}

#[test]
fn without_enough_cpus_none_is_pinned() {
    let landing = land(WEB, &host("0-1", "1", "0")).unwrap();
    assert_eq!(pins(&landing.xml), Vec::<String>::new());
    assert!(landing.changes.contains(&"vCPU 1: not pinned to 3".to_owned()), "{landing:?}");
}

#[test]
fn list_of_several_cpus_stays_where_the_host_has_them_all() {
    let several = WEB.replace("vcpu='1' cpuset='3'", "vcpu='1' cpuset='2-3'");
    assert_eq!(pins(&land(&several, &host("0-3", "", "0-1")).unwrap().xml), ["2", "2-3"]);
    assert_eq!(pins(&land(&several, &host("0-2", "", "0-1")).unwrap().xml), ["2"]);
}

#[test]
fn pin_that_cannot_be_read_is_an_error() {
    for bad in ["cpuset='x'", "cpuset=''", "cpuset"] {
        let xml = WEB.replace("cpuset='2'", bad);
        assert!(land(&xml, &host("0-7", "", "0-1")).is_err(), "{bad}");
    }
}

#[test]
fn pin_that_has_an_end_tag_goes_with_it() {
    let long = WEB
        .replace("<emulatorpin cpuset='2-3'/>", "<emulatorpin cpuset='2-3'> <x/> </emulatorpin>");
    let landing = land(&long, &host("0-1", "", "0")).unwrap();
    assert!(
        !landing.xml.contains("emulatorpin") && !landing.xml.contains("<x/>"),
        "{}",
        landing.xml
    );
    assert_eq!(pins(&landing.xml), ["0", "1"]);
}

#[test]
fn quotes_in_what_stays_do_not_end_it() {
    let odd = WEB.replace("placement='static'", "placement='s\"&amp;'");
    let landing = land(&odd, &host("0-1", "", "0")).unwrap();
    assert!(landing.xml.contains("placement=\"s&quot;&amp;\""), "{}", landing.xml);
    Domain::parse(&landing.xml).unwrap();
}

#[test]
fn what_a_layout_of_the_other_host_kept_is_left_out() {
    let free = "<domain type='kvm'><name>a</name><memory>1024</memory><vcpu>3</vcpu>\
                <cputune><vcpupin vcpu='1' cpuset='4'/></cputune></domain>";
    let sets: Vec<CpuSet> =
        ["1-2", "", "3"].map(|list| CpuSet::try_from(list.to_owned()).unwrap()).into();
    let kept = crate::pins::keep_to(free, &sets).unwrap();
    let landing = land(&kept, &host("0-7", "", "0")).unwrap();
    assert_eq!(pins(&landing.xml), ["4"], "its owner's");
    assert!(!landing.xml.contains("mint:layout"), "{}", landing.xml);
    let freed = ["vCPU 0: not kept to CPUs 1-2 any more", "vCPU 2: not kept to CPUs 3 any more"];
    assert_eq!(landing.changes, freed);
    // by its owner's own hand since
    let own = kept.replace("cpuset='1-2'", "cpuset='5-6'");
    assert_eq!(pins(&land(&own, &host("0-7", "", "0")).unwrap().xml), ["4", "5-6"]);
}
