// SPDX-License-Identifier: Apache-2.0
use std::collections::BTreeSet;

use fastrand::Rng;
use mint_layout::by_default;

use super::{anywhere, bounds};
use crate::{CASES, Machine};

/// 40 misses in 1000 instructions, each of 50 cycles: 1 cycle of work and 2 that it waits.
#[test]
fn the_best_vcpus_have_half_of_the_memory_near() {
    let machine = Machine { miss_cycles: 50.0, ..Machine::default() };
    let is = bounds(&CASES[0], &machine).unwrap();
    assert!((is.best_vcpus - (1.0 - 3.0 / 4.0)).abs() < 1e-6, "{is:?}");
    // by lot an eighth of it is near, more or less
    assert!((is.random - (1.0 - 3.0 / (3.0 + 2.0 * 7.0 / 8.0))).abs() < 0.03, "{is:?}");
}

#[test]
fn memory_comes_by_lot_to_nodes_that_have_room() {
    let machine = Machine::default();
    let (topology, others) = CASES[0].host(&machine).unwrap();
    let default = by_default(&topology, &others, &CASES[0].profile(&machine), &[]).unwrap();
    for seed in 0..20 {
        let guest = anywhere(&mut Rng::with_seed(seed), &topology, &others, &default);
        let numas: BTreeSet<_> = guest.regions.iter().map(|region| region.numa).collect();
        assert_eq!(numas.len(), topology.nodes().len(), "of 64 pieces some are on each");
        let all = others.guests.iter().chain([&guest]).flat_map(|guest| &guest.regions);
        for (numa, node) in topology.numbers().zip(topology.nodes()) {
            let used: u64 = all.clone().filter(|one| one.numa == numa).map(|one| one.bytes).sum();
            assert!(used <= node.memory_bytes, "{}: {used}", node.id);
        }
    }
}
