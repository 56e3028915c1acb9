// SPDX-License-Identifier: Apache-2.0
//! This host's guests as a layout's snapshot has them, and one of them as the next host is told of it. Pure: what
//! was read of the host comes in, and who knows where pages are is a trait.

use std::collections::BTreeMap;
use std::io;

use mint_layout::{DomainNo, Guest, GuestId, NumaId, Profile, Range, Region, Ring, Topology, Vcpu};
use mint_types::CpuSet;

use crate::running::Running;
use crate::vcpus::{RamMapping, VcpuThread};

/// A guest's memory is looked at in so many pieces at most.
const PIECES: u64 = 256;
/// No piece is smaller: a huge page.
const PIECE_BYTES: u64 = 2 << 20;
/// Of a piece so many pages at most are looked at, at the same distance from each other.
const LOOKS: u64 = 64;
const PAGE: u64 = 4096;

/// Who knows where pages of a process are.
pub trait Pages {
    /// The NUMA node of each page; none of one that is not there.
    ///
    /// # Errors
    /// When the process has ended, or the kernel does not tell.
    fn numas(&self, process: u32, addresses: &[u64]) -> io::Result<Vec<Option<NumaId>>>;
}

/// A guest, as this host has it.
#[derive(Clone, PartialEq, Debug)]
pub struct Resident {
    /// What libvirt's record of it says.
    pub running: Running,
    /// Its vCPUs' threads.
    pub threads: Vec<VcpuThread>,
    /// Where its RAM is mapped; none if it is not known.
    pub ram: Option<RamMapping>,
    /// What was measured of each vCPU, by the threads' order.
    pub samples: Vec<Ring>,
}

/// A piece of a guest's RAM.
#[derive(Clone, PartialEq, Debug)]
pub struct Piece {
    /// Where it begins in the RAM's file.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
    /// What it has on each NUMA node, bytes, by the pages that were looked at; nothing of one without pages.
    pub there: BTreeMap<NumaId, u64>,
}

impl Piece {
    /// The NUMA node that has most of it; of equal ones the first.
    fn numa(&self) -> Option<NumaId> {
        let most = self.there.iter().rev().max_by_key(|(_, bytes)| **bytes);
        most.map(|(numa, _)| *numa)
    }
}

impl Resident {
    /// Pieces of its RAM.
    ///
    /// # Errors
    /// As [`Pages::numas`].
    pub fn pieces(&self, pages: &dyn Pages) -> io::Result<Vec<Piece>> {
        let Some(ram) = &self.ram else { return Ok(Vec::new()) };
        let size = (ram.bytes / PIECES).next_multiple_of(PIECE_BYTES).max(PIECE_BYTES);
        let mut found = Vec::new();
        let mut at = 0;
        while at < ram.bytes {
            let bytes = size.min(ram.bytes - at);
            let step = (bytes / LOOKS).next_multiple_of(PAGE).max(PAGE);
            let looked = (0..bytes).step_by(usize::try_from(step).unwrap_or(usize::MAX));
            let addresses: Vec<u64> = looked.map(|inner| ram.address + at + inner).collect();
            let mut there: BTreeMap<NumaId, u64> = BTreeMap::new();
            for numa in pages.numas(self.running.qemu, &addresses)?.into_iter().flatten() {
                *there.entry(numa).or_default() += step;
            }
            found.push(Piece { offset: ram.offset + at, bytes, there });
            at += bytes;
        }
        Ok(found)
    }

    /// The guest in a snapshot.
    pub fn guest(&self, topology: &Topology, pieces: &[Piece]) -> Guest {
        let region = |piece: &Piece| {
            let numa = topology.number(piece.numa()?)?;
            Some(Region { offset: piece.offset, bytes: piece.bytes, numa, heat: None })
        };
        Guest {
            id: GuestId(self.running.uuid.clone()),
            vcpus: self.vcpus(topology),
            regions: pieces.iter().filter_map(region).collect(),
            is_fixed: self.running.is_fixed,
        }
    }

    fn vcpus(&self, topology: &Topology) -> Vec<Vcpu> {
        let samples = self.samples.iter().cloned().chain(std::iter::repeat(Ring::default()));
        let vcpu = |(thread, samples): (&VcpuThread, Ring)| {
            let pin = self.running.pins.iter().find(|pin| pin.vcpu == thread.vcpu);
            let has_it = |cpus: &&CpuSet| cpus.iter().any(|cpu| topology.domain_of(cpu).is_some());
            // CPUs that this host has no more are no wish that it can fulfil
            let allowed = pin.map(|pin| &pin.cpus).filter(has_it).cloned().unwrap_or_default();
            let domain = domain(topology, thread, &allowed);
            Vcpu { domain, allowed, samples }
        };
        self.threads.iter().zip(samples).map(vcpu).collect()
    }

    /// What the next host is told of it: all of its RAM, as the pages that it does not have come there, too, as zeros.
    /// They are not used; all others are taken to be used as often.
    pub fn profile(&self, pieces: &[Piece]) -> Profile {
        let mut ranges: Vec<Range> = Vec::new();
        for piece in pieces {
            let bytes = piece.bytes;
            let is_used = !piece.there.is_empty();
            match ranges.last_mut() {
                Some(last) if is_used == (last.heat != Some(0.0)) => last.bytes += bytes,
                _ => ranges.push(Range { offset: piece.offset, bytes, heat: Some(0.0) }),
            }
            if let Some(last) = ranges.last_mut().filter(|_| is_used) {
                last.heat = Some(last.bytes as f64);
            }
        }
        let mut vcpus = self.samples.clone();
        vcpus.resize(self.threads.len().max(1), Ring::default());
        Profile { id: GuestId(self.running.uuid.clone()), vcpus, ranges }
    }
}

/// Where a thread runs: the domain of the CPU that it ran on last, if it may run there still.
fn domain(topology: &Topology, thread: &VcpuThread, allowed: &CpuSet) -> DomainNo {
    let may = |cpu: u32| allowed.is_empty() || allowed.contains(cpu);
    let of = |cpu: u32| topology.domain_of(cpu).filter(|_| may(cpu));
    let last = of(thread.cpu).filter(|_| thread.allowed.contains(thread.cpu));
    let elsewhere = || thread.allowed.iter().find_map(of);
    let any = || allowed.iter().find_map(of);
    last.or_else(elsewhere).or_else(any).unwrap_or(DomainNo(0))
}

/// What guests have of each NUMA node.
pub fn bytes_there<'piece>(
    pieces: impl IntoIterator<Item = &'piece Piece>,
) -> BTreeMap<NumaId, u64> {
    let mut sums: BTreeMap<NumaId, u64> = BTreeMap::new();
    for (&numa, bytes) in pieces.into_iter().flat_map(|piece| &piece.there) {
        *sums.entry(numa).or_default() += bytes;
    }
    sums
}

#[cfg(test)]
#[path = "tests/residents.rs"]
mod tests;
