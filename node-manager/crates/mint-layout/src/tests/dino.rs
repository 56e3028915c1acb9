// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::host::{MIB, counted, even, guest, snapshot};
use crate::{PolicyError, Ring, Sample};

/// Places for vCPUs as a plan leaves them.
fn domains(plan: &Plan, snapshot: &Snapshot, host: &Topology) -> Vec<usize> {
    let after = plan.done(snapshot, host);
    after.guests.iter().flat_map(|guest| &guest.vcpus).map(|vcpu| vcpu.domain.0).collect()
}

fn arranged(snapshot: &Snapshot, host: &Topology) -> Plan {
    Dino::default().plan(snapshot, host, &Limits::default()).unwrap()
}

/// Ten samples, so many of which miss more often than the others; per 10,000 instructions.
fn samples(calm: u64, stormy: u64, storms: usize) -> Ring {
    let sample = |at: usize| Sample {
        span_ms: 1000,
        run_ms: 1000,
        instructions: Some(1_000_000_000),
        misses: Some(100_000 * if at < storms { stormy } else { calm }),
        fills: None,
    };
    (0..10).map(sample).collect::<Vec<_>>().into()
}

/// L, 5.4: a guest that misses often comes to the socket of another one that does. It goes to the other socket, and its
/// memory with it.
#[test]
fn guests_that_miss_often_are_kept_apart_and_memory_follows() {
    let host = even(2, 2, 512 * MIB);
    let snapshot = snapshot([
        guest("calm", 1, counted(0.1), &[(64, 1, 1.0)]),
        guest("resident", 0, counted(40.0), &[(128, 0, 1.0)]),
        guest("web", 0, counted(39.0), &[(128, 0, 9.0), (64, 0, 0.0)]),
    ]);
    let plan = arranged(&snapshot, &host);
    assert_eq!(domains(&plan, &snapshot, &host), [1, 0, 1]);
    let told: Vec<_> =
        plan.relocations.iter().map(|one| (one.guest.0.as_str(), one.bytes / MIB)).collect();
    assert_eq!(told, [("web", 128)], "what it does not use stays");
    assert!(plan.gain > 0.25, "{plan:?}");
    // L, 5.4.2: where one of them only calculates, nothing changes
    let mut snapshot = snapshot;
    snapshot.guests[2].vcpus[0].samples = counted(0.2);
    assert!(arranged(&snapshot, &host).is_empty());
}

/// Of each class each domain has as many, but for one.
#[test]
fn classes_are_dealt_to_and_fro() {
    let host = even(3, 3, 1 << 30);
    let classes = [Class::SuperDevil, Class::Devil, Class::Turtle];
    let mut all = Snapshot::default();
    let mut of = Vec::new();
    for (name, count, class) in [("a", 2, 0), ("b", 3, 1), ("c", 4, 2)] {
        let mut one = guest(name, 0, counted(1.0), &[]);
        one.vcpus = vec![one.vcpus[0].clone(); count];
        all.guests.push(one);
        of.push(vec![classes[class]; count]);
    }
    let open = deal(&all, &host, &of);
    // 0 1 | 2 2 1 | 0 0 1 2
    assert_eq!(open[&Class::SuperDevil], [1, 1, 0]);
    assert_eq!(open[&Class::Devil], [0, 1, 2]);
    assert_eq!(open[&Class::Turtle], [2, 1, 1]);
    // a super-devil that is kept to the first counts there
    all.guests[0].vcpus[1].allowed = "0".parse().unwrap();
    assert_eq!(deal(&all, &host, &of)[&Class::SuperDevil], [0, 1, 0]);
    // and one that is kept to the last of two CPUs leaves it no room for another
    let narrow = even(2, 1, 1 << 30);
    all.guests.truncate(2);
    all.guests[0].vcpus.truncate(1);
    all.guests[1].vcpus.truncate(1);
    all.guests[0].vcpus[0].domain = DomainNo(1);
    all.guests[1].vcpus[0].allowed = "0".parse().unwrap();
    let open = deal(&all, &narrow, &[vec![Class::SuperDevil], vec![Class::Devil]]);
    assert_eq!(open[&Class::SuperDevil], [0, 1]);
}

#[test]
fn vcpu_whose_place_still_wants_its_class_stays() {
    let host = even(2, 2, 1 << 30);
    // its memory is on the other node, where another one of its class has its place
    let snapshot = snapshot([
        guest("a", 0, counted(40.0), &[(64, 1, 1.0)]),
        guest("b", 1, counted(40.0), &[(64, 0, 1.0)]),
        guest("c", 1, counted(0.1), &[(64, 0, 1.0)]),
    ]);
    let limits = Limits { relocated_bytes: 0, gain: -1.0 };
    let plan = Dino::default().plan(&snapshot, &host, &limits).unwrap();
    assert!(plan.is_empty(), "{plan:?}");
}

