// SPDX-License-Identifier: Apache-2.0
//! AsymSched (Lepers, Quéma and Fedorova, USENIX ATC 2015; L, table 1 and 5.5): guests that read much memory of other
//! NUMA nodes get nodes between which there is more bandwidth.
//!
//! The NUMA nodes of a guest that read much of each other's memory are a cluster. Its weight is the logarithm of
//! what they read. A placement puts clusters on nodes, vCPUs and memory that is used together. One that takes
//! too long to relocate, measured by how long the guest has run, is none.
//!
//! The paper has clusters of whole nodes, at most one on each. Here a guest may have a single vCPU, and its memory
//! elsewhere: two nodes of a cluster may become one, as far as that has CPUs and memory.

use std::collections::BTreeMap;

use crate::case::Case;
use crate::cost::{Weight, weights};
use crate::layout::Layout;
use crate::model::Model;
use crate::placement::{Cluster, Placed, Room, place};
use crate::plan::Plan;
use crate::policy::{Limits, Policy};
use crate::room::{Free, Slots};
use crate::snapshot::{Guest, GuestId, Signal, Snapshot};
use crate::topology::{DomainNo, NumaNo, Topology};

/// Bytes of a cache line.
const LINE_BYTES: f64 = 64.0;
/// Nodes belong together if what they read of each other is such a part of what one of them reads and gives.
const TOGETHER: f64 = 0.05;
/// Seconds that it takes to relocate a byte: 0.3 for 10^9.
const RELOCATION_S: f64 = 0.3e-9;
/// No guest spends more of its time on relocations.
const SPENT_MAX: f64 = 0.05;
/// A guest is taken to have run so long when it is seen first.
const HAS_RUN_S: f64 = 600.0;

/// How long a guest has run, and how long its memory took to relocate.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Time {
    run_s: f64,
    spent_s: f64,
}

/// The policy. Each plan is taken to be of another sample.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct AsymSched {
    times: BTreeMap<GuestId, Time>,
}

impl AsymSched {
    /// Adds the last sample's time; guests that have gone are forgotten.
    fn pass(&mut self, snapshot: &Snapshot) {
        let before = std::mem::take(&mut self.times);
        for guest in &snapshot.guests {
            let last = guest.vcpus.first().and_then(|vcpu| vcpu.samples.iter().last());
            let span_s = last.map_or(0.0, |sample| f64::from(sample.span_ms) / 1000.0);
            let first = Time { run_s: HAS_RUN_S, spent_s: 0.0 };
            let was = before.get(&guest.id).copied().unwrap_or(first);
            self.times.insert(guest.id.clone(), Time { run_s: was.run_s + span_s, ..was });
        }
    }

    /// Bytes of a guest that may be relocated for what it has run.
    fn bytes_max(&self, guest: &GuestId) -> u64 {
        let Some(time) = self.times.get(guest) else { return 0 };
        let bytes = (SPENT_MAX * time.run_s - time.spent_s).max(0.0) / RELOCATION_S;
        // it saturates, and a part of a byte is nothing
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "see above")]
        let whole = bytes as u64;
        whole
    }
}

/// Which nodes belong together, by the lines that they read of each other.
fn clusters(read: &[Vec<f64>]) -> Vec<Vec<NumaNo>> {
    let nodes = read.len();
    let traffic = |node: usize| {
        let reads: f64 = read[node].iter().sum();
        let gives: f64 = read.iter().map(|row| row[node]).sum();
        reads + gives - read[node][node]
    };
    let mut head: Vec<usize> = (0..nodes).collect();
    for one in 0..nodes {
        for other in one + 1..nodes {
            let both = read[one][other] + read[other][one];
            if both > 0.0 && both >= TOGETHER * traffic(one).min(traffic(other)) {
                let (joined, to) = (head[other], head[one]);
                head.iter_mut().filter(|head| **head == joined).for_each(|head| *head = to);
            }
        }
    }
    let of = |which: usize| (0..nodes).filter(|&node| head[node] == which).map(NumaNo).collect();
    (0..nodes).map(of).filter(|cluster: &Vec<NumaNo>| cluster.len() > 1).collect()
}

/// The places of a guest's vCPUs and of its memory that is used, by the node that has them.
fn cluster(
    (guest, weight): (&Guest, &Weight),
    topology: &Topology,
    nodes: Vec<NumaNo>,
    read: &[Vec<f64>],
    bytes_max: u64,
) -> Cluster {
    let mut lines_s = 0.0;
    for from in &nodes {
        lines_s += nodes.iter().filter(|to| *to != from).map(|to| read[from.0][to.0]).sum::<f64>();
    }
    let here = |numa: NumaNo| {
        let vcpus = guest.vcpus.iter();
        vcpus.filter(move |vcpu| topology.domains()[vcpu.domain.0].numa == numa)
    };
    let bytes_of = |&numa: &NumaNo| -> u64 {
        let regions = guest.regions.iter().zip(&weight.shares);
        let used = regions.filter(|(region, share)| region.numa == numa && **share > 0.0);
        used.map(|(region, _)| region.bytes).sum()
    };
    let bytes: Vec<u64> = nodes.iter().map(bytes_of).collect();
    let is_tied = nodes.iter().zip(&bytes).map(|(&numa, &bytes)| {
        let is_kept = here(numa).any(|vcpu| !vcpu.may_run_anywhere(topology));
        is_kept || (guest.is_fixed && bytes > 0)
    });
    Cluster {
        // less than a million bytes a second weigh nothing
        weight: (lines_s * LINE_BYTES / 1e6).max(1.0).ln(),
        vcpus: nodes.iter().map(|&numa| here(numa).count()).collect(),
        is_tied: is_tied.collect(),
        bytes,
        bytes_max,
        nodes,
    }
}

