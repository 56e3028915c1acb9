// SPDX-License-Identifier: Apache-2.0
//! NUMA nodes and last-level caches of this host, from its sysfs: the topology that guests are arranged on.
//! Numbers of NUMA nodes are the machine's, on every node of it, and may have gaps.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use mint_layout::{NumaId, NumaNode, Topology, TopologyError};
use mint_types::CpuSet;

/// Of a NUMA node's memory the kernel keeps this part free.
const KEPT: u64 = 64;

/// A NUMA node, as this host's kernel has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostNuma {
    /// Its number.
    pub id: NumaId,
    /// CPUs that are online, those that share a last-level cache together.
    pub caches: Vec<CpuSet>,
    /// To each NUMA node that is online, in the order of numbers.
    pub distances: Vec<u32>,
    /// Memory that processes may have: what is free, and what files are cached in that were not used for some time.
    pub free_bytes: u64,
    /// Whether it has memory at all.
    pub has_memory: bool,
}

impl HostNuma {
    /// The CPU that stands for its CPUs: the last one, as the first ones have most interrupts. None: memory alone.
    pub fn last_cpu(&self) -> Option<u32> {
        self.caches.iter().flat_map(CpuSet::iter).max()
    }
}

/// All of them, in the order of numbers; `root` is `/`, or a folder with a copy of the files in tests. None of a
/// kernel that knows no NUMA nodes.
pub fn read(root: &Path) -> Vec<HostNuma> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    let node = |(id, own): (NumaId, CpuSet)| {
        let folder = folder(id);
        let distances = read(&format!("{folder}/distance"));
        let meminfo = read(&format!("{folder}/meminfo"));
        HostNuma {
            id,
            caches: caches(root, &own),
            distances: distances.split_whitespace().filter_map(|far| far.parse().ok()).collect(),
            free_bytes: free_bytes(&meminfo),
            has_memory: kib(&meminfo, " MemTotal:") + kib(&meminfo, " MemFree:") > 0,
        }
    };
    cpus(root).into_iter().map(node).collect()
}

/// The CPUs of each that are online, in the same order.
pub fn cpus(root: &Path) -> Vec<(NumaId, CpuSet)> {
    let set = |path: &str| {
        let text = std::fs::read_to_string(root.join(path)).unwrap_or_default();
        text.trim().parse::<CpuSet>().unwrap_or_default()
    };
    let online = set("sys/devices/system/cpu/online");
    let of = |id: NumaId| {
        let own = set(&format!("{}/cpulist", folder(id)));
        (id, own.iter().filter(|&cpu| online.contains(cpu)).collect())
    };
    set("sys/devices/system/node/online").iter().map(NumaId).map(of).collect()
}

fn folder(id: NumaId) -> String {
    format!("sys/devices/system/node/node{}", id.0)
}

/// CPUs by their last-level cache. What shares one with another NUMA node is a part of it; where nothing says who
/// shares one, all do.
fn caches(root: &Path, cpus: &CpuSet) -> Vec<CpuSet> {
    let mut found: Vec<CpuSet> = Vec::new();
    let mut seen = BTreeSet::new();
    for cpu in cpus.iter() {
        if seen.contains(&cpu) {
            continue;
        }
        let shared = last_level(root, cpu).unwrap_or_else(|| cpus.clone());
        // itself, whatever the file says
        let mates = cpus.iter().filter(|&mate| mate == cpu || shared.contains(mate));
        let mates: CpuSet = mates.filter(|mate| !seen.contains(mate)).collect();
        seen.extend(mates.iter());
        found.push(mates);
    }
    found
}

fn last_level(root: &Path, cpu: u32) -> Option<CpuSet> {
    text(&last_index(root, cpu)?, "shared_cpu_list")?.trim().parse().ok()
}

/// How large the last-level cache of a CPU is, in bytes. None where sysfs does not say.
pub fn cache_bytes(root: &Path, cpu: u32) -> Option<u64> {
    let size = text(&last_index(root, cpu)?, "size")?;
    size.trim().strip_suffix('K')?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The folder of a CPU's last-level cache.
fn last_index(root: &Path, cpu: u32) -> Option<PathBuf> {
    let folder = root.join(format!("sys/devices/system/cpu/cpu{cpu}/cache"));
    let indexes = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let level = |path: &Path| text(path, "level")?.trim().parse::<u32>().ok();
    Some(indexes.filter_map(|path| Some((level(&path)?, path))).max()?.1)
}

fn text(folder: &Path, name: &str) -> Option<String> {
    std::fs::read_to_string(folder.join(name)).ok()
}

/// Of a NUMA node's meminfo.
fn free_bytes(meminfo: &str) -> u64 {
    // of what files are cached in, what nobody has used for some time: the rest would come back
    let free = kib(meminfo, " MemFree:") + kib(meminfo, " Inactive(file):");
    // the kernel keeps some of it for itself
    free.saturating_sub(kib(meminfo, " MemTotal:") / KEPT).saturating_mul(1024)
}

fn kib(meminfo: &str, name: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.split_once(name));
    let number = line.and_then(|(_, rest)| rest.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0)
}

/// The topology for guests that have so much of each NUMA node.
///
/// # Errors
/// When the kernel's files do not make sense together.
pub fn topology(
    host: &[HostNuma],
    guests_bytes: &BTreeMap<NumaId, u64>,
) -> Result<Topology, TopologyError> {
    let node = |one: &HostNuma| NumaNode {
        id: one.id,
        caches: one.caches.clone(),
        memory_bytes: one.free_bytes + guests_bytes.get(&one.id).copied().unwrap_or(0),
        distances: one.distances.clone(),
    };
    Topology::new(host.iter().map(node).collect())
}

#[cfg(test)]
#[path = "tests/numa.rs"]
mod tests;
