// SPDX-License-Identifier: Apache-2.0
//! Promises that any plan of any policy keeps, on hosts and guests drawn by lot.

use std::collections::BTreeMap;

use fastrand::Rng;

use crate::host::{MIB, counted, distances, filled, ran};
use crate::snapshot::{Guest, GuestId, Region, Snapshot, Vcpu};
use crate::topology::{DomainNo, NumaId, NumaNo, NumaNode, Topology};
use crate::{
    AsymSched, Brm, Carrefour, Dino, DinoLimits, GuardLimits, Guards, Limits, Model, Pins, Plan,
    Policy, Simple,
};

const SNAPSHOTS: u64 = 10_000;

/// Up to four NUMA nodes with numbers that have gaps, some without memory, some with two caches.
pub fn host(random: &mut Rng) -> Topology {
    let nodes = random.usize(1..=4);
    let distances = distances(nodes, || random.u32(12..40));
    let mut cpu = 0;
    let mut caches = |caches: usize| -> Vec<_> {
        let cache = |_| {
            let first = cpu;
            cpu += random.u32(1..=3);
            (first..cpu).collect()
        };
        (0..caches).map(cache).collect()
    };
    let kinds: Vec<usize> = (0..nodes).map(|node| if node == 0 { 1 } else { node % 3 }).collect();
    let caches: Vec<_> = kinds.iter().map(|&kind| caches(kind)).collect();
    let node = |(at, (caches, distances)): (usize, (Vec<_>, Vec<u32>))| NumaNode {
        id: NumaId(u32::try_from(2 * at).unwrap()),
        caches,
        memory_bytes: if at == 3 { 0 } else { random.u64(256..2048) * MIB },
        distances,
    };
    Topology::new(caches.into_iter().zip(distances).enumerate().map(node).collect()).unwrap()
}

/// What is measured of guests.
#[derive(Clone, Copy, PartialEq)]
enum Measured {
    /// Of some this, of some that.
    Some,
    /// Everything.
    All,
}

/// Guests whose memory there is room for.
fn guests(random: &mut Rng, host: &Topology, guests: usize, measured: Measured) -> Snapshot {
    let mut free: Vec<u64> = host.nodes().iter().map(|node| node.memory_bytes).collect();
    let mut guest = |at: usize| {
        let vcpu = |random: &mut Rng| Vcpu {
            domain: DomainNo(random.usize(0..host.domains().len())),
            allowed: [].into_iter().collect(),
            samples: match random.u8(0..8) {
                0 if measured == Measured::Some => ran(random.f64()),
                1..4 => counted(random.f64()),
                _ => counted(60.0 * random.f64()),
            },
        };
        let mut vcpus: Vec<Vcpu> = (0..random.usize(1..=3)).map(|_| vcpu(random)).collect();
        if random.u8(0..8) == 0 {
            let keeper =
                |vcpu: &mut Vcpu| vcpu.allowed = host.domains()[vcpu.domain.0].cpus.clone();
            vcpus.iter_mut().for_each(keeper);
        }
        let mut regions = Vec::new();
        let mut offset = 0;
        for _ in 0..random.usize(0..6) {
            let (bytes, numa) = (random.u64(1..64) * 2 * MIB, random.usize(0..free.len()));
            let hot = random.u8(0..2) == 0;
            let heat = if hot { 1000.0 * random.f64() } else { random.f64() };
            if free[numa] >= bytes {
                free[numa] -= bytes;
                let is_known = random.u8(0..16) != 0 || measured == Measured::All;
                let heat = is_known.then_some(heat);
                regions.push(Region { offset, bytes, numa: NumaNo(numa), heat });
            }
            offset += bytes;
        }
        if measured == Measured::All {
            let all: f64 = regions.iter().filter_map(|region| region.heat).sum();
            let mut parts = vec![0.0; host.nodes().len()];
            for region in &regions {
                parts[region.numa.0] += region.heat.unwrap_or(0.0) / all;
            }
            for vcpu in &mut vcpus {
                vcpu.samples = filled(vcpu.samples.misses_per_kilo().unwrap(), &parts);
            }
        }
        Guest { id: GuestId(format!("g{at}")), vcpus, regions, is_fixed: random.u8(0..8) == 0 }
    };
    Snapshot { guests: (0..guests).map(&mut guest).collect() }
}

