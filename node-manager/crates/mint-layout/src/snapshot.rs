// SPDX-License-Identifier: Apache-2.0
//! What runs on a host, where it is, and what was measured of it.

use std::collections::BTreeSet;
use std::fmt;

use mint_types::CpuSet;
use serde::{Deserialize, Serialize};

use crate::sample::Ring;
use crate::topology::{DomainNo, NumaNo, Topology};

/// A guest, by its UUID.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GuestId(pub String);

impl fmt::Display for GuestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a policy may want to know.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Signal {
    /// For how long each vCPU ran.
    RunTime,
    /// Which NUMA node each range of memory is on.
    Memory,
    /// Instructions, and misses of the last-level cache.
    Misses,
    /// Cache lines from each NUMA node.
    Fills,
    /// How often each range of memory is used.
    Heat,
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RunTime => "the vCPUs' run time",
            Self::Memory => "which NUMA node memory is on",
            Self::Misses => "misses of the last-level cache",
            Self::Fills => "cache lines from each NUMA node",
            Self::Heat => "how often memory is used",
        })
    }
}

/// How much a value is worth.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// Something else was measured, from which it is taken to follow.
    Guessed,
    /// The thing itself was counted.
    Counted,
}

/// A virtual CPU.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Vcpu {
    /// Where it runs; of one that may run in several domains, where it ran most.
    pub domain: DomainNo,
    /// CPUs that its owner keeps it to. Empty: any.
    pub allowed: CpuSet,
    /// What was measured of it.
    pub samples: Ring,
}

/// A range of a guest's memory. Ranges of a guest do not overlap.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Region {
    /// Where it begins in the guest's RAM, as its file has it: no hole for PCI.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The NUMA node that has it.
    pub numa: NumaNo,
    /// How often it is used, of any unit that is the same for all regions of a guest. None: nobody knows.
    pub heat: Option<f64>,
}

/// A guest.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Guest {
    /// Which one.
    pub id: GuestId,
    /// Its vCPUs.
    pub vcpus: Vec<Vcpu>,
    /// Its memory: what it has pages for.
    pub regions: Vec<Region>,
    /// Its memory stays where it is: a device has it, or it is locked.
    pub is_fixed: bool,
}

impl Guest {
    /// Bytes of all its memory.
    pub fn bytes(&self) -> u64 {
        self.regions.iter().map(|region| region.bytes).sum()
    }
}

/// All guests of a host.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Snapshot {
    /// The guests.
    pub guests: Vec<Guest>,
}

/// A snapshot that is not one of its topology.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// A guest is there twice.
    #[error("guest {0} is there twice")]
    Twice(GuestId),
    /// Something of it is where nothing is.
    #[error("guest {0}: there is no {1}")]
    Nowhere(GuestId, String),
    /// Two regions of it are at the same place.
    #[error("guest {0}: two ranges of its memory are at {1:#x}")]
    Overlap(GuestId, u64),
    /// It is not on the CPUs that its owner keeps it to.
    #[error("guest {0}: its vCPU {1} is not on the CPUs that it is kept to")]
    Allowed(GuestId, usize),
}

impl Snapshot {
    /// Whether all is where the topology has something.
    ///
    /// # Errors
    /// With the first thing that does not fit.
    pub fn check(&self, topology: &Topology) -> Result<(), SnapshotError> {
        let mut ids = BTreeSet::new();
        for guest in &self.guests {
            let nowhere = |what: String| SnapshotError::Nowhere(guest.id.clone(), what);
            if !ids.insert(&guest.id) {
                return Err(SnapshotError::Twice(guest.id.clone()));
            }
            for (number, vcpu) in guest.vcpus.iter().enumerate() {
                if vcpu.domain.0 >= topology.domains().len() {
                    return Err(nowhere(format!("cache domain {}", vcpu.domain.0)));
                }
                if !vcpu.may_run(topology, vcpu.domain) {
                    return Err(SnapshotError::Allowed(guest.id.clone(), number));
                }
            }
            let mut regions: Vec<&Region> = guest.regions.iter().collect();
            regions.sort_by_key(|region| region.offset);
            let mut end = 0;
            for region in regions {
                if region.numa.0 >= topology.nodes().len() {
                    return Err(nowhere(format!("NUMA node {}", region.numa.0)));
                }
                if region.offset < end {
                    return Err(SnapshotError::Overlap(guest.id.clone(), region.offset));
                }
                end = region.offset.saturating_add(region.bytes);
            }
        }
        Ok(())
    }

    /// The same with memory in regions that end where so many bytes do; heat goes by bytes.
    pub(crate) fn in_pieces(&self, piece_bytes: u64) -> Self {
        let mut fine = self.clone();
        for guest in &mut fine.guests {
            guest.regions =
                guest.regions.iter().flat_map(|region| region.pieces(piece_bytes)).collect();
        }
        fine
    }

    /// What was measured of all guests that run.
    pub fn has(&self, signal: Signal) -> bool {
        let vcpus = || self.guests.iter().flat_map(|guest| &guest.vcpus);
        match signal {
            Signal::RunTime => vcpus().all(|vcpu| vcpu.samples.busy().is_some()),
            Signal::Memory => true,
            Signal::Misses => vcpus().all(|vcpu| {
                let is_idle = vcpu.samples.busy() == Some(0.0);
                is_idle || vcpu.samples.misses_per_kilo().is_some()
            }),
            Signal::Fills => vcpus().all(|vcpu| vcpu.samples.fills_per_s().is_some()),
            Signal::Heat => {
                let mut regions = self.guests.iter().flat_map(|guest| &guest.regions);
                regions.all(|region| region.heat.is_some())
            }
        }
    }
}

impl Region {
    /// What it is between two bytes of the guest's RAM; it has these.
    pub(crate) fn part(&self, start: u64, end: u64) -> Self {
        let bytes = end - start;
        let heat = self.heat.map(|heat| heat * (bytes as f64 / self.bytes as f64));
        Self { offset: start, bytes, numa: self.numa, heat }
    }

    fn pieces(&self, piece_bytes: u64) -> Vec<Self> {
        let end = self.offset.saturating_add(self.bytes);
        let (mut pieces, mut at) = (Vec::new(), self.offset);
        while at < end {
            let next = (at + 1).checked_next_multiple_of(piece_bytes).unwrap_or(end).min(end);
            pieces.push(self.part(at, next));
            at = next;
        }
        pieces
    }
}

impl Vcpu {
    /// Whether its owner lets it run on some CPU of that domain.
    pub fn may_run(&self, topology: &Topology, domain: DomainNo) -> bool {
        self.allowed.is_empty()
            || topology.domains()[domain.0].cpus.iter().any(|cpu| self.allowed.contains(cpu))
    }

    /// Whether its owner lets it run in all domains.
    pub fn may_run_anywhere(&self, topology: &Topology) -> bool {
        (0..topology.domains().len()).all(|domain| self.may_run(topology, DomainNo(domain)))
    }

    /// The CPUs that it may have there.
    pub fn cpus(&self, topology: &Topology, domain: DomainNo) -> CpuSet {
        let cpus = &topology.domains()[domain.0].cpus;
        if self.allowed.is_empty() {
            return cpus.clone();
        }
        cpus.iter().filter(|&cpu| self.allowed.contains(cpu)).collect()
    }
}

#[cfg(test)]
#[path = "tests/snapshot.rs"]
mod tests;
