// SPDX-License-Identifier: Apache-2.0
//! What a plan is for guests that run: which CPUs and memory each of them gets, and how it was before.

use std::collections::BTreeMap;
use std::sync::Arc;

use mint_api::{ErrorBody, MemoryGoes, VcpuChange, VmLayoutChange, VmPins};
use mint_guests::domain::VcpuPin;
use mint_guests::residents::{Piece, Resident};
use mint_layout::{Confidence, Plan, Relocation};
use mint_types::{CpuSet, GuestThread, PinChange};

use super::host::Host;
use super::kept::{Before, Was};
use crate::app::{App, Moving};
use crate::pins;

/// What is to be done with a guest.
pub(super) struct Work {
    /// As users are told.
    pub change: VmLayoutChange,
    /// The guest as it was found.
    pub resident: Resident,
    /// Where its memory was.
    pub pieces: Vec<Piece>,
    /// What goes.
    pub relocations: Vec<Relocation>,
}

/// Of each guest that changes, the first to choose first.
pub(super) fn works(host: &Host, plan: &Plan) -> Vec<Work> {
    let mut order: Vec<&str> = plan.why.iter().map(|why| why.guest.0.as_str()).collect();
    let changed = plan.pins.iter().map(|pins| &pins.guest);
    for id in changed.chain(plan.relocations.iter().map(|one| &one.guest)) {
        if !order.contains(&id.0.as_str()) {
            order.push(&id.0);
        }
    }
    let work = |uuid: &str| {
        let its = |(resident, _): &&(Resident, Vec<Piece>)| resident.running.uuid == uuid;
        let (resident, pieces) = host.residents.iter().find(its)?;
        let why = plan.why.iter().find(|why| why.guest.0 == uuid);
        let cpus = plan.pins.iter().find(|pins| pins.guest.0 == uuid);
        let vcpus = resident.threads.iter().zip(cpus.map_or(&[][..], |pins| &pins.cpus));
        let vcpus = vcpus.filter(|(thread, now)| {
            let is_owners = resident.running.pins.iter().any(|pin| pin.vcpu == thread.vcpu);
            !is_owners && thread.allowed != **now
        });
        let relocations = plan.relocations.iter().filter(|one| one.guest.0 == uuid);
        let change = VmLayoutChange {
            name: resident.running.name.clone(),
            uuid: uuid.to_owned(),
            rank: why.map_or(0, |why| why.rank),
            misses_per_kilo: why.map_or(0.0, |why| why.misses_per_kilo),
            is_guessed: why.is_none_or(|why| why.confidence == Confidence::Guessed),
            expected_gain: why.map_or(0.0, |why| why.gain),
            vcpus: vcpus
                .map(|(thread, now)| VcpuChange {
                    vcpu: thread.vcpu,
                    was: thread.allowed.clone(),
                    now: now.clone(),
                })
                .collect(),
            memory: goes(relocations.clone()),
            went_bytes: None,
            waits: None,
            left_alone: None,
        };
        let is_any = !change.vcpus.is_empty() || !change.memory.is_empty();
        is_any.then(|| Work {
            change,
            resident: resident.clone(),
            pieces: pieces.clone(),
            relocations: relocations.cloned().collect(),
        })
    };
    order.into_iter().filter_map(work).collect()
}

/// By from and to.
pub(super) fn goes<'plan>(relocations: impl Iterator<Item = &'plan Relocation>) -> Vec<MemoryGoes> {
    let mut sums: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    for one in relocations {
        *sums.entry((one.from.0, one.to.0)).or_default() += one.bytes;
    }
    sums.into_iter().map(|((from, to), bytes)| MemoryGoes { from, to, bytes }).collect()
}

/// Guests that somebody moves are left alone; the others are nobody else's while this is held.
pub(super) fn leave_moving(app: &Arc<App>, work: &mut [Work]) -> Vec<Moving> {
    let mut held = Vec::new();
    for one in work {
        match app.see_to(&one.change.uuid) {
            Some(moving) => held.push(moving),
            None => {
                one.change.left_alone = Some("it is being moved to another node".to_owned());
                one.relocations.clear();
            }
        }
    }
    held
}

