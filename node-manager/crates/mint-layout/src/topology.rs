// SPDX-License-Identifier: Apache-2.0
//! A host's NUMA nodes and caches.

use std::collections::BTreeSet;
use std::fmt;

use mint_types::CpuSet;
use serde::{Deserialize, Serialize};

/// A NUMA node as the machine numbers it. There may be gaps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NumaId(pub u32);

impl fmt::Display for NumaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "numa{}", self.0)
    }
}

/// A NUMA node by its place in [`Topology::nodes`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct NumaNo(pub usize);

/// A cache domain by its place in [`Topology::domains`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct DomainNo(pub usize);

/// What a host has of a NUMA node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NumaNode {
    /// Its number.
    pub id: NumaId,
    /// CPUs that guests may have, those that share a last-level cache together. None: memory alone.
    pub caches: Vec<CpuSet>,
    /// Memory that guests may have, whoever has it now. 0: CPUs alone.
    pub memory_bytes: u64,
    /// To each NUMA node, in the order of the list that this one is in, as ACPI's SLIT and Linux's
    /// `node*/distance` have it: 10 is itself.
    pub distances: Vec<u32>,
}

/// CPUs that share a last-level cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CacheDomain {
    /// Of this NUMA node.
    pub numa: NumaNo,
    /// Its CPUs.
    pub cpus: CpuSet,
}

/// The NUMA nodes that make sense together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    nodes: Vec<NumaNode>,
    domains: Vec<CacheDomain>,
    bandwidths_mb_s: Option<Vec<Vec<u32>>>,
}

/// They do not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// Two of the same number.
    #[error("{0} is there twice")]
    Twice(NumaId),
    /// Not as many distances as nodes, or one below that of itself.
    #[error("{0}: the distances {1:?} do not fit")]
    Distances(NumaId, Vec<u32>),
    /// Not as many bandwidths as nodes, or one that is none.
    #[error("{0}: the bandwidths {1:?} do not fit")]
    Bandwidths(NumaId, Vec<u32>),
    /// Not as many latencies as nodes, or one that is none.
    #[error("{0}: the latencies do not fit")]
    Latencies(NumaId),
    /// It is in two caches.
    #[error("CPU {0} has two last-level caches")]
    Cpu(u32),
    /// No guest could run.
    #[error("there is no CPU for guests")]
    NoCpu,
}

/// Of a node to itself (ACPI 6.5, 5.2.17).
const LOCAL: u32 = 10;
/// The largest that means a distance (there): 255 is that nobody gets there.
const FAR_MAX: u32 = 254;
/// What CPUs are taken to read from memory of their own node where nobody has told, millions of bytes a second: a
/// controller of two channels.
const LOCAL_MB_S: u32 = 20_000;

/// As distances are written; what is below that of itself, or beyond all tables, is brought into bounds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "is within bounds")]
fn tenths(ratio: f64) -> u32 {
    (ratio * f64::from(LOCAL)).round().clamp(f64::from(LOCAL), f64::from(FAR_MAX)) as u32
}

impl Topology {
    /// Of NUMA nodes in any order.
    ///
    /// # Errors
    /// When they do not make sense together.
    pub fn new(nodes: Vec<NumaNode>) -> Result<Self, TopologyError> {
        let (mut ids, mut cpus) = (BTreeSet::new(), BTreeSet::new());
        let mut domains = Vec::new();
        for (at, node) in nodes.iter().enumerate() {
            if !ids.insert(node.id) {
                return Err(TopologyError::Twice(node.id));
            }
            let fits = node.distances.len() == nodes.len()
                && node.distances.iter().all(|&distance| distance >= LOCAL)
                && node.distances.get(at) == Some(&LOCAL);
            if !fits {
                return Err(TopologyError::Distances(node.id, node.distances.clone()));
            }
            for cache in node.caches.iter().filter(|cache| !cache.is_empty()) {
                if let Some(twice) = cache.iter().find(|&cpu| !cpus.insert(cpu)) {
                    return Err(TopologyError::Cpu(twice));
                }
                domains.push(CacheDomain { numa: NumaNo(at), cpus: cache.clone() });
            }
        }
        if domains.is_empty() {
            return Err(TopologyError::NoCpu);
        }
        Ok(Self { nodes, domains, bandwidths_mb_s: None })
    }