fn per_domain(snapshot: &Snapshot) -> BTreeMap<DomainNo, usize> {
    let mut vcpus = BTreeMap::new();
    for vcpu in snapshot.guests.iter().flat_map(|guest| &guest.vcpus) {
        *vcpus.entry(vcpu.domain).or_default() += 1;
    }
    vcpus
}

/// What is where it has no room, or where its owner would not have it, once a plan is done.
fn misplaced(plan: &Plan, before: &Snapshot, host: &Topology) -> Option<String> {
    let after = plan.done(before, host);
    if let Err(error) = after.check(host) {
        return Some(error.to_string());
    }
    for (at, node) in host.nodes().iter().enumerate() {
        let regions = after.guests.iter().flat_map(|guest| &guest.regions);
        let used: u64 = regions.filter(|one| one.numa.0 == at).map(|one| one.bytes).sum();
        if used > node.memory_bytes {
            return Some(format!("{}: {used} of {} bytes", node.id, node.memory_bytes));
        }
    }
    let cpus: usize = host.domains().iter().map(|domain| domain.cpus.len()).sum();
    let vcpus: usize = before.guests.iter().map(|guest| guest.vcpus.len()).sum();
    let was = per_domain(before);
    for (domain, now) in per_domain(&after) {
        let most = host.domains()[domain.0].cpus.len() * vcpus.div_ceil(cpus).max(1);
        if now > most.max(was.get(&domain).copied().unwrap_or(0)) {
            return Some(format!("{now} vCPUs in domain {}, which takes {most}", domain.0));
        }
    }
    for guest in &before.guests {
        let relocated = plan.relocations.iter().any(|one| one.guest == guest.id);
        if guest.is_fixed && relocated {
            return Some(format!("{}: its memory is fixed", guest.id));
        }
        for pins in plan.pins.iter().filter(|pins| pins.guest == guest.id) {
            for (vcpu, cpus) in guest.vcpus.iter().zip(&pins.cpus) {
                let own = |cpu| vcpu.allowed.is_empty() || vcpu.allowed.contains(cpu);
                if cpus.is_empty() || !cpus.iter().all(own) {
                    return Some(format!("{}: not its owner's CPUs: {cpus}", guest.id));
                }
            }
        }
    }
    None
}

/// What is wrong with a plan, whoever made it.
fn fault(
    plan: &Plan,
    model: Model,
    before: &Snapshot,
    host: &Topology,
    limits: &Limits,
) -> Option<String> {
    if let Some(misplaced) = misplaced(plan, before, host) {
        return Some(misplaced);
    }
    if plan.relocated_bytes() > limits.relocated_bytes {
        return Some(format!("{} bytes are relocated", plan.relocated_bytes()));
    }
    let gain = model.cost(before, host).gain(model.cost(&plan.done(before, host), host));
    if (gain - plan.gain).abs() > 1e-9 {
        return Some(format!("it gains {gain}, and says {}", plan.gain));
    }
    let is_worth_it = plan.is_empty() || gain >= limits.gain;
    (!is_worth_it).then(|| format!("it gains {gain} alone"))
}

