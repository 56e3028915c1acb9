// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::host::{MIB, counted, even, guest, snapshot};

fn id(guest: &str) -> GuestId {
    GuestId(guest.into())
}

fn relocation(guest: &str, mib: u64, from: u32, to: u32) -> Relocation {
    let (from, to) = (NumaId(from), NumaId(to));
    Relocation { guest: id(guest), offset: 0, bytes: mib * MIB, from, to }
}

fn pins(guest: &str) -> Pins {
    Pins { guest: id(guest), cpus: vec!["0".parse().unwrap()] }
}

fn plan(pins: Vec<Pins>, relocations: Vec<Relocation>) -> Plan {
    Plan { pins, relocations, gain: 0.2, ..Plan::nothing("simple") }
}

fn guards(mib_per_s: u64) -> Guards {
    Guards::new(GuardLimits { bytes_per_s: mib_per_s * MIB, ..GuardLimits::default() })
}

/// On a host where there is room for all.
fn allow(guards: &mut Guards, plan: &Plan, now_ms: u64) -> Allowed {
    guards.allow(plan, &Snapshot::default(), &even(4, 1, 1 << 40), now_ms)
}

type ByGuest<'allowed, T> = Vec<(&'allowed str, T)>;

/// What goes, by guest and MiB, and who is held.
fn told(allowed: &Allowed) -> (ByGuest<'_, u64>, ByGuest<'_, HeldWhy>) {
    let memory = allowed.relocations.iter();
    let memory = memory.map(|one| (one.guest.0.as_str(), one.bytes / MIB)).collect();
    (memory, allowed.held.iter().map(|held| (held.guest.0.as_str(), held.why)).collect())
}

#[test]
fn plan_that_gains_enough_is_done() {
    let all = plan(vec![pins("a")], vec![relocation("a", 3, 0, 1), relocation("b", 5, 1, 0)]);
    let allowed = allow(&mut guards(100), &all, 7);
    assert_eq!((&allowed.pins, &allowed.relocations), (&all.pins, &all.relocations));
    assert_eq!(allowed.held, []);
}

#[test]
fn plan_that_gains_less_than_a_twentieth_is_none() {
    let mut all = plan(vec![pins("a")], vec![relocation("b", 5, 1, 0)]);
    let held = |all: &Plan| {
        let allowed = allow(&mut guards(100), all, 0);
        allowed.held.into_iter().map(|held| held.guest.0).collect::<Vec<_>>()
    };
    all.gain = 0.05;
    assert!(held(&all).is_empty());
    all.gain = 0.049;
    assert_eq!(held(&all), ["a", "b"]);
    let why = allow(&mut guards(100), &all, 0).held[0].why;
    assert_eq!(why.to_string(), "the plan gains 4.9 %, and has to gain 5.0 %");
    all.gain = f64::NAN;
    assert_eq!(held(&all), ["a", "b"]);
}

#[test]
fn guest_is_left_alone_for_ten_seconds() {
    let mut guards = guards(100);
    let both = plan(vec![], vec![relocation("a", 3, 0, 1), relocation("b", 5, 0, 1)]);
    assert_eq!(told(&allow(&mut guards, &plan(vec![pins("a")], vec![]), 1000)).1, []);
    let allowed = allow(&mut guards, &both, 10_999);
    assert_eq!(told(&allowed), (vec![("b", 5)], vec![("a", HeldWhy::CoolDown { left_ms: 1 })]));
    // what was held was not changed
    assert_eq!(told(&allow(&mut guards, &both, 11_000)).0, [("a", 3)]);
    guards.forget(&id("a"));
    assert_eq!(told(&allow(&mut guards, &both, 12_000)).0, [("a", 3)]);
}

