// SPDX-License-Identifier: Apache-2.0
//! Which NUMA nodes clusters of vCPUs and memory are placed on (AsymSched: Lepers, Quéma and Fedorova, USENIX ATC
//! 2015).
//!
//! A placement is worth the bandwidth between the nodes that each cluster gets, weighted. Of all placements that are
//! worth nearly as much as the best, the one is taken for which least memory goes. The paper tries all of eight nodes;
//! here clusters are many and may share a node. Where there are too many placements, the one that is is bettered step
//! by step.

use crate::topology::{NumaNo, Topology};

/// Of more NUMA nodes, or more placements, not all are tried.
const NODES_MAX: usize = 8;
const PLACEMENTS_MAX: usize = 512;
/// A placement is good enough that is worth so much of the best.
const NEARLY: f64 = 0.9;

/// vCPUs that share memory, by the NUMA nodes that have some of either.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Cluster {
    pub nodes: Vec<NumaNo>,
    pub weight: f64,
    /// Of each of these nodes, vCPUs and bytes that go where it goes.
    pub vcpus: Vec<usize>,
    pub bytes: Vec<u64>,
    /// What is on this node cannot go.
    pub is_tied: Vec<bool>,
    /// So much memory may go.
    pub bytes_max: u64,
}

/// Of each of a cluster's nodes, the node that it becomes.
pub(crate) type Placed = Vec<NumaNo>;

/// What there is room for, all clusters taken out.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    pub vcpus: Vec<usize>,
    pub bytes: Vec<u64>,
    /// Bytes that may be relocated.
    pub budget: u64,
}

/// A whole placement, and what it is worth.
#[derive(Clone, Debug)]
struct Found {
    placed: Vec<Placed>,
    worth: f64,
    relocated_bytes: u64,
}

/// A placement that differs from another one in what becomes of a cluster.
struct Step {
    which: usize,
    placed: Placed,
    worth: f64,
    relocated_bytes: u64,
}

/// All clusters but one.
struct Others {
    room: Room,
    worth: f64,
    relocated_bytes: u64,
}

impl Found {
    fn take(&mut self, step: Step) {
        self.placed[step.which] = step.placed;
        (self.worth, self.relocated_bytes) = (step.worth, step.relocated_bytes);
    }
}

impl Cluster {
    fn relocated_bytes(&self, placed: &Placed) -> u64 {
        let nodes = self.nodes.iter().zip(placed).zip(&self.bytes);
        nodes.filter(|((from, to), _)| from != to).map(|(_, bytes)| bytes).sum()
    }

    /// Weighted bandwidth between its nodes; within a node, that of its own memory.
    fn worth(&self, topology: &Topology, placed: &Placed) -> f64 {
        let mut mb_s = 0.0;
        for (at, &from) in placed.iter().enumerate() {
            let others = placed.iter().enumerate().filter(|(other, _)| *other != at);
            mb_s += others.map(|(_, &to)| topology.bandwidth_mb_s(from, to)).sum::<f64>();
        }
        self.weight * mb_s
    }

    /// All of its placements for which not too much memory goes; none: there are too many.
    fn all(&self, topology: &Topology) -> Option<Vec<Placed>> {
        let mut all: Vec<Placed> = vec![Vec::new()];
        for (&from, &is_tied) in self.nodes.iter().zip(&self.is_tied) {
            let to: Vec<NumaNo> = if is_tied { vec![from] } else { topology.numbers().collect() };
            if all.len() * to.len() > PLACEMENTS_MAX {
                return None;
            }
            let longer = |placed: &Placed| -> Vec<Placed> {
                to.iter().map(|&to| [placed.as_slice(), &[to]].concat()).collect()
            };
            all = all.iter().flat_map(longer).collect();
        }
        all.retain(|placed| self.relocated_bytes(placed) <= self.bytes_max);
        Some(all)
    }
}

impl Room {
    /// The room that a cluster leaves of it there. None: it does not fit.
    fn with(&self, cluster: &Cluster, placed: &Placed) -> Option<Self> {
        let mut room = self.clone();
        for ((to, vcpus), bytes) in placed.iter().zip(&cluster.vcpus).zip(&cluster.bytes) {
            room.vcpus[to.0] = room.vcpus[to.0].checked_sub(*vcpus)?;
            room.bytes[to.0] = room.bytes[to.0].checked_sub(*bytes)?;
        }
        room.budget = room.budget.checked_sub(cluster.relocated_bytes(placed))?;
        Some(room)
    }
}

/// Where each cluster is to be, in their order.
///
/// # Arguments
/// * `room` - in which all of them fit where they are.
pub(crate) fn place(topology: &Topology, clusters: &[Cluster], room: &Room) -> Vec<Placed> {
    let search = Search { topology, clusters, room };
    let each: Option<Vec<_>> = clusters.iter().map(|cluster| cluster.all(topology)).collect();
    let few = each.filter(|each| {
        let all = each.iter().fold(1_usize, |all, one| all.saturating_mul(one.len()));
        topology.nodes().len() <= NODES_MAX && all <= PLACEMENTS_MAX
    });
    match few {
        Some(each) => search.all(&each),
        None => search.steps(),
    }
}

struct Search<'a> {
    topology: &'a Topology,
    clusters: &'a [Cluster],
    room: &'a Room,
}

