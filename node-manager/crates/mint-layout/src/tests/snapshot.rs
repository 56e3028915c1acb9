// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::host::{counted, even, guest, ran, snapshot};

fn refused(change: impl FnOnce(&mut Snapshot)) -> SnapshotError {
    let mut snapshot = snapshot([
        guest("a", 0, counted(1.0), &[(1, 0, 1.0), (1, 1, 1.0)]),
        guest("b", 1, counted(1.0), &[(1, 1, 1.0)]),
    ]);
    let host = even(2, 2, 1 << 30);
    assert_eq!(snapshot.check(&host), Ok(()));
    change(&mut snapshot);
    snapshot.check(&host).unwrap_err()
}

#[test]
fn what_does_not_fit_is_refused() {
    let a = || GuestId("a".into());
    let nowhere = |what: &str| SnapshotError::Nowhere(a(), what.into());
    assert_eq!(refused(|all| all.guests[1].id = a()), SnapshotError::Twice(a()));
    assert_eq!(
        refused(|all| all.guests[0].vcpus[0].domain = DomainNo(2)),
        nowhere("cache domain 2")
    );
    assert_eq!(refused(|all| all.guests[0].regions[0].numa = NumaNo(2)), nowhere("NUMA node 2"));
    assert_eq!(
        refused(|all| all.guests[0].regions[0].bytes += 1),
        SnapshotError::Overlap(a(), 1 << 20)
    );
    assert_eq!(
        refused(|all| all.guests[0].vcpus[0].allowed = "2-3".parse().unwrap()),
        SnapshotError::Allowed(a(), 0)
    );
}

#[test]
fn signals_are_there_if_all_guests_have_them() {
    let mut snapshot = snapshot([
        guest("a", 0, counted(1.0), &[(1, 0, 1.0)]),
        guest("b", 1, counted(1.0), &[(1, 1, 1.0)]),
    ]);
    for signal in [Signal::RunTime, Signal::Memory, Signal::Misses, Signal::Heat] {
        assert!(snapshot.has(signal), "{signal}");
    }
    assert!(!snapshot.has(Signal::Fills));
    snapshot.guests[1].vcpus[0].samples = ran(0.0);
    assert!(snapshot.has(Signal::Misses), "one that does not run misses nothing");
    snapshot.guests[1].vcpus[0].samples = ran(0.5);
    snapshot.guests[1].regions[0].heat = None;
    assert!(!snapshot.has(Signal::Misses) && !snapshot.has(Signal::Heat));
    assert!(snapshot.has(Signal::RunTime));
}

#[test]
fn vcpu_gets_those_of_a_domains_cpus_that_its_owner_lets_it_have() {
    let host = even(2, 2, 1 << 30);
    let mut guest = guest("a", 0, counted(1.0), &[]);
    let vcpu = &mut guest.vcpus[0];
    assert_eq!(vcpu.cpus(&host, DomainNo(1)).to_string(), "2-3");
    vcpu.allowed = "0,3".parse().unwrap();
    assert_eq!(vcpu.cpus(&host, DomainNo(1)).to_string(), "3");
    vcpu.allowed = "0".parse().unwrap();
    assert!(vcpu.may_run(&host, DomainNo(0)) && !vcpu.may_run(&host, DomainNo(1)));
}

#[test]
fn pieces_end_where_huge_pages_do() {
    let mut all = snapshot([guest("a", 0, counted(1.0), &[(5, 1, 10.0), (3, 0, 3.0)])]);
    all.guests[0].regions[1].heat = None;
    let pieces = all.in_pieces(2 << 20);
    let mib = |region: &Region| (region.offset >> 20, region.bytes >> 20, region.numa.0);
    let told: Vec<_> = pieces.guests[0].regions.iter().map(mib).collect();
    assert_eq!(told, [(0, 2, 1), (2, 2, 1), (4, 1, 1), (5, 1, 0), (6, 2, 0)]);
    let heats = pieces.guests[0].regions.iter().map(|region| region.heat);
    assert_eq!(heats.collect::<Vec<_>>(), [Some(4.0), Some(4.0), Some(2.0), None, None]);
}
