// SPDX-License-Identifier: Apache-2.0
//! NUMA nodes and last-level caches of this host, from its sysfs: the topology that guests are arranged on.
//! Numbers of NUMA nodes are the machine's, on every node of it, and may have gaps.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

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
}

/// All of them, in the order of numbers; `root` is `/`, or a folder with a copy of the files in tests. None of a
/// kernel that knows no NUMA nodes.
pub fn read(root: &Path) -> Vec<HostNuma> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    let node = |(id, own): (NumaId, CpuSet)| {
        let folder = folder(id);
        let distances = read(&format!("{folder}/distance"));
        HostNuma {
            id,
            caches: caches(root, &own),
            distances: distances.split_whitespace().filter_map(|far| far.parse().ok()).collect(),
            free_bytes: free_bytes(&read(&format!("{folder}/meminfo"))),
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
    let folder = root.join(format!("sys/devices/system/cpu/cpu{cpu}/cache"));
    let indexes = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let text = |path: &Path, name: &str| std::fs::read_to_string(path.join(name)).ok();
    let level = |path: &Path| text(path, "level")?.trim().parse::<u32>().ok();
    let last = indexes.filter_map(|path| Some((level(&path)?, path))).max()?.1;
    text(&last, "shared_cpu_list")?.trim().parse().ok()
}

/// Of a NUMA node's meminfo.
fn free_bytes(meminfo: &str) -> u64 {
    let kib = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.split_once(name));
        let number = line.and_then(|(_, rest)| rest.split_whitespace().next()?.parse::<u64>().ok());
        number.unwrap_or(0)
    };
    // of what files are cached in, what nobody has used for some time: the rest would come back
    let free = kib(" MemFree:") + kib(" Inactive(file):");
    // the kernel keeps some of it for itself
    free.saturating_sub(kib(" MemTotal:") / KEPT).saturating_mul(1024)
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
