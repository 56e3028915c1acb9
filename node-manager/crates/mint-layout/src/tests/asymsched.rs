// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::PolicyError;
use crate::host::{MIB, counted, even, filled, guest, snapshot};
use crate::topology::NumaId;

fn arranged(snapshot: &Snapshot, host: &Topology) -> Plan {
    AsymSched::default().plan(snapshot, host, &Limits::default()).unwrap()
}

/// What goes: guests whose vCPUs do, and guests whose memory does, with its MiB and its new node.
fn told(plan: &Plan) -> (Vec<&str>, Vec<(&str, u64, u32)>) {
    let memory = plan.relocations.iter();
    let memory = memory.map(|one| (one.guest.0.as_str(), one.bytes / MIB, one.to.0));
    (plan.pins.iter().map(|pins| pins.guest.0.as_str()).collect(), memory.collect())
}

/// L, 5.5: `web` has its vCPU on one node and its memory on the other; `other` is beside its memory.
fn remote(web: f64) -> Snapshot {
    snapshot([
        guest("other", 1, filled(0.1, &[0.0, 1.0]), &[(64, 1, 1.0)]),
        guest("web", 0, filled(web, &[0.0, 1.0]), &[(128, 1, 1.0), (64, 1, 0.0)]),
    ])
}

#[test]
fn guest_that_reads_much_of_another_node_gets_both_on_one() {
    let all = remote(40.0);
    assert_eq!(told(&arranged(&all, &even(2, 2, 512 * MIB))), (vec!["web"], vec![]));
    // no CPU is free there: what it uses of its memory comes
    let plan = arranged(&all, &even(2, 1, 512 * MIB));
    assert_eq!(told(&plan), (vec![], vec![("web", 128, 0)]));
    assert!((plan.gain - 4.0 / (9.0 + 1.01)).abs() < 1e-3, "{plan:?}");
    // what it does not use is no reason to leave it
    let limits = Limits { relocated_bytes: 128 * MIB, ..Limits::default() };
    let tight = AsymSched::default().plan(&all, &even(2, 1, 512 * MIB), &limits).unwrap();
    assert_eq!(tight.relocations, plan.relocations);
    // L, 5.5.2: what only calculates stays
    assert!(arranged(&remote(0.2), &even(2, 2, 512 * MIB)).is_empty());
}

#[test]
fn guest_whose_nodes_are_badly_linked_gets_others() {
    let host = even(4, 2, 512 * MIB);
    let mb_s = |from: usize, to: usize| match (from.min(to), from.max(to)) {
        (one, other) if one == other => 9000,
        (2, 3) => 6000,
        _ => 2000,
    };
    let row = |from| (0..4).map(|to| mb_s(from, to)).collect();
    let linked = host.clone().with_bandwidths((0..4).map(row).collect()).unwrap();
    let mut web = guest("web", 0, filled(40.0, &[0.5, 0.5]), &[(128, 0, 1.0), (128, 1, 1.0)]);
    web.vcpus = [0, 0, 1, 1]
        .map(|domain| crate::Vcpu { domain: DomainNo(domain), ..web.vcpus[0].clone() })
        .into();
    let all = snapshot([web]);
    assert!(arranged(&all, &host).is_empty(), "all links are alike");
    let plan = arranged(&all, &linked);
    let mut to: Vec<u32> = plan.relocations.iter().map(|one| one.to.0).collect();
    to.sort_unstable();
    assert_eq!((to, plan.pins.len()), (vec![2, 3], 1));
    assert_eq!(plan.done(&all, &linked).check(&linked), Ok(()));
}

#[test]
fn nodes_that_read_a_twentieth_of_each_other_are_a_cluster() {
    let of = |read: [[f64; 3]; 3]| clusters(&read.map(Vec::from));
    let none: Vec<Vec<NumaNo>> = Vec::new();
    assert_eq!(of([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0], [0.0, 0.0, 9.0]]), none);
    assert_eq!(of([[95.0, 5.0, 0.0], [0.0, 900.0, 0.0], [0.0; 3]]), [[NumaNo(0), NumaNo(1)]]);
    assert_eq!(of([[96.0, 4.0, 0.0], [0.0, 900.0, 0.0], [0.0; 3]]), none);
    // a chain is one
    let chain = of([[50.0, 0.0, 0.0], [0.0, 0.0, 9.0], [9.0, 0.0, 50.0]]);
    assert_eq!(chain, [[NumaNo(0), NumaNo(1), NumaNo(2)]]);
}

