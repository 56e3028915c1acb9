// SPDX-License-Identifier: Apache-2.0
//! By what policies judge layouts.
//!
//! Policies differ in what they take vCPUs to wait for, so each has a model; the gain that a plan tells is in that
//! model's cycles. A model looks at a snapshot alone: the same one costs the same, whoever asks.

use crate::cost::{Cost, LOCAL_CYCLES, Weight, guest_cost, weights};
use crate::layout::Layout;
use crate::snapshot::Snapshot;
use crate::topology::{DomainNo, NumaNo, Topology};

/// So many misses a second of others in its cache domain make a vCPU wait for each of its own twice as long. In L's
/// case 2 (5.4) two guests that do nothing but miss lose some 30 % beside each other; two vCPUs that miss 40 times in a
/// thousand instructions do so here.
const CONTENDED_MISSES_S: f64 = 8e7;

/// A memory controller answers half as fast when it is asked for so many lines a second: all that one of two channels
/// has, 20 GB/s.
const CONTROLLER_LINES_S: f64 = 3e8;

/// What a policy takes vCPUs to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Model {
    /// Memory, as long as it is far ([`Cost::of`]).
    #[default]
    Distances,
    /// Memory, as long as the NUMA node's bandwidth is lower than that of their own (AsymSched).
    Bandwidths,
    /// Memory as it is far, and vCPUs that miss often in the same cache domain (DINO).
    Caches,
    /// Memory as it is far, and the longer the more lines its NUMA node is asked for (Carrefour).
    Controllers,
    /// Lines that came, as far as they came (BRM): as if each came from the same node wherever the vCPU runs.
    Fills,
}

impl Model {
    /// What all guests cost where they are.
    ///
    /// # Arguments
    /// * `snapshot` - one of that topology.
    pub fn cost(self, snapshot: &Snapshot, topology: &Topology) -> Cost {
        self.costs(snapshot, topology).into_iter().sum()
    }

    /// What each guest costs where it is, in the snapshot's order.
    ///
    /// # Arguments
    /// * `snapshot` - one of that topology.
    pub fn costs(self, snapshot: &Snapshot, topology: &Topology) -> Vec<Cost> {
        self.each(&weights(snapshot), topology, &Layout::of(snapshot))
    }

    /// What each guest costs in a layout.
    pub(crate) fn each(
        self,
        weights: &[Weight],
        topology: &Topology,
        layout: &Layout,
    ) -> Vec<Cost> {
        let guests = weights.iter().enumerate();
        match self {
            Self::Distances => {
                guests.map(|(at, weight)| guest_cost(weight, topology, layout, at)).collect()
            }
            Self::Bandwidths => Self::Distances.each(weights, &topology.by_bandwidth(), layout),
            Self::Caches => {
                let of_domain = domain_misses_s(weights, topology, layout);
                let cost = |(at, weight): (usize, &Weight)| {
                    let vcpus = weight.misses_s.iter().zip(&layout.vcpus[at]);
                    let slowed = vcpus.map(|(misses, domain)| {
                        misses * (1.0 + (of_domain[domain.0] - misses) / CONTENDED_MISSES_S)
                    });
                    let slowed = Weight { misses_s: slowed.collect(), ..weight.clone() };
                    guest_cost(&slowed, topology, layout, at)
                };
                guests.map(cost).collect()
            }
            Self::Fills => {
                let wait_of = |(lines_s, domain): (&Vec<f64>, &DomainNo)| {
                    fill_cycles_s(lines_s, topology, topology.domains()[domain.0].numa)
                };
                let cost = |(at, weight): (usize, &Weight)| Cost {
                    work_cycles_s: weight.instructions_s,
                    wait_cycles_s: weight.fills_s.iter().zip(&layout.vcpus[at]).map(wait_of).sum(),
                };
                guests.map(cost).collect()
            }
            Self::Controllers => {
                let lines_s = node_lines_s(weights, topology, layout);
                let cost = |(at, weight): (usize, &Weight)| {
                    let waits = weight.waits(topology, &layout.vcpus[at]);
                    let parts = weight.parts(topology, &layout.regions[at]);
                    let each = parts.iter().zip(waits).zip(&lines_s);
                    let longer = |lines_s: &f64| 1.0 + lines_s / CONTROLLER_LINES_S;
                    Cost {
                        work_cycles_s: weight.instructions_s,
                        wait_cycles_s: each
                            .map(|((part, wait), all)| part * wait * longer(all))
                            .sum(),
                    }
                };
                guests.map(cost).collect()
            }
        }
    }
}

/// Cycles a second that a vCPU on a NUMA node would wait for these lines of each node.
pub(crate) fn fill_cycles_s(lines_s: &[f64], topology: &Topology, from: NumaNo) -> f64 {
    let each = lines_s.iter().zip(topology.numbers());
    each.map(|(lines, to)| lines * LOCAL_CYCLES * topology.distance(from, to)).sum()
}

/// Misses a second that memory of each NUMA node is asked for.
fn node_lines_s(weights: &[Weight], topology: &Topology, layout: &Layout) -> Vec<f64> {
    let mut lines_s = vec![0.0; topology.nodes().len()];
    for (weight, numas) in weights.iter().zip(&layout.regions) {
        let misses_s: f64 = weight.misses_s.iter().sum();
        for (sum, part) in lines_s.iter_mut().zip(weight.parts(topology, numas)) {
            *sum += part * misses_s;
        }
    }
    lines_s
}

/// Misses a second in each cache domain.
fn domain_misses_s(weights: &[Weight], topology: &Topology, layout: &Layout) -> Vec<f64> {
    let mut of_domain = vec![0.0; topology.domains().len()];
    for (weight, domains) in weights.iter().zip(&layout.vcpus) {
        for (misses, domain) in weight.misses_s.iter().zip(domains) {
            of_domain[domain.0] += misses;
        }
    }
    of_domain
}

#[cfg(test)]
#[path = "tests/model.rs"]
mod tests;
