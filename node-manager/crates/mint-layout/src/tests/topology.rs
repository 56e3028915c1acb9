// SPDX-License-Identifier: Apache-2.0
use super::*;

fn node(id: u32, caches: &[&str], distances: &[u32]) -> NumaNode {
    NumaNode {
        id: NumaId(id),
        caches: caches.iter().map(|cpus| cpus.parse().unwrap()).collect(),
        memory_bytes: 1 << 30,
        distances: distances.into(),
    }
}

#[test]
fn caches_of_numbered_nodes_with_gaps() {
    let nodes = vec![
        node(2, &["0-1", "4"], &[10, 21, 31]),
        node(5, &[], &[21, 10, 15]),
        node(7, &["2-3"], &[31, 15, 10]),
    ];
    let host = Topology::new(nodes).unwrap();
    let numas: Vec<usize> = host.domains().iter().map(|domain| domain.numa.0).collect();
    assert_eq!(numas, [0, 0, 2], "memory alone has none");
    assert_eq!((host.domain_of(4), host.domain_of(9)), (Some(DomainNo(1)), None));
    assert_eq!((host.number(NumaId(7)), host.number(NumaId(0))), (Some(NumaNo(2)), None));
    assert_eq!(host.id(NumaNo(1)).to_string(), "numa5");
    assert!((host.distance(NumaNo(0), NumaNo(2)) - 3.1).abs() < 1e-9);
    assert_eq!(host.without(1 << 20).nodes()[1].memory_bytes, (1 << 30) - (1 << 20));
    assert_eq!(host.without(1 << 31).nodes()[0].memory_bytes, 0);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let two = |one: NumaNode, other: NumaNode| Topology::new(vec![one, other]).unwrap_err();
    let (near, far) = ([10, 20], [20, 10]);
    assert_eq!(two(node(1, &["0"], &near), node(1, &["1"], &far)), TopologyError::Twice(NumaId(1)));
    assert_eq!(two(node(0, &["0-2"], &near), node(1, &["2"], &far)), TopologyError::Cpu(2));
    assert_eq!(two(node(0, &[], &near), node(1, &[], &far)), TopologyError::NoCpu);
    for distances in [vec![10], vec![20, 20], vec![10, 9], vec![]] {
        let error = two(node(0, &["0"], &distances), node(1, &["1"], &far));
        assert_eq!(error, TopologyError::Distances(NumaId(0), distances));
    }
}

#[test]
fn bandwidths_that_nobody_tells_follow_from_distances() {
    let nodes = vec![node(0, &["0"], &[10, 40]), node(1, &["1"], &[25, 10])];
    let host = Topology::new(nodes).unwrap();
    let mb_s = |host: &Topology, from, to| host.bandwidth_mb_s(NumaNo(from), NumaNo(to));
    assert!((mb_s(&host, 0, 0) - 20_000.0).abs() < 1e-9);
    assert!((mb_s(&host, 0, 1) - 5000.0).abs() < 1e-9);
    assert_eq!(host.by_bandwidth(), host);
    let told = host.clone().with_bandwidths(vec![vec![12_000, 4000], vec![6000, 3000]]).unwrap();
    assert!((mb_s(&told, 1, 0) - 6000.0).abs() < 1e-9);
    assert!((told.distance(NumaNo(0), NumaNo(1)) - 4.0).abs() < 1e-9, "distances are as they were");
    let far = told.by_bandwidth();
    assert_eq!(far.nodes()[0].distances, [10, 30]);
    assert_eq!(far.nodes()[1].distances, [10, 10], "nothing is nearer than its own");
    for bad in [vec![vec![1, 1]], vec![vec![1, 1], vec![1]], vec![vec![1, 1], vec![0, 1]]] {
        let row = bad.get(1).cloned().unwrap_or_default();
        let error = host.clone().with_bandwidths(bad).unwrap_err();
        assert_eq!(error, TopologyError::Bandwidths(NumaId(1), row));
    }
}

#[test]
fn nodes_are_as_far_as_was_measured_and_none_is_nearer_than_its_own() {
    let nodes = vec![
        node(0, &["0"], &[10, 40, 40]),
        node(1, &["1"], &[25, 10, 40]),
        // memory alone, and CPUs alone
        node(2, &[], &[33, 33, 10]),
    ];
    let host = Topology::new(nodes).unwrap();
    let row = |ns: [f64; 3]| ns.map(|ns| (ns > 0.0).then_some(ns)).to_vec();
    let far = |rows: [[f64; 3]; 3]| {
        let far = host.clone().with_latencies(&rows.map(row)).unwrap();
        far.nodes().iter().map(|node| node.distances.clone()).collect::<Vec<_>>()
    };
    let measured = far([[80.0, 164.0, 96.4], [70.0, 100.0, 1e9], [0.0; 3]]);
    assert_eq!(measured, [vec![10, 21, 12], vec![10, 10, 254], vec![33, 33, 10]]);
    // of what its own would be nobody knows, nor of how far the first one is
    let part = far([[80.0, 0.0, 160.0], [70.0, 0.0, 90.0], [0.0; 3]]);
    assert_eq!(part, [vec![10, 40, 20], vec![25, 10, 40], vec![33, 33, 10]]);
    let good = row([80.0, 90.0, 90.0]);
    for bad in [vec![], vec![Some(1.0); 2], vec![Some(1.0); 4]] {
        let error = host.clone().with_latencies(&[good.clone(), bad]).unwrap_err();
        assert_eq!(error, TopologyError::Latencies(NumaId(1)));
    }
    let short = host.clone().with_latencies(std::slice::from_ref(&good)).unwrap_err();
    assert_eq!(short, TopologyError::Latencies(NumaId(1)));
    for bad in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
        let rows = [good.clone(), vec![Some(80.0), Some(bad), None], good.clone()];
        let error = host.clone().with_latencies(&rows).unwrap_err();
        assert_eq!(error, TopologyError::Latencies(NumaId(1)), "{bad}");
    }
}
