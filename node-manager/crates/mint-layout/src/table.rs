// SPDX-License-Identifier: Apache-2.0
//! Guests take their places on a host one after the other.
//!
//! Each takes the CPUs from which its memory can be nearest, and brings it there: into free memory, and in
//! the place of what guests that choose later use less (L, figure 3).

use std::collections::BTreeMap;

use crate::cost::Weight;
use crate::layout::Layout;
use crate::policy::Limits;
use crate::room::{Free, Slots};
use crate::snapshot::Snapshot;
use crate::topology::{DomainNo, NumaNo, Topology};

/// Cycles that a byte costs that gets another NUMA node, read and written, its TLB entries forgotten.
const RELOCATED_CYCLES: f64 = 4.0;
/// Cycles until a vCPU has in another cache what it had in the last: 32 MiB, line by line.
const SETTLED_CYCLES: f64 = 5e7;
/// For so long a layout is taken to last.
const LASTS_S: f64 = 60.0;

/// A guest's regions, what is used most first.
fn hot(weight: &Weight) -> Vec<usize> {
    let heats: Vec<f64> = (0..weight.bytes.len()).map(|region| weight.heat(region)).collect();
    let mut regions: Vec<usize> = (0..heats.len()).collect();
    regions.sort_by(|&one, &other| heats[other].total_cmp(&heats[one]).then(one.cmp(&other)));
    regions
}

/// Cycles a second that it costs to relocate so much, over the time that a layout lasts.
fn relocation_cycles_s(bytes: u64) -> f64 {
    bytes as f64 * RELOCATED_CYCLES / LASTS_S
}

/// The host while guests choose.
pub(crate) struct Table<'a> {
    pub snapshot: &'a Snapshot,
    pub topology: &'a Topology,
    weights: &'a [Weight],
    /// Guests that have chosen have taken theirs, and vCPUs that their owners keep to some CPUs theirs.
    slots: Slots,
    free: Free,
    pub layout: Layout,
    /// All memory that may go, what is used least first.
    cold: Vec<(usize, usize)>,
    /// Of each guest, its regions, what is used most first.
    hot: Vec<Vec<usize>>,
    /// Of each guest, what it would wait for each NUMA node if that had all of its memory, where its vCPUs are.
    waits: Vec<Vec<f64>>,
    /// Bytes that may still be relocated.
    budget: u64,
}

/// Memory on a NUMA node that can go for the sake of others, what is used least first; taken from the front.
struct Evictable {
    regions: Vec<(usize, usize)>,
    next: usize,
}

/// A region of another guest that goes, and where it goes.
struct Eviction {
    guest: usize,
    region: usize,
    to: NumaNo,
}

impl<'a> Table<'a> {
    /// All guests are where the snapshot has them, and none has chosen.
    pub fn new(
        snapshot: &'a Snapshot,
        topology: &'a Topology,
        weights: &'a [Weight],
        limits: &Limits,
    ) -> Self {
        let layout = Layout::of(snapshot);
        let movable = snapshot.guests.iter().enumerate().filter(|(_, guest)| !guest.is_fixed);
        let each = movable.flat_map(|(at, guest)| (0..guest.regions.len()).map(move |no| (at, no)));
        let mut cold: Vec<(f64, (usize, usize))> =
            each.map(|(guest, region)| (weights[guest].heat(region), (guest, region))).collect();
        cold.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let guests = weights.iter().zip(&layout.vcpus);
        let mut slots = Slots::all(snapshot, topology);
        // who is kept to some CPUs may find no other place
        for vcpu in snapshot.guests.iter().flat_map(|guest| &guest.vcpus) {
            if !vcpu.allowed.is_empty() {
                slots.take(vcpu.domain);
            }
        }
        Self {
            waits: guests.map(|(weight, domains)| weight.waits(topology, domains)).collect(),
            snapshot,
            topology,
            weights,
            slots,
            free: Free::of(snapshot, topology, &layout),
            layout,
            cold: cold.into_iter().map(|(_, which)| which).collect(),
            hot: weights.iter().map(hot).collect(),
            budget: limits.relocated_bytes,
        }
    }

