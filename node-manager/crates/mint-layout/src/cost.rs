// SPDX-License-Identifier: Apache-2.0
//! What a layout costs: cycles that vCPUs wait for memory.
//!
//! A guest executes its instructions, and waits for each miss as long as the NUMA node is far that has
//! the memory. What is not modelled: that a shared cache makes more misses, and that a memory controller which
//! many ask answers later.

use std::iter::Sum;

use crate::layout::Layout;
use crate::snapshot::{Confidence, Guest, Snapshot};
use crate::topology::{NumaNo, Topology};

/// A vCPU waits for so many cycles when memory of its own NUMA node is to answer.
pub const LOCAL_CYCLES: f64 = 100.0;
/// What a vCPU that runs all the time is taken to do where nothing counts it.
const GUESSED_INSTRUCTIONS_S: f64 = 1e9;
/// Of those, misses per thousand of one that runs all the time: enough to be worth a better place. One that runs less
/// is taken to miss less often, too: so those that run more choose first.
const GUESSED_MISSES_PER_KILO: f64 = 10.0;

/// Of all guests of a host, or of one.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// Cycles a second that instructions take themselves, one each.
    pub work_cycles_s: f64,
    /// Cycles a second that vCPUs wait for memory.
    pub wait_cycles_s: f64,
}

impl Cost {
    /// What the same work costs less of it, in another layout: 0.05 is a twentieth.
    pub fn gain(self, other: Self) -> f64 {
        let all = self.work_cycles_s + self.wait_cycles_s;
        if all > 0.0 { (self.wait_cycles_s - other.wait_cycles_s) / all } else { 0.0 }
    }

    /// Of all guests, where they are.
    pub fn of(snapshot: &Snapshot, topology: &Topology) -> Self {
        cost(&weights(snapshot), topology, &Layout::of(snapshot))
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(each: I) -> Self {
        each.fold(Self::default(), |sum, one| Self {
            work_cycles_s: sum.work_cycles_s + one.work_cycles_s,
            wait_cycles_s: sum.wait_cycles_s + one.wait_cycles_s,
        })
    }
}

/// What counts of a guest.
#[derive(Clone)]
pub(crate) struct Weight {
    /// Of each vCPU, misses a second.
    pub misses_s: Vec<f64>,
    /// Of each vCPU, cache lines a second from each NUMA node; none where nobody knows.
    pub fills_s: Vec<Vec<f64>>,
    /// Of each region, for how many of the misses it is asked; together 1, or 0.
    pub shares: Vec<f64>,
    /// Of each region, its bytes.
    pub bytes: Vec<u64>,
    /// Instructions a second, of all vCPUs.
    pub instructions_s: f64,
    /// Misses per thousand instructions, of all vCPUs.
    pub misses_per_kilo: f64,
    /// How much these are worth.
    pub confidence: Confidence,
}

impl Weight {
    /// Of one guest.
    pub fn of(guest: &Guest) -> Self {
        let (mut misses_s, mut instructions_s) = (Vec::new(), 0.0);
        let mut confidence = Confidence::Counted;
        for vcpu in &guest.vcpus {
            let ring = &vcpu.samples;
            match (ring.misses_per_s(), ring.instructions_per_s()) {
                (Some(misses), Some(instructions)) => {
                    misses_s.push(misses);
                    instructions_s += instructions;
                }
                _ => {
                    confidence = Confidence::Guessed;
                    let busy = ring.busy().unwrap_or(0.0);
                    let instructions = busy * GUESSED_INSTRUCTIONS_S;
                    misses_s.push(instructions * busy * GUESSED_MISSES_PER_KILO / 1000.0);
                    instructions_s += instructions;
                }
            }
        }
        let of_region: Vec<f64> = if guest.regions.iter().all(|region| region.heat.is_some()) {
            guest.regions.iter().map(|region| region.heat.unwrap_or(0.0).max(0.0)).collect()
        } else {
            guest.regions.iter().map(|region| region.bytes as f64).collect()
        };
        let all: f64 = of_region.iter().sum();
        let shares = of_region.iter().map(|one| if all > 0.0 { one / all } else { 0.0 });
        let sum: f64 = misses_s.iter().sum();
        let kilo = if instructions_s > 0.0 { sum * 1000.0 / instructions_s } else { 0.0 };
        let fills = guest.vcpus.iter().map(|vcpu| vcpu.samples.fills_per_s().unwrap_or_default());
        Self {
            fills_s: fills.collect(),
            shares: shares.collect(),
            bytes: guest.regions.iter().map(|region| region.bytes).collect(),
            misses_s,
            instructions_s,
            misses_per_kilo: kilo,
            confidence,
        }
    }

    /// Of each NUMA node, for how many of the misses its memory is asked there.
    pub fn parts(&self, topology: &Topology, numas: &[NumaNo]) -> Vec<f64> {
        let mut parts = vec![0.0; topology.nodes().len()];
        self.shares.iter().zip(numas).for_each(|(share, numa)| parts[numa.0] += share);
        parts
    }

    /// Cache lines a second that CPUs of each NUMA node get from each, its vCPUs being in these domains.
    pub fn lines_s(&self, topology: &Topology, domains: &[crate::DomainNo]) -> Vec<Vec<f64>> {
        let nodes = topology.nodes().len();
        let mut lines_s = vec![vec![0.0; nodes]; nodes];
        for (fills_s, domain) in self.fills_s.iter().zip(domains) {
            let from = topology.domains()[domain.0].numa;
            for (sum, lines) in lines_s[from.0].iter_mut().zip(fills_s) {
                *sum += lines;
            }
        }
        lines_s
    }

    /// Cycles a second that its vCPUs would wait if all of its memory were on a NUMA node, for each of these.
    pub fn waits(&self, topology: &Topology, domains: &[crate::DomainNo]) -> Vec<f64> {
        let of_node = |to: NumaNo| {
            let of_vcpu = self.misses_s.iter().zip(domains).map(|(misses, domain)| {
                misses * LOCAL_CYCLES * topology.distance(topology.domains()[domain.0].numa, to)
            });
            of_vcpu.sum()
        };
        topology.numbers().map(of_node).collect()
    }

    /// Cycles a second that one byte of a region is waited for where memory is at hand.
    pub fn heat(&self, region: usize) -> f64 {
        let misses: f64 = self.misses_s.iter().sum();
        self.shares[region] * misses * LOCAL_CYCLES / (self.bytes[region].max(1) as f64)
    }
}

/// Of each guest, in the snapshot's order.
pub(crate) fn weights(snapshot: &Snapshot) -> Vec<Weight> {
    snapshot.guests.iter().map(Weight::of).collect()
}

/// Of one guest in a layout.
pub(crate) fn guest_cost(
    weight: &Weight,
    topology: &Topology,
    layout: &Layout,
    guest: usize,
) -> Cost {
    let waits = weight.waits(topology, &layout.vcpus[guest]);
    let regions = weight.shares.iter().zip(&layout.regions[guest]);
    Cost {
        work_cycles_s: weight.instructions_s,
        wait_cycles_s: regions.map(|(share, numa)| share * waits[numa.0]).sum(),
    }
}

/// Of all guests in a layout.
pub(crate) fn cost(weights: &[Weight], topology: &Topology, layout: &Layout) -> Cost {
    let guests = weights.iter().enumerate();
    guests.map(|(guest, weight)| guest_cost(weight, topology, layout, guest)).sum()
}

#[cfg(test)]
#[path = "tests/cost.rs"]
mod tests;
