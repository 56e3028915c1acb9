// SPDX-License-Identifier: Apache-2.0
//! Where a guest that is about to come will be, before it comes (L, 3.1).
//!
//! It is put into the host's snapshot where it would be without anybody's doing, as one more guest, and a policy
//! arranges them all. What the plan says of it are CPUs and NUMA nodes that it gets at once; what the plan
//! says of others makes room for it before. A guest that has been given a place and has not come yet is one of
//! the others when the next one is given its own.

use mint_types::{CpuSet, format_bytes};
use serde::{Deserialize, Serialize};

use crate::cost::Weight;
use crate::layout::Layout;
use crate::plan::{Plan, Relocation};
use crate::policy::{Limits, Policy, PolicyError};
use crate::profile::Profile;
use crate::room::{Free, Slots};
use crate::sample::Sample;
use crate::snapshot::{Guest, Region, Snapshot, Vcpu};
use crate::topology::{DomainNo, NumaId, NumaNo, Topology};

/// A guest's memory is placed in so many pieces at most, but for its ranges.
const PIECES: u64 = 64;
/// No piece is cut smaller: a huge page.
const PIECE_BYTES: u64 = 2 << 20;
const PAGE: u64 = 4096;

/// A range of a guest's memory, and the NUMA node that is to have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Bind {
    /// Where it begins in the guest's RAM, as its file has it: no hole for PCI.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The NUMA node.
    pub numa: NumaId,
}

/// A place for a guest.
#[derive(Clone, PartialEq, Debug)]
pub struct Landing {
    /// CPUs of each of its vCPUs.
    pub pins: Vec<CpuSet>,
    /// NUMA nodes of all of its memory, in their order.
    pub binds: Vec<Bind>,
    /// Memory of others that goes before it comes.
    pub evictions: Vec<Relocation>,
    /// What the policy said, the guest itself and others' CPUs included.
    pub plan: Plan,
    /// The guest in its place: what the next one's snapshot has of it until it has come.
    pub guest: Guest,
}