/// What there is room for once these clusters are out of the way. Where there is more than fits, that fits.
fn room(snapshot: &Snapshot, topology: &Topology, clusters: &[&Cluster], limits: &Limits) -> Room {
    let slots = Slots::left(snapshot, topology);
    let free = Free::of(snapshot, topology, &Layout::of(snapshot));
    let mut vcpus = vec![0; topology.nodes().len()];
    for (at, domain) in topology.domains().iter().enumerate() {
        vcpus[domain.numa.0] += slots.at(DomainNo(at));
    }
    let mut bytes: Vec<u64> = topology.numbers().map(|numa| free.at(numa)).collect();
    for cluster in clusters {
        for (at, numa) in cluster.nodes.iter().enumerate() {
            vcpus[numa.0] += cluster.vcpus[at];
            bytes[numa.0] += cluster.bytes[at];
        }
    }
    Room { vcpus, bytes, budget: limits.relocated_bytes }
}

/// The layout in which clusters are where they are placed. vCPUs that leave their node take those domains of the next
/// that have most room.
fn laid_out(
    snapshot: &Snapshot,
    topology: &Topology,
    weights: &[Weight],
    placed: &[(usize, &Cluster, Placed)],
) -> Layout {
    let mut after = Layout::of(snapshot);
    let mut slots = Slots::left(snapshot, topology);
    let mut leave = Vec::new();
    for (guest, cluster, placed) in placed {
        let goes: BTreeMap<NumaNo, NumaNo> =
            cluster.nodes.iter().copied().zip(placed.iter().copied()).collect();
        let to = |from: NumaNo| goes.get(&from).copied().filter(|&to| to != from);
        for (number, vcpu) in snapshot.guests[*guest].vcpus.iter().enumerate() {
            if let Some(to) = to(topology.domains()[vcpu.domain.0].numa) {
                slots.leave(vcpu.domain);
                leave.push((*guest, number, to));
            }
        }
        let regions = after.regions[*guest].iter_mut().zip(&weights[*guest].shares);
        for (numa, _) in regions.filter(|(_, share)| **share > 0.0) {
            *numa = to(*numa).unwrap_or(*numa);
        }
    }
    for (guest, number, to) in leave {
        let domains = (0..topology.domains().len()).map(DomainNo);
        let there: Vec<DomainNo> =
            domains.filter(|domain| topology.domains()[domain.0].numa == to).collect();
        let domain = slots.roomiest(&there);
        slots.take(domain);
        after.vcpus[guest][number] = domain;
    }
    after
}

impl Policy for AsymSched {
    fn name(&self) -> &'static str {
        "asymsched"
    }

    fn needs(&self) -> &'static [Signal] {
        &[Signal::RunTime, Signal::Memory, Signal::Misses, Signal::Fills]
    }

    fn model(&self) -> Model {
        Model::Bandwidths
    }

    fn arrange(&mut self, snapshot: &Snapshot, topology: &Topology, limits: &Limits) -> Plan {
        self.pass(snapshot);
        let weights = weights(snapshot);
        let mut found: Vec<(usize, Cluster)> = Vec::new();
        let now = Layout::of(snapshot);
        for (at, guest) in snapshot.guests.iter().zip(&weights).enumerate() {
            let read = guest.1.lines_s(topology, &now.vcpus[at]);
            let bytes_max = self.bytes_max(&guest.0.id);
            for nodes in clusters(&read) {
                found.push((at, cluster(guest, topology, nodes, &read, bytes_max)));
            }
        }
        found.retain(|(_, cluster)| cluster.weight > 0.0);
        found.sort_by(|one, other| other.1.weight.total_cmp(&one.1.weight));
        let clusters: Vec<Cluster> = found.iter().map(|(_, cluster)| cluster.clone()).collect();
        let all: Vec<&Cluster> = clusters.iter().collect();
        let placed = place(topology, &clusters, &room(snapshot, topology, &all, limits));
        let placed = found.iter().zip(placed).map(|((guest, cluster), to)| (*guest, cluster, to));
        let placed: Vec<(usize, &Cluster, Placed)> = placed.collect();
        let after = laid_out(snapshot, topology, &weights, &placed);
        let mut order: Vec<usize> = found.iter().map(|(guest, _)| *guest).collect();
        order.extend(0..snapshot.guests.len());
        let mut is_there = vec![false; snapshot.guests.len()];
        order.retain(|&guest| !std::mem::replace(&mut is_there[guest], true));
        let (policy, model) = (self.name(), self.model());
        let case = Case { policy, model, snapshot, topology, weights: &weights, limits };
        let plan = case.plan(&order, |guest| weights[guest].misses_per_kilo, &after);
        for one in &plan.relocations {
            if let Some(time) = self.times.get_mut(&one.guest) {
                time.spent_s += one.bytes as f64 * RELOCATION_S;
            }
        }
        plan
    }
}

#[cfg(test)]
#[path = "tests/asymsched.rs"]
mod tests;
