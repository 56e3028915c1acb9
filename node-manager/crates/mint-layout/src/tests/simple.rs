// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::host::{MIB, counted, even, guest, ran, snapshot};
use crate::plan::{Pins, Relocation};
use crate::snapshot::{Confidence, GuestId};
use crate::topology::{DomainNo, NumaId};
use crate::{Cost, PolicyError, Ring, Sample};

fn plan(snapshot: &Snapshot, topology: &Topology) -> Plan {
    Simple::default().plan(snapshot, topology, &Limits::default()).unwrap()
}

fn relocation(guest: &str, offset: u64, mib: u64, from: u32, to: u32) -> Relocation {
    let (from, to) = (NumaId(from), NumaId(to));
    Relocation { guest: GuestId(guest.into()), offset: offset * MIB, bytes: mib * MIB, from, to }
}

fn pins(guest: &str, cpus: &str) -> Pins {
    Pins { guest: GuestId(guest.into()), cpus: vec![cpus.parse().unwrap()] }
}

/// Two NUMA nodes of a CPU each. Cold memory of `resident` fills the first, which `web`, whose vCPU is there, misses
/// often; there is some room on the other.
fn pressed(web: f64, resident: f64) -> (Snapshot, Topology) {
    let mut snapshot = snapshot([
        guest("resident", 1, counted(resident), &[(64, 1, 9.0), (448, 0, 0.0)]),
        guest("web", 0, counted(web), &[(64, 0, 1.0), (64, 1, 5.0), (64, 1, 4.0), (64, 1, 0.0)]),
    ]);
    keep(&mut snapshot);
    (snapshot, even(2, 1, 512 * MIB))
}

/// Owners keep their guests to the CPUs that these have.
fn keep(snapshot: &mut Snapshot) {
    for vcpu in snapshot.guests.iter_mut().flat_map(|guest| &mut guest.vcpus) {
        vcpu.allowed = vcpu.domain.0.to_string().parse().unwrap();
    }
}

/// L, figure 3 and case 1-1. What `web` does not use stays where it is.
#[test]
fn what_is_not_used_goes_for_what_is_used_often() {
    let (mut snapshot, host) = pressed(40.0, 1.0);
    // in pieces, of which it takes what it needs
    snapshot.guests[0] = guest(
        "resident",
        1,
        counted(1.0),
        &[(64, 1, 9.0), (64, 0, 3.0), (64, 0, 0.0), (64, 0, 0.0), (256, 0, 2.0)],
    );
    keep(&mut snapshot);
    let plan = plan(&snapshot, &host);
    assert_eq!(plan.pins, []);
    let wanted = [relocation("resident", 128, 128, 0, 1), relocation("web", 64, 128, 1, 0)];
    assert_eq!(plan.relocations, wanted);
    // cycles an instruction: nine of ten of web's misses were of the other node, twice as far; of resident's 5 of 14
    let (web, resident) = (1.0 + 0.04 * 100.0 * 1.9, 1.0 + 0.001 * 100.0 * 19.0 / 14.0);
    assert!((plan.gain - 3.6 / (web + resident)).abs() < 1e-6, "{plan:?}");
    assert_eq!(plan.why.len(), 2);
    assert_eq!((plan.why[0].guest.0.as_str(), plan.why[0].rank), ("web", 1));
    assert_eq!(plan.why[0].confidence, Confidence::Counted);
    assert!(plan.why[0].gain > 0.4 && plan.why[1].gain.abs() < 1e-9, "{plan:?}");
    assert_eq!(plan.why[1].relocated_bytes, 128 * MIB);
}

/// L, case 1-2: the guest that is pressed hardly misses, the other one often.
#[test]
fn guest_that_hardly_misses_moves_nobody() {
    let (snapshot, host) = pressed(0.2, 40.0);
    assert!(plan(&snapshot, &host).is_empty());
}

#[test]
fn nothing_is_done_for_a_gain_below_the_limit() {
    let (mut snapshot, host) = pressed(40.0, 2.0);
    snapshot.guests[0].regions.truncate(1);
    assert!(!plan(&snapshot, &host).is_empty());
    let limits = Limits { gain: 0.5, ..Limits::default() };
    assert_eq!(
        Simple::default().plan(&snapshot, &host, &limits),
        Ok(Plan::nothing("simple")),
        "it gains less than half"
    );
}

#[test]
fn vcpu_goes_to_its_memory_when_a_cpu_there_is_free() {
    let host = even(2, 1, 512 * MIB);
    let snapshot = snapshot([guest("web", 0, counted(40.0), &[(256, 1, 1.0)])]);
    let plan = plan(&snapshot, &host);
    assert_eq!(
        (plan.pins.as_slice(), plan.relocations.as_slice()),
        (&[pins("web", "1")][..], &[][..])
    );
}

#[test]
fn guest_that_misses_more_often_takes_the_cpu_and_the_other_one_gives_way() {
    let host = even(2, 1, 1024 * MIB);
    let mut snapshot = snapshot([
        guest("a", 1, counted(5.0), &[(512, 1, 1.0)]),
        guest("web", 0, counted(40.0), &[(512, 1, 1.0)]),
    ]);
    // neither can bring the other's node what it has
    snapshot.guests.iter_mut().for_each(|guest| guest.is_fixed = true);
    let plan = plan(&snapshot, &host);
    assert_eq!(plan.pins, [pins("a", "0"), pins("web", "1")]);
    assert_eq!(plan.relocations, []);
    assert!(plan.why.iter().any(|why| why.guest.0 == "a" && why.gain < 0.0), "{plan:?}");
}