#[test]
fn vcpu_that_goes_takes_the_open_place_nearest_to_its_memory() {
    let host = even(3, 2, 1 << 30);
    let fixed = |memory: usize| {
        let mut all = snapshot([
            guest("a", 0, counted(45.0), &[(64, 0, 1.0)]),
            guest("b", 0, counted(40.0), &[(64, 1, 1.0)]),
            guest("c", 0, counted(35.0), &[(64, memory, 1.0)]),
        ]);
        all.guests.iter_mut().for_each(|guest| guest.is_fixed = true);
        all
    };
    let all = fixed(2);
    assert_eq!(domains(&arranged(&all, &host), &all, &host), [0, 1, 2]);
    // who misses more often chooses first
    let all = fixed(1);
    assert_eq!(domains(&arranged(&all, &host), &all, &host), [0, 1, 2]);
}

#[test]
fn presets_differ_in_what_they_take_for_which_class() {
    let (clavis, paper) = (DinoLimits::clavis(), DinoLimits::paper());
    let of = |limits: DinoLimits| [15.0, 16.0, 500.0, 501.0, 1001.0].map(|at| limits.class(at));
    let (turtle, devil, super_devil) = (Class::Turtle, Class::Devil, Class::SuperDevil);
    assert_eq!(of(clavis), [turtle, devil, devil, super_devil, super_devil]);
    assert_eq!(of(paper), [turtle, turtle, devil, devil, super_devil]);
}

#[test]
fn class_changes_when_half_of_the_samples_and_the_mean_say_so() {
    let limits = DinoLimits::clavis();
    let turtle = Classed { class: Class::Turtle, mean_per_10k: 10.0 };
    let after = |limits: &DinoLimits, storms, stormy| {
        limits.classify(Some(turtle), &samples(10, stormy, storms)).class
    };
    assert_eq!(after(&limits, 5, 100), Class::Devil, "the mean is 55");
    assert_eq!(after(&limits, 4, 100), Class::Turtle, "only four are outside");
    assert_eq!(after(&limits, 10, 40), Class::Turtle, "the mean is just 30 more");
    assert_eq!(after(&limits, 10, 41), Class::Devil);
    let paper = DinoLimits::paper();
    assert_eq!(after(&paper, 6, 100), Class::Turtle);
    assert_eq!(after(&paper, 7, 100), Class::Devil);
    assert_eq!(limits.classify(None, &samples(10, 100, 4)).class, Class::Devil, "at first");
    assert_eq!(limits.classify(None, &Ring::default()).class, Class::Turtle);
}

/// Between plans the policy remembers classes.
#[test]
fn seconds_of_storm_change_no_class() {
    let host = even(2, 2, 512 * MIB);
    let at = |storms| {
        let of = |name, samples| guest(name, 0, samples, &[(128, 0, 1.0)]);
        snapshot([of("a", samples(400, 400, 0)), of("b", samples(1, 400, storms))])
    };
    let limits = Limits { gain: -1.0, ..Limits::default() };
    let mut dino = Dino::default();
    let mut moved = |storms| {
        let all = at(storms);
        let plan = dino.plan(&all, &host, &limits).unwrap();
        let there = domains(&plan, &all, &host);
        (there, plan.relocations.len())
    };
    // a devil and a turtle: the turtle goes to the other domain, and its memory stays
    assert_eq!(moved(0), (vec![0, 1], 0));
    assert_eq!(moved(4), (vec![0, 1], 0));
    assert_eq!(moved(5), (vec![0, 1], 1));
}

#[test]
fn memory_is_gathered_when_more_than_a_tenth_is_elsewhere() {
    let host = even(2, 2, 1024 * MIB);
    let of = |near: u64, far: u64| {
        let all = snapshot([guest("a", 0, counted(40.0), &[(near, 0, 1.0), (far, 1, 9.0)])]);
        arranged(&all, &host).relocated_bytes() / MIB
    };
    assert_eq!(of(180, 20), 0);
    assert_eq!(of(178, 22), 22);
}

