// SPDX-License-Identifier: Apache-2.0
//! DINO (Blagodurov, Zhuravlev, Dashti and Fedorova, USENIX ATC 2011; L, table 1 and 5.4): vCPUs that miss often are
//! kept apart.
//!
//! A vCPU is a turtle, a devil or a super-devil by how often it misses. Classes are dealt over the cache domains to and
//! fro, so each has about as many of each. A vCPU whose place still wants its class stays; the others take the open
//! place nearest to their guest's memory. Memory of guests that are no turtles follows their vCPUs.
//!
//! The paper has threads with memory of their own. Here a guest's vCPUs share its memory, which goes where most of
//! its misses come from; free memory, distances and owners' CPUs are limits that the paper has not.

use std::collections::BTreeMap;

use crate::case::Case;
use crate::cost::{Weight, weights};
use crate::model::Model;
use crate::plan::Plan;
use crate::policy::{Limits, Policy};
use crate::room::Slots;
use crate::sample::Ring;
use crate::snapshot::{GuestId, Signal, Snapshot};
use crate::table::Table;
use crate::topology::{DomainNo, NumaId, NumaNo, Topology};

/// What DINO goes by. Rates are misses per 10,000 instructions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DinoLimits {
    /// A turtle misses so often at most.
    pub turtle_per_10k: f64,
    /// A super-devil misses more often than that.
    pub super_devil_per_10k: f64,
    /// A vCPU's class changes only if so many of its samples are outside of that class,
    pub samples_outside: usize,
    /// and its mean is by more than that off the one that gave it the class.
    pub change_per_10k: f64,
    /// A guest's memory is gathered only if a larger part of it is elsewhere.
    pub elsewhere: f64,
    /// A guest's memory follows its vCPUs to another NUMA node so often at most, after the first.
    pub bounces: u32,
}

impl DinoLimits {
    /// As the authors' program, Clavis, has them.
    pub fn clavis() -> Self {
        Self {
            turtle_per_10k: 15.0,
            super_devil_per_10k: 500.0,
            samples_outside: 5,
            change_per_10k: 30.0,
            elsewhere: 0.10,
            bounces: 5,
        }
    }

    /// As the authors' paper has them, in which any change of the mean counts.
    pub fn paper() -> Self {
        Self {
            turtle_per_10k: 20.0,
            super_devil_per_10k: 1000.0,
            samples_outside: 7,
            change_per_10k: 0.0,
            ..Self::clavis()
        }
    }

    fn class(&self, per_10k: f64) -> Class {
        if per_10k > self.super_devil_per_10k {
            Class::SuperDevil
        } else if per_10k > self.turtle_per_10k {
            Class::Devil
        } else {
            Class::Turtle
        }
    }
}

/// How much a vCPU is in the way of others, those that are most first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Class {
    SuperDevil,
    Devil,
    Turtle,
}

const CLASSES: [Class; 3] = [Class::SuperDevil, Class::Devil, Class::Turtle];

/// A vCPU's class, and the mean that gave it that.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Classed {
    class: Class,
    mean_per_10k: f64,
}

/// Where a guest's memory was brought last, and how often it had been brought elsewhere before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Gathered {
    at: NumaId,
    bounces: u32,
}

/// The policy.
#[derive(Clone, PartialEq, Debug)]
pub struct Dino {
    limits: DinoLimits,
    classes: BTreeMap<(GuestId, usize), Classed>,
    gathered: BTreeMap<GuestId, Gathered>,
}

impl Default for Dino {
    fn default() -> Self {
        Self::new(DinoLimits::clavis())
    }
}

impl Dino {
    /// One that has seen nothing yet.
    pub fn new(limits: DinoLimits) -> Self {
        Self { limits, classes: BTreeMap::new(), gathered: BTreeMap::new() }
    }

    /// Each vCPU's class; those of guests that have gone are forgotten.
    fn classify(&mut self, snapshot: &Snapshot) -> Vec<Vec<Class>> {
        let before = std::mem::take(&mut self.classes);
        let mut classify = |id: &GuestId, (number, samples): (usize, &Ring)| {
            let key = (id.clone(), number);
            let now = self.limits.classify(before.get(&key).copied(), samples);
            self.classes.insert(key, now);
            now.class
        };
        let guests = snapshot.guests.iter().map(|guest| {
            let vcpus = guest.vcpus.iter().map(|vcpu| &vcpu.samples).enumerate();
            vcpus.map(|vcpu| classify(&guest.id, vcpu)).collect()
        });
        guests.collect()
    }

