// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::host::even;

/// Nodes 0 and 1: a vCPU on the first, memory on the other.
fn split() -> Cluster {
    Cluster {
        nodes: vec![NumaNo(0), NumaNo(1)],
        weight: 1.0,
        vcpus: vec![1, 0],
        bytes: vec![0, 100],
        is_tied: vec![false, false],
        bytes_max: u64::MAX,
    }
}

/// So many vCPUs and bytes fit on each node.
fn room(vcpus: &[usize], bytes: &[u64]) -> Room {
    Room { vcpus: vcpus.into(), bytes: bytes.into(), budget: u64::MAX }
}

fn placed(host: &Topology, clusters: &[Cluster], room: &Room) -> Vec<Vec<usize>> {
    let found = place(host, clusters, room);
    found.into_iter().map(|placed| placed.into_iter().map(|numa| numa.0).collect()).collect()
}

/// Two nodes that read so much of their own memory, and less of the other's.
fn two(first: u32, second: u32) -> Topology {
    even(2, 1, 1).with_bandwidths(vec![vec![first, 1000], vec![1000, second]]).unwrap()
}

#[test]
fn least_memory_goes_where_that_is_worth_nearly_as_much() {
    let free = room(&[1, 1], &[200, 200]);
    assert_eq!(placed(&two(10_000, 10_000), &[split()], &free), [[1, 1]], "the vCPU goes");
    assert_eq!(placed(&two(10_000, 9000), &[split()], &free), [[1, 1]]);
    assert_eq!(placed(&two(10_000, 8999), &[split()], &free), [[0, 0]], "the memory goes");
}

#[test]
fn clusters_go_where_they_fit() {
    let host = two(10_000, 10_000);
    let of = |vcpus: &[usize], bytes: &[u64], budget, bytes_max, is_tied: &[bool]| {
        let room = Room { budget, ..room(vcpus, bytes) };
        let cluster = Cluster { bytes_max, is_tied: is_tied.into(), ..split() };
        placed(&host, &[cluster], &room).remove(0)
    };
    let (all, free) = (u64::MAX, [false, false]);
    assert_eq!(of(&[1, 0], &[200, 200], all, all, &free), [0, 0], "no CPU");
    assert_eq!(of(&[1, 0], &[99, 200], all, all, &free), [0, 1], "no CPU, and no memory");
    assert_eq!(of(&[1, 0], &[200, 200], 99, all, &free), [0, 1], "no budget");
    assert_eq!(of(&[1, 0], &[200, 200], all, 99, &free), [0, 1], "not for so short a run");
    assert_eq!(of(&[1, 1], &[200, 200], all, all, &[true, false]), [0, 0], "the vCPU is kept");
    assert_eq!(of(&[1, 1], &[200, 200], all, all, &[false, true]), [1, 1]);
    assert_eq!(of(&[1, 1], &[200, 200], all, all, &[true, true]), [0, 1]);
}

/// The heavier cluster gets the CPU that both want.
#[test]
fn heavier_cluster_gets_what_two_want() {
    let host = two(10_000, 10_000);
    let heavy = Cluster { weight: 2.0, ..split() };
    let (free, budget) = (room(&[1, 1], &[0, 300]), u64::MAX);
    let room = Room { budget, ..free };
    assert_eq!(placed(&host, &[split(), heavy.clone()], &room), [[0, 1], [1, 1]]);
    assert_eq!(placed(&host, &[heavy, split()], &room), [[1, 1], [0, 1]]);
}

/// Nodes in pairs; between those of the last pair there is more bandwidth than between others. A cluster of two vCPUs
/// on each of the first two nodes, which hold no more.
fn pairs(nodes: u32) -> (Topology, Cluster, Room) {
    let fast = |from: u32, to: u32| from / 2 == to / 2 && from / 2 == (nodes - 1) / 2;
    let mb_s = |from: u32, to: u32| match from == to {
        true => 9000,
        false if fast(from, to) => 6000,
        false => 2000,
    };
    let row = |from| (0..nodes).map(|to| mb_s(from, to)).collect();
    let host = even(nodes, 2, 1).with_bandwidths((0..nodes).map(row).collect()).unwrap();
    let cluster = Cluster { vcpus: vec![2, 2], bytes: vec![50, 50], ..split() };
    let each = nodes as usize;
    (host, cluster, room(&vec![2; each], &vec![100; each]))
}

#[test]
fn cluster_goes_where_there_is_more_bandwidth_between_its_nodes() {
    let (host, cluster, room) = pairs(4);
    let mut found = placed(&host, &[cluster], &room).remove(0);
    found.sort_unstable();
    assert_eq!(found, [2, 3]);
}

