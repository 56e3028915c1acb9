// SPDX-License-Identifier: Apache-2.0
use mint_layout::{Model, NumaId, NumaNo, Plan, Relocation, Snapshot};

use super::so_far;
use crate::guest::parts;
use crate::{CASES, Machine, throughputs};

const GIB: u64 = 1 << 30;

/// What the first resident uses goes to a NUMA node that is farther.
fn away(snapshot: &Snapshot) -> Plan {
    let guest = snapshot.guests[0].id.clone();
    let (from, to) = (NumaId(3), NumaId(2));
    let relocations = vec![Relocation { guest, offset: 3 * GIB, bytes: 2 * GIB, from, to }];
    Plan { relocations, ..Plan::nothing("simple") }
}

#[test]
fn memory_in_flight_counts_by_its_parts() {
    let machine = Machine { miss_cycles: 50.0, ..Machine::default() };
    let case = CASES[1];
    let (topology, snapshot) = case.host(&machine).unwrap();
    let plan = away(&snapshot);
    let at = |bytes: u64| {
        let now = so_far(&plan, bytes, &snapshot, &topology);
        let part = parts(&now.guests[0], &topology)[NumaNo(2).0];
        (part, throughputs(Model::Distances, &now, &topology, &case.residents, &machine)[0])
    };
    assert_eq!(at(0), (0.0, 1.0));
    let (part, throughput) = at(GIB / 2 + 4096);
    assert!((part - 0.25).abs() < 1e-5, "{part}");
    // 1 cycle of work and 2 that it waits; of these a quarter twice as long
    assert!((throughput - 3.0 / 3.5).abs() < 1e-5, "{throughput}");
    assert_eq!(at(2 * GIB).0, 1.0);
    assert_eq!(at(u64::MAX), at(2 * GIB));
}

#[test]
fn memory_goes_in_the_plans_order() {
    let machine = Machine::default();
    let case = CASES[1];
    let (topology, snapshot) = case.host(&machine).unwrap();
    let mut plan = away(&snapshot);
    let mut other = plan.relocations[0].clone();
    other.guest = snapshot.guests[1].id.clone();
    other.from = NumaId(4);
    plan.relocations.push(other);
    let now = so_far(&plan, 3 * GIB, &snapshot, &topology);
    assert_eq!(parts(&now.guests[0], &topology)[2], 1.0);
    assert!((parts(&now.guests[1], &topology)[2] - 0.5).abs() < 1e-6);
}
