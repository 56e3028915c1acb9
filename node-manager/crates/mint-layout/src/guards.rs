// SPDX-License-Identifier: Apache-2.0
//! How much of a plan may be done now, whichever policy made it.
//!
//! What a policy measures has changed a moment after a plan is done, and each plan costs something. So a
//! guest that was changed is left alone for a while, memory goes no faster than it may, what went to and fro several
//! times stays, and plans that gain little are none.
//!
//! A part of a plan must not need what the rest would have done: vCPUs that get other CPUs do so together or not at
//! all, and no memory goes to a NUMA node that other memory has yet to leave for it.

use std::collections::{BTreeMap, BTreeSet};

use crate::layout::Layout;
use crate::plan::{Pins, Plan, Relocation, in_order};
use crate::room::Free;
use crate::snapshot::{GuestId, Snapshot};
use crate::topology::{NumaId, NumaNo, Topology};

/// Memory is held back in huge pages.
const PIECE_BYTES: u64 = 2 << 20;

/// What guards go by.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GuardLimits {
    /// A guest that was changed is not changed again for so many milliseconds.
    pub cool_down_ms: u64,
    /// So many bytes a second get another NUMA node. What was not relocated may be later, as much as in a cool-down
    /// at most.
    pub bytes_per_s: u64,
    /// A guest's memory goes back to where it came from so often at most, between the same two NUMA nodes.
    pub bounces: u32,
    /// A plan that gains less is none: 0.05 is a twentieth.
    pub gain: f64,
}

impl Default for GuardLimits {
    fn default() -> Self {
        Self { cool_down_ms: 10_000, bytes_per_s: 256 << 20, bounces: 5, gain: 0.05 }
    }
}

/// Why something of a plan may not be done now.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum HeldWhy {
    /// The plan gains too little.
    #[error("the plan gains {:.1} %, and has to gain {:.1} %", 100.0 * .gain, 100.0 * .least)]
    Gain {
        /// What it gains.
        gain: f64,
        /// What it has to.
        least: f64,
    },
    /// It was changed just before.
    #[error("it was changed just now, and may be again in {left_ms} ms")]
    CoolDown {
        /// Milliseconds until then.
        left_ms: u64,
    },
    /// Its memory went to and fro.
    #[error("its memory went to and fro between {one} and {other} {bounces} times")]
    Bounces {
        /// One NUMA node,
        one: NumaId,
        /// the other one,
        other: NumaId,
        /// and how often.
        bounces: u32,
    },
    /// Its vCPUs would take the places of others that stay.
    #[error("its vCPUs wait for those of others that stay")]
    Places,
    /// Its memory would take the place of other memory that stays.
    #[error("its memory waits for the room of other memory that stays")]
    Room,
    /// So much would be too fast.
    #[error("{bytes} bytes are more than may be relocated now")]
    Budget {
        /// Bytes that wait.
        bytes: u64,
    },
}

/// Something of a guest that may not be done now.
#[derive(Clone, PartialEq, Debug)]
pub struct Held {
    /// The guest.
    pub guest: GuestId,
    /// Why.
    pub why: HeldWhy,
}

/// The part of a plan that may be done now. What it gains alone is not known.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Allowed {
    /// Guests whose vCPUs get other CPUs.
    pub pins: Vec<Pins>,
    /// Memory that gets another NUMA node, in an order in which there is room for each, unless two want to change
    /// places.
    pub relocations: Vec<Relocation>,
    /// Why the rest may not.
    pub held: Vec<Held>,
}

/// Where a guest's memory went last between two NUMA nodes, and how often it had gone back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Direction {
    to: NumaId,
    bounces: u32,
}

/// Two NUMA nodes, the lower number first.
type Pair = (NumaId, NumaId);

/// What was done lately, and what may be done next.
#[derive(Clone, PartialEq, Debug)]
pub struct Guards {
    limits: GuardLimits,
    changed_ms: BTreeMap<GuestId, u64>,
    directions: BTreeMap<(GuestId, Pair), Direction>,
    /// Bytes that may be relocated at once, as of then.
    budget: u64,
    filled_ms: u64,
}

impl Guards {
    /// Nothing was done yet.
    pub fn new(limits: GuardLimits) -> Self {
        let (changed_ms, directions) = (BTreeMap::new(), BTreeMap::new());
        let mut new = Self { limits, changed_ms, directions, budget: 0, filled_ms: 0 };
        new.budget = new.budget_max();
        new
    }

    fn budget_max(&self) -> u64 {
        bytes_in(self.limits.bytes_per_s, self.limits.cool_down_ms)
    }

