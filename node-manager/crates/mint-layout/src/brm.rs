// SPDX-License-Identifier: Apache-2.0
//! Bias Random vCPU Migration (Rao, Wang, Zhou and Xu, HPCA 2013; L, section 6): each vCPU goes by lot to the NUMA
//! node where it waits least for what is outside its core.
//!
//! The paper's measure is the uncore penalty, cycles that an instruction waits there. Here it follows from the lines
//! that each node answers, and how far that is: a node that a vCPU has not run on has a penalty, too. The more a vCPU
//! would gain, the likelier it goes. Lots that have made the sum of all penalties less make the next ones likelier;
//! else they become half as likely, so that vCPUs come to rest. Now and then one goes anywhere. Memory stays.

use std::collections::BTreeMap;

use fastrand::Rng;

use crate::case::Case;
use crate::cost::weights;
use crate::layout::Layout;
use crate::model::{Model, fill_cycles_s};
use crate::plan::Plan;
use crate::policy::{Limits, Policy};
use crate::room::Slots;
use crate::snapshot::{GuestId, Signal, Snapshot, Vcpu};
use crate::topology::{DomainNo, NumaNo, Topology};

/// Of a penalty, what a new sample counts; what was before counts the rest.
const NEW: f64 = 0.25;
/// A vCPU goes anywhere so often.
const ANYWHERE: f64 = 0.02;
/// What the bias becomes when the sum of all penalties has fallen,
const FELL: f64 = 1.1;
/// and when it has not.
const ROSE: f64 = 0.5;
/// It stays between these, so that a guest that comes later finds its place, too.
const BIASES: (f64, f64) = (0.05, 1.0);

/// The policy. Each plan is taken to be of another sample.
#[derive(Clone, PartialEq, Debug)]
pub struct Brm {
    random: Rng,
    bias: f64,
    /// Of each vCPU, cycles that an instruction waits on each NUMA node.
    penalties: BTreeMap<(GuestId, usize), Vec<f64>>,
    /// Of all vCPUs where they were last.
    sum: Option<f64>,
}

impl Brm {
    /// One that has seen nothing yet.
    ///
    /// # Arguments
    /// * `seed` - the same one draws the same lots.
    pub fn new(seed: u64) -> Self {
        Self { random: Rng::with_seed(seed), bias: 1.0, penalties: BTreeMap::new(), sum: None }
    }

    /// Takes in what was measured: vCPUs that have gone are forgotten, and the bias follows the sum.
    fn learn(&mut self, snapshot: &Snapshot, topology: &Topology) {
        let before = std::mem::take(&mut self.penalties);
        let mut sum = 0.0;
        for guest in &snapshot.guests {
            for (number, vcpu) in guest.vcpus.iter().enumerate() {
                let key = (guest.id.clone(), number);
                let was = before.get(&key).filter(|was| was.len() == topology.nodes().len());
                let now = penalties(vcpu, topology);
                let mixed: Vec<f64> = match was {
                    Some(was) => {
                        let both = now.iter().zip(was);
                        both.map(|(now, was)| NEW * now + (1.0 - NEW) * was).collect()
                    }
                    None => now,
                };
                sum += mixed[topology.domains()[vcpu.domain.0].numa.0];
                self.penalties.insert(key, mixed);
            }
        }
        if let Some(was) = self.sum {
            let factor = if sum < was { FELL } else { ROSE };
            self.bias = (self.bias * factor).clamp(BIASES.0, BIASES.1);
        }
        self.sum = Some(sum);
    }

    /// Which of these NUMA nodes a vCPU goes to. It draws as many lots whatever comes out.
    ///
    /// # Arguments
    /// * `now` - where it is.
    /// * `open` - other nodes that have a place for it.
    fn draw(&mut self, penalties: &[f64], now: NumaNo, open: &[NumaNo]) -> Option<NumaNo> {
        let (anywhere, goes) = (self.random.f64(), self.random.f64());
        let any = self.random.usize(0..open.len().max(1));
        if anywhere < ANYWHERE {
            return open.get(any).copied();
        }
        let here = penalties[now.0];
        let least = open
            .iter()
            .copied()
            .reduce(|best, numa| if penalties[numa.0] < penalties[best.0] { numa } else { best })?;
        let gains = here - penalties[least.0];
        (gains > 0.0 && goes < self.bias * gains / here).then_some(least)
    }
}

/// Cycles that an instruction of a vCPU waits on each NUMA node; none of one that executes nothing.
fn penalties(vcpu: &Vcpu, topology: &Topology) -> Vec<f64> {
    let lines_s = vcpu.samples.fills_per_s().unwrap_or_default();
    let instructions_s = vcpu.samples.instructions_per_s().unwrap_or(0.0);
    let of_node = |from| match instructions_s > 0.0 {
        true => fill_cycles_s(&lines_s, topology, from) / instructions_s,
        false => 0.0,
    };
    topology.numbers().map(of_node).collect()
}

/// The domain of a NUMA node that has most room for a vCPU. None: it has none for it.
fn place(vcpu: &Vcpu, topology: &Topology, numa: NumaNo, slots: &Slots) -> Option<DomainNo> {
    let domains = (0..topology.domains().len()).map(DomainNo);
    let fits = |&domain: &DomainNo| {
        topology.domains()[domain.0].numa == numa
            && vcpu.may_run(topology, domain)
            && slots.is_free(domain)
    };
    let there: Vec<DomainNo> = domains.filter(fits).collect();
    (!there.is_empty()).then(|| slots.roomiest(&there))
}

impl Policy for Brm {
    fn name(&self) -> &'static str {
        "brm"
    }

    fn needs(&self) -> &'static [Signal] {
        &[Signal::RunTime, Signal::Misses, Signal::Fills]
    }

    fn model(&self) -> Model {
        Model::Fills
    }

    fn arrange(&mut self, snapshot: &Snapshot, topology: &Topology, limits: &Limits) -> Plan {
        self.learn(snapshot, topology);
        let mut after = Layout::of(snapshot);
        let mut slots = Slots::left(snapshot, topology);
        for (at, guest) in snapshot.guests.iter().enumerate() {
            for (number, vcpu) in guest.vcpus.iter().enumerate() {
                let now = topology.domains()[vcpu.domain.0].numa;
                let places: BTreeMap<NumaNo, DomainNo> = topology
                    .numbers()
                    .filter(|&numa| numa != now)
                    .filter_map(|numa| Some((numa, place(vcpu, topology, numa, &slots)?)))
                    .collect();
                let open: Vec<NumaNo> = places.keys().copied().collect();
                let penalties = self.penalties.get(&(guest.id.clone(), number)).cloned();
                let to = self.draw(&penalties.unwrap_or_default(), now, &open);
                if let Some(&domain) = to.and_then(|to| places.get(&to)) {
                    slots.leave(vcpu.domain);
                    slots.take(domain);
                    after.vcpus[at][number] = domain;
                }
            }
        }
        let weights = weights(snapshot);
        let order: Vec<usize> = (0..snapshot.guests.len()).collect();
        let (policy, model) = (self.name(), self.model());
        let case = Case { policy, model, snapshot, topology, weights: &weights, limits };
        case.plan(&order, |guest| weights[guest].misses_per_kilo, &after)
    }
}

#[cfg(test)]
#[path = "tests/brm.rs"]
mod tests;
