// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::host::{MIB, even, filled, guest, snapshot};
use crate::snapshot::{Guest, Vcpu};
use crate::topology::DomainNo;
use crate::{NumaId, PolicyError};

fn arranged(snapshot: &Snapshot, host: &Topology) -> Plan {
    Carrefour.plan(snapshot, host, &Limits::default()).unwrap()
}

/// A guest with a vCPU in each of these domains, of the same samples.
fn wide(
    name: &str,
    domains: &[usize],
    misses: f64,
    parts: &[f64],
    regions: &[(u64, usize, f64)],
) -> Guest {
    let mut one = guest(name, 0, filled(misses, parts), regions);
    let vcpu = one.vcpus[0].clone();
    let at = |&domain: &usize| Vcpu { domain: DomainNo(domain), ..vcpu.clone() };
    one.vcpus = domains.iter().map(at).collect();
    one
}

#[test]
fn memory_goes_to_the_node_that_alone_reads_it() {
    let host = even(2, 2, 512 * MIB);
    let web = |misses| {
        wide("web", &[0, 0], misses, &[0.1, 0.9], &[(64, 0, 1.0), (63, 1, 9.0), (64, 1, 0.0)])
    };
    let plan = arranged(&snapshot([web(40.0)]), &host);
    let told: Vec<_> =
        plan.relocations.iter().map(|one| (one.offset / MIB, one.bytes / MIB, one.to)).collect();
    assert_eq!(told, [(64, 63, NumaId(0))], "what nobody reads stays");
    assert_eq!(plan.pins, []);
    // 2 x 2.4e7 lines a second are fewer than 50 in a microsecond
    assert!(arranged(&snapshot([web(24.0)]), &host).is_empty());
    assert!(!arranged(&snapshot([web(26.0)]), &host).is_empty());
}

/// Both thresholds: four of five lines are from the reader's own node, and nodes are asked for as much.
#[test]
fn what_is_near_and_even_enough_stays() {
    let host = even(2, 2, 512 * MIB);
    let of = |near: f64| {
        let (one, other) = ([near, 1.0 - near], [1.0 - near, near]);
        let regions = |own: usize| [(64, own, near), (64, 1 - own, 1.0 - near)];
        let all = snapshot([
            wide("a", &[0], 60.0, &one, &regions(0)),
            wide("b", &[1], 60.0, &other, &regions(1)),
        ]);
        arranged(&all, &host).relocated_bytes() / MIB
    };
    assert_eq!(of(0.81), 0);
    assert_eq!(of(0.79), 128);
}

/// Each of its nodes reads all of it, and one has all of it: it is spread, until nodes are asked for about as much.
#[test]
fn what_several_nodes_read_is_spread() {
    let host = even(2, 4, 512 * MIB);
    let domains = [0, 0, 0, 0, 1, 1, 1, 1];
    let all = snapshot([wide("web", &domains, 60.0, &[1.0, 0.0], &[(200, 0, 1.0)])]);
    let plan = arranged(&all, &host);
    // deviation by mean is 1 - 2 x what went: below 0.35 when 33 of 100 pieces have
    let went = plan.relocated_bytes() / MIB;
    assert_eq!(went, 66, "{plan:?}");
    assert!(plan.relocations.len() > 4, "not all from one end: {}", plan.relocations.len());
    // as it is now, nodes are even enough
    let mut there = plan.done(&all, &host);
    for vcpu in &mut there.guests[0].vcpus {
        vcpu.samples = filled(60.0, &[0.67, 0.33]);
    }
    assert!(arranged(&there, &host).is_empty());
}

