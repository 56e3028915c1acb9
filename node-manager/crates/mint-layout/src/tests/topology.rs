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
