// SPDX-License-Identifier: Apache-2.0
//! Carrefour (Dashti and others, ASPLOS 2013; L, section 6), without copies: memory goes to who reads it, and what
//! several NUMA nodes read is spread over memory controllers.
//!
//! The paper samples who reads which page. Here each node's reads of a guest's memory on another node are taken to go
//! to that memory by its heat: so all of it on a node has the same readers. The paper draws lots; here pieces are dealt
//! in the same proportions, so the same snapshot gives the same plan. vCPUs stay.

use crate::case::Case;
use crate::cost::{Weight, weights};
use crate::layout::Layout;
use crate::model::Model;
use crate::plan::Plan;
use crate::policy::{Limits, Policy};
use crate::room::Free;
use crate::snapshot::{Signal, Snapshot};
use crate::topology::{NumaNo, Topology};

/// Memory goes in huge pages.
const PIECE_BYTES: u64 = 2 << 20;
/// With fewer lines a second from memory, nothing is done: 50 in a microsecond.
const ACTIVE_LINES_S: f64 = 50e6;
/// Memory goes to who reads it if a smaller part of the lines than that is from the readers' own node,
const LOCAL: f64 = 0.80;
/// and is spread if the nodes' lines differ by more than that from each other: their deviation, by their mean.
const IMBALANCE: f64 = 0.35;
/// A node that reads such a part of a piece is the only one that reads it.
const ALONE: f64 = 0.95;
/// A piece goes to its only reader if that reads so many lines a second of it. The paper wants two samples; of some
/// hundred thousand lines one is taken for a sample here, in ten seconds.
const READ_LINES_S: f64 = 2e4;

/// The policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Carrefour;

/// A piece of a guest's memory.
struct Piece {
    guest: usize,
    region: usize,
    lines_s: f64,
    /// The node that reads it, if that is one alone.
    reader: Option<NumaNo>,
}

/// What nodes are asked for, while pieces go.
struct Nodes {
    /// Lines a second; none: a node without memory.
    lines_s: Vec<Option<f64>>,
    /// What each node has saved of its share until one of its pieces goes.
    due: Vec<f64>,
    /// What each node has saved until it gets one.
    wants: Vec<f64>,
}

impl Nodes {
    fn of(topology: &Topology, lines_s: &[f64]) -> Self {
        let nodes = topology.nodes().iter().zip(lines_s);
        let lines_s: Vec<Option<f64>> =
            nodes.map(|(node, lines)| (node.memory_bytes > 0).then_some(*lines)).collect();
        let none = vec![0.0; lines_s.len()];
        Self { lines_s, due: none.clone(), wants: none }
    }

    fn sum(&self) -> f64 {
        self.lines_s.iter().flatten().sum()
    }

    fn share(&self, numa: NumaNo) -> f64 {
        let sum = self.sum();
        if sum > 0.0 { self.lines_s[numa.0].unwrap_or(0.0) / sum } else { 0.0 }
    }

    fn is_uneven(&self) -> bool {
        let count = self.lines_s.iter().flatten().count().max(1) as f64;
        let mean = self.sum() / count;
        let squares = self.lines_s.iter().flatten().map(|lines| (lines - mean).powi(2));
        (squares.sum::<f64>() / count).sqrt() > IMBALANCE * mean
    }

    fn relocate(&mut self, lines_s: f64, from: NumaNo, to: NumaNo) {
        for (numa, change) in [(from, -lines_s), (to, lines_s)] {
            if let Some(lines) = &mut self.lines_s[numa.0] {
                *lines += change;
            }
        }
    }

    /// Where the next piece of a node goes: as many of its pieces go as it has of all lines, to each other
    /// node as many as that has not. None: it stays.
    fn deal(&mut self, from: NumaNo, has_room: impl Fn(NumaNo) -> bool) -> Option<NumaNo> {
        self.due[from.0] += self.share(from);
        if self.due[from.0] < 1.0 {
            return None;
        }
        let others = (0..self.lines_s.len()).map(NumaNo);
        let others: Vec<NumaNo> = others
            .filter(|&numa| numa != from && self.lines_s[numa.0].is_some() && has_room(numa))
            .collect();
        let wants: Vec<f64> = others.iter().map(|&numa| 1.0 - self.share(numa)).collect();
        let sum: f64 = wants.iter().sum();
        others.iter().zip(&wants).for_each(|(numa, wants)| self.wants[numa.0] += wants / sum);
        let most = others.into_iter().reduce(|best, numa| {
            if self.wants[numa.0] > self.wants[best.0] { numa } else { best }
        })?;
        self.due[from.0] -= 1.0;
        self.wants[most.0] -= 1.0;
        Some(most)
    }
}

