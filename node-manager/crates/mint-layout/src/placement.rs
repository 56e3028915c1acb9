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

/// A whole placement, and the room that it leaves.
struct State {
    found: Found,
    room: Room,
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
        room.take(cluster, placed).then_some(room)
    }

    /// A cluster takes its part. Whether it fits; if not, it has taken some of it.
    fn take(&mut self, cluster: &Cluster, placed: &Placed) -> bool {
        for ((to, vcpus), bytes) in placed.iter().zip(&cluster.vcpus).zip(&cluster.bytes) {
            let vcpus = self.vcpus[to.0].checked_sub(*vcpus);
            let (Some(vcpus), Some(bytes)) = (vcpus, self.bytes[to.0].checked_sub(*bytes)) else {
                return false;
            };
            (self.vcpus[to.0], self.bytes[to.0]) = (vcpus, bytes);
        }
        let left = self.budget.checked_sub(cluster.relocated_bytes(placed));
        self.budget = left.unwrap_or_default();
        left.is_some()
    }

    /// A cluster gives its part back.
    fn leave(&mut self, cluster: &Cluster, placed: &Placed) {
        for ((to, vcpus), bytes) in placed.iter().zip(&cluster.vcpus).zip(&cluster.bytes) {
            self.vcpus[to.0] += vcpus;
            self.bytes[to.0] += bytes;
        }
        self.budget = self.budget.saturating_add(cluster.relocated_bytes(placed));
    }

    /// Becomes what another one is, without another place for it.
    fn copy(&mut self, other: &Self) {
        self.vcpus.copy_from_slice(&other.vcpus);
        self.bytes.copy_from_slice(&other.bytes);
        self.budget = other.budget;
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

    /// From where all are, each cluster takes its best step in turn, as long as one gains; then back, as far as that
    /// costs little and spares memory, what spares most first.
    fn steps(&self) -> Vec<Placed> {
        let Some(found) = self.found(self.now()) else { return self.now() };
        let mut room = self.room.clone();
        for (cluster, placed) in self.clusters.iter().zip(&found.placed) {
            // as found() has seen
            room.take(cluster, placed);
        }
        let mut state = State { found, room };
        let mut is_better = true;
        while is_better {
            is_better = false;
            for which in 0..self.clusters.len() {
                let least = state.found.worth * (1.0 + 1e-9);
                let best =
                    self.best(&state, which, |step| (step.worth > least).then_some(step.worth));
                is_better |= best.is_some();
                best.into_iter().for_each(|step| self.take(&mut state, step));
            }
        }
        let enough = NEARLY * state.found.worth;
        loop {
            let mut back: Vec<Step> =
                (0..self.clusters.len()).filter_map(|at| self.back(&state, at, enough)).collect();
            if back.is_empty() {
                return state.found.placed;
            }
            back.sort_by_key(|step| step.relocated_bytes);
            for Step { which, .. } in back {
                // others have changed what it is worth
                if let Some(step) = self.back(&state, which, enough) {
                    self.take(&mut state, step);
                }
            }
        }
    }

    fn take(&self, state: &mut State, step: Step) {
        let State { found, room } = state;
        let cluster = &self.clusters[step.which];
        room.leave(cluster, &found.placed[step.which]);
        room.take(cluster, &step.placed);
        found.placed[step.which] = step.placed;
        (found.worth, found.relocated_bytes) = (step.worth, step.relocated_bytes);
    }

    /// The step of a cluster that spares most memory, of those that leave enough worth.
    fn back(&self, state: &State, which: usize, enough: f64) -> Option<Step> {
        let now = state.found.relocated_bytes;
        self.best(state, which, |step| {
            let is_one = step.relocated_bytes < now && step.worth >= enough;
            is_one.then(|| -(step.relocated_bytes as f64))
        })
    }

    /// A cluster's best step of those that fit: one or two of its nodes go elsewhere, or all go to the same. None: no
    /// step has a value.
    fn best(
        &self,
        state: &State,
        which: usize,
        value: impl Fn(&Step) -> Option<f64>,
    ) -> Option<Step> {
        let (cluster, from) = (&self.clusters[which], &state.found.placed[which]);
        let mut room = state.room.clone();
        room.leave(cluster, from);
        let others = state.found.worth - cluster.worth(self.topology, from);
        let others_bytes = state.found.relocated_bytes - cluster.relocated_bytes(from);
        let mut left = room.clone();
        let mut step = Step { which, placed: from.clone(), worth: 0.0, relocated_bytes: 0 };
        let mut best: Option<(f64, Step)> = None;
        // what it is worth is known before where all of it is
        let mut look = |worth: f64, bytes: u64, placed: &dyn Fn(&mut Placed)| {
            (step.worth, step.relocated_bytes) = (others + worth, others_bytes + bytes);
            let Some(value) = value(&step) else { return };
            if bytes > cluster.bytes_max || best.as_ref().is_some_and(|(most, _)| value <= *most) {
                return;
            }
            step.placed.copy_from_slice(from);
            placed(&mut step.placed);
            left.copy(&room);
            if left.take(cluster, &step.placed) {
                best = Some((value, Step { placed: step.placed.clone(), ..step }));
            }
        };
        let free: Vec<usize> =
            (0..cluster.nodes.len()).filter(|&at| !cluster.is_tied[at]).collect();
        let ways = Ways::of(cluster, self.topology, from);
        let mut all = from.clone();
        for to in self.topology.numbers() {
            for &at in &free {
                let (mb_s, bytes) = ways.one(at, to);
                look(cluster.weight * mb_s, bytes, &|placed| placed[at] = to);
            }
            free.iter().for_each(|&at| all[at] = to);
            let (worth, bytes) =
                (cluster.worth(self.topology, &all), cluster.relocated_bytes(&all));
            look(worth, bytes, &|placed| free.iter().for_each(|&at| placed[at] = to));
        }
        for (nth, &at) in free.iter().enumerate() {
            for &other in &free[nth + 1..] {
                for to in self.topology.numbers() {
                    for next in self.topology.numbers() {
                        let (mb_s, bytes) = ways.two((at, to), (other, next));
                        let placed = |placed: &mut Placed| (placed[at], placed[other]) = (to, next);
                        look(cluster.weight * mb_s, bytes, &placed);
                    }
                }
            }
        }
        let mut step = best?.1;
        // to the last digit, as many small differences add up
        step.worth = others + cluster.worth(self.topology, &step.placed);
        Some(step)
    }
}