/// How many plans relocate memory, and how many pin vCPUs.
fn keeps_its_promises<P: Policy>(
    new: impl Fn(u64) -> P,
    seed: u64,
    measured: Measured,
) -> (u64, u64) {
    let mut random = Rng::with_seed(seed);
    let (mut plans, mut relocating, mut pinning) = (0, 0, 0);
    for number in 0..SNAPSHOTS {
        let host = host(&mut random);
        let count = random.usize(0..=6);
        let snapshot = guests(&mut random, &host, count, measured);
        assert_eq!(snapshot.check(&host), Ok(()));
        let budget = if random.bool() { u64::MAX } else { random.u64(0..1024) * MIB };
        let limits = Limits { relocated_bytes: budget, ..Limits::default() };
        let (one, other) = (new(number), new(number));
        let model = one.model();
        let make = |mut policy: P| policy.plan(&snapshot, &host, &limits);
        let plan = make(one);
        assert_eq!(plan, make(other), "snapshot {number} of seed {seed}");
        let Ok(plan) = plan else { continue };
        if let Some(fault) = fault(&plan, model, &snapshot, &host, &limits) {
            panic!(
                "snapshot {number} of seed {seed}: {fault}\n{plan:#?}\n{snapshot:#?}\n{host:#?}"
            );
        }
        plans += 1;
        relocating += u64::from(!plan.relocations.is_empty());
        pinning += u64::from(!plan.pins.is_empty());
    }
    println!("{plans} plans, {relocating} that relocate, {pinning} that pin");
    // else the lot draws nothing that is worth a plan
    assert!(plans > SNAPSHOTS / 2, "{plans} plans");
    (relocating, pinning)
}

fn both((relocating, pinning): (u64, u64)) {
    let least = SNAPSHOTS / 10;
    assert!(relocating > least && pinning > least, "{relocating}, {pinning}");
}

#[test]
fn simple_keeps_its_promises() {
    both(keeps_its_promises(|_| Simple::default(), 21, Measured::Some));
}

#[test]
fn dino_keeps_its_promises() {
    both(keeps_its_promises(|_| Dino::default(), 22, Measured::All));
    both(keeps_its_promises(|_| Dino::new(DinoLimits::paper()), 23, Measured::All));
}

#[test]
fn asymsched_keeps_its_promises() {
    both(keeps_its_promises(|_| AsymSched::default(), 24, Measured::All));
}

#[test]
fn carrefour_keeps_its_promises() {
    let (relocating, pinning) = keeps_its_promises(|_| Carrefour, 25, Measured::All);
    assert!(relocating > SNAPSHOTS / 10 && pinning == 0, "{relocating}, {pinning}");
}

#[test]
fn brm_keeps_its_promises() {
    let (relocating, pinning) = keeps_its_promises(Brm::new, 26, Measured::All);
    assert!(relocating == 0 && pinning > SNAPSHOTS / 10, "{relocating}, {pinning}");
}

/// Some guests were changed just before, and memory may go so fast: what is done of a plan does not need the rest.
#[test]
fn what_guards_let_through_has_room() {
    let mut random = Rng::with_seed(27);
    let (mut parts, mut plans) = (0, 0);
    for number in 0..SNAPSHOTS {
        let host = host(&mut random);
        let snapshot = guests(&mut random, &host, 6, Measured::All);
        let Ok(plan) = Simple::default().plan(&snapshot, &host, &Limits::default()) else {
            continue;
        };
        let bytes_per_s = random.u64(0..64) * MIB;
        let mut guards = Guards::new(GuardLimits { bytes_per_s, ..GuardLimits::default() });
        let changed = snapshot.guests.iter().filter(|_| random.u8(0..4) == 0);
        let pins =
            changed.map(|guest| Pins { guest: guest.id.clone(), cpus: Vec::new() }).collect();
        let before = Plan { pins, gain: 1.0, ..Plan::nothing("simple") };
        guards.allow(&before, &snapshot, &host, 0);
        let allowed = guards.allow(&plan, &snapshot, &host, 1000);
        let (pins, relocations) = (allowed.pins, allowed.relocations);
        let part = Plan { pins, relocations, ..Plan::nothing("simple") };
        if let Some(misplaced) = misplaced(&part, &snapshot, &host) {
            panic!("snapshot {number}: {misplaced}\n{plan:#?}\n{part:#?}\n{snapshot:#?}");
        }
        plans += u32::from(!plan.is_empty());
        parts += u32::from(!part.is_empty() && !allowed.held.is_empty());
    }
    println!("{parts} of {plans} plans in parts");
    assert!(parts > 1000, "{parts} of {plans}");
}
