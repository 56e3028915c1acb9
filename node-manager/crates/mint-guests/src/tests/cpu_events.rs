// SPDX-License-Identifier: Apache-2.0
use super::*;

fn cpu(vendor: &str, family: u64, model: u64) -> Cpu {
    Cpu { vendor: vendor.to_owned(), family, model }
}

fn events(vendor: &str, family: u64, model: u64) -> Vec<Event> {
    EventSet::of(&cpu(vendor, family, model)).unwrap().events()
}

#[test]
fn cpu_is_read_from_the_kernels_words() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(Cpu::read(root.path()), None);
    std::fs::create_dir(root.path().join("proc")).unwrap();
    let put = |text: &str| std::fs::write(root.path().join("proc/cpuinfo"), text).unwrap();
    put("processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 23\nmodel name\t: a: b\n\
         model\t\t: 1\nstepping\t: 2\n\nprocessor\t: 1\nvendor_id\t: x\ncpu family\t: 9\nmodel\t\t: 9\n");
    let found = Cpu::read(root.path()).unwrap();
    assert_eq!(found, cpu("AuthenticAMD", 23, 1));
    assert_eq!(found.to_string(), "AMD family 17h");
    put("processor: 0\napicid: 4\n");
    assert_eq!(Cpu::read(root.path()), None);
}

#[test]
fn each_kind_of_cpu_has_its_own_events() {
    let (instructions, raw) = (Event::Hardware(1), Event::Raw);
    assert_eq!(events("AuthenticAMD", 0x17, 1), [instructions, raw(0x0843), raw(0x4043)]);
    assert_eq!(events("AuthenticAMD", 0x19, 1), [instructions, raw(0x0844), raw(0x4044)]);
    assert_eq!(events("AuthenticAMD", 0x1a, 2), events("AuthenticAMD", 0x19, 0x11));
    let misses = Event::Hardware(3);
    assert_eq!(events("GenuineIntel", 6, 0x8f), [instructions, raw(0x01d3), raw(0x02d3), misses]);
    // a client, and one whose numbers mean something else in another family
    assert_eq!(events("GenuineIntel", 6, 0x9e), [instructions, misses]);
    assert_eq!(events("GenuineIntel", 19, 0x55), [instructions, misses]);
    for (vendor, family) in [("AuthenticAMD", 0x15), ("AuthenticAMD", 0x1b), ("HygonGenuine", 0x18)]
    {
        assert_eq!(EventSet::of(&cpu(vendor, family, 1)), None);
    }
}

#[test]
fn values_are_told_apart() {
    let zen = EventSet::of(&cpu("AuthenticAMD", 0x19, 1)).unwrap();
    let fills = Some(Fills { near: 7, far: 30 });
    let counts = |misses, fills| Some(Counts { instructions: 1000, misses, fills });
    assert_eq!(zen.counts(&[1000, 7, 30]), counts(37, fills));
    assert_eq!((zen.counts(&[1000, 7]), zen.counts(&[1000, 7, 30, 4])), (None, None));
    let server = EventSet::of(&cpu("GenuineIntel", 6, 0x55)).unwrap();
    assert_eq!(server.counts(&[1000, 7, 30, 50]), counts(50, fills));
}

#[test]
fn fewer_counters_do_without_fills() {
    let zen = EventSet::of(&cpu("AuthenticAMD", 0x17, 1)).unwrap();
    let less = zen.without_fills().unwrap();
    assert_eq!(less.events(), [Event::Hardware(1), Event::Raw(0x4843)]);
    let counts = Counts { instructions: 1000, misses: 37, fills: None };
    assert_eq!(less.counts(&[1000, 37]), Some(counts));
    assert_eq!((less.without_fills(), less.sources().fills), (None, None));
    assert_eq!(less.sources().misses, zen.sources().misses);
}

#[test]
fn operator_is_told_what_signals_are_worth() {
    let told = |family, vendor| EventSet::of(&cpu(vendor, family, 0x55)).unwrap().sources();
    let old = told(0x17, "AuthenticAMD");
    assert_eq!(old.instructions, "perf: instructions (AMD family 17h)");
    assert_eq!(old.misses, "perf: lines from memory, on demand (AMD family 17h)");
    assert_eq!(old.fills.as_ref(), Some(&old.misses));
    let server = told(6, "GenuineIntel");
    assert_eq!(
        server.misses,
        "perf: LLC misses, with those of prefetches (Intel family 6 model 85)"
    );
    assert!(server.fills.unwrap().starts_with("perf: loads that missed the LLC"));
}