#[test]
fn memory_goes_as_fast_as_it_may() {
    let mut guards = guards(10);
    let of = |guest, mib| plan(vec![], vec![relocation(guest, mib, 0, 1)]);
    // ten seconds' worth at once, in huge pages
    let allowed = allow(&mut guards, &of("a", 151), 0);
    let why = HeldWhy::Budget { bytes: 51 * MIB };
    assert_eq!(told(&allowed), (vec![("a", 100)], vec![("a", why)]));
    assert_eq!(told(&allow(&mut guards, &of("b", 9), 150)).0, [], "1.5 MiB are no huge page");
    assert_eq!(told(&allow(&mut guards, &of("c", 9), 500)).0, [("c", 4)], "of 5 that have come");
    assert_eq!(
        told(&allow(&mut guards, &of("d", 31), 3500)).0,
        [("d", 31)],
        "with the one that was left"
    );
    assert_eq!(
        told(&allow(&mut guards, &of("e", 151), 100_000)).0,
        [("e", 100)],
        "no more is saved"
    );
    // a clock that goes back gives nothing
    assert_eq!(told(&allow(&mut guards, &of("f", 9), 0)).0, []);
    assert_eq!(told(&allow(&mut guards, &of("g", 9), 100_000)).0, [], "nor does it later");
}

#[test]
fn memory_goes_to_and_fro_five_times() {
    let mut guards = guards(100);
    let mut now_ms = 0;
    let mut go = |guest, from, to| {
        now_ms += 10_000;
        let allowed =
            allow(&mut guards, &plan(vec![], vec![relocation(guest, 2, from, to)]), now_ms);
        allowed.held.first().map(|held| held.why)
    };
    // there, more of it there, and back and there again
    assert_eq!(go("a", 3, 1), None);
    assert_eq!(go("a", 3, 1), None);
    for (from, to) in [(1, 3), (3, 1), (1, 3), (3, 1), (1, 3)] {
        assert_eq!(go("a", from, to), None);
    }
    let (one, other) = (NumaId(1), NumaId(3));
    assert_eq!(go("a", 3, 1), Some(HeldWhy::Bounces { one, other, bounces: 5 }));
    assert_eq!(go("a", 1, 3), None, "more of it may go where it is");
    assert_eq!(go("a", 3, 2), None, "there it has not been");
    assert_eq!(go("b", 3, 1), None);
}

/// What is used less goes one way, what is used more the other: which is less does not count.
#[test]
fn direction_is_that_of_most_bytes() {
    let swap = |up, down| directions(&[relocation("a", up, 0, 1), relocation("a", down, 1, 0)]);
    let pair = (NumaId(0), NumaId(1));
    assert_eq!(swap(3, 2)[&(id("a"), pair)], NumaId(1));
    assert_eq!(swap(2, 3)[&(id("a"), pair)], NumaId(0));
    assert!(swap(2, 2).is_empty());
}

#[test]
fn vcpus_change_places_together_or_not_at_all() {
    let mut guards = guards(100);
    allow(&mut guards, &plan(vec![pins("a")], vec![]), 0);
    let all =
        plan(vec![pins("a"), pins("b")], vec![relocation("b", 2, 0, 1), relocation("c", 2, 0, 1)]);
    let allowed = allow(&mut guards, &all, 1000);
    assert_eq!(allowed.pins, []);
    let held = vec![("a", HeldWhy::CoolDown { left_ms: 9000 }), ("b", HeldWhy::Places)];
    assert_eq!(told(&allowed), (vec![("c", 2)], held));
}

