// SPDX-License-Identifier: Apache-2.0
//! Hosts and guests for tests.

use mint_types::CpuSet;

use crate::sample::{RING, Ring, Sample};
use crate::snapshot::{Guest, GuestId, Region, Snapshot, Vcpu};
use crate::topology::{DomainNo, NumaId, NumaNo, NumaNode, Topology};

pub const MIB: u64 = 1 << 20;

/// NUMA nodes of so many CPUs, in one cache each, and so much memory each; the others are at the same distance.
pub fn even(nodes: u32, cpus: u32, memory_bytes: u64) -> Topology {
    let node = |at: u32| NumaNode {
        id: NumaId(at),
        caches: vec![(at * cpus..(at + 1) * cpus).collect()],
        memory_bytes,
        distances: (0..nodes).map(|to| if to == at { 10 } else { 20 }).collect(),
    };
    Topology::new((0..nodes).map(node).collect()).unwrap()
}

/// Distances between NUMA nodes, the same both ways, drawn by `far`.
pub fn distances(nodes: usize, mut far: impl FnMut() -> u32) -> Vec<Vec<u32>> {
    let drawn: Vec<u32> = (0..nodes * nodes).map(|_| far()).collect();
    let between = |one: usize, other: usize| match (one.min(other), one.max(other)) {
        (least, most) if least == most => 10,
        (least, most) => drawn[least * nodes + most],
    };
    (0..nodes).map(|one| (0..nodes).map(|other| between(one, other)).collect()).collect()
}

/// What was counted of a vCPU that executes 10^9 instructions a second and misses so often.
pub fn counted(misses_per_kilo: f64) -> Ring {
    let (instructions, span_ms) = (1_000_000_000, 1000);
    let sample = Sample {
        span_ms,
        run_ms: span_ms,
        instructions: Some(instructions),
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
        misses: Some((misses_per_kilo * 1e6) as u64),
        fills: None,
    };
    vec![sample; RING].into()
}

/// That, and which NUMA nodes answered each of its misses: parts of them.
pub fn filled(misses_per_kilo: f64, parts: &[f64]) -> Ring {
    let samples = counted(misses_per_kilo);
    let fill = |sample: &Sample| {
        let misses = sample.misses.unwrap() as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
        let lines = |part: &f64| (misses * part) as u64;
        Sample { fills: Some(parts.iter().map(lines).collect()), ..sample.clone() }
    };
    samples.iter().map(fill).collect::<Vec<_>>().into()
}

/// A guest with a vCPU in a domain, and memory in regions of these MiB, NUMA nodes and heats.
pub fn guest(name: &str, domain: usize, samples: Ring, regions: &[(u64, usize, f64)]) -> Guest {
    let mut offset = 0;
    let region = |&(mib, numa, heat): &(u64, usize, f64)| {
        let at = offset;
        offset += mib * MIB;
        Region { offset: at, bytes: mib * MIB, numa: NumaNo(numa), heat: Some(heat) }
    };
    let regions = regions.iter().map(region).collect();
    let vcpu = Vcpu { domain: DomainNo(domain), allowed: CpuSet::default(), samples };
    Guest { id: GuestId(name.into()), vcpus: vec![vcpu], regions, is_fixed: false }
}

/// Of these guests.
pub fn snapshot<const N: usize>(guests: [Guest; N]) -> Snapshot {
    Snapshot { guests: guests.into() }
}

/// A vCPU that ran for a part of the time; nothing counted what it did.
pub fn ran(part: f64) -> Ring {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small")]
    let run_ms = (part * 1000.0) as u32;
    vec![Sample { span_ms: 1000, run_ms, ..Sample::default() }; RING].into()
}
