// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::host::{MIB, counted, even, filled, guest, ran, snapshot};
use crate::profile::Range;
use crate::snapshot::GuestId;
use crate::{Ring, Simple};

fn profile(name: &str, samples: Ring, ranges: &[(u64, f64)]) -> Profile {
    let mut at = 0;
    let range = |&(mib, heat): &(u64, f64)| {
        let offset = at;
        at += mib * MIB;
        Range { offset, bytes: mib * MIB, heat: Some(heat) }
    };
    let ranges = ranges.iter().map(range).collect();
    Profile { id: GuestId(name.into()), vcpus: vec![samples], ranges }
}

fn landed(others: &Snapshot, host: &Topology, profile: &Profile) -> Landing {
    land(&mut Simple::default(), host, others, profile, &[], &Limits::default()).unwrap()
}

fn on(landing: &Landing, numa: u32) -> Vec<(u64, u64)> {
    let there = landing.binds.iter().filter(|bind| bind.numa == NumaId(numa));
    there.map(|bind| (bind.offset / MIB, bind.bytes / MIB)).collect()
}

/// Two NUMA nodes of two CPUs and 512 MiB. Two guests that hardly miss are on the first, and fill it; a third is on the
/// second with all of its vCPUs.
fn full() -> (Snapshot, Topology) {
    let mut third = guest("third", 1, counted(0.1), &[(64, 1, 1.0)]);
    third.vcpus.push(third.vcpus[0].clone());
    let one = guest("one", 0, counted(0.2), &[(64, 0, 9.0), (192, 0, 0.1)]);
    let two = guest("two", 0, ran(0.0), &[(240, 0, 1.0)]);
    (snapshot([one, two, third]), even(2, 2, 512 * MIB))
}

/// L, figure 3 and case 1-1: what misses often gets a CPU and the memory there, and nobody who uses it often leaves.
#[test]
fn guest_that_misses_often_finds_its_memory_near_its_cpus() {
    let (mut others, host) = full();
    // its CPUs are those of the full node
    others.guests[0].vcpus[0].allowed = "0".parse().unwrap();
    others.guests.remove(1);
    for piece in 4..8 {
        let (offset, bytes) = (piece * 64 * MIB, 64 * MIB);
        let cold = crate::Region { offset, bytes, numa: NumaNo(0), heat: Some(0.0) };
        others.guests[0].regions.push(cold);
    }
    for vcpu in &mut others.guests[1].vcpus {
        vcpu.allowed = "2-3".parse().unwrap();
    }
    let web = profile("web", counted(40.0), &[(64, 100.0), (64, 0.1)]);
    let landing = landed(&others, &host, &web);
    assert_eq!(landing.pins[0].to_string(), "0-1");
    let near = on(&landing, 0);
    assert_eq!(near.first(), Some(&(0, 64)), "{landing:?}");
    let evicted: u64 = landing.evictions.iter().map(|one| one.bytes).sum();
    assert!((64 * MIB..=128 * MIB).contains(&evicted), "{evicted}");
    let hot = |one: &&Relocation| one.guest.0 == "one" && one.offset < 64 * MIB;
    assert!(!landing.evictions.iter().any(|one| hot(&one)), "{landing:?}");
    assert!(landing.plan.gain > 0.1);
    let all: u64 = landing.binds.iter().map(|bind| bind.bytes).sum();
    assert_eq!(all, web.bytes());
}

/// L, case 1-2.
#[test]
fn guest_that_hardly_misses_comes_to_where_it_would_come_and_nobody_leaves() {
    let (others, host) = full();
    let landing = landed(&others, &host, &profile("calm", counted(0.2), &[(64, 1.0)]));
    assert!(landing.plan.is_empty() && landing.evictions.is_empty());
    let there =
        by_default(&host, &others, &profile("calm", counted(0.2), &[(64, 1.0)]), &[]).unwrap();
    assert_eq!(landing.guest, there);
}

/// L, section 7: the second finds the first in its place, though that has not come.
#[test]
fn guests_that_come_at_once_do_not_get_the_same_place() {
    let host = even(2, 1, 512 * MIB);
    let mut others = Snapshot::default();
    for (name, cpus) in [("a", "0"), ("b", "1")] {
        let landing = landed(&others, &host, &profile(name, counted(40.0), &[(384, 1.0)]));
        assert_eq!(landing.pins[0].to_string(), cpus);
        assert_eq!(on(&landing, cpus.parse().unwrap()), [(0, 384)]);
        assert!(landing.evictions.is_empty());
        others.guests.push(landing.guest);
    }
    // again: the place that it has been given is its own
    let again = landed(&others, &host, &profile("b", counted(40.0), &[(384, 1.0)]));
    assert_eq!(&again.guest, &others.guests[1]);
}

#[test]
fn guest_of_which_there_is_no_room_is_refused_with_numbers() {
    let (others, host) = full();
    let large = profile("large", counted(40.0), &[(470, 1.0)]);
    let error =
        land(&mut Simple::default(), &host, &others, &large, &[], &Limits::default()).unwrap_err();
    assert_eq!(error.to_string(), "it needs 470M, and the NUMA nodes have 464M for it in all");
}