#[test]
fn owners_cpus_are_kept() {
    let host = even(2, 2, 512 * MIB);
    let mut snapshot = snapshot([guest("web", 0, counted(40.0), &[(256, 1, 1.0)])]);
    snapshot.guests[0].is_fixed = true;
    snapshot.guests[0].vcpus[0].allowed = "0,3".parse().unwrap();
    assert_eq!(plan(&snapshot, &host).pins, [pins("web", "3")]);
    snapshot.guests[0].vcpus[0].allowed = "1".parse().unwrap();
    assert!(plan(&snapshot, &host).is_empty());
}

#[test]
fn memory_that_is_fixed_stays_whoever_wants_its_room() {
    let (mut snapshot, host) = pressed(40.0, 2.0);
    snapshot.guests[0].is_fixed = true;
    let plan = plan(&snapshot, &host);
    // of its own it brings what it uses more in the place of what it uses less
    let own = [relocation("web", 0, 64, 0, 1), relocation("web", 64, 64, 1, 0)];
    assert!(plan.relocations.iter().all(|one| own.contains(one)), "{plan:?}");
    assert_eq!(plan.relocations.len(), 2);
}

#[test]
fn no_more_than_the_budget_is_relocated() {
    let (mut snapshot, host) = pressed(40.0, 2.0);
    snapshot.guests[0].regions.truncate(1);
    let limits = Limits { relocated_bytes: 64 * MIB, ..Limits::default() };
    let plan = Simple::default().plan(&snapshot, &host, &limits).unwrap();
    assert_eq!(plan.relocations, [relocation("web", 64, 64, 1, 0)], "what is used most");
}

/// A node without a PMU: a guest that runs is taken to miss, and that is told.
#[test]
fn run_time_stands_for_misses_where_nothing_counts_them() {
    let (mut snapshot, host) = pressed(40.0, 2.0);
    snapshot.guests[0].regions.truncate(1);
    snapshot.guests[0].vcpus[0].samples = ran(0.0);
    snapshot.guests[1].vcpus[0].samples = ran(1.0);
    let plan = plan(&snapshot, &host);
    assert_eq!(plan.relocations, [relocation("web", 64, 128, 1, 0)]);
    assert_eq!(plan.why[0].confidence, Confidence::Guessed);
}

#[test]
fn guest_of_which_nothing_is_known_is_told() {
    let (mut snapshot, host) = pressed(40.0, 2.0);
    snapshot.guests[1].vcpus[0].samples = Ring::default();
    let error = Simple::default().plan(&snapshot, &host, &Limits::default()).unwrap_err();
    let PolicyError::Lacks { policy: "simple", lacks } = &error else { panic!("{error}") };
    assert_eq!(lacks, &[Signal::RunTime]);
    assert_eq!(
        error.to_string(),
        "policy simple needs the vCPUs' run time, which was not measured of all guests"
    );
}

#[test]
fn guests_of_about_the_same_rate_do_not_change_places() {
    let host = even(2, 1, 1024 * MIB);
    let at = |a: f64, b: f64| {
        snapshot([
            guest("a", 0, counted(a), &[(512, 0, 1.0)]),
            guest("b", 1, counted(b), &[(512, 0, 1.0)]),
        ])
    };
    let mut fixed = [at(40.0, 38.0), at(40.0, 41.0), at(40.0, 60.0)];
    fixed.iter_mut().flat_map(|one| &mut one.guests).for_each(|guest| guest.is_fixed = true);
    let [first, near, far] = fixed;
    let mut simple = Simple::default();
    let mut is_empty = |at: &Snapshot| {
        simple.plan(at, &host, &Limits { gain: 0.0, ..Limits::default() }).unwrap().is_empty()
    };
    assert!(is_empty(&first));
    assert!(is_empty(&near), "it counts as 38 still");
    assert!(!is_empty(&far));
}

/// One second in which something else went on is not what the guest does.
#[test]
fn one_second_changes_nothing() {
    let (mut snapshot, host) = pressed(0.2, 40.0);
    let storm = Sample {
        span_ms: 1000,
        run_ms: 1000,
        instructions: Some(1_000_000_000),
        misses: Some(900_000_000),
        fills: None,
    };
    snapshot.guests[1].vcpus[0].samples.push(storm);
    assert!(plan(&snapshot, &host).is_empty());
}

/// Half of its memory is on each of two full NUMA nodes, used alike; the third has room for all of it.
#[test]
fn what_a_guest_uses_itself_is_no_room_for_it() {
    let mut web = guest("web", 0, counted(40.0), &[(64, 0, 1.0), (64, 1, 1.0)]);
    web.vcpus.push(web.vcpus[0].clone());
    web.vcpus[1].domain = DomainNo(1);
    let mut filler = guest("filler", 2, ran(0.0), &[(66, 0, 1.0), (66, 1, 1.0)]);
    filler.is_fixed = true;
    let (snapshot, host) = (snapshot([web, filler]), even(3, 2, 130 * MIB));
    let before = Cost::of(&snapshot, &host);
    let plan = plan(&snapshot, &host);
    let after = Cost::of(&plan.done(&snapshot, &host), &host);
    let all_near = before.wait_cycles_s / 1.5;
    assert!(after.wait_cycles_s < 1.01 * all_near, "{after:?} of {before:?}: {plan:?}");
}