    /// A guest takes its place; `later`: those that choose after it. Without these it does not choose: its memory
    /// stays.
    pub fn seat(&mut self, guest: usize, later: Option<&[usize]>) {
        for vcpu in self.snapshot.guests[guest].vcpus.iter().filter(|one| !one.allowed.is_empty()) {
            self.slots.leave(vcpu.domain);
        }
        let evictable = later.map(|later| self.evictable(guest, later));
        // caches of a NUMA node are as far from memory
        let mut known: BTreeMap<Vec<NumaNo>, f64> = BTreeMap::new();
        let mut cycles_s = |domains: &[DomainNo]| {
            let numas = domains.iter().map(|domain| self.topology.domains()[domain.0].numa);
            *known.entry(numas.collect()).or_insert_with(|| match &evictable {
                Some(evictable) => self.estimate(guest, domains, evictable),
                // as near to its memory as it can
                None => self.waits_now(guest, domains),
            })
        };
        let now = self.layout.vcpus[guest].clone();
        let mut best = self.is_free(&now).then(|| (cycles_s(&now), now.clone()));
        if later.is_some() || best.is_none() {
            for domains in self.homes().filter_map(|home| self.around(guest, home)) {
                let changed = domains.iter().zip(&now).filter(|(there, now)| there != now);
                let settled = changed.map(|_| SETTLED_CYCLES / LASTS_S).sum::<f64>();
                let there = cycles_s(&domains) + settled;
                if best.as_ref().is_none_or(|(least, _)| there < *least) {
                    best = Some((there, domains));
                }
            }
        }
        // there is always one: as many slots as vCPUs, and those of kept ones are kept for them
        let domains = best.map_or_else(|| self.layout.vcpus[guest].clone(), |(_, domains)| domains);
        domains.iter().for_each(|&domain| self.slots.take(domain));
        self.waits[guest] = self.weights[guest].waits(self.topology, &domains);
        self.layout.vcpus[guest] = domains;
        if let Some(mut evictable) = evictable.filter(|_| !self.snapshot.guests[guest].is_fixed) {
            self.bring_near(guest, &mut evictable);
        }
    }

    /// Whether guests that have chosen have left these.
    fn is_free(&self, domains: &[DomainNo]) -> bool {
        let mut slots = self.slots.clone();
        domains.iter().all(|&domain| {
            let is_free = slots.is_free(domain);
            slots.take(domain);
            is_free
        })
    }

    fn homes(&self) -> impl Iterator<Item = DomainNo> + use<> {
        (0..self.topology.domains().len()).map(DomainNo)
    }

    /// Each vCPU in the domain nearest to that one that has a slot for it. None: one of them finds none.
    fn around(&self, guest: usize, home: DomainNo) -> Option<Vec<DomainNo>> {
        let numa = |domain: DomainNo| self.topology.domains()[domain.0].numa;
        let mut near: Vec<DomainNo> = self.homes().collect();
        near.sort_by(|&one, &other| {
            let far = |domain| self.topology.distance(numa(home), numa(domain));
            let not_home = |domain| domain != home;
            not_home(one).cmp(&not_home(other)).then(far(one).total_cmp(&far(other)))
        });
        let mut slots = self.slots.clone();
        let mut found = Vec::new();
        for vcpu in &self.snapshot.guests[guest].vcpus {
            let fits = |domain: &&DomainNo| {
                slots.is_free(**domain) && vcpu.may_run(self.topology, **domain)
            };
            let domain = *near.iter().find(fits)?;
            slots.take(domain);
            found.push(domain);
        }
        Some(found)
    }

    fn waits_now(&self, guest: usize, domains: &[DomainNo]) -> f64 {
        let waits = self.weights[guest].waits(self.topology, domains);
        let numas = self.layout.regions[guest].iter();
        let shares = self.weights[guest].shares.iter();
        shares.zip(numas).map(|(share, numa)| share * waits[numa.0]).sum()
    }