#[test]
fn policy_that_lacks_a_signal_has_no_place() {
    let (mut others, host) = full();
    others.guests[0].vcpus[0].samples = Ring::default();
    let web = profile("web", counted(40.0), &[(64, 1.0)]);
    let error =
        land(&mut Simple::default(), &host, &others, &web, &[], &Limits::default()).unwrap_err();
    assert!(matches!(error, LandingError::Policy(PolicyError::Lacks { .. })), "{error}");
}

#[test]
fn memory_fills_the_nearest_node_and_then_the_next() {
    let host = even(2, 1, 100 * MIB);
    let guest =
        by_default(&host, &Snapshot::default(), &profile("a", ran(1.0), &[(150, 3.0)]), &[])
            .unwrap();
    let sum = |numa: usize| -> (u64, f64) {
        let there = guest.regions.iter().filter(|region| region.numa.0 == numa);
        there.fold((0, 0.0), |(bytes, heat), one| (bytes + one.bytes, heat + one.heat.unwrap()))
    };
    assert_eq!((sum(0).0, sum(1).0), (100 * MIB, 50 * MIB));
    assert!((sum(0).1 - 2.0).abs() < 1e-9 && (sum(1).1 - 1.0).abs() < 1e-9, "heat goes by bytes");
    assert!(guest.regions.len() > 32 && guest.regions.iter().all(|one| one.bytes <= 4 * MIB));
    assert!(guest.regions.windows(2).all(|two| two[0].offset + two[0].bytes == two[1].offset));
}

/// Evictions have a limit; what comes has none.
#[test]
fn limit_is_of_what_others_lose() {
    let host = even(2, 1, 256 * MIB);
    let mut one = guest("one", 1, counted(0.1), &[(128, 0, 0.0), (32, 1, 1.0)]);
    one.vcpus[0].allowed = "1".parse().unwrap();
    let others = snapshot([one]);
    let web = profile("web", counted(40.0), &[(192, 1.0)]);
    let limits = Limits { relocated_bytes: 0, ..Limits::default() };
    let landing = land(&mut Simple::default(), &host, &others, &web, &[], &limits).unwrap();
    let near: u64 = on(&landing, 0).iter().map(|(_, mib)| mib).sum();
    assert_eq!(landing.pins[0].to_string(), "0");
    assert!(near >= 128, "{landing:?}");
}

/// Its owner's wish holds on the next host, too, if that has such CPUs.
#[test]
fn guest_comes_to_the_cpus_that_its_owner_keeps_it_to() {
    let host = even(2, 2, 512 * MIB);
    let web = profile("web", counted(40.0), &[(64, 1.0)]);
    let pins = |allowed: &str| {
        let allowed: CpuSet = allowed.parse().unwrap();
        let (none, limits) = (Snapshot::default(), Limits::default());
        let landing =
            land(&mut Simple::default(), &host, &none, &web, &[allowed], &limits).unwrap();
        (landing.pins[0].to_string(), landing.binds[0].numa.0)
    };
    assert_eq!(pins("3"), ("3".into(), 1));
    assert_eq!(pins("9"), ("0-1".into(), 0), "there is no such CPU");
}

/// Its last host had other NUMA nodes.
#[test]
fn lines_come_from_where_its_memory_is_here() {
    let host = even(2, 1, 100 * MIB);
    let web = profile("web", filled(40.0, &[0.0, 0.0, 1.0]), &[(100, 3.0), (50, 1.0)]);
    let fills = |guest: &Guest| guest.vcpus[0].samples.fills_per_s().unwrap();
    let guest = by_default(&host, &Snapshot::default(), &web, &[]).unwrap();
    assert!((fills(&guest)[0] - 3e7).abs() < 100.0 && (fills(&guest)[1] - 1e7).abs() < 100.0);
    assert_eq!(fills(&guest).len(), 2);
    // and where the plan puts it: in the place of what is not used
    let host = even(2, 1, 256 * MIB);
    let mut others = snapshot([cold_on_node_1()]);
    others.guests[0].vcpus[0].allowed = "0".parse().unwrap();
    let (policy, limits) = (&mut Simple::default(), Limits::default());
    let landing = land(policy, &host, &others, &web, &["1".parse().unwrap()], &limits).unwrap();
    assert_eq!(on(&landing, 1), [(0, 150)], "{landing:?}");
    assert!(fills(&landing.guest)[0].abs() < 1.0 && (fills(&landing.guest)[1] - 4e7).abs() < 100.0);
}

fn cold_on_node_1() -> Guest {
    guest("a", 0, filled(0.1, &[0.0, 1.0]), &[(50, 1, 0.0); 4])
}

/// mbind(2) takes no others; and kernels tell free memory in KiB.
#[test]
fn guest_is_cut_between_pages() {
    let host = even(2, 1, 65 * MIB + 1024);
    let landing =
        landed(&Snapshot::default(), &host, &profile("web", counted(40.0), &[(128, 1.0)]));
    assert!(landing.binds.len() > 1, "{:?}", landing.binds);
    for bind in &landing.binds {
        assert_eq!((bind.offset % 4096, bind.bytes % 4096), (0, 0), "{bind:?}");
    }
}
