// SPDX-License-Identifier: Apache-2.0
//! How far a policy is from the best layout that there is, found by trying all.

use fastrand::Rng;

use crate::cost::{Weight, weights};
use crate::host::{MIB, counted, distances};
use crate::snapshot::{Guest, GuestId, Region, Snapshot, Vcpu};
use crate::topology::{DomainNo, NumaId, NumaNo, NumaNode, Topology};
use crate::{Cost, Limits, Policy, Simple};

/// Cycles a second that guests wait at least, wherever their single vCPUs run and each byte of their memory lies:
/// a bound that no layout of whole regions is below.
fn least_wait(snapshot: &Snapshot, host: &Topology) -> f64 {
    let weights = weights(snapshot);
    let slots: Vec<usize> = host.domains().iter().map(|domain| domain.cpus.len()).collect();
    let mut least = f64::INFINITY;
    let mut chosen = Vec::new();
    choose(&weights, host, slots, &mut chosen, &mut least);
    least
}

/// Tries all domains for the guests after those that have one.
fn choose(
    weights: &[Weight],
    host: &Topology,
    slots: Vec<usize>,
    chosen: &mut Vec<Vec<f64>>,
    least: &mut f64,
) {
    let Some(weight) = weights.get(chosen.len()) else {
        *least = least.min(Memory::of(weights, host, chosen).least_wait());
        return;
    };
    for domain in 0..slots.len() {
        let mut left = slots.clone();
        let Some(less) = left[domain].checked_sub(1) else { continue };
        left[domain] = less;
        chosen.push(weight.waits(host, &[DomainNo(domain)]));
        choose(weights, host, left, chosen, least);
        chosen.pop();
    }
}

/// Which bytes go where for the least, once vCPUs have their places: a transport problem, solved by ways of
/// least cost (successive shortest paths).
struct Memory {
    /// Cycles a second for a MiB of a region on each NUMA node.
    costs: Vec<Vec<f64>>,
    regions: Vec<f64>,
    room: Vec<f64>,
    placed: Vec<Vec<f64>>,
}

impl Memory {
    fn of(weights: &[Weight], host: &Topology, waits: &[Vec<f64>]) -> Self {
        let (mut costs, mut regions) = (Vec::new(), Vec::new());
        for (weight, waits) in weights.iter().zip(waits) {
            for (share, &bytes) in weight.shares.iter().zip(&weight.bytes) {
                let mib = bytes as f64 / MIB as f64;
                costs.push(waits.iter().map(|wait| wait * share / mib).collect());
                regions.push(mib);
            }
        }
        let room = host.nodes().iter().map(|node| node.memory_bytes as f64 / MIB as f64);
        let placed = vec![vec![0.0; host.nodes().len()]; regions.len()];
        Self { costs, regions, room: room.collect(), placed }
    }

    fn least_wait(mut self) -> f64 {
        for region in 0..self.regions.len() {
            while self.regions[region] > 1e-9 {
                self.place(region);
            }
        }
        let each = self.placed.iter().zip(&self.costs);
        each.map(|(mib, costs)| mib.iter().zip(costs).map(|(mib, cost)| mib * cost).sum::<f64>())
            .sum()
    }

    /// Some of a region where that is cheapest, others giving way as far as it pays (Bellman and Ford).
    fn place(&mut self, region: usize) {
        let nodes = self.room.len();
        let mut cost = self.costs[region].clone();
        // whose bytes go from which node to this one
        let mut before: Vec<Option<(usize, usize)>> = vec![None; nodes];
        for _ in 0..nodes {
            for other in 0..self.costs.len() {
                for from in 0..nodes {
                    if self.placed[other][from] < 1e-9 {
                        continue;
                    }
                    for to in 0..nodes {
                        let there = cost[from] + self.costs[other][to] - self.costs[other][from];
                        if there < cost[to] - 1e-9 * cost[to].abs().max(1.0) {
                            (cost[to], before[to]) = (there, Some((other, from)));
                        }
                    }
                }
            }
        }
        let roomy = (0..nodes).filter(|&node| self.room[node] > 1e-9);
        let end = roomy.min_by(|&one, &other| cost[one].total_cmp(&cost[other]));
        let end = end.expect("all regions fit");
        let mut most = self.regions[region].min(self.room[end]);
        let (mut at, mut steps) = (end, 0);
        while let Some((other, from)) = before[at] {
            most = most.min(self.placed[other][from]);
            (at, steps) = (from, steps + 1);
            assert!(steps <= nodes, "round in a circle");
        }
        self.room[end] -= most;
        self.regions[region] -= most;
        at = end;
        while let Some((other, from)) = before[at] {
            self.placed[other][from] -= most;
            self.placed[other][at] += most;
            at = from;
        }
        self.placed[region][at] += most;
    }
}

