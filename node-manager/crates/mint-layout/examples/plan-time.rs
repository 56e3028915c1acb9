// SPDX-License-Identifier: Apache-2.0
//! How long policies think about a large host: 64 guests of 4 vCPUs on 8 NUMA nodes with two last-level caches of 8 CPUs
//! each. A guest has 256 pieces of memory, as many as `mint-guestd` looks at, drawn onto NUMA nodes. Prints a table:
//! `plan-time [SEED]`.

use std::time::Instant;

use fastrand::Rng;
use mint_layout::{
    DomainNo, Guest, GuestId, Limits, NumaId, NumaNo, NumaNode, Policy, RING, Region, Ring, Sample,
    Snapshot, Topology, Vcpu, policy,
};
use mint_types::{CpuSet, LayoutPolicy};

const NUMAS: u32 = 8;
const CACHES: u32 = 2;
const CPUS: u32 = 8;
const GUESTS: usize = 64;
const VCPUS: usize = 4;
const PIECES: u64 = 256;
const PIECE_BYTES: u64 = 32 << 20;
const ROUNDS: usize = 21;

type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let seed = match std::env::args().nth(1) {
        Some(seed) => seed.parse()?,
        None => fastrand::u64(..),
    };
    let mut random = Rng::with_seed(seed);
    let host = host()?;
    println!(
        "{GUESTS} guests on {NUMAS} NUMA nodes, {ROUNDS} plans of each policy, seed {seed}.\n"
    );
    println!("| policy | median | longest | guests that change |\n| --- | --- | --- | --- |");
    for name in LayoutPolicy::ALL {
        let (mut took_ms, mut changed) = (Vec::new(), 0);
        for _ in 0..ROUNDS {
            let snapshot = snapshot(&mut random);
            let mut policy: Box<dyn Policy + Send> = policy(name);
            let began = Instant::now();
            let plan = policy.plan(&snapshot, &host, &Limits::default())?;
            took_ms.push(began.elapsed().as_secs_f64() * 1000.0);
            changed += plan.why.len();
        }
        took_ms.sort_by(f64::total_cmp);
        let (median, longest) = (took_ms[ROUNDS / 2], took_ms[ROUNDS - 1]);
        println!("| {name} | {median:.1} ms | {longest:.1} ms | {} |", changed / ROUNDS);
    }
    Ok(())
}

fn host() -> Result<Topology, Failed> {
    let node = |at: u32| NumaNode {
        id: NumaId(at),
        caches: (0..CACHES)
            .map(|cache| {
                let first = (at * CACHES + cache) * CPUS;
                (first..first + CPUS).collect()
            })
            .collect(),
        // half as much again as guests have
        memory_bytes: GUESTS as u64 * PIECES * PIECE_BYTES * 3 / 2 / u64::from(NUMAS),
        distances: (0..NUMAS)
            .map(|to| {
                if to == at {
                    10
                } else if to / 4 == at / 4 {
                    16
                } else {
                    32
                }
            })
            .collect(),
    };
    Ok(Topology::new((0..NUMAS).map(node).collect())?)
}

fn snapshot(random: &mut Rng) -> Snapshot {
    let guest = |at: usize| {
        let home = random.usize(0..16);
        let vcpus = (0..VCPUS).map(|_| Vcpu {
            domain: DomainNo(if random.bool() { home } else { random.usize(0..16) }),
            allowed: CpuSet::default(),
            samples: samples(random),
        });
        let vcpus = vcpus.collect();
        let near = random.usize(0..8);
        let regions = (0..PIECES).map(|piece| Region {
            offset: piece * PIECE_BYTES,
            bytes: PIECE_BYTES,
            numa: NumaNo(if random.u8(0..4) > 0 { near } else { random.usize(0..8) }),
            heat: Some(random.f64()),
        });
        Guest {
            id: GuestId(format!("guest{at:02}")),
            vcpus,
            regions: regions.collect(),
            is_fixed: false,
        }
    };
    Snapshot { guests: (0..GUESTS).map(guest).collect() }
}

/// From hardly any misses to as many as a guest has that does nothing else.
fn samples(random: &mut Rng) -> Ring {
    let instructions = random.u64(200_000_000..2_000_000_000);
    let misses = instructions / random.u64(10..2000);
    let mut left = misses;
    let fills = (0..NUMAS).map(|_| {
        let part = left / 2;
        left -= part;
        part
    });
    let fills: Vec<u64> = fills.collect();
    let sample = Sample {
        span_ms: 1000,
        run_ms: 1000,
        instructions: Some(instructions),
        misses: Some(misses),
        fills: Some(fills),
    };
    vec![sample; RING].into()
}
