// SPDX-License-Identifier: Apache-2.0
//! What guests get done in a layout: what the policy's own model says that they wait.
//!
//! A guest that is slowed down is taken to be as much in others' way as one that is not.

use mint_layout::{Cost, LOCAL_CYCLES, Model, Snapshot, Topology};

use crate::guest::Behaviour;
use crate::machine::Machine;

/// Of each guest, in the snapshot's order: what it gets done, 1 being what it would alone on the host, with all memory
/// on its vCPU's NUMA node.
///
/// # Arguments
/// * `model` - the policy's.
/// * `behaviours` - of each guest.
pub fn throughputs(
    model: Model,
    snapshot: &Snapshot,
    topology: &Topology,
    behaviours: &[Behaviour],
    machine: &Machine,
) -> Vec<f64> {
    let mut doing = snapshot.clone();
    for (guest, behaviour) in doing.guests.iter_mut().zip(behaviours) {
        let parts = crate::guest::parts(guest, topology);
        for vcpu in &mut guest.vcpus {
            vcpu.samples = vec![behaviour.sample(machine, 1.0, &parts)].into();
        }
    }
    let costs = model.costs(&doing, topology);
    let alone = doing.guests.iter().map(|guest| {
        let mut guest = guest.clone();
        let home = guest.vcpus.first().map(|vcpu| topology.domains()[vcpu.domain.0].numa);
        for region in &mut guest.regions {
            region.numa = home.unwrap_or(region.numa);
        }
        model.cost(&Snapshot { guests: vec![guest] }, topology)
    });
    costs
        .iter()
        .zip(alone)
        .map(|(&now, least)| cycles_s(least, machine) / cycles_s(now, machine))
        .collect()
}

/// A model counts waits in misses of [`LOCAL_CYCLES`]; on this machine a miss takes what it takes there.
fn cycles_s(cost: Cost, machine: &Machine) -> f64 {
    cost.work_cycles_s + cost.wait_cycles_s * machine.miss_cycles / LOCAL_CYCLES
}

#[cfg(test)]
#[path = "tests/throughput.rs"]
mod tests;