/// How guests are before they change.
pub(super) fn before(work: &[Work]) -> Vec<Before> {
    let of = |work: &Work| Before {
        name: work.change.name.clone(),
        uuid: work.change.uuid.clone(),
        qemu: work.resident.running.qemu,
        vcpus: work.change.vcpus.iter().map(|vcpu| (vcpu.vcpu, vcpu.was.clone())).collect(),
        memory: work
            .relocations
            .iter()
            .map(|one| Was { offset: one.offset, bytes: one.bytes, numa: one.from })
            .collect(),
    };
    let changes = work.iter().filter(|one| one.change.left_alone.is_none());
    changes.map(of).collect()
}

/// CPUs of all guests, or of none.
///
/// # Errors
/// At the first that libvirt does not do; those before it are taken back.
pub(super) async fn give_cpus(app: &Arc<App>, work: &[Work]) -> Result<(), ErrorBody> {
    let changes = work.iter().filter(|one| one.change.left_alone.is_none());
    let changes: Vec<&Work> = changes.filter(|one| !one.change.vcpus.is_empty()).collect();
    for one in &changes {
        // before, as a pin that is not marked is its owner's
        mark(app, one).await?;
    }
    let vms: Vec<VmPins> = changes
        .iter()
        .map(|one| {
            let each = one.change.vcpus.iter();
            let changes = each.map(|vcpu| pin(vcpu.vcpu, &vcpu.was, &vcpu.now)).collect();
            VmPins { name: one.change.name.clone(), uuid: one.change.uuid.clone(), changes }
        })
        .collect();
    pins::change(app, &vms).await
}

fn pin(vcpu: u32, was: &CpuSet, now: &CpuSet) -> PinChange {
    let thread = GuestThread::Vcpu(vcpu);
    PinChange { thread, is_defined: false, was: was.clone(), now: now.clone() }
}

/// Marks what a layout keeps vCPUs to: these, before and after, and what is marked already of others.
async fn mark(app: &Arc<App>, work: &Work) -> Result<(), ErrorBody> {
    let mut marks = work.resident.running.marked.clone();
    marks.retain(|pin| work.change.vcpus.iter().all(|vcpu| vcpu.vcpu != pin.vcpu));
    for VcpuChange { vcpu, was, now } in &work.change.vcpus {
        marks.extend([was, now].map(|cpus| VcpuPin { vcpu: *vcpu, cpus: cpus.clone() }));
    }
    let uuid = work.change.uuid.clone();
    app.ask(move |hypervisor| hypervisor.mark(&uuid, &marks)).await
}

/// What is to be done for a guest to be as it was; none of one that runs no more, or anew.
pub(super) fn back(host: &Host, before: &Before) -> Option<Work> {
    let its = |(resident, _): &&(Resident, Vec<Piece>)| {
        resident.running.uuid == before.uuid && resident.running.qemu == before.qemu
    };
    let (resident, pieces) = host.residents.iter().find(its)?;
    let had = resident.threads.iter().filter_map(|thread| {
        let was = before.vcpus.get(&thread.vcpu)?;
        let is_owners = resident.running.pins.iter().any(|pin| pin.vcpu == thread.vcpu);
        let now = was.clone();
        let change = VcpuChange { vcpu: thread.vcpu, was: thread.allowed.clone(), now };
        (!is_owners && change.was != change.now).then_some(change)
    });
    let guest = resident.guest(&host.topology, pieces).id;
    let numa_of = |was: &Was| {
        let there = pieces.iter().find(|piece| piece.offset == was.offset);
        there.and_then(|piece| piece.there.keys().next().copied()).unwrap_or(was.numa)
    };
    let relocations: Vec<Relocation> = before
        .memory
        .iter()
        .map(|was| Relocation {
            guest: guest.clone(),
            offset: was.offset,
            bytes: was.bytes,
            from: numa_of(was),
            to: was.numa,
        })
        .collect();
    let change = VmLayoutChange {
        name: before.name.clone(),
        uuid: before.uuid.clone(),
        rank: 0,
        misses_per_kilo: 0.0,
        is_guessed: false,
        expected_gain: 0.0,
        vcpus: had.collect(),
        memory: goes(relocations.iter()),
        went_bytes: None,
        waits: None,
        left_alone: None,
    };
    Some(Work { change, resident: resident.clone(), pieces: pieces.clone(), relocations })
}