    /// The same, and how much CPUs of each NUMA node can read from memory of each.
    ///
    /// # Arguments
    /// * `bandwidths_mb_s` - of each node's CPUs, in the nodes' order: millions of bytes a second, from each node.
    ///
    /// # Errors
    /// With the first node of which they do not fit.
    pub fn with_bandwidths(self, bandwidths_mb_s: Vec<Vec<u32>>) -> Result<Self, TopologyError> {
        for (at, node) in self.nodes.iter().enumerate() {
            let row = bandwidths_mb_s.get(at).cloned().unwrap_or_default();
            if row.len() != self.nodes.len() || row.contains(&0) {
                return Err(TopologyError::Bandwidths(node.id, row));
            }
        }
        Ok(Self { bandwidths_mb_s: Some(bandwidths_mb_s), ..self })
    }

    /// The same with nodes that are as far as was measured: one whose memory comes after twice as long as a node's own
    /// is twice as far from that. Nothing is nearer than a node's own. What was not measured, and what a node
    /// without memory of its own is far from, stays as it is.
    ///
    /// # Arguments
    /// * `latencies_ns` - of each node's CPUs, in the nodes' order: nanoseconds until memory of each node comes. None: a
    ///   node without CPUs, or without memory.
    ///
    /// # Errors
    /// With the first node of which they do not fit.
    pub fn with_latencies(
        mut self,
        latencies_ns: &[Vec<Option<f64>>],
    ) -> Result<Self, TopologyError> {
        let count = self.nodes.len();
        for (at, node) in self.nodes.iter_mut().enumerate() {
            let row = latencies_ns.get(at).filter(|row| row.len() == count);
            let row = row.ok_or(TopologyError::Latencies(node.id))?;
            if row.iter().flatten().any(|ns| !ns.is_finite() || *ns <= 0.0) {
                return Err(TopologyError::Latencies(node.id));
            }
            let Some(own_ns) = row[at] else { continue };
            for (distance, ns) in node.distances.iter_mut().zip(row) {
                if let Some(ns) = ns {
                    *distance = tenths(ns / own_ns);
                }
            }
        }
        Ok(self)
    }

    /// The NUMA nodes.
    pub fn nodes(&self) -> &[NumaNode] {
        &self.nodes
    }

    /// CPUs by their last-level caches, those of a NUMA node together.
    pub fn domains(&self) -> &[CacheDomain] {
        &self.domains
    }

    /// The same with so much less memory on each NUMA node.
    #[must_use]
    pub fn without(&self, bytes: u64) -> Self {
        let mut less = self.clone();
        for node in &mut less.nodes {
            node.memory_bytes = node.memory_bytes.saturating_sub(bytes);
        }
        less
    }

    /// All numbers of NUMA nodes.
    pub fn numbers(&self) -> impl Iterator<Item = NumaNo> + use<> {
        (0..self.nodes.len()).map(NumaNo)
    }

    /// The number of a NUMA node.
    pub fn number(&self, id: NumaId) -> Option<NumaNo> {
        self.nodes.iter().position(|node| node.id == id).map(NumaNo)
    }

    /// The NUMA node of a number that this topology gave.
    pub fn id(&self, numa: NumaNo) -> NumaId {
        self.nodes[numa.0].id
    }

    /// The cache domain that has a CPU.
    pub fn domain_of(&self, cpu: u32) -> Option<DomainNo> {
        self.domains.iter().position(|domain| domain.cpus.contains(cpu)).map(DomainNo)
    }

    /// How much farther memory is than that of the CPUs' own node: 1 for that itself.
    pub fn distance(&self, from: NumaNo, to: NumaNo) -> f64 {
        f64::from(self.nodes[from.0].distances[to.0]) / f64::from(LOCAL)
    }

    /// How much CPUs of a node can read from memory of another one, millions of bytes a second. Where
    /// nobody has told: as much less than from their own as that one is farther.
    pub fn bandwidth_mb_s(&self, from: NumaNo, to: NumaNo) -> f64 {
        match &self.bandwidths_mb_s {
            Some(bandwidths) => f64::from(bandwidths[from.0][to.0]),
            None => f64::from(LOCAL_MB_S) / self.distance(from, to),
        }
    }

    /// The same with nodes that are as far as bandwidths say: one from which CPUs can read half as much as from their
    /// own is twice as far. Where nobody has told, that is as far as they are.
    #[must_use]
    pub fn by_bandwidth(&self) -> Self {
        let mut far = self.clone();
        let Some(bandwidths) = &self.bandwidths_mb_s else { return far };
        for ((at, node), row) in far.nodes.iter_mut().enumerate().zip(bandwidths) {
            let distance = |mb_s: &u32| row[at].saturating_mul(LOCAL).div_ceil(*mb_s).max(LOCAL);
            node.distances = row.iter().map(distance).collect();
        }
        far
    }
}

#[cfg(test)]
#[path = "tests/topology.rs"]
mod tests;
