// SPDX-License-Identifier: Apache-2.0
use mint_layout::{DomainNo, Model, NumaNo};

use super::throughputs;
use crate::{CASES, Machine};

#[test]
fn a_guest_alone_with_its_memory_loses_nothing() {
    let machine = Machine::default();
    let case = CASES[0];
    let (topology, snapshot) = case.host(&machine).unwrap();
    let is = throughputs(Model::Distances, &snapshot, &topology, &case.residents, &machine);
    assert_eq!(is, [1.0, 1.0]);
}

/// 40 misses in 1000 instructions, each of 50 cycles: 2 of 3 cycles are waits; memory that is twice as far makes 5 of 3.
#[test]
fn far_memory_makes_a_guest_wait_as_long_as_the_machine_says() {
    let machine = Machine { far: 20, miss_cycles: 50.0, ..Machine::default() };
    let case = CASES[1];
    let (topology, mut snapshot) = case.host(&machine).unwrap();
    snapshot.guests[0].regions.iter_mut().for_each(|region| region.numa = NumaNo(5));
    let is = throughputs(Model::Distances, &snapshot, &topology, &case.residents, &machine);
    assert!((is[0] - 3.0 / 5.0).abs() < 1e-6, "{is:?}");
    assert_eq!(is[1], 1.0);
}

#[test]
fn guests_that_miss_in_the_same_cache_slow_each_other_by_dinos_model_alone() {
    let machine = Machine::default();
    let case = CASES[1];
    let (topology, mut snapshot) = case.host(&machine).unwrap();
    for guest in &mut snapshot.guests {
        guest.vcpus[0].domain = DomainNo(0);
        guest.regions.iter_mut().for_each(|region| region.numa = NumaNo(0));
    }
    let of = |model| throughputs(model, &snapshot, &topology, &case.residents, &machine);
    assert_eq!(of(Model::Distances), [1.0, 1.0]);
    let slowed = of(Model::Caches);
    assert!(slowed.iter().all(|&one| one < 0.9), "{slowed:?}");
}