    /// What guests that choose later have on each NUMA node, and the guest itself: what it uses less may go for what it
    /// uses more.
    fn evictable(&self, guest: usize, later: &[usize]) -> Vec<Evictable> {
        let mut chooses_later = vec![false; self.snapshot.guests.len()];
        chooses_later[guest] = true;
        later.iter().for_each(|&guest| chooses_later[guest] = true);
        let mut of_node: Vec<Evictable> =
            self.topology.numbers().map(|_| Evictable { regions: Vec::new(), next: 0 }).collect();
        for &(guest, region) in self.cold.iter().filter(|(guest, _)| chooses_later[*guest]) {
            let numa = self.layout.regions[guest][region];
            of_node[numa.0].regions.push((guest, region));
        }
        of_node
    }

    /// Cycles a second that a guest would wait there, that others would wait more for its sake, and that relocating
    /// takes.
    fn estimate(&self, guest: usize, domains: &[DomainNo], evictable: &[Evictable]) -> f64 {
        if self.snapshot.guests[guest].is_fixed {
            return self.waits_now(guest, domains);
        }
        let waits = self.weights[guest].waits(self.topology, domains);
        let mut free = self.free.clone();
        let mut next: Vec<usize> = evictable.iter().map(|one| one.next).collect();
        let mut cycles_s = 0.0;
        for &region in &self.hot[guest] {
            let bytes = self.weights[guest].bytes[region];
            let share = self.weights[guest].shares[region];
            let now = self.layout.regions[guest][region];
            let mut least = share * waits[now.0];
            let mut chosen = None;
            for to in self.topology.numbers().filter(|&to| to != now) {
                let mut there = share * waits[to.0] + relocation_cycles_s(bytes);
                let (mut room, mut at) = (free.at(to), next[to.0]);
                while room < bytes && there < least {
                    let Some(&(other, its)) = evictable[to.0].regions.get(at) else { break };
                    // what is its own is waited for from where it would be
                    let waits = if other == guest { &waits } else { &self.waits[other] };
                    there += self.harm(waits, other, its, to)
                        + relocation_cycles_s(self.bytes(other, its));
                    room += self.bytes(other, its);
                    at += 1;
                }
                if room >= bytes && there < least {
                    (least, chosen) = (there, Some((to, room, at)));
                }
            }
            cycles_s += least;
            if let Some((to, room, at)) = chosen {
                // what was evicted for it has gone, and is on the node that this leaves
                free.relocate(room - free.at(to), to, now);
                free.relocate(bytes, now, to);
                next[to.0] = at;
            }
        }
        cycles_s
    }

    fn bytes(&self, guest: usize, region: usize) -> u64 {
        self.weights[guest].bytes[region]
    }

    /// What it costs a guest that waits so long for each NUMA node at least that a region leaves one.
    fn harm(&self, waits: &[f64], guest: usize, region: usize, from: NumaNo) -> f64 {
        let elsewhere = waits.iter().enumerate().filter(|(numa, _)| *numa != from.0);
        let least = elsewhere.map(|(_, cycles)| *cycles).fold(f64::INFINITY, f64::min);
        let more = least - waits[from.0];
        if more.is_finite() { more * self.weights[guest].shares[region] } else { 0.0 }
    }

    /// A guest that has its CPUs gets its memory as near to them as that is worth it.
    fn bring_near(&mut self, guest: usize, evictable: &mut [Evictable]) {
        let waits = self.waits[guest].clone();
        for region in self.hot[guest].clone() {
            let bytes = self.bytes(guest, region);
            let share = self.weights[guest].shares[region];
            let now = self.layout.regions[guest][region];
            let mut least = share * waits[now.0];
            let mut chosen = None;
            for to in self.topology.numbers().filter(|&to| to != now) {
                let there = share * waits[to.0] + relocation_cycles_s(bytes);
                if there >= least {
                    continue;
                }
                let Some((evictions, cycles_s)) =
                    self.evictions(&evictable[to.0], bytes, (now, to), least - there)
                else {
                    continue;
                };
                (least, chosen) = (there + cycles_s, Some((to, evictions)));
            }
            if let Some((to, evictions)) = chosen {
                self.relocate((guest, region), to, &evictions, &mut evictable[to.0]);
            }
        }
    }

