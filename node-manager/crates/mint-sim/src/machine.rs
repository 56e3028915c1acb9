// SPDX-License-Identifier: Apache-2.0
//! The host's constants.

use mint_layout::{LOCAL_CYCLES, NumaId, NumaNode, Topology, TopologyError};

/// CPUs of a NUMA node, which share a last-level cache: a die of an AMD Opteron 6348 (L, 5.2).
const CPUS: u32 = 6;
/// Its clock, cycles a second.
const CLOCK_HZ: f64 = 2.8e9;

/// What a machine needs for what guests do.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Machine {
    /// How far memory of another NUMA node is, in tenths of a node's own: 20 is twice as far. Latencies are
    /// taken to have the same ratio.
    pub far: u32,
    /// Cycles that a vCPU stands still for a miss that its own NUMA node answers. Fitted.
    pub miss_cycles: f64,
    /// Bytes a second that get another NUMA node. Fitted.
    pub move_bytes_s: f64,
}

impl Default for Machine {
    /// As nobody has fitted it: the distance that Linux takes where firmware tells none, the cycles of `mint-layout`,
    /// and the budget of its guards.
    fn default() -> Self {
        Self { far: 20, miss_cycles: LOCAL_CYCLES, move_bytes_s: f64::from(256 << 20) }
    }
}

impl Machine {
    /// Instructions a second of a vCPU that never waits: one in each cycle.
    pub fn instructions_s(&self) -> f64 {
        CLOCK_HZ
    }

    /// A host with NUMA nodes of so many bytes each, all as far from each other.
    ///
    /// # Errors
    /// When the distance is none.
    pub fn host(&self, memory_bytes: &[u64]) -> Result<Topology, TopologyError> {
        let node = |(at, &bytes): (u32, &u64)| NumaNode {
            id: NumaId(at),
            caches: vec![(at * CPUS..(at + 1) * CPUS).collect()],
            memory_bytes: bytes,
            distances: (0..)
                .zip(memory_bytes)
                .map(|(to, _): (u32, _)| if to == at { 10 } else { self.far })
                .collect(),
        };
        Topology::new((0..).zip(memory_bytes).map(node).collect())
    }
}
