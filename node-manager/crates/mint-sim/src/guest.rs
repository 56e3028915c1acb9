// SPDX-License-Identifier: Apache-2.0
//! What guests do, and what is measured of it (L, 5.2).

use mint_layout::{Guest, GuestId, NumaNo, Profile, RING, Range, Sample, Topology};

use crate::machine::Machine;

const GIB: u64 = 1 << 30;
/// A guest's memory (L, 5.2: 5 GB),
const MEMORY_BYTES: u64 = 5 * GIB;
/// and what its program uses of it (L, 5.2: 2 GB).
const USED_BYTES: u64 = 2 * GIB;
const SPAN_MS: u32 = 1000;

/// A guest's program. It runs all the time on one vCPU.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Behaviour {
    /// As L calls it.
    pub name: &'static str,
    /// Misses of the last-level cache in a thousand instructions.
    pub misses_per_kilo: f64,
}

/// It reads its memory all the time. L tells no rate; DINO's model in `mint-layout` takes the same for such a one.
pub const MALLOC_ACCESS: Behaviour = Behaviour { name: "malloc_access", misses_per_kilo: 40.0 };
/// It calculates. L tells no rate, but that it is low.
pub const CUBIC_CALC: Behaviour = Behaviour { name: "cubic_calc", misses_per_kilo: 0.2 };

impl Behaviour {
    /// Instructions a second where it waits for memory of its own NUMA node alone.
    pub fn instructions_s(&self, machine: &Machine) -> f64 {
        machine.instructions_s() / (1.0 + self.misses_per_kilo / 1000.0 * machine.miss_cycles)
    }

    /// What is counted of it in a second.
    ///
    /// # Arguments
    /// * `throughput` - what it gets done of what it would where it waits least.
    /// * `parts` - of each NUMA node, how many of its misses that answers; together 1.
    pub fn sample(&self, machine: &Machine, throughput: f64, parts: &[f64]) -> Sample {
        let instructions = self.instructions_s(machine) * throughput;
        let misses = instructions * self.misses_per_kilo / 1000.0;
        Sample {
            span_ms: SPAN_MS,
            run_ms: SPAN_MS,
            instructions: Some(whole(instructions)),
            misses: Some(whole(misses)),
            fills: Some(parts.iter().map(|part| whole(misses * part)).collect()),
        }
    }

    /// What its last host has measured, where it waited least. What it does not use comes first: its kernel and
    /// what that has cached.
    pub fn profile(&self, id: &str, machine: &Machine) -> Profile {
        let unused = MEMORY_BYTES - USED_BYTES;
        Profile {
            id: GuestId(id.to_owned()),
            vcpus: vec![vec![self.sample(machine, 1.0, &[1.0]); RING].into()],
            ranges: vec![
                Range { offset: 0, bytes: unused, heat: Some(0.0) },
                Range { offset: unused, bytes: USED_BYTES, heat: Some(1.0) },
            ],
        }
    }
}

/// Of each NUMA node, for how much of what a guest uses its memory is asked; together 1.
pub(crate) fn parts(guest: &Guest, topology: &Topology) -> Vec<f64> {
    let heat = |numa: Option<NumaNo>| -> f64 {
        let there = guest.regions.iter().filter(|one| numa.is_none_or(|numa| one.numa == numa));
        there.filter_map(|region| region.heat).sum()
    };
    let all = heat(None);
    topology.numbers().map(|numa| heat(Some(numa)) / all).collect()
}

fn whole(count: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count below 10^10"
    )]
    let whole = count.round() as u64;
    whole
}