    /// Which NUMA node a guest's memory is to follow its vCPUs to. None: it stays.
    fn wants(&self, table: &Table, weight: &Weight, guest: usize, id: &GuestId) -> Option<NumaNo> {
        let topology = table.topology;
        let mut misses_s = vec![0.0; topology.nodes().len()];
        for (misses, domain) in weight.misses_s.iter().zip(&table.layout.vcpus[guest]) {
            misses_s[topology.domains()[domain.0].numa.0] += misses;
        }
        let most = topology
            .numbers()
            .reduce(|best, numa| if misses_s[numa.0] > misses_s[best.0] { numa } else { best })?;
        let regions = weight.bytes.iter().zip(&table.layout.regions[guest]);
        let elsewhere: u64 =
            regions.filter(|(_, numa)| **numa != most).map(|(bytes, _)| bytes).sum();
        let all: u64 = weight.bytes.iter().sum();
        let is_tired = self.gathered.get(id).is_some_and(|last| {
            last.at != topology.id(most) && last.bounces >= self.limits.bounces
        });
        let is_worth_it = elsewhere as f64 > self.limits.elsewhere * all as f64;
        (is_worth_it && !is_tired).then_some(most)
    }

    fn note(&mut self, plan: &Plan, wanted: &BTreeMap<GuestId, NumaId>) {
        for (id, &at) in wanted {
            if !plan.relocations.iter().any(|one| one.guest == *id && one.to == at) {
                continue;
            }
            let last = self.gathered.get(id).copied();
            let bounces = last.map_or(0, |last| last.bounces + u32::from(last.at != at));
            self.gathered.insert(id.clone(), Gathered { at, bounces });
        }
    }
}

impl DinoLimits {
    /// A vCPU's class after these samples. One that executed nothing is a turtle.
    fn classify(&self, before: Option<Classed>, samples: &Ring) -> Classed {
        let rate = |(misses, instructions): (u64, u64)| misses as f64 * 1e4 / instructions as f64;
        let counted = samples.iter().filter_map(|one| one.misses.zip(one.instructions));
        let rates: Vec<f64> = counted.filter(|(_, of)| *of > 0).map(rate).collect();
        let mean_per_10k = rates.iter().sum::<f64>() / rates.len().max(1) as f64;
        let now = Classed { class: self.class(mean_per_10k), mean_per_10k };
        let Some(before) = before else { return now };
        let outside = rates.iter().filter(|rate| self.class(**rate) != before.class).count();
        let is_off = (mean_per_10k - before.mean_per_10k).abs() > self.change_per_10k;
        if outside >= self.samples_outside && is_off { now } else { before }
    }
}

/// Places for vCPUs of a class in each cache domain.
type Open = BTreeMap<Class, Vec<usize>>;

/// Deals classes over the cache domains to and fro: where places are for each. vCPUs that owners keep to some
/// CPUs have theirs, and their domains are passed over once for each.
fn deal(snapshot: &Snapshot, topology: &Topology, classes: &[Vec<Class>]) -> Open {
    let domains = topology.domains().len();
    let mut slots = Slots::all(snapshot, topology);
    let none = || CLASSES.map(|class| (class, vec![0; domains])).into_iter().collect::<Open>();
    let (mut kept, mut open) = (none(), none());
    let mut left: BTreeMap<Class, usize> = BTreeMap::new();
    for (guest, classes) in snapshot.guests.iter().zip(classes) {
        for (vcpu, class) in guest.vcpus.iter().zip(classes) {
            if vcpu.may_run_anywhere(topology) {
                *left.entry(*class).or_default() += 1;
            } else {
                slots.take(vcpu.domain);
                kept.entry(*class).or_default()[vcpu.domain.0] += 1;
            }
        }
    }
    let mut walk = (0..).map(|step| match (step / domains % 2, step % domains) {
        (0, at) => DomainNo(at),
        (_, at) => DomainNo(domains - 1 - at),
    });
    for (class, mut left) in left {
        let (Some(kept), Some(open)) = (kept.get_mut(&class), open.get_mut(&class)) else {
            continue;
        };
        // there are as many slots as vCPUs, so the walk ends
        while left > 0 {
            let Some(domain) = walk.next() else { break };
            if kept[domain.0] > 0 {
                kept[domain.0] -= 1;
            } else if slots.is_free(domain) {
                slots.take(domain);
                open[domain.0] += 1;
                left -= 1;
            }
        }
    }
    open
}

