// SPDX-License-Identifier: Apache-2.0
//! What there is room for: vCPUs in cache domains, memory on NUMA nodes.

use crate::layout::Layout;
use crate::snapshot::Snapshot;
use crate::topology::{DomainNo, NumaNo, Topology};

/// How many more vCPUs each cache domain takes; below 0 where it has more than that.
#[derive(Clone, Debug)]
pub(crate) struct Slots(Vec<isize>);

impl Slots {
    /// All are free. A domain takes as many vCPUs as it has CPUs, or, of a host that has fewer CPUs
    /// than vCPUs, so many times more; and never fewer than it has now.
    pub fn all(snapshot: &Snapshot, topology: &Topology) -> Self {
        let cpus: usize = topology.domains().iter().map(|domain| domain.cpus.len()).sum();
        let vcpus: usize = snapshot.guests.iter().map(|guest| guest.vcpus.len()).sum();
        let each = vcpus.div_ceil(cpus).max(1);
        let mut now = vec![0; topology.domains().len()];
        for vcpu in snapshot.guests.iter().flat_map(|guest| &guest.vcpus) {
            now[vcpu.domain.0] += 1;
        }
        let most = topology.domains().iter().zip(now);
        let most = most.map(|(domain, now)| now.max(domain.cpus.len() * each));
        Self(most.map(|most| isize::try_from(most).unwrap_or(isize::MAX)).collect())
    }

    /// What guests leave.
    pub fn left(snapshot: &Snapshot, topology: &Topology) -> Self {
        let mut slots = Self::all(snapshot, topology);
        for vcpu in snapshot.guests.iter().flat_map(|guest| &guest.vcpus) {
            slots.take(vcpu.domain);
        }
        slots
    }

    /// Of these domains, or of all if there is none, the one that takes most more; the first of equal ones.
    pub fn roomiest(&self, of: &[DomainNo]) -> DomainNo {
        let each = self.0.iter().enumerate().rev().map(|(domain, left)| (DomainNo(domain), left));
        let these = each.filter(|(domain, _)| of.is_empty() || of.contains(domain));
        these.max_by_key(|(_, left)| **left).map_or(DomainNo(0), |(domain, _)| domain)
    }

    /// How many more fit.
    pub fn at(&self, domain: DomainNo) -> usize {
        usize::try_from(self.0[domain.0]).unwrap_or(0)
    }

    /// Whether one more fits.
    pub fn is_free(&self, domain: DomainNo) -> bool {
        self.0[domain.0] > 0
    }

    /// A vCPU gives one back.
    pub fn leave(&mut self, domain: DomainNo) {
        self.0[domain.0] += 1;
    }

    /// A vCPU takes one.
    pub fn take(&mut self, domain: DomainNo) {
        self.0[domain.0] -= 1;
    }
}

/// Free bytes of each NUMA node; fewer than none where memory has been given that another has yet to leave.
#[derive(Clone, Debug)]
pub(crate) struct Free(Vec<i128>);

impl Free {
    /// What guests do not have.
    pub fn of(snapshot: &Snapshot, topology: &Topology, layout: &Layout) -> Self {
        let memory = topology.nodes().iter().map(|node| i128::from(node.memory_bytes));
        let mut free: Vec<i128> = memory.collect();
        for (guest, numas) in snapshot.guests.iter().zip(&layout.regions) {
            for (region, numa) in guest.regions.iter().zip(numas) {
                free[numa.0] -= i128::from(region.bytes);
            }
        }
        Self(free)
    }

    /// Of one NUMA node.
    pub fn at(&self, numa: NumaNo) -> u64 {
        u64::try_from(self.0[numa.0].max(0)).unwrap_or(u64::MAX)
    }

    /// Whether more has been given of it than there is, and more than before.
    pub fn is_over(&self, before: &Self, numa: NumaNo) -> bool {
        self.0[numa.0] < before.0[numa.0].min(0)
    }

    /// A guest gets some.
    pub fn take(&mut self, bytes: u64, numa: NumaNo) {
        self.0[numa.0] -= i128::from(bytes);
    }

    /// Memory goes from one to another.
    pub fn relocate(&mut self, bytes: u64, from: NumaNo, to: NumaNo) {
        self.0[from.0] += i128::from(bytes);
        self.0[to.0] -= i128::from(bytes);
    }
}
