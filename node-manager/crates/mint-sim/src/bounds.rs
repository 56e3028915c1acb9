// SPDX-License-Identifier: Apache-2.0
//! What chance gives a guest, and what the best placement of vCPUs.

use fastrand::Rng;
use mint_layout::{DomainNo, Guest, Snapshot, Topology, by_default, policy};

use crate::case::Case;
use crate::error::SimError;
use crate::machine::Machine;
use crate::throughput::throughputs;

/// Places that are drawn by lot.
const SEEDS: u64 = 100;

/// What the guest that comes loses: 0.4 is 40 %.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bounds {
    /// With its vCPU on any NUMA node, and each piece of its memory on any that has room, by lot: the mean of 100.
    pub random: f64,
    /// In the best of all placements of all guests' vCPUs, by what guests get done together. Memory stays where
    /// it is by default.
    pub best_vcpus: f64,
}

/// Places the guest by lot, and all vCPUs everywhere.
///
/// # Errors
/// When there is no room.
pub fn bounds(case: &Case, machine: &Machine) -> Result<Bounds, SimError> {
    let (topology, others) = case.host(machine)?;
    let (profile, behaviours) = (case.profile(machine), case.behaviours());
    let model = policy(case.policy).model();
    let default = by_default(&topology, &others, &profile, &[])?;
    let mut lost = 0.0;
    for seed in 0..SEEDS {
        let mut all = others.clone();
        all.guests.push(anywhere(&mut Rng::with_seed(seed), &topology, &others, &default));
        let each = throughputs(model, &all, &topology, &behaviours, machine);
        lost += 1.0 - each[behaviours.len() - 1];
    }
    let mut all = others.clone();
    all.guests.push(default);
    let domains = topology.domains().len();
    let mut best: Option<(f64, f64)> = None;
    // a domain has more CPUs than there are vCPUs
    for number in 0..domains.pow(3) {
        for (guest, place) in all.guests.iter_mut().zip([1, domains, domains * domains]) {
            guest.vcpus[0].domain = DomainNo(number / place % domains);
        }
        let each = throughputs(model, &all, &topology, &behaviours, machine);
        let together = each.iter().sum();
        if best.is_none_or(|(most, _)| together > most) {
            best = Some((together, each[behaviours.len() - 1]));
        }
    }
    let best_vcpus = best.map_or(0.0, |(_, incoming)| 1.0 - incoming);
    Ok(Bounds { random: lost / SEEDS as f64, best_vcpus })
}

/// A guest whose vCPU is in any cache domain, and each of its regions on any NUMA node that has room.
fn anywhere(random: &mut Rng, topology: &Topology, others: &Snapshot, guest: &Guest) -> Guest {
    let mut free: Vec<u64> = topology.nodes().iter().map(|node| node.memory_bytes).collect();
    for region in others.guests.iter().flat_map(|guest| &guest.regions) {
        free[region.numa.0] -= region.bytes;
    }
    let mut guest = guest.clone();
    for vcpu in &mut guest.vcpus {
        vcpu.domain = DomainNo(random.usize(0..topology.domains().len()));
    }
    for region in &mut guest.regions {
        let roomy = topology.numbers().filter(|numa| free[numa.0] >= region.bytes);
        if let Some(numa) = random.choice(roomy.collect::<Vec<_>>()) {
            region.numa = numa;
            free[numa.0] -= region.bytes;
        }
    }
    guest
}

#[cfg(test)]
#[path = "tests/bounds.rs"]
mod tests;