#[test]
fn pieces_go_where_fewest_lines_come_from() {
    let host = even(3, 4, 512 * MIB);
    let mut nodes = Nodes::of(&host, &[70.0, 30.0, 0.0]);
    let mut went = [0; 3];
    for _ in 0..100 {
        if let Some(to) = nodes.deal(NumaNo(0), |_| true) {
            went[to.0] += 1;
        }
    }
    // 70 of 100; to the others as 0.7 and 1
    assert!(went == [0, 29, 41] || went == [0, 28, 41], "{went:?}");
    let mut nodes = Nodes::of(&host, &[100.0, 0.0, 0.0]);
    assert_eq!(nodes.deal(NumaNo(0), |numa| numa.0 == 2), Some(NumaNo(2)), "the other is full");
    assert_eq!(nodes.deal(NumaNo(0), |_| false), None);
}

#[test]
fn node_without_memory_counts_as_none() {
    let mut nodes: Vec<_> = even(3, 2, 512 * MIB).nodes().to_vec();
    nodes[2].memory_bytes = 0;
    let host = Topology::new(nodes).unwrap();
    assert!(!Nodes::of(&host, &[50.0, 50.0, 0.0]).is_uneven());
    assert!(Nodes::of(&even(3, 2, 512 * MIB), &[50.0, 50.0, 0.0]).is_uneven());
}

#[test]
fn piece_that_is_hardly_read_stays_unless_nodes_are_uneven() {
    let host = even(2, 4, 2048 * MIB);
    let cold = 1e-4;
    // of 1.2e8 lines a second, 1.2e4 a piece are of the cold one
    let web = wide("web", &[0, 0], 60.0, &[0.5, 0.5], &[(64, 0, 1.0), (2, 1, cold), (64, 1, 1.0)]);
    let even_nodes = snapshot([web.clone()]);
    let bytes = arranged(&even_nodes, &host).relocated_bytes() / MIB;
    assert_eq!(bytes, 64);
    let mut other = wide("other", &[1, 1, 1], 60.0, &[0.0, 1.0], &[(64, 1, 1.0)]);
    other.is_fixed = true;
    let uneven = snapshot([web, other]);
    assert_eq!(arranged(&uneven, &host).relocated_bytes() / MIB, 0, "most lines are local");
    let mut far = uneven;
    far.guests[1].vcpus.iter_mut().for_each(|vcpu| vcpu.domain = DomainNo(0));
    assert_eq!(arranged(&far, &host).relocated_bytes() / MIB, 66);
}

#[test]
fn what_is_read_most_goes_as_far_as_there_is_room_and_budget() {
    let web = || wide("web", &[0, 0], 60.0, &[0.0, 1.0], &[(32, 1, 1.0), (32, 1, 9.0)]);
    let went = |memory_bytes, relocated_bytes| {
        let limits = Limits { relocated_bytes, ..Limits::default() };
        let plan = Carrefour.plan(&snapshot([web()]), &even(2, 2, memory_bytes), &limits).unwrap();
        let first = plan.relocations.first().map(|one| one.offset / MIB);
        (first, plan.relocated_bytes() / MIB)
    };
    assert_eq!(went(512 * MIB, u64::MAX), (Some(0), 64));
    assert_eq!(went(512 * MIB, 33 * MIB), (Some(32), 32));
    let mut full = guest("full", 0, filled(0.1, &[1.0, 0.0]), &[(480, 0, 1.0)]);
    full.is_fixed = true;
    let plan = arranged(&snapshot([full, web()]), &even(2, 2, 512 * MIB));
    assert_eq!((plan.relocations[0].offset / MIB, plan.relocated_bytes() / MIB), (32, 32));
    let mut fixed = web();
    fixed.is_fixed = true;
    assert!(arranged(&snapshot([fixed]), &even(2, 2, 512 * MIB)).is_empty());
}

#[test]
fn heat_that_nobody_knows_is_asked_for() {
    let mut all = snapshot([guest("a", 0, filled(1.0, &[1.0]), &[(64, 0, 1.0)])]);
    all.guests[0].regions[0].heat = None;
    let error = Carrefour.plan(&all, &even(2, 2, 512 * MIB), &Limits::default()).unwrap_err();
    let lacks = vec![Signal::Heat];
    assert_eq!(error, PolicyError::Lacks { policy: "carrefour", lacks });
}
