// SPDX-License-Identifier: Apache-2.0
//! What is to change on a host.

use std::collections::VecDeque;

use mint_types::CpuSet;
use serde::{Deserialize, Serialize};

use crate::layout::Layout;
use crate::room::Free;
use crate::snapshot::{Confidence, GuestId, Region, Snapshot};
use crate::topology::{NumaId, NumaNo, Topology};

/// CPUs that a guest's vCPUs get.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pins {
    /// The guest.
    pub guest: GuestId,
    /// Of each of its vCPUs.
    pub cpus: Vec<CpuSet>,
}

/// Memory of a guest that another NUMA node gets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Relocation {
    /// The guest.
    pub guest: GuestId,
    /// Where it begins in the guest's RAM, as its file has it: no hole for PCI.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Which has it.
    pub from: NumaId,
    /// Which gets it.
    pub to: NumaId,
}

/// Why a guest gets another place, for people.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Why {
    /// The guest.
    pub guest: GuestId,
    /// Its place among the guests, the first to choose being 1.
    pub rank: usize,
    /// Misses per thousand instructions that gave it this rank.
    pub misses_per_kilo: f64,
    /// What that is worth.
    pub confidence: Confidence,
    /// How much less its work is to cost; below 0: more, for another guest's sake.
    pub gain: f64,
    /// Bytes of its memory that get another NUMA node.
    pub relocated_bytes: u64,
}

/// What a policy wants to have done.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Whose it is.
    pub policy: String,
    /// Guests whose vCPUs get other CPUs.
    pub pins: Vec<Pins>,
    /// Memory that gets another NUMA node, in an order in which there is room for each, unless two want
    /// to change places.
    pub relocations: Vec<Relocation>,
    /// How much less the work of all guests is to cost.
    pub gain: f64,
    /// The guests that change, the first to choose first.
    pub why: Vec<Why>,
}

impl Plan {
    /// Nothing is to change.
    pub fn nothing(policy: &str) -> Self {
        let (pins, relocations, why) = (Vec::new(), Vec::new(), Vec::new());
        Self { policy: policy.to_owned(), pins, relocations, gain: 0.0, why }
    }

    /// Whether nothing is to change.
    pub fn is_empty(&self) -> bool {
        self.pins.is_empty() && self.relocations.is_empty()
    }

    /// Bytes that get another NUMA node.
    pub fn relocated_bytes(&self) -> u64 {
        self.relocations.iter().map(|one| one.bytes).sum()
    }

    /// The snapshot as it is once all of this is done. What names nothing of it is left out; a region of which a part
    /// is relocated is cut, its heat by its bytes.
    pub fn done(&self, snapshot: &Snapshot, topology: &Topology) -> Snapshot {
        let mut after = snapshot.clone();
        for guest in &mut after.guests {
            for pins in self.pins.iter().filter(|pins| pins.guest == guest.id) {
                for (vcpu, cpus) in guest.vcpus.iter_mut().zip(&pins.cpus) {
                    let domain = cpus.iter().find_map(|cpu| topology.domain_of(cpu));
                    vcpu.domain = domain.unwrap_or(vcpu.domain);
                }
            }
            for one in self.relocations.iter().filter(|one| one.guest == guest.id) {
                let Some(to) = topology.number(one.to) else { continue };
                let regions = std::mem::take(&mut guest.regions);
                guest.regions =
                    regions.into_iter().flat_map(|region| cut(region, one, to)).collect();
            }
        }
        after
    }
}

/// What a relocation makes of a region: itself, or the parts before it, in it, and after it.
fn cut(region: Region, by: &Relocation, to: NumaNo) -> Vec<Region> {
    let (first, last) = (region.offset, region.offset.saturating_add(region.bytes));
    let start = by.offset.clamp(first, last);
    let end = by.offset.saturating_add(by.bytes).clamp(first, last);
    if start == end {
        return vec![region];
    }
    let parts = [(first, start, region.numa), (start, end, to), (end, last, region.numa)];
    let parts = parts.into_iter().filter(|(start, end, _)| start < end);
    parts.map(|(start, end, numa)| Region { numa, ..region.part(start, end) }).collect()
}

/// The guests whose vCPUs are elsewhere in the new layout.
pub(crate) fn pins(snapshot: &Snapshot, topology: &Topology, after: &Layout) -> Vec<Pins> {
    let guests = snapshot.guests.iter().zip(&after.vcpus);
    let changed = guests.filter(|(guest, domains)| {
        guest.vcpus.iter().zip(*domains).any(|(vcpu, &domain)| vcpu.domain != domain)
    });
    let pins = changed.map(|(guest, domains)| {
        let vcpus = guest.vcpus.iter().zip(domains);
        let cpus = vcpus.map(|(vcpu, &domain)| vcpu.cpus(topology, domain)).collect();
        Pins { guest: guest.id.clone(), cpus }
    });
    pins.collect()
}

/// The memory that is elsewhere in the new layout: neighbours that go the same way as one.
pub(crate) fn relocations(
    snapshot: &Snapshot,
    topology: &Topology,
    after: &Layout,
) -> Vec<Relocation> {
    let mut left: Vec<(NumaNo, NumaNo, Relocation)> = Vec::new();
    for (guest, numas) in snapshot.guests.iter().zip(&after.regions) {
        let mut changed: Vec<_> = guest.regions.iter().zip(numas).collect();
        changed.retain(|(region, numa)| region.numa != **numa);
        changed.sort_by_key(|(region, _)| region.offset);
        for (region, &to) in changed {
            let from = region.numa;
            if let Some((_, _, last)) = left.last_mut().filter(|(last_from, last_to, last)| {
                (*last_from, *last_to) == (from, to)
                    && last.guest == guest.id
                    && last.offset + last.bytes == region.offset
            }) {
                last.bytes += region.bytes;
                continue;
            }
            let one = Relocation {
                guest: guest.id.clone(),
                offset: region.offset,
                bytes: region.bytes,
                from: topology.id(from),
                to: topology.id(to),
            };
            left.push((from, to, one));
        }
    }
    in_order(Free::of(snapshot, topology, &Layout::of(snapshot)), left)
}

/// These, each with its NUMA nodes, in an order in which there is room for each, unless two want to change places.
pub(crate) fn in_order(mut free: Free, left: Vec<(NumaNo, NumaNo, Relocation)>) -> Vec<Relocation> {
    // mostly one of the first is next
    let mut left = VecDeque::from(left);
    let mut ordered = Vec::with_capacity(left.len());
    loop {
        // none fits: two want to change places, and go piece by piece
        let next = left.iter().position(|(_, to, one)| free.at(*to) >= one.bytes).unwrap_or(0);
        let Some((from, to, one)) = left.remove(next) else { return ordered };
        free.relocate(one.bytes, from, to);
        ordered.push(one);
    }
}

#[cfg(test)]
#[path = "tests/plan.rs"]
mod tests;