/// Why it gets none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LandingError {
    /// There is not enough memory, wherever others are.
    #[error("it needs {}, and the NUMA nodes have {} for it in all", format_bytes(*.needs), format_bytes(*.free))]
    NoRoom {
        /// Bytes that it needs.
        needs: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// The policy has no plan.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// Finds a place for a guest among others. Changes nothing.
///
/// # Arguments
/// * `others` - guests of the host, and those that are to come before it.
/// * `allowed` - CPUs that its owner keeps each of its vCPUs to on this host. Empty, or not told: any.
/// * `limits` - what the plan may cost; the guest's own memory is not counted, as it is not there yet.
///
/// # Errors
/// When there is no room, or the policy lacks what it needs.
pub fn land<P: Policy + ?Sized>(
    policy: &mut P,
    topology: &Topology,
    others: &Snapshot,
    profile: &Profile,
    allowed: &[CpuSet],
    limits: &Limits,
) -> Result<Landing, LandingError> {
    let guest = by_default(topology, others, profile, allowed)?;
    let id = guest.id.clone();
    let mut all = others.clone();
    all.guests.retain(|other| other.id != id);
    all.guests.push(guest);
    let relocated_bytes = limits.relocated_bytes.saturating_add(profile.bytes());
    let plan = policy.plan(&all, topology, &Limits { relocated_bytes, ..*limits })?;
    let mut guests = plan.done(&all, topology).guests;
    let Some(mut guest) = guests.pop() else { unreachable!("it was just pushed") };
    answer_here(&mut guest, topology);
    let pins = guest.vcpus.iter().map(|vcpu| vcpu.cpus(topology, vcpu.domain)).collect();
    let evictions = plan.relocations.iter().filter(|one| one.guest != id).cloned().collect();
    Ok(Landing { pins, binds: binds(&guest, topology), evictions, plan, guest })
}

/// A guest where it comes to when nobody thinks of it: each vCPU in the domain that has most room, its memory
/// on the first one's NUMA node as long as there is some, and then on the nearest.
///
/// # Errors
/// When there is no room.
pub fn by_default(
    topology: &Topology,
    others: &Snapshot,
    profile: &Profile,
    allowed: &[CpuSet],
) -> Result<Guest, LandingError> {
    let mut others = others.clone();
    others.guests.retain(|other| other.id != profile.id);
    let mut free = Free::of(&others, topology, &Layout::of(&others));
    let all_free: u64 = topology.numbers().map(|numa| free.at(numa)).sum();
    let no_room = LandingError::NoRoom { needs: profile.bytes(), free: all_free };
    let mut slots = Slots::left(&others, topology);
    let mut vcpus = Vec::new();
    let allowed = allowed.iter().cloned().chain(std::iter::repeat(CpuSet::default()));
    for (samples, allowed) in profile.vcpus.iter().zip(allowed) {
        let mut vcpu = Vcpu { domain: DomainNo(0), allowed, samples: samples.clone() };
        let domains = (0..topology.domains().len()).map(DomainNo);
        let may: Vec<DomainNo> = domains.filter(|&one| vcpu.may_run(topology, one)).collect();
        if may.is_empty() {
            // a wish for CPUs that this host has not is none
            vcpu.allowed = CpuSet::default();
        }
        vcpu.domain = slots.roomiest(&may);
        slots.take(vcpu.domain);
        vcpus.push(vcpu);
    }
    let home = vcpus.first().map_or(NumaNo(0), |vcpu| topology.domains()[vcpu.domain.0].numa);
    let mut near: Vec<NumaNo> = topology.numbers().collect();
    near.sort_by(|&one, &other| {
        topology.distance(home, one).total_cmp(&topology.distance(home, other))
    });
    let piece = (profile.bytes() / PIECES).next_multiple_of(PIECE_BYTES).max(PIECE_BYTES);
    let mut regions: Vec<Region> = Vec::new();
    for range in &profile.ranges {
        let mut at = 0;
        while at < range.bytes {
            let (offset, left) = (range.offset + at, range.bytes - at);
            let Some(&numa) = near.iter().find(|&&numa| pages(&free, numa) > 0) else {
                return Err(no_room);
            };
            // to the next place where a piece begins, as huge pages do
            let whole = piece - offset % piece;
            let bytes = whole.min(left).min(pages(&free, numa));
            free.take(bytes, numa);
            let heat = range.heat.map(|heat| heat * (bytes as f64 / range.bytes as f64));
            regions.push(Region { offset, bytes, numa, heat });
            at += bytes;
        }
    }
    let mut guest = Guest { id: profile.id.clone(), vcpus, regions, is_fixed: false };
    answer_here(&mut guest, topology);
    Ok(guest)
}

/// What samples say of NUMA nodes is of those of the guest's last host. Here each node is taken to answer as
/// much as it has of the memory that is used.
fn answer_here(guest: &mut Guest, topology: &Topology) {
    let numas: Vec<NumaNo> = guest.regions.iter().map(|region| region.numa).collect();
    let parts = Weight::of(guest).parts(topology, &numas);
    let here = |sample: &Sample| {
        let lines = sample.fills.as_ref().map(|fills| fills.iter().sum::<u64>());
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a part of a u64"
        )]
        let part = |lines: u64, part: f64| (lines as f64 * part) as u64;
        let fills = lines.map(|lines| parts.iter().map(|&one| part(lines, one)).collect());
        Sample { fills, ..sample.clone() }
    };
    for vcpu in &mut guest.vcpus {
        vcpu.samples = vcpu.samples.iter().map(here).collect::<Vec<_>>().into();
    }
}

/// What is free of a NUMA node, in whole pages: others are bound by nobody.
fn pages(free: &Free, numa: NumaNo) -> u64 {
    free.at(numa) / PAGE * PAGE
}

/// Neighbours on the same NUMA node are one.
fn binds(guest: &Guest, topology: &Topology) -> Vec<Bind> {
    let mut binds: Vec<Bind> = Vec::new();
    for region in &guest.regions {
        let numa = topology.id(region.numa);
        match binds.last_mut() {
            Some(last) if last.numa == numa && last.offset + last.bytes == region.offset => {
                last.bytes += region.bytes;
            }
            _ => binds.push(Bind { offset: region.offset, bytes: region.bytes, numa }),
        }
    }
    binds
}

#[cfg(test)]
#[path = "tests/landing.rs"]
mod tests;
