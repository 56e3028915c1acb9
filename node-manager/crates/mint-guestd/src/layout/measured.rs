// SPDX-License-Identifier: Apache-2.0
//! What was measured of this node's NUMA nodes, from one boot to the next: it is a machine's, and stays true until it gets
//! another CPU, or the node other NUMA nodes.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use mint_api::{NumaMeasured, NumaPair};
use mint_guests::cpu_events::Cpu;
use mint_guests::numa::HostNuma;
use mint_layout::{NumaNo, Topology, TopologyError};
use tracing::warn;

/// Below the host's root.
pub(super) const FILE: &str = "/var/lib/mint/numa.json";

/// Whether somebody was told that what is written down is of no use.
#[derive(Default)]
pub(super) struct Told(AtomicBool);

impl Told {
    /// What is written down is new.
    pub fn forget(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    fn warn(&self, path: &Path, why: &dyn std::fmt::Display) {
        if !self.0.swap(true, Ordering::Relaxed) {
            warn!(path = %path.display(), %why, "plans go by the kernel's distances: mintctl layout measure");
        }
    }
}

/// What was measured is not of this host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Misfit {
    /// It has other NUMA nodes.
    #[error("it is of NUMA nodes {0:?}, and this node has {1:?}")]
    Numas(Vec<u32>, Vec<u32>),
    /// It has another CPU.
    #[error("it is of the CPU {0:?}, and this node has {1:?}")]
    Cpu(String, String),
    /// Nobody measured that then.
    #[error("it has not how CPUs of numa{0} read memory of numa{1}")]
    Pair(u32, u32),
    /// Nobody measures that.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

/// What the CPU of this host is called; `root` is `/`, or a folder with a copy of the files in tests.
pub(super) fn cpu_model(root: &Path) -> String {
    let name = |text: String| {
        let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
        pairs.find(|(key, _)| key.trim() == "model name").map(|(_, name)| name.trim().to_owned())
    };
    let text = std::fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
    let of_kind = || Cpu::read(root).map(|cpu| cpu.to_string());
    name(text).or_else(of_kind).unwrap_or_default()
}

/// What is written down, if it is of this host, and the topology that it makes of the kernel's. If it is not, that is told
/// once.
pub(super) fn with_measured(
    path: &Path,
    told: &Told,
    (host, cpu_model): (&[HostNuma], &str),
    topology: Topology,
) -> (Topology, Option<NumaMeasured>) {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return (topology, None),
        Err(error) => {
            told.warn(path, &error);
            return (topology, None);
        }
    };
    let measured = match serde_json::from_slice::<NumaMeasured>(&text) {
        Ok(measured) => measured,
        Err(error) => {
            told.warn(path, &error);
            return (topology, None);
        }
    };
    let fits = fits(&measured, host, cpu_model);
    match fits.and_then(|()| Ok(applied(&measured, topology.clone())?)) {
        Ok(topology) => (topology, Some(measured)),
        Err(misfit) => {
            told.warn(path, &misfit);
            (topology, None)
        }
    }
}

/// Whether it is of this host, and of all of it.
///
/// # Errors
/// With the first thing that is not.
fn fits(measured: &NumaMeasured, host: &[HostNuma], cpu_model: &str) -> Result<(), Misfit> {
    let numas: Vec<u32> = host.iter().map(|one| one.id.0).collect();
    if measured.numas != numas {
        return Err(Misfit::Numas(measured.numas.clone(), numas));
    }
    if measured.cpu_model != cpu_model {
        return Err(Misfit::Cpu(measured.cpu_model.clone(), cpu_model.to_owned()));
    }
    let has = |cpus_of, memory_of| find(measured, cpus_of, memory_of).is_some();
    match pairs(host).find(|(cpus, memory)| !has(cpus.id.0, memory.id.0)) {
        Some((cpus, memory)) => Err(Misfit::Pair(cpus.id.0, memory.id.0)),
        None => Ok(()),
    }
}

/// Each that has CPUs, with each that has memory; those of a memory follow each other.
pub(super) fn pairs(host: &[HostNuma]) -> impl Iterator<Item = (&HostNuma, &HostNuma)> {
    let cpus = host.iter().filter(|one| one.last_cpu().is_some());
    let memories = host.iter().filter(|one| one.has_memory);
    memories.flat_map(move |memory| cpus.clone().map(move |cpus| (cpus, memory)))
}

fn find(measured: &NumaMeasured, cpus_of: u32, memory_of: u32) -> Option<&NumaPair> {
    measured.pairs.iter().find(|one| one.cpus_of == cpus_of && one.memory_of == memory_of)
}

/// The topology with latencies and bandwidths that were measured.
///
/// # Errors
/// When one of them is none.
fn applied(measured: &NumaMeasured, topology: Topology) -> Result<Topology, TopologyError> {
    let numas: Vec<NumaNo> = topology.numbers().collect();
    let pair = |from, to| find(measured, topology.id(from).0, topology.id(to).0);
    let latencies: Vec<Vec<_>> = numas
        .iter()
        .map(|&from| numas.iter().map(|&to| pair(from, to).map(|one| one.latency_ns)).collect())
        .collect();
    let mb_s: Vec<Vec<_>> = numas
        .iter()
        .map(|&from| numas.iter().map(|&to| pair(from, to).map(|one| one.read_mb_s)).collect())
        .collect();
    let far = topology.with_latencies(&latencies)?;
    // of what nobody reads: as where nobody has told
    let guessed = |from, to| whole(far.bandwidth_mb_s(from, to));
    let mb_s = numas
        .iter()
        .zip(mb_s)
        .map(|(&from, row)| {
            let each = numas.iter().zip(row);
            each.map(|(&to, mb_s)| mb_s.unwrap_or_else(|| guessed(from, to))).collect()
        })
        .collect();
    far.with_bandwidths(mb_s)
}

/// Millions of bytes a second, at least one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "is within bounds")]
pub(super) fn whole(mb_s: f64) -> u32 {
    mb_s.clamp(1.0, f64::from(u32::MAX)) as u32
}

#[cfg(test)]
#[path = "../tests/layout_measured.rs"]
mod tests;