#[test]
fn what_hardly_reads_weighs_nothing() {
    let host = even(2, 2, 512 * MIB);
    let weigh = |mb_s: f64| {
        let one = guest("a", 0, counted(1.0), &[(64, 1, 1.0)]);
        let weight = &weights(&snapshot([one.clone()]))[0];
        let nodes = vec![NumaNo(0), NumaNo(1)];
        let lines_s = mb_s * 1e6 / 64.0;
        cluster((&one, weight), &host, nodes, &[vec![0.0, lines_s], vec![0.0; 2]], 1).weight
    };
    assert!(weigh(0.1).abs() < 1e-9 && weigh(1.0).abs() < 1e-9);
    assert!((weigh(100.0) - 100.0_f64.ln()).abs() < 1e-9);
    // 0.2 misses in 1000 instructions are 12.8 MB/s; a thousandth of that is no reason
    let mut all = remote(40.0);
    all.guests[1].vcpus[0].samples = filled(40.0, &[0.0, 0.0001]);
    assert!(arranged(&all, &host).is_empty());
}

/// 0.3 s for 10^9 bytes, of 600 s that it is taken to have run: 10^11 bytes.
#[test]
fn what_takes_too_long_to_relocate_stays() {
    let host = even(2, 1, 1 << 40);
    let of = |mib: u64| {
        let mut one = guest("a", 0, filled(40.0, &[0.0, 1.0]), &[(mib, 1, 1.0)]);
        one.vcpus[0].allowed = "0".parse().unwrap();
        snapshot([one])
    };
    assert!(arranged(&of(96_000), &host).is_empty());
    let mut policy = AsymSched::default();
    let mut plan = |all| policy.plan(&all, &host, &Limits::default()).unwrap();
    assert_eq!(told(&plan(of(95_000))), (vec![], vec![("a", 95_000, 0)]));
    assert!(plan(of(2000)).is_empty(), "its time is spent");
    assert!(plan(Snapshot::default()).is_empty());
    assert!(!plan(of(2000)).is_empty(), "who has gone is forgotten");
}

#[test]
fn owners_cpus_and_fixed_memory_stay() {
    let host = even(2, 2, 512 * MIB);
    let mut all = remote(40.0);
    all.guests[1].vcpus[0].allowed = "0".parse().unwrap();
    assert_eq!(told(&arranged(&all, &host)), (vec![], vec![("web", 128, 0)]));
    all.guests[1].is_fixed = true;
    assert!(arranged(&all, &host).is_empty());
    all.guests[1].vcpus[0].allowed = [].into_iter().collect();
    assert_eq!(told(&arranged(&all, &host)), (vec!["web"], vec![]));
}

#[test]
fn vcpus_take_the_roomiest_domain_of_their_next_node() {
    let node = |id, caches: &[&str], distances: &[u32]| crate::NumaNode {
        id: NumaId(id),
        caches: caches.iter().map(|cpus| cpus.parse().unwrap()).collect(),
        memory_bytes: 512 * MIB,
        distances: distances.into(),
    };
    let nodes = vec![node(0, &["0-1"], &[10, 20]), node(1, &["2-3", "4-6"], &[20, 10])];
    let host = Topology::new(nodes).unwrap();
    assert_eq!(arranged(&remote(40.0), &host).pins[0].cpus[0].to_string(), "4-6");
}

#[test]
fn lines_that_nothing_counts_are_asked_for() {
    let host = even(2, 2, 512 * MIB);
    let all = snapshot([guest("a", 0, counted(1.0), &[(64, 0, 1.0)])]);
    let error = AsymSched::default().plan(&all, &host, &Limits::default()).unwrap_err();
    let lacks = vec![Signal::Fills];
    assert_eq!(error, PolicyError::Lacks { policy: "asymsched", lacks });
}
