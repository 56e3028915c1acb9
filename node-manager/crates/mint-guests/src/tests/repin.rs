// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::domain::tests::WEB;

fn set(text: &str) -> CpuSet {
    CpuSet::try_from(text.to_owned()).unwrap()
}

/// A guest of as many vCPUs as it has pins.
fn guest(name: &str, pins: &[&str]) -> Pinned {
    let count = pins.len();
    let mut tune = String::new();
    for (vcpu, cpus) in pins.iter().enumerate() {
        tune += &format!("<vcpupin vcpu='{vcpu}' cpuset='{cpus}'/>");
    }
    let xml = format!(
        "<domain type='kvm'><name>{name}</name><memory>1024</memory><vcpu>{count}</vcpu>\
         <cputune>{tune}</cputune></domain>"
    );
    Pinned { name: name.into(), uuid: format!("uuid-{name}"), persistent_xml: None, xml }
}

/// In words, by guest.
fn told(guests: &[Pinned], online: &str, going: &str) -> Vec<(String, Vec<String>)> {
    let repins = repin(guests, &set(online), &set(going)).unwrap();
    let words = |repin: Repin| {
        (repin.name, repin.changes.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    repins.into_iter().map(words).collect()
}

#[test]
fn guest_gets_a_cpu_that_stays_and_that_nobody_has() {
    let guests = [guest("a", &["3"]), guest("b", &["0"]), guest("c", &["1-2"])];
    assert_eq!(told(&guests, "0-3", "3"), [("a".into(), vec!["vCPU 0: CPU 3 -> CPU 1".into()])]);
    assert_eq!(told(&guests, "0-4", "4"), [], "nobody uses it");
}

#[test]
fn guests_do_not_get_the_same_cpu() {
    let guests = [guest("a", &["2"]), guest("b", &["3"])];
    assert_eq!(
        told(&guests, "0-3", "2-3"),
        [
            ("a".into(), vec!["vCPU 0: CPU 2 -> CPU 0".into()]),
            ("b".into(), vec!["vCPU 0: CPU 3 -> CPU 1".into()]),
        ]
    );
    // the only one that stays is b's: a has all that stays, too
    assert_eq!(told(&guests, "2-3", "2"), [("a".into(), vec!["vCPU 0: CPU 2 -> CPU 3".into()])]);
}

#[test]
fn without_enough_cpus_a_guest_may_run_on_all_that_stay() {
    let guests = [guest("a", &["1", "3"]), guest("b", &["0"])];
    assert_eq!(
        told(&guests, "0-1,3", "3"),
        [("a".into(), vec!["vCPU 0: CPU 1 -> CPU 0-1".into(), "vCPU 1: CPU 3 -> CPU 0-1".into()])]
    );
}

#[test]
fn definition_changes_with_the_guest_and_each_by_its_own_pins() {
    let mut both = guest("a", &["3"]);
    both.persistent_xml = Some(both.xml.clone());
    assert_eq!(
        told(&[both.clone()], "0-3", "3")[0].1,
        ["vCPU 0: CPU 3 -> CPU 0", "vCPU 0: CPU 3 -> CPU 0 from its next start on"]
    );
    both.persistent_xml = Some(guest("a", &["2"]).xml);
    assert_eq!(told(&[both.clone()], "0-3", "3")[0].1, ["vCPU 0: CPU 3 -> CPU 0"]);
    assert_eq!(told(&[both], "0-3", "2")[0].1, ["vCPU 0: CPU 2 -> CPU 0 from its next start on"]);
}

#[test]
fn threads_beside_vcpus_and_those_of_the_whole_guest_are_seen() {
    let web = Pinned {
        name: "web".into(),
        uuid: "u".into(),
        xml: WEB.replace("<emulatorpin", "<iothreadpin iothread='1' cpuset='3'/><emulatorpin"),
        persistent_xml: None,
    };
    assert_eq!(
        told(&[web], "0-3", "3")[0].1,
        [
            "vCPU 1: CPU 3 -> CPU 0",
            "emulator threads: CPU 2-3 -> CPU 0-2",
            "iothread 1: CPU 3 -> CPU 0-2",
        ]
    );
    // vCPU 1 and the emulator have no pins of their own
    let mut whole = guest("a", &["0"]);
    whole.xml = whole.xml.replace("<vcpu>1", "<vcpu cpuset='3'>2");
    assert_eq!(
        told(&[whole], "0-1,3", "3")[0].1,
        ["vCPU 1: CPU 3 -> CPU 0-1", "emulator threads: CPU 3 -> CPU 0-1"]
    );
}

#[test]
fn guest_that_cannot_be_read_is_named() {
    let broken = guest("odd", &["x"]);
    let error = repin(&[broken], &set("0-3"), &set("3")).unwrap_err();
    assert_eq!(error.to_string(), "CPUs of vm odd cannot be told");
}