#[test]
fn on_more_than_eight_nodes_a_better_placement_is_found_step_by_step() {
    let (host, cluster, room) = pairs(10);
    assert!(host.nodes().len() > NODES_MAX);
    let mut found = placed(&host, std::slice::from_ref(&cluster), &room).remove(0);
    found.sort_unstable();
    assert_eq!(found, [8, 9]);
    // what is worth nearly as much spares memory: the vCPU goes to its memory, wherever else both could go
    assert_eq!(placed(&host, &[split()], &room), [[1, 1]]);
}

#[test]
fn steps_leave_what_may_not_go() {
    let (host, _, room) = pairs(10);
    let of = |bytes_max, is_tied: [bool; 2]| {
        let cluster = Cluster { bytes_max, is_tied: is_tied.into(), ..split() };
        placed(&host, &[cluster], &room).remove(0)
    };
    assert_eq!(of(100, [true, false]), [0, 0]);
    assert_eq!(of(99, [true, false]), [0, 1], "not for so short a run");
    assert_eq!(of(100, [true, true]), [0, 1]);
}

#[test]
fn steps_take_back_all_that_is_hardly_worth_it() {
    let (host, _, room) = pairs(10);
    let at = |first: usize, weight| Cluster {
        nodes: vec![NumaNo(first), NumaNo(first + 1)],
        is_tied: vec![true, false],
        weight,
        ..split()
    };
    let clusters = [at(0, 100.0), at(2, 1.0), at(4, 1.0)];
    assert_eq!(placed(&host, &clusters, &room), [[0, 0], [2, 3], [4, 5]]);
    let clusters = [at(0, 2.0), at(2, 1.0), at(4, 1.0)];
    assert_eq!(placed(&host, &clusters, &room), [[0, 0], [2, 2], [4, 4]]);
}

/// Nodes between which there is any bandwidth.
fn any(nodes: u32, random: &mut fastrand::Rng) -> Topology {
    let mut row = || (0..nodes).map(|_| random.u32(1000..9000)).collect();
    let mb_s = (0..nodes).map(|_| row()).collect();
    even(nodes, 2, 1).with_bandwidths(mb_s).unwrap()
}

/// Too many to try all: the steps get as far on what both can do.
#[test]
fn steps_get_nearly_as_far_as_trying_all() {
    let mut random = fastrand::Rng::with_seed(31);
    for _ in 0..300 {
        let host = any(3, &mut random);
        let mut cluster = || {
            let first = random.usize(0..3);
            let nodes = vec![NumaNo(first), NumaNo((first + 1) % 3)];
            let bytes = vec![random.u64(0..50), random.u64(0..50)];
            Cluster { nodes, bytes, weight: 1.0 + random.f64(), ..split() }
        };
        let clusters = [cluster(), cluster()];
        let room = room(&[2, 2, 2], &[100, 100, 100]);
        let search = Search { topology: &host, clusters: &clusters, room: &room };
        let each: Vec<_> = clusters.iter().map(|one| one.all(&host).unwrap()).collect();
        let worth = |placed| search.found(placed).map(|found| found.worth);
        let (all, steps) = (worth(search.all(&each)), worth(search.steps()));
        let (Some(all), Some(steps)) = (all, steps) else { panic!("it does not fit") };
        let now = worth(search.now()).unwrap();
        assert!(steps >= now.min(NEARLY * all), "{steps} of {all}, from {now}");
        assert!(steps >= NEARLY * NEARLY * all, "{steps} of {all}");
    }
}

/// A difference that is added is the sum anew.
#[test]
fn what_few_nodes_change_is_what_all_add_up_to() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..200 {
        let host = any(4, &mut random);
        let count = random.usize(2..6);
        let mut numas = || -> Placed { (0..count).map(|_| NumaNo(random.usize(0..4))).collect() };
        let (nodes, from) = (numas(), numas());
        let bytes = (0..count as u64).map(|at| 1 << at).collect();
        let rest = (vec![0; count], vec![false; count]);
        let cluster =
            Cluster { nodes, bytes, weight: 1.0, vcpus: rest.0, is_tied: rest.1, ..split() };
        let ways = Ways::of(&cluster, &host, &from);
        let check = |(mb_s, bytes): (f64, u64), placed: &Placed| {
            assert!((mb_s - cluster.worth(&host, placed)).abs() < 1e-6, "{placed:?} from {from:?}");
            assert_eq!(bytes, cluster.relocated_bytes(placed), "{placed:?} from {from:?}");
        };
        let (at, to, next) = (random.usize(0..count), random.usize(0..4), random.usize(0..4));
        let other = (at + random.usize(1..count)) % count;
        let mut placed = from.clone();
        placed[at] = NumaNo(to);
        check(ways.one(at, NumaNo(to)), &placed);
        placed[other] = NumaNo(next);
        check(ways.two((at, NumaNo(to)), (other, NumaNo(next))), &placed);
    }
}