/// Each guest's pieces that are used and may go, those that are read most first.
fn pieces(snapshot: &Snapshot, weights: &[Weight], reads: &[Vec<Vec<f64>>]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (at, guest) in snapshot.guests.iter().enumerate().filter(|(_, guest)| !guest.is_fixed) {
        let nodes = reads[at].len();
        let mut share = vec![0.0; nodes];
        for (region, part) in guest.regions.iter().zip(&weights[at].shares) {
            share[region.numa.0] += part;
        }
        let read = |numa: usize| reads[at].iter().map(|row| row[numa]).sum::<f64>();
        let alone = |numa: usize| {
            let mut readers = (0..nodes).map(NumaNo);
            readers.find(|reader| reads[at][reader.0][numa] >= ALONE * read(numa))
        };
        let of_node: Vec<(f64, Option<NumaNo>)> =
            (0..nodes).map(|numa| (read(numa), alone(numa))).collect();
        for (region, part) in weights[at].shares.iter().enumerate() {
            let numa = guest.regions[region].numa.0;
            let (read, reader) = of_node[numa];
            if *part > 0.0 && read > 0.0 {
                let lines_s = read * part / share[numa];
                pieces.push(Piece { guest: at, region, lines_s, reader });
            }
        }
    }
    // sorting keeps the order of equal ones
    pieces.sort_by(|one, other| other.lines_s.total_cmp(&one.lines_s));
    pieces
}

impl Policy for Carrefour {
    fn name(&self) -> &'static str {
        "carrefour"
    }

    fn needs(&self) -> &'static [Signal] {
        &[Signal::RunTime, Signal::Memory, Signal::Misses, Signal::Fills, Signal::Heat]
    }

    fn model(&self) -> Model {
        Model::Controllers
    }

    fn arrange(&mut self, snapshot: &Snapshot, topology: &Topology, limits: &Limits) -> Plan {
        let weights_now = weights(snapshot);
        let now = Layout::of(snapshot);
        let guests = weights_now.iter().zip(&now.vcpus);
        let reads: Vec<Vec<Vec<f64>>> =
            guests.map(|(weight, domains)| weight.lines_s(topology, domains)).collect();
        let (mut lines_s, mut local_s) = (vec![0.0; topology.nodes().len()], 0.0);
        for (from, row) in reads.iter().flat_map(|reads| reads.iter().enumerate()) {
            lines_s.iter_mut().zip(row).for_each(|(sum, lines)| *sum += lines);
            local_s += row[from];
        }
        let all_s: f64 = lines_s.iter().sum();
        let mut nodes = Nodes::of(topology, &lines_s);
        let (is_remote, is_uneven) = (local_s < LOCAL * all_s, nodes.is_uneven());
        if all_s < ACTIVE_LINES_S || !(is_remote || is_uneven) {
            return Plan::nothing(self.name());
        }
        let fine = snapshot.in_pieces(PIECE_BYTES);
        let weights = weights(&fine);
        let mut after = Layout::of(&fine);
        let mut free = Free::of(&fine, topology, &after);
        let mut budget = limits.relocated_bytes;
        for Piece { guest, region, lines_s, reader } in pieces(&fine, &weights, &reads) {
            let (from, bytes) = (after.regions[guest][region], weights[guest].bytes[region]);
            let has_room = |numa: NumaNo| free.at(numa) >= bytes;
            let to = match reader {
                Some(reader) => {
                    let is_read = lines_s >= READ_LINES_S || is_uneven;
                    (is_remote && is_read && has_room(reader)).then_some(reader)
                }
                None if nodes.is_uneven() => nodes.deal(from, has_room),
                None => None,
            };
            let Some(to) = to.filter(|&to| to != from && bytes <= budget) else { continue };
            budget -= bytes;
            free.relocate(bytes, from, to);
            nodes.relocate(lines_s, from, to);
            after.regions[guest][region] = to;
        }
        let mut order: Vec<usize> = (0..snapshot.guests.len()).collect();
        let rate = |guest: usize| weights[guest].misses_per_kilo;
        order.sort_by(|&one, &other| rate(other).total_cmp(&rate(one)));
        let (policy, model, snapshot) = (self.name(), self.model(), &fine);
        let case = Case { policy, model, snapshot, topology, weights: &weights, limits };
        case.plan(&order, rate, &after)
    }
}

#[cfg(test)]
#[path = "tests/carrefour.rs"]
mod tests;