/// What a cluster's placements are worth, and what goes for them, that differ from one by few nodes: from that one's, as
/// adding all up takes long.
struct Ways<'a> {
    cluster: &'a Cluster,
    from: &'a Placed,
    /// Between two NUMA nodes, to and fro.
    both_mb_s: Vec<Vec<f64>>,
    /// Of one of the cluster's nodes, were it on a NUMA node: to and from all others of the cluster.
    mb_s: Vec<Vec<f64>>,
    all_mb_s: f64,
    all_bytes: u64,
}

impl<'a> Ways<'a> {
    fn of(cluster: &'a Cluster, topology: &Topology, from: &'a Placed) -> Self {
        let both =
            |one, other| topology.bandwidth_mb_s(one, other) + topology.bandwidth_mb_s(other, one);
        let both_mb_s: Vec<Vec<f64>> = topology
            .numbers()
            .map(|one| topology.numbers().map(|other| both(one, other)).collect())
            .collect();
        let of = |at: usize, numa: NumaNo| -> f64 {
            let others = from.iter().enumerate().filter(|(other, _)| *other != at);
            others.map(|(_, other)| both_mb_s[numa.0][other.0]).sum()
        };
        let mb_s: Vec<Vec<f64>> = (0..from.len())
            .map(|at| topology.numbers().map(|numa| of(at, numa)).collect())
            .collect();
        let each = mb_s.iter().zip(from).map(|(of, now)| of[now.0]);
        // each pair was added up twice
        let (all_mb_s, all_bytes) = (each.sum::<f64>() / 2.0, cluster.relocated_bytes(from));
        Self { cluster, from, both_mb_s, mb_s, all_mb_s, all_bytes }
    }

    fn bytes(&self, at: usize, numa: NumaNo) -> u64 {
        if self.cluster.nodes[at] == numa { 0 } else { self.cluster.bytes[at] }
    }

    /// One of its nodes goes to a NUMA node.
    fn one(&self, at: usize, to: NumaNo) -> (f64, u64) {
        let (now, of) = (self.from[at], &self.mb_s[at]);
        let bytes = self.all_bytes - self.bytes(at, now) + self.bytes(at, to);
        (self.all_mb_s - of[now.0] + of[to.0], bytes)
    }

    /// Two of them go.
    fn two(&self, (at, to): (usize, NumaNo), (other, next): (usize, NumaNo)) -> (f64, u64) {
        let (was, others) = (self.from[at], self.from[other]);
        let (first, bytes) = self.one(at, to);
        let between = |one: NumaNo, other: NumaNo| self.both_mb_s[one.0][other.0];
        // the other one is measured by where the first was: that changes with it
        let second = self.mb_s[other][next.0] - self.mb_s[other][others.0];
        let moved =
            between(to, next) - between(was, next) - between(to, others) + between(was, others);
        let bytes = bytes - self.bytes(other, others) + self.bytes(other, next);
        (first + second + moved, bytes)
    }
}

#[cfg(test)]
#[path = "tests/placement.rs"]
mod tests;