    /// The part of a plan that may be done now. It is taken to be done then.
    ///
    /// # Arguments
    /// * `plan` - one for that snapshot and topology.
    /// * `now_ms` - milliseconds of a clock that does not go back.
    pub fn allow(
        &mut self,
        plan: &Plan,
        snapshot: &Snapshot,
        topology: &Topology,
        now_ms: u64,
    ) -> Allowed {
        let since_ms = now_ms.saturating_sub(self.filled_ms);
        let filled = self.budget.saturating_add(bytes_in(self.limits.bytes_per_s, since_ms));
        self.budget = filled.min(self.budget_max());
        self.filled_ms = self.filled_ms.max(now_ms);
        let cool_down_ms = self.limits.cool_down_ms;
        self.changed_ms.retain(|_, changed_ms| now_ms.saturating_sub(*changed_ms) < cool_down_ms);
        let held = self.held(plan, now_ms);
        let may = |guest: &GuestId| !held.contains_key(guest);
        let pins = plan.pins.iter().filter(|pins| may(&pins.guest)).cloned().collect();
        let mut allowed = Allowed { pins, ..Allowed::default() };
        let mut go: Vec<(NumaNo, NumaNo, Relocation)> = Vec::new();
        for one in plan.relocations.iter().filter(|one| may(&one.guest)) {
            let mut hold = |why| allowed.held.push(Held { guest: one.guest.clone(), why });
            let numas = topology.number(one.from).zip(topology.number(one.to));
            let Some((from, to)) = numas else {
                hold(HeldWhy::Room);
                continue;
            };
            let pieces = self.budget / PIECE_BYTES * PIECE_BYTES;
            let bytes = if one.bytes <= self.budget { one.bytes } else { pieces };
            if bytes < one.bytes {
                hold(HeldWhy::Budget { bytes: one.bytes - bytes });
            }
            if bytes > 0 {
                self.budget -= bytes;
                go.push((from, to, Relocation { bytes, ..one.clone() }));
            }
        }
        let free = Free::of(snapshot, topology, &Layout::of(snapshot));
        for one in keep_what_fits(&free, topology, &mut go) {
            self.budget += one.bytes;
            allowed.held.push(Held { guest: one.guest, why: HeldWhy::Room });
        }
        allowed.relocations = in_order(free, go);
        allowed.held.extend(held.into_iter().map(|(guest, why)| Held { guest, why }));
        self.note(&allowed, now_ms);
        allowed
    }

    /// A guest has gone: what was done of it is of no interest any more.
    pub fn forget(&mut self, guest: &GuestId) {
        self.changed_ms.remove(guest);
        self.directions.retain(|(id, _), _| id != guest);
    }

    /// Guests of which nothing may be done.
    fn held(&self, plan: &Plan, now_ms: u64) -> BTreeMap<GuestId, HeldWhy> {
        let pinned = plan.pins.iter().map(|pins| &pins.guest);
        let relocated = plan.relocations.iter().map(|one| &one.guest);
        let guests: BTreeSet<&GuestId> = pinned.clone().chain(relocated).collect();
        let mut held = BTreeMap::new();
        let least = self.limits.gain;
        let mut hold = |guest: &GuestId, why| {
            held.entry(guest.clone()).or_insert(why);
        };
        if plan.gain < least || plan.gain.is_nan() {
            let why = HeldWhy::Gain { gain: plan.gain, least };
            guests.iter().for_each(|guest| hold(guest, why));
            return held;
        }
        for guest in guests {
            if let Some(&changed_ms) = self.changed_ms.get(guest) {
                let passed_ms = now_ms.saturating_sub(changed_ms);
                hold(guest, HeldWhy::CoolDown { left_ms: self.limits.cool_down_ms - passed_ms });
            }
        }
        for ((guest, (one, other)), to) in directions(&plan.relocations) {
            let last = self.directions.get(&(guest.clone(), (one, other)));
            if let Some(last) = last.filter(|last| last.to != to) {
                if last.bounces >= self.limits.bounces {
                    hold(&guest, HeldWhy::Bounces { one, other, bounces: last.bounces });
                }
            }
        }
        if plan.pins.iter().any(|pins| held.contains_key(&pins.guest)) {
            for guest in pinned {
                held.entry(guest.clone()).or_insert(HeldWhy::Places);
            }
        }
        held
    }

    fn note(&mut self, allowed: &Allowed, now_ms: u64) {
        let pinned = allowed.pins.iter().map(|pins| &pins.guest);
        for guest in pinned.chain(allowed.relocations.iter().map(|one| &one.guest)) {
            self.changed_ms.insert(guest.clone(), now_ms);
        }
        for (between, to) in directions(&allowed.relocations) {
            let last = self.directions.get(&between).copied();
            let bounces = last.map_or(0, |last| last.bounces + u32::from(last.to != to));
            self.directions.insert(between, Direction { to, bounces });
        }
    }
}

/// What so many bytes a second are in a time.
fn bytes_in(bytes_per_s: u64, ms: u64) -> u64 {
    let bytes = u128::from(bytes_per_s) * u128::from(ms) / 1000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// To which of two NUMA nodes more of a guest's memory goes from the other one than comes back.
fn directions(relocations: &[Relocation]) -> BTreeMap<(GuestId, Pair), NumaId> {
    let mut up: BTreeMap<(GuestId, Pair), i128> = BTreeMap::new();
    for one in relocations {
        let pair = (one.from.min(one.to), one.from.max(one.to));
        let bytes = i128::from(one.bytes);
        let sum = up.entry((one.guest.clone(), pair)).or_default();
        *sum += if one.to == pair.1 { bytes } else { -bytes };
    }
    let uneven = up.into_iter().filter(|(_, bytes)| *bytes != 0);
    uneven
        .map(|(between, bytes)| {
            let (low, high) = between.1;
            (between, if bytes > 0 { high } else { low })
        })
        .collect()
}

/// Takes out what finds no room once all others have gone, the last first.
fn keep_what_fits(
    free: &Free,
    topology: &Topology,
    go: &mut Vec<(NumaNo, NumaNo, Relocation)>,
) -> Vec<Relocation> {
    let mut after = free.clone();
    go.iter().for_each(|(from, to, one)| after.relocate(one.bytes, *from, *to));
    let mut taken = Vec::new();
    loop {
        let over = topology.numbers().find(|&numa| after.is_over(free, numa));
        let last = over.and_then(|over| go.iter().rposition(|(_, to, _)| *to == over));
        let Some(last) = last else { return taken };
        let (from, to, one) = go.remove(last);
        after.relocate(one.bytes, to, from);
        taken.push(one);
    }
}

#[cfg(test)]
#[path = "tests/guards.rs"]
mod tests;