/// Two NUMA nodes that are full but for 10 MiB of the second.
#[test]
fn memory_waits_for_room_that_others_do_not_leave() {
    let host = even(2, 1, 100 * MIB);
    let all = snapshot([
        guest("a", 0, counted(1.0), &[(60, 0, 1.0)]),
        guest("b", 1, counted(1.0), &[(40, 0, 1.0), (90, 1, 1.0)]),
    ]);
    let go = |plan: &Plan, is_changed: bool, mib_per_s| {
        let mut guards = guards(mib_per_s);
        if is_changed {
            allow(&mut guards, &self::plan(vec![pins("a")], vec![]), 0);
        }
        let allowed = guards.allow(plan, &all, &host, 1000);
        let (goes, held) = told(&allowed);
        let goes: Vec<_> = goes.into_iter().map(|(guest, mib)| (guest.to_owned(), mib)).collect();
        (goes, held.into_iter().map(|(_, why)| why).collect::<Vec<_>>(), guards.budget / MIB)
    };
    let b = || Relocation { offset: 40 * MIB, ..relocation("b", 60, 1, 0) };
    let swap = plan(vec![], vec![relocation("a", 60, 0, 1), b()]);
    let (one, other) = (("a".to_owned(), 60), ("b".to_owned(), 60));
    assert_eq!(go(&swap, false, 100), (vec![one, other], vec![], 880));
    let cool_down = HeldWhy::CoolDown { left_ms: 9000 };
    // b finds no room, and costs no budget
    assert_eq!(go(&swap, true, 100), (vec![], vec![HeldWhy::Room, cool_down], 1000));
    // 40 of b do not leave, so a does not find its 60
    let (budget, room) = (HeldWhy::Budget { bytes: 40 * MIB }, HeldWhy::Room);
    assert_eq!(go(&swap, false, 8), (vec![], vec![budget, room, room], 80));
    // what fits by itself goes
    let small = plan(vec![], vec![relocation("a", 60, 0, 1), relocation("b", 10, 0, 1)]);
    assert_eq!(go(&small, true, 100), (vec![("b".into(), 10)], vec![cool_down], 990));
}

/// Whatever plans come: each byte is done or held, a guest is changed once in ten seconds, and in any time no
/// more goes than may.
#[test]
fn rules_hold_for_plans_by_lot() {
    let mut random = fastrand::Rng::with_seed(41);
    for _ in 0..200 {
        let mut guards = guards(8);
        let (mut now_ms, mut done) = (0, Vec::new());
        for _ in 0..50 {
            now_ms += random.u64(0..4000);
            let guest = |random: &mut fastrand::Rng| ["a", "b", "c", "d"][random.usize(0..4)];
            let relocation = |random: &mut fastrand::Rng| {
                let (from, far) = (random.u32(0..3), random.u32(1..3));
                relocation(guest(random), random.u64(1..40), from, (from + far) % 3)
            };
            let relocations = (0..random.usize(0..5)).map(|_| relocation(&mut random)).collect();
            let mut all = plan(
                (0..random.usize(0..2)).map(|_| pins(guest(&mut random))).collect(),
                relocations,
            );
            all.gain = 0.2 * random.f64();
            let allowed = allow(&mut guards, &all, now_ms);
            let whole = !allowed.held.is_empty() || allowed.pins == all.pins;
            assert!(whole, "{all:?}");
            let held: BTreeSet<&GuestId> = allowed.held.iter().map(|held| &held.guest).collect();
            for one in &all.relocations {
                assert!(held.contains(&one.guest) || allowed.relocations.contains(one), "{one:?}");
            }
            let bytes: u64 = allowed.relocations.iter().map(|one| one.bytes).sum();
            let pinned = allowed.pins.iter().map(|pins| pins.guest.clone());
            let guests: BTreeSet<GuestId> =
                pinned.chain(allowed.relocations.iter().map(|one| one.guest.clone())).collect();
            done.push((now_ms, guests, bytes));
        }
        for (at, (from_ms, guests, _)) in done.iter().enumerate() {
            let mut sum = 0;
            for (to_ms, _, bytes) in &done[at..] {
                sum += bytes;
                let most = (10 + (to_ms - from_ms) / 1000 + 1) * 8 * MIB;
                assert!(sum <= most, "{sum} from {from_ms} to {to_ms}");
            }
            for (to_ms, others, _) in &done[at + 1..] {
                let both = guests.intersection(others).next();
                assert!(both.is_none() || to_ms - from_ms >= 10_000, "{both:?}");
            }
        }
    }
}