impl Search<'_> {
    fn now(&self) -> Vec<Placed> {
        self.clusters.iter().map(|cluster| cluster.nodes.clone()).collect()
    }

    /// None: it does not fit.
    fn found(&self, placed: Vec<Placed>) -> Option<Found> {
        let (mut room, mut worth, mut relocated_bytes) = (self.room.clone(), 0.0, 0);
        for (cluster, placed) in self.clusters.iter().zip(&placed) {
            room = room.with(cluster, placed)?;
            let bytes = cluster.relocated_bytes(placed);
            if bytes > cluster.bytes_max {
                return None;
            }
            worth += cluster.worth(self.topology, placed);
            relocated_bytes += bytes;
        }
        Some(Found { placed, worth, relocated_bytes })
    }

    /// The best of all, leaving out what does not fit as soon as it does not.
    fn all(&self, each: &[Vec<Placed>]) -> Vec<Placed> {
        let none = Found { placed: Vec::new(), worth: 0.0, relocated_bytes: 0 };
        let mut found = vec![(none, self.room.clone())];
        for (cluster, of) in self.clusters.iter().zip(each) {
            let worth = |placed: &Placed| cluster.worth(self.topology, placed);
            let of: Vec<_> = of.iter().map(|placed| (placed, worth(placed))).collect();
            let longer = |(before, room): &(Found, Room)| -> Vec<(Found, Room)> {
                let fit = of.iter().filter_map(|&(placed, worth)| {
                    let room = room.with(cluster, placed)?;
                    let relocated_bytes = before.relocated_bytes + cluster.relocated_bytes(placed);
                    let worth = before.worth + worth;
                    let placed = [before.placed.as_slice(), std::slice::from_ref(placed)].concat();
                    Some((Found { placed, worth, relocated_bytes }, room))
                });
                fit.collect()
            };
            found = found.iter().flat_map(longer).collect();
        }
        let found: Vec<Found> = found.into_iter().map(|(found, _)| found).collect();
        let most = found.iter().map(|one| one.worth).fold(0.0, f64::max);
        let good = found.into_iter().filter(|one| one.worth >= NEARLY * most);
        let best = good.min_by(|one, other| {
            let bytes = one.relocated_bytes.cmp(&other.relocated_bytes);
            let stays = |found: &Found| found.placed != self.now();
            bytes
                .then(other.worth.total_cmp(&one.worth))
                .then_with(|| stays(one).cmp(&stays(other)))
        });
        best.map_or_else(|| self.now(), |best| best.placed)
    }

    /// From where all are, the best step each time; then back, as far as that costs little and spares memory.
    fn steps(&self) -> Vec<Placed> {
        let Some(mut best) = self.found(self.now()) else { return self.now() };
        loop {
            let steps = self.steps_from(&best.placed).into_iter();
            let most = steps.reduce(|one, other| if other.worth > one.worth { other } else { one });
            match most.filter(|step| step.worth > best.worth * (1.0 + 1e-9)) {
                Some(step) => best.take(step),
                None => break,
            }
        }
        let enough = NEARLY * best.worth;
        loop {
            let back = self.steps_from(&best.placed).into_iter();
            let back = back.filter(|step| step.relocated_bytes < best.relocated_bytes);
            let good = back.filter(|step| step.worth >= enough);
            match good.min_by_key(|step| step.relocated_bytes) {
                Some(step) => best.take(step),
                None => return best.placed,
            }
        }
    }

    /// All steps that fit: one or two nodes of a cluster go elsewhere, or all go to the same.
    fn steps_from(&self, placed: &[Placed]) -> Vec<Step> {
        let mut steps = Vec::new();
        for (which, cluster) in self.clusters.iter().enumerate() {
            let Some(others) = self.without(placed, which) else { continue };
            let mut step = |placed: Placed| {
                let relocated_bytes = cluster.relocated_bytes(&placed);
                let fits = others.room.with(cluster, &placed).is_some();
                if fits && relocated_bytes <= cluster.bytes_max {
                    steps.push(Step {
                        which,
                        worth: others.worth + cluster.worth(self.topology, &placed),
                        relocated_bytes: others.relocated_bytes + relocated_bytes,
                        placed,
                    });
                }
            };
            let from = &placed[which];
            let free: Vec<usize> =
                (0..cluster.nodes.len()).filter(|&at| !cluster.is_tied[at]).collect();
            for to in self.topology.numbers() {
                let mut together = from.clone();
                for &at in &free {
                    let mut one = from.clone();
                    (one[at], together[at]) = (to, to);
                    step(one);
                }
                step(together);
            }
            let pairs = free
                .iter()
                .enumerate()
                .flat_map(|(nth, &at)| free[nth + 1..].iter().map(move |&other| (at, other)));
            for (at, other) in pairs {
                for to in self.topology.numbers() {
                    for next in self.topology.numbers() {
                        let mut two = from.clone();
                        (two[at], two[other]) = (to, next);
                        step(two);
                    }
                }
            }
        }
        steps
    }

    /// What all clusters but one leave, and what they are worth. None: they do not fit.
    fn without(&self, placed: &[Placed], which: usize) -> Option<Others> {
        let mut others = Others { room: self.room.clone(), worth: 0.0, relocated_bytes: 0 };
        let each = self.clusters.iter().zip(placed).enumerate();
        for (_, (cluster, placed)) in each.filter(|(at, _)| *at != which) {
            others.room = others.room.with(cluster, placed)?;
            others.worth += cluster.worth(self.topology, placed);
            others.relocated_bytes += cluster.relocated_bytes(placed);
        }
        Some(others)
    }
}

#[cfg(test)]
#[path = "tests/placement.rs"]
mod tests;