/// Up to four NUMA nodes of one or two CPUs, and up to six guests of one vCPU: a hot, a warm and a cold region each,
/// anywhere.
fn crowded(random: &mut Rng) -> (Snapshot, Topology) {
    let nodes = random.usize(2..=4);
    let distances = distances(nodes, || random.u32(14..32));
    let cpus: Vec<u32> = (0..nodes).map(|_| random.u32(1..=2)).collect();
    let guests = cpus.iter().sum::<u32>().min(6) as usize;
    let room = (guests * 576 * 5 / 4 / nodes) as u64;
    let mut first = 0;
    let node = |(at, distances): (usize, Vec<u32>)| {
        let all = first..first + cpus[at];
        first = all.end;
        NumaNode {
            id: NumaId(u32::try_from(at).unwrap()),
            caches: vec![all.collect()],
            // a quarter more than all guests have
            memory_bytes: room * MIB,
            distances,
        }
    };
    let host = Topology::new(distances.into_iter().enumerate().map(node).collect()).unwrap();
    let mut domains: Vec<usize> =
        cpus.iter().enumerate().flat_map(|(at, &n)| vec![at; n as usize]).collect();
    random.shuffle(&mut domains);
    domains.truncate(guests);
    let mut free = vec![room; nodes];
    let mut guest = |(at, domain): (usize, usize)| {
        let mut offset = 0;
        let mut region = |(mib, heat): (u64, f64)| {
            let start = offset;
            offset += mib * MIB;
            let roomy: Vec<usize> = (0..nodes).filter(|&numa| free[numa] >= mib).collect();
            let numa = random.choice(roomy).expect("small regions find room");
            free[numa] -= mib;
            Region { offset: start, bytes: mib * MIB, numa: NumaNo(numa), heat: Some(heat) }
        };
        let regions = [(128, 100.0), (192, 10.0), (256, 0.1)].map(&mut region).into();
        let samples = counted(if random.bool() { 60.0 * random.f64() } else { 3.0 * random.f64() });
        let vcpu = Vcpu { domain: DomainNo(domain), allowed: [].into_iter().collect(), samples };
        Guest { id: GuestId(format!("g{at}")), vcpus: vec![vcpu], regions, is_fixed: false }
    };
    let guests = domains.into_iter().enumerate().map(&mut guest).collect();
    (Snapshot { guests }, host)
}

/// Of cycles that guests wait; work is the same in all layouts.
#[test]
fn simple_is_near_the_best_layout_that_there_is() {
    let mut random = Rng::with_seed(21);
    let mut regrets = Vec::new();
    let mut left = Vec::new();
    while regrets.len() < 40 {
        let (snapshot, host) = crowded(&mut random);
        let limits = Limits { gain: 0.0, ..Limits::default() };
        let plan = Simple::default().plan(&snapshot, &host, &limits).unwrap();
        let best = least_wait(&snapshot, &host);
        let before = Cost::of(&snapshot, &host).wait_cycles_s;
        let after = Cost::of(&plan.done(&snapshot, &host), &host).wait_cycles_s;
        assert!(after >= best * (1.0 - 1e-9), "better than the best: {after}, {best}");
        regrets.push(after / best - 1.0);
        left.push(before / best - 1.0);
    }
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let (regret, left) = (median(&mut regrets), median(&mut left));
    println!("regret {regret:.3}, without a plan {left:.3}; {regrets:.2?}");
    assert!(left > 0.4, "the lot draws layouts that are good anyway: {left}");
    assert!(regret <= 0.15, "median regret {regret}: {regrets:?}");
}