    /// A region goes, once others have made room for it; neither if that is more than may be relocated.
    fn relocate(
        &mut self,
        (guest, region): (usize, usize),
        to: NumaNo,
        evictions: &[Eviction],
        evictable: &mut Evictable,
    ) {
        let bytes = self.bytes(guest, region);
        let evicted: u64 = evictions.iter().map(|one| self.bytes(one.guest, one.region)).sum();
        if bytes.saturating_add(evicted) > self.budget {
            return;
        }
        self.budget -= bytes + evicted;
        for one in evictions {
            self.free.relocate(self.bytes(one.guest, one.region), to, one.to);
            self.layout.regions[one.guest][one.region] = one.to;
        }
        let Evictable { regions, next } = evictable;
        let gone = |(other, its): &&(usize, usize)| self.layout.regions[*other][*its] != to;
        *next += regions.iter().skip(*next).take_while(gone).count();
        self.free.relocate(bytes, self.layout.regions[guest][region], to);
        self.layout.regions[guest][region] = to;
    }

    /// A guest's vCPUs get these domains, whoever else is there; its memory stays.
    pub fn put(&mut self, guest: usize, domains: Vec<DomainNo>) {
        self.waits[guest] = self.weights[guest].waits(self.topology, &domains);
        self.layout.vcpus[guest] = domains;
    }

    /// What is used of a guest's memory goes to a NUMA node, what is used most first, unless it would be farther from
    /// its vCPUs: where there is room, or others lose less than it gains.
    ///
    /// # Arguments
    /// * `later` - guests whose memory may go for it.
    pub fn gather(&mut self, guest: usize, to: NumaNo, later: &[usize]) {
        if self.snapshot.guests[guest].is_fixed {
            return;
        }
        let mut evictable = self.evictable(guest, later).swap_remove(to.0);
        for region in self.hot[guest].clone() {
            let now = self.layout.regions[guest][region];
            let share = self.weights[guest].shares[region];
            let nearer = share * (self.waits[guest][now.0] - self.waits[guest][to.0]);
            if now == to || share <= 0.0 || nearer < 0.0 {
                continue;
            }
            let bytes = self.bytes(guest, region);
            let gains = nearer - relocation_cycles_s(bytes);
            if let Some((evictions, _)) = self.evictions(&evictable, bytes, (now, to), gains) {
                self.relocate((guest, region), to, &evictions, &mut evictable);
            }
        }
    }

    /// Where what is used least goes for so many bytes to have room (L, figure 3), and what that costs: none if
    /// it costs as much as it may gain, or there is no room.
    fn evictions(
        &self,
        evictable: &Evictable,
        bytes: u64,
        (now, to): (NumaNo, NumaNo),
        gains: f64,
    ) -> Option<(Vec<Eviction>, f64)> {
        let mut free = self.free.clone();
        // once it has come, there is room where it was
        free.relocate(bytes, now, to);
        let mut short = bytes.saturating_sub(self.free.at(to));
        let (mut evictions, mut cycles_s) = (Vec::new(), 0.0);
        for &(other, its) in evictable.regions.iter().skip(evictable.next) {
            if short == 0 {
                break;
            }
            // the guest's own, which it has taken to another node
            if self.layout.regions[other][its] != to {
                continue;
            }
            let size = self.bytes(other, its);
            let waits = &self.waits[other];
            let mut roomy =
                self.topology.numbers().filter(|&numa| numa != to && free.at(numa) >= size);
            let first = roomy.next()?;
            let nearest = roomy.fold(first, |best, numa| {
                let nearer = waits[numa.0] < waits[best.0];
                let roomier = waits[numa.0] == waits[best.0] && free.at(numa) > free.at(best);
                if nearer || roomier { numa } else { best }
            });
            cycles_s += self.weights[other].shares[its] * (waits[nearest.0] - waits[to.0]);
            cycles_s += relocation_cycles_s(size);
            if cycles_s >= gains {
                return None;
            }
            free.relocate(size, to, nearest);
            evictions.push(Eviction { guest: other, region: its, to: nearest });
            short = short.saturating_sub(size);
        }
        (short == 0).then_some((evictions, cycles_s))
    }
}