/// vCPUs take the places that are open to their classes: those that are there already, then those of guests in their
/// order, as near to their memory as is open.
fn fill(table: &mut Table, weights: &[Weight], order: &[usize], classes: &[Vec<Class>]) {
    let (snapshot, topology) = (table.snapshot, table.topology);
    let mut open = deal(snapshot, topology, classes);
    let mut homeless = Vec::new();
    for &guest in order {
        for (number, vcpu) in snapshot.guests[guest].vcpus.iter().enumerate() {
            if !vcpu.may_run_anywhere(topology) {
                continue;
            }
            let class = classes[guest][number];
            match open.get_mut(&class).map(|open| &mut open[vcpu.domain.0]) {
                Some(here) if *here > 0 => *here -= 1,
                _ => homeless.push((guest, number, class)),
            }
        }
    }
    for (guest, number, class) in homeless {
        let far = |domain: usize| -> f64 {
            let numa = topology.domains()[domain].numa;
            let regions = weights[guest].shares.iter().zip(&table.layout.regions[guest]);
            regions.map(|(share, &at)| share * topology.distance(numa, at)).sum()
        };
        let Some(open) = open.get_mut(&class) else { continue };
        let places = (0..open.len()).filter(|&domain| open[domain] > 0);
        let nearest = places.min_by(|&one, &other| far(one).total_cmp(&far(other)));
        let Some(domain) = nearest else { continue };
        open[domain] -= 1;
        let mut domains = table.layout.vcpus[guest].clone();
        domains[number] = DomainNo(domain);
        table.put(guest, domains);
    }
}

impl Policy for Dino {
    fn name(&self) -> &'static str {
        "dino"
    }

    fn needs(&self) -> &'static [Signal] {
        &[Signal::RunTime, Signal::Memory, Signal::Misses]
    }

    fn model(&self) -> Model {
        Model::Caches
    }

    fn arrange(&mut self, snapshot: &Snapshot, topology: &Topology, limits: &Limits) -> Plan {
        let weights = weights(snapshot);
        let classes = self.classify(snapshot);
        let worst = |guest: usize| classes[guest].iter().min().copied().unwrap_or(Class::Turtle);
        let rate = |guest: usize| weights[guest].misses_per_kilo;
        let mut order: Vec<usize> = (0..snapshot.guests.len()).collect();
        order.sort_by(|&one, &other| {
            let by_class = worst(one).cmp(&worst(other));
            let id = |guest: usize| &snapshot.guests[guest].id;
            by_class.then(rate(other).total_cmp(&rate(one))).then_with(|| id(one).cmp(id(other)))
        });
        let mut table = Table::new(snapshot, topology, &weights, limits);
        fill(&mut table, &weights, &order, &classes);
        let mut wanted = BTreeMap::new();
        for (place, &guest) in order.iter().enumerate() {
            let id = &snapshot.guests[guest].id;
            if worst(guest) == Class::Turtle {
                break;
            }
            if let Some(to) = self.wants(&table, &weights[guest], guest, id) {
                table.gather(guest, to, &order[place + 1..]);
                wanted.insert(id.clone(), topology.id(to));
            }
        }
        self.gathered.retain(|id, _| snapshot.guests.iter().any(|guest| guest.id == *id));
        let (policy, model, after) = (self.name(), self.model(), table.layout);
        let case = Case { policy, model, snapshot, topology, weights: &weights, limits };
        let plan = case.plan(&order, rate, &after);
        self.note(&plan, &wanted);
        plan
    }
}

#[cfg(test)]
#[path = "tests/dino.rs"]
mod tests;