#[test]
fn memory_goes_where_most_misses_come_from() {
    let host = even(2, 3, 1024 * MIB);
    let mut all = snapshot([guest("a", 0, counted(10.0), &[(64, 0, 1.0)])]);
    let [mut calm, mut often] = [0, 1].map(|domain| guest("x", domain, counted(10.0), &[]));
    often.vcpus[0].samples = counted(45.0);
    for (vcpu, cpu) in [(&mut calm.vcpus[0], "0"), (&mut often.vcpus[0], "3")] {
        vcpu.allowed = cpu.parse().unwrap();
    }
    all.guests[0].vcpus =
        vec![calm.vcpus[0].clone(), calm.vcpus[0].clone(), often.vcpus[0].clone()];
    let plan = arranged(&all, &host);
    assert_eq!((plan.relocations.len(), plan.pins.len()), (1, 0));
    assert_eq!(plan.relocations[0].to, NumaId(1), "two of three vCPUs are on the other");
}

/// Two nodes far apart and one between them, which has the memory: most misses come from an end, and would wait less
/// there, but the others so much longer.
#[test]
fn memory_stays_where_it_is_nearer_to_all() {
    let node = |id: u32, distances: [u32; 3]| crate::NumaNode {
        id: NumaId(id),
        caches: vec![(2 * id..2 * id + 2).collect()],
        memory_bytes: 512 * MIB,
        distances: distances.into(),
    };
    let nodes = vec![node(0, [10, 15, 40]), node(1, [15, 10, 15]), node(2, [40, 15, 10])];
    let host = Topology::new(nodes).unwrap();
    let mut all = snapshot([guest("a", 0, counted(30.0), &[(64, 1, 1.0)])]);
    let mut other = guest("b", 2, counted(20.0), &[]).vcpus.remove(0);
    other.allowed = "4-5".parse().unwrap();
    all.guests[0].vcpus[0].allowed = "0-1".parse().unwrap();
    all.guests[0].vcpus.push(other);
    let limits = Limits { gain: -9.0, ..Limits::default() };
    assert!(Dino::default().plan(&all, &host, &limits).unwrap().is_empty());
    // were it not for those, it would go
    all.guests[0].vcpus[1].samples = counted(0.1);
    assert_eq!(Dino::default().plan(&all, &host, &limits).unwrap().relocations.len(), 1);
}

/// L, figure 3: what a turtle does not use makes room.
#[test]
fn what_is_used_less_makes_room() {
    let host = even(2, 1, 256 * MIB);
    let mut all = snapshot([
        guest("calm", 1, counted(0.1), &[(64, 1, 1.0), (192, 0, 0.0), (64, 0, 9.0)]),
        guest("web", 0, counted(40.0), &[(128, 1, 1.0)]),
    ]);
    for vcpu in all.guests.iter_mut().flat_map(|guest| &mut guest.vcpus) {
        vcpu.allowed = vcpu.domain.0.to_string().parse().unwrap();
    }
    let told = |plan: Plan| -> Vec<(String, u64)> {
        plan.relocations.into_iter().map(|one| (one.guest.0, one.bytes / MIB)).collect()
    };
    let wanted = [("calm".into(), 192), ("web".into(), 128)];
    let mut made = told(arranged(&all, &host));
    made.sort();
    assert_eq!(made, wanted);
    all.guests[0].is_fixed = true;
    assert_eq!(told(arranged(&all, &host)), []);
}

/// Memory follows the vCPUs to and fro, and then no more.
#[test]
fn memory_bounces_five_times() {
    let host = even(2, 1, 1024 * MIB);
    let mut dino = Dino::default();
    let mut memory = 1;
    let mut moves = 0;
    for second in 0..20 {
        let cpu = second % 2;
        let mut all = snapshot([guest("a", cpu, counted(40.0), &[(64, memory, 1.0)])]);
        all.guests[0].vcpus[0].allowed = cpu.to_string().parse().unwrap();
        let plan = dino.plan(&all, &host, &Limits::default()).unwrap();
        if !plan.is_empty() {
            moves += 1;
            memory = cpu;
        }
    }
    assert_eq!(moves, 1 + 5);
    dino.plan(&Snapshot::default(), &host, &Limits::default()).unwrap();
    assert!(dino.gathered.is_empty() && dino.classes.is_empty(), "it forgets who has gone");
}

#[test]
fn misses_that_nothing_counts_are_asked_for() {
    let host = even(2, 2, 512 * MIB);
    let all = snapshot([guest("a", 0, crate::host::ran(0.5), &[(64, 0, 1.0)])]);
    let error = Dino::default().plan(&all, &host, &Limits::default()).unwrap_err();
    let lacks = vec![Signal::Misses];
    assert_eq!(error, PolicyError::Lacks { policy: "dino", lacks });
}
