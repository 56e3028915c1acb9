// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::PolicyError;
use crate::host::{MIB, counted, even, filled, guest, ran, snapshot};

/// Of a thousand plans of as many policies, how many pin, and to where.
fn lots(snapshot: &Snapshot, host: &Topology, limits: &Limits) -> BTreeMap<String, u32> {
    let mut drawn = BTreeMap::new();
    for seed in 0..1000 {
        let plan = Brm::new(seed).plan(snapshot, host, limits).unwrap();
        assert_eq!(plan.relocations, [], "memory stays");
        let cpus = plan.pins.iter().flat_map(|pins| &pins.cpus).map(ToString::to_string);
        let there = cpus.collect::<Vec<_>>().join(" ");
        *drawn.entry(there).or_default() += 1;
    }
    drawn
}

fn anything() -> Limits {
    Limits { gain: -9.0, ..Limits::default() }
}

/// Its lines come from the other node, twice as far: a place there halves the penalty.
#[test]
fn vcpu_goes_the_likelier_the_more_it_gains() {
    let host = even(2, 2, 512 * MIB);
    let of = |parts: &[f64]| {
        let all = snapshot([guest("a", 0, filled(40.0, parts), &[(64, 0, 1.0)])]);
        lots(&all, &host, &anything()).get("2-3").copied().unwrap_or(0)
    };
    let (all, part, none) = (of(&[0.0, 1.0]), of(&[0.25, 0.75]), of(&[1.0, 0.0]));
    assert!((470..550).contains(&all), "half: {all}");
    assert!((260..340).contains(&part), "1 - 1.25 / 1.75 of them: {part}");
    assert!((8..35).contains(&none), "one in fifty goes anywhere: {none}");
}

#[test]
fn vcpu_goes_where_it_waits_least_of_places_that_it_may_have() {
    let host = even(3, 1, 512 * MIB);
    let mut all = snapshot([guest("a", 0, filled(40.0, &[0.0, 0.4, 0.6]), &[(64, 0, 1.0)])]);
    let most = |all: &Snapshot| {
        let drawn = lots(all, &host, &Limits::default());
        drawn.into_iter().filter(|(_, count)| *count > 50).map(|(cpus, _)| cpus).collect::<Vec<_>>()
    };
    assert_eq!(most(&all), ["", "2"]);
    all.guests[0].vcpus[0].allowed = "0-1".parse().unwrap();
    assert_eq!(most(&all), ["", "1"], "its owner says so");
    all.guests[0].vcpus[0].allowed = [].into_iter().collect();
    all.guests.push(guest("b", 2, filled(0.1, &[0.0, 0.0, 1.0]), &[]));
    assert_eq!(most(&all), ["", "1"], "there is no room");
}

/// A lot that makes all costlier is none, be it drawn.
#[test]
fn nothing_is_done_for_a_gain_below_the_limit() {
    let host = even(2, 2, 512 * MIB);
    let all = snapshot([guest("a", 0, filled(40.0, &[1.0, 0.0]), &[(64, 0, 1.0)])]);
    assert_eq!(lots(&all, &host, &Limits::default()).keys().collect::<Vec<_>>(), [""]);
}

#[test]
fn same_seed_draws_the_same_lots_and_another_one_others() {
    let host = even(4, 4, 512 * MIB);
    let mut one = guest("a", 0, filled(40.0, &[0.1, 0.2, 0.3, 0.4]), &[(64, 0, 1.0)]);
    one.vcpus = vec![one.vcpus[0].clone(); 8];
    let all = snapshot([one]);
    let plans = |seed| {
        let mut brm = Brm::new(seed);
        (0..4).map(|_| brm.plan(&all, &host, &anything()).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(plans(1), plans(1));
    assert_ne!(plans(1), plans(2));
}

/// While the sum falls they are likelier, and rarer when it does not.
#[test]
fn bias_follows_the_sum_of_all_penalties() {
    let host = even(2, 2, 512 * MIB);
    let mut brm = Brm::new(1);
    let mut after = |misses: f64| {
        let all = snapshot([guest("a", 0, filled(misses, &[1.0, 0.0]), &[(64, 0, 1.0)])]);
        brm.plan(&all, &host, &Limits::default()).unwrap();
        brm.bias
    };
    let close = |is: f64, wanted: f64| assert!((is - wanted).abs() < 1e-9, "{is}, not {wanted}");
    close(after(40.0), 1.0);
    close(after(40.0), 0.5);
    close(after(50.0), 0.25);
    close(after(10.0), 0.275);
    close(after(0.0), 0.3025);
    for _ in 0..9 {
        after(60.0);
    }
    close(after(60.0), 0.05);
    for _ in 0..60 {
        after(0.0);
    }
    close(after(0.0), 1.0);
}

/// A quarter of a penalty is what was measured last.
#[test]
fn one_second_counts_a_quarter() {
    let host = even(2, 2, 512 * MIB);
    let mut brm = Brm::new(1);
    let mut after = |misses: f64| {
        let all = snapshot([guest("a", 0, filled(misses, &[1.0, 0.0]), &[(64, 0, 1.0)])]);
        brm.learn(&all, &host);
        brm.penalties[&(crate::GuestId("a".into()), 0)].clone()
    };
    let close = |is: &[f64], wanted: &[f64]| {
        assert!(is.iter().zip(wanted).all(|(is, wanted)| (is - wanted).abs() < 1e-6), "{is:?}");
    };
    // 40 misses in 1000 instructions wait 100 cycles each, and 200 on the other node
    close(&after(40.0), &[4.0, 8.0]);
    close(&after(20.0), &[3.5, 7.0]);
    brm.learn(&Snapshot::default(), &host);
    assert!(brm.penalties.is_empty(), "who has gone is forgotten");
}

#[test]
fn one_that_executes_nothing_stays() {
    let host = even(2, 2, 512 * MIB);
    let mut idle = ran(0.0);
    idle.push(crate::Sample { span_ms: 1000, fills: Some(vec![0, 0]), ..Default::default() });
    let all = snapshot([guest("a", 0, idle, &[(64, 1, 1.0)])]);
    let mut brm = Brm::new(1);
    assert!(brm.plan(&all, &host, &Limits::default()).unwrap().is_empty());
    assert_eq!(brm.sum, Some(0.0), "nor does it spoil the sum");
}

#[test]
fn lines_that_nothing_counts_are_asked_for() {
    let all = snapshot([guest("a", 0, counted(1.0), &[(64, 0, 1.0)])]);
    let error = Brm::new(1).plan(&all, &even(2, 2, 512 * MIB), &Limits::default()).unwrap_err();
    let lacks = vec![Signal::Fills];
    assert_eq!(error, PolicyError::Lacks { policy: "brm", lacks });
}
