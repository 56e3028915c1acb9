// SPDX-License-Identifier: Apache-2.0
//! A case, second by second from when the guest has come.

use std::fmt;

use mint_layout::{Limits, Plan, RING, Ring, Snapshot, by_default, land, policy};

use crate::case::Case;
use crate::error::SimError;
use crate::guest::parts;
use crate::machine::Machine;
use crate::relocate::so_far;
use crate::throughput::throughputs;

/// Seconds of a run.
pub const SECONDS: usize = 90;

/// When guests are arranged, as in `mintctl vm migrate --layout`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Never (L's default).
    None,
    /// Once the guest has been measured for ten seconds (L's existing method).
    After,
    /// Before it comes (L's proposal).
    Before,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::None, Self::After, Self::Before];
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::After => "after",
            Self::Before => "before",
        })
    }
}

/// What has happened.
#[derive(Clone, PartialEq, Debug)]
pub struct Run {
    /// Of each second, what each guest got done of what it would where it waits least; the one that came is the last.
    pub throughputs: Vec<Vec<f64>>,
    /// The same once all is done that is to be, which may be later.
    pub settled: Vec<f64>,
    /// What was carried out, if anything was.
    pub plan: Option<Plan>,
    /// Bytes of other guests that went before it came.
    pub evicted_bytes: u64,
}

impl Run {
    /// Of a guest in the first second.
    pub fn first(&self, guest: usize) -> f64 {
        self.throughputs[0][guest]
    }

    /// Of a guest in the end.
    pub fn last(&self, guest: usize) -> f64 {
        self.settled[guest]
    }

    /// Of the guest that came, each second.
    pub fn incoming(&self) -> impl DoubleEndedIterator<Item = f64> + ExactSizeIterator {
        self.throughputs.iter().map(|each| each[each.len() - 1])
    }

    /// How many guests got other CPUs, and how many ranges of memory another NUMA node.
    pub fn moves(&self) -> usize {
        self.plan.as_ref().map_or(0, |plan| plan.pins.len() + plan.relocations.len())
    }
}

/// Has the guest come.
///
/// # Errors
/// When it finds no place, or its policy no plan.
pub fn run(case: &Case, mode: Mode, machine: &Machine) -> Result<Run, SimError> {
    let (topology, mut snapshot) = case.host(machine)?;
    let (profile, behaviours) = (case.profile(machine), case.behaviours());
    let mut policy = policy(case.policy);
    let model = policy.model();
    let limits = Limits::default();
    let (mut landed, mut evicted_bytes) = (None, 0);
    if mode == Mode::Before {
        let landing = land(policy.as_mut(), &topology, &snapshot, &profile, &[], &limits)?;
        snapshot = landing.plan.done(&snapshot, &topology);
        snapshot.guests.push(landing.guest);
        evicted_bytes = landing.evictions.iter().map(|one| one.bytes).sum();
        landed = Some(landing.plan);
    } else {
        let mut guest = by_default(&topology, &snapshot, &profile, &[])?;
        // nobody here has measured it
        guest.vcpus.iter_mut().for_each(|vcpu| vcpu.samples = Ring::default());
        snapshot.guests.push(guest);
    }
    let mut plan = None;
    let mut each = Vec::new();
    for second in 0..SECONDS {
        if mode == Mode::After && second == RING {
            plan = Some(policy.plan(&snapshot, &topology, &limits)?);
        }
        let now = plan.as_ref().map_or_else(
            || snapshot.clone(),
            |plan| so_far(plan, relocated_bytes(second - RING, machine), &snapshot, &topology),
        );
        let done = throughputs(model, &now, &topology, &behaviours, machine);
        measure(&mut snapshot, &now, |at, guest| {
            behaviours[at].sample(machine, done[at], &parts(guest, &topology))
        });
        each.push(done);
    }
    let end = plan
        .as_ref()
        .map_or_else(|| snapshot.clone(), |plan| so_far(plan, u64::MAX, &snapshot, &topology));
    let settled = throughputs(model, &end, &topology, &behaviours, machine);
    Ok(Run { throughputs: each, settled, plan: plan.or(landed), evicted_bytes })
}

/// Bytes that have gone by the middle of a second after the plan.
fn relocated_bytes(second: usize, machine: &Machine) -> u64 {
    let bytes = (second as f64 + 0.5) * machine.move_bytes_s;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 2^52")]
    let whole = bytes as u64;
    whole
}

/// Each guest's ring gets what it did.
fn measure(
    snapshot: &mut Snapshot,
    now: &Snapshot,
    sample: impl Fn(usize, &mint_layout::Guest) -> mint_layout::Sample,
) {
    for (at, (guest, is)) in snapshot.guests.iter_mut().zip(&now.guests).enumerate() {
        for vcpu in &mut guest.vcpus {
            vcpu.samples.push(sample(at, is));
        }
    }
}

#[cfg(test)]
#[path = "tests/run.rs"]
mod tests;
