// SPDX-License-Identifier: Apache-2.0
//! A guest's place is made ready for it, and it is brought there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mint_api::{ErrorBody, ErrorCode, LayoutFigures};
use mint_guests::arrival::{LayoutWish, Placement};
use mint_guests::domain::Domain;
use mint_guests::running::running;
use mint_guests::vcpus::{RamMapping, ram};
use mint_layout::{Bind, Landing, Plan, Relocation, Ring};
use mint_types::{CpuSet, LayoutPolicy};
use tracing::{info, warn};

use super::host::{Host, resident};
use super::kept::Before;
use super::memory::Memory;
use super::pages::{address, prefer, relocate, sweep};
use super::place::find;
use super::places::{Evicted, Making, Place};
use super::reasons::came;
use super::work::{Work, back, before, give_cpus, leave_moving, works};
use crate::app::{App, Moving};
use crate::memory::qemu_of;

/// A guest waits so long at most for its place to be ready; what is not is relocated later, or not at all.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// Makes room for a guest whose arrival is written down; it has its place from now on. What it was promised may be
/// others' by now: then it gets the next best.
///
/// # Errors
/// When there is none any more.
pub(crate) async fn make_room(
    app: &Arc<App>,
    uuid: &str,
    attempt: Option<u64>,
    wish: LayoutWish,
    pins: Vec<CpuSet>,
) -> Result<(), ErrorBody> {
    wish.profile.check().map_err(|error| ErrorBody::from_error(ErrorCode::BadRequest, &error))?;
    let (samples, policy) = (wish.profile.vcpus.clone(), wish.policy);
    let found = find(app, wish, pins).await?;
    let found = found.map_err(|error| ErrorBody::from_error(ErrorCode::Failed, &error))?;
    let (place, others, _moving) = place_of(app, found, samples, policy);
    let place = Place { uuid: uuid.to_owned(), attempt, ..place };
    let (making, evicted) = (place.making.clone(), place.evicted.clone());
    if let Some(before) = app.layouts.places.put(place) {
        give_back(app, before).await;
    }
    give_way(app, &others, &making).await;
    make_way(app, evicted, making).await
}

/// A place that was found, the others that get other CPUs for it, and what keeps these from being moved meanwhile.
pub(super) fn place_of(
    app: &Arc<App>,
    (host, landing): (Host, Landing),
    samples: Vec<Ring>,
    policy: LayoutPolicy,
) -> (Place, Vec<Work>, Vec<Moving>) {
    let why = landing.plan.why.iter().find(|why| why.guest == landing.guest.id).cloned();
    let evicted = evicted(&host, &landing.evictions);
    let mut others = works(&host, &Plan { relocations: Vec::new(), ..landing.plan });
    let moving = leave_moving(app, &mut others);
    let place = Place {
        uuid: landing.guest.id.0.clone(),
        attempt: None,
        guest: landing.guest,
        policy,
        why,
        binds: landing.binds,
        samples,
        evicted,
        others: before(&others),
        has_come: false,
        by_hook: None,
        making: Arc::default(),
    };
    (place, others, moving)
}

/// Memory of others goes.
///
/// # Errors
/// When this daemon is at fault.
pub(super) async fn make_way(
    app: &Arc<App>,
    evicted: Vec<Evicted>,
    making: Arc<Making>,
) -> Result<(), ErrorBody> {
    let asked = app.clone();
    app.call(move |_| {
        evict(&*asked.layouts.memory, &evicted, &making);
        Ok(())
    })
    .await
}

/// Others get the CPUs that the plan has for them: all, or none.
pub(super) async fn give_way(app: &Arc<App>, others: &[Work], making: &Making) {
    let _alone = making.pinning.lock().await;
    if making.is_stopped() {
        return;
    }
    if let Err(error) = give_cpus(app, others).await {
        warn!(%error, "other guests stay on their CPUs");
    }
}

/// Where the guests have it that are to lose it.
fn evicted(host: &Host, evictions: &[Relocation]) -> Vec<Evicted> {
    let residents = host.by_uuid();
    let of = |one: &Relocation| {
        let resident = residents.get(one.guest.0.as_str())?;
        let (guest, qemu) = (one.guest.0.clone(), resident.running.qemu);
        let (address, bytes) = (address(resident, one.offset)?, one.bytes);
        Some(Evicted { guest, qemu, address, bytes, from: one.from, to: one.to })
    };
    evictions.iter().filter_map(of).collect()
}

fn evict(memory: &dyn Memory, evicted: &[Evicted], making: &Making) {
    let _alone = making.alone();
    let end = Instant::now() + READY_WITHIN;
    for Evicted { guest, qemu, address, bytes, to, .. } in evicted {
        let goes_on = || Instant::now() < end && !making.is_stopped();
        let went = relocate(memory, *qemu, (*address, *bytes), *to, goes_on);
        info!(guest, %to, bytes, went, "makes room");
        if !goes_on() {
            warn!("the place of a guest that is to come is not ready");
            return;
        }
    }
}

/// What others have lost for a guest that does not come goes back.
pub(super) async fn give_back(app: &Arc<App>, place: Place) {
    app.layouts.samples.forget(&place.uuid);
    place.making.stop();
    if !place.others.is_empty() {
        let _alone = place.making.pinning.lock().await;
        if let Err(error) = come_back(app, &place.others).await {
            warn!(%error, "guests that made room stay on the CPUs that they were given");
        }
    }
    let asked = app.clone();
    let done = app.call(move |_| {
        let _alone = place.making.alone();
        let running = running(&asked.host.path("/"));
        let end = Instant::now() + READY_WITHIN;
        for Evicted { guest, qemu, address, bytes, from, .. } in place.evicted {
            // another process may have its number by now
            if !running.iter().any(|one| one.uuid == guest && one.qemu == qemu) {
                continue;
            }
            let goes_on = || Instant::now() < end;
            let went = relocate(&*asked.layouts.memory, qemu, (address, bytes), from, goes_on);
            info!(uuid = place.uuid, guest, to = %from, went, "goes back: the guest does not come");
        }
        Ok(())
    });
    if let Err(error) = done.await {
        warn!(%error, "memory that made room does not go back");
    }
}

/// Others get the CPUs back that they had.
async fn come_back(app: &Arc<App>, others: &[Before]) -> Result<(), ErrorBody> {
    let asked = app.clone();
    let host = app.call(move |_| Ok(Host::look(&asked))).await??;
    let mut work: Vec<Work> = others.iter().filter_map(|before| back(&host, before)).collect();
    let _moving = leave_moving(app, &mut work);
    give_cpus(app, &work).await
}

/// The QEMU of a guest is there, and libvirt waits for its hook: from now on what comes of its memory comes to its place.
/// One without a place, and memory that is no file, are let pass: that is relocated once it has come.
///
/// # Errors
/// When its XML cannot be read.
pub(crate) async fn started(app: &Arc<App>, xml: &str) -> Result<(), ErrorBody> {
    let domain =
        Domain::parse(xml).map_err(|error| ErrorBody::from_error(ErrorCode::BadRequest, &error))?;
    let Some(uuid) = domain.uuid else { return Ok(()) };
    let Some(place) = app.layouts.places.get(&uuid) else { return Ok(()) };
    let qemu = qemu_of(app, &domain.name)?;
    let asked = app.clone();
    app.call(move |_| {
        let Some(ram) = ram(&asked.host.path("/"), qemu).filter(|ram| ram.is_file) else {
            return Ok(());
        };
        let file = asked.host.path(&ram.path(qemu));
        for bind in within(&place.binds, &ram) {
            if let Err(error) = prefer(&*asked.layouts.memory, &file, &bind) {
                warn!(uuid, %error, "its memory comes to where it comes");
                return Ok(());
            }
        }
        Ok(())
    })
    .await
}

/// What a guest has of the ranges that it was said to have.
fn within(binds: &[Bind], ram: &RamMapping) -> Vec<Bind> {
    let cut = |bind: &Bind| {
        let start = bind.offset.max(ram.offset);
        let end = (bind.offset + bind.bytes).min(ram.offset + ram.bytes);
        (start < end).then_some(Bind { offset: start, bytes: end - start, numa: bind.numa })
    };
    binds.iter().filter_map(cut).collect()
}

/// A guest that has a place has come: what is not where it is to be goes there. None of one without a place. Asked
/// again it looks again.
///
/// # Errors
/// When it has ended.
pub(crate) async fn landed(app: &Arc<App>, uuid: &str) -> Result<Option<LayoutFigures>, ErrorBody> {
    let Some(place) = app.layouts.places.get(uuid) else { return Ok(None) };
    let asked = app.clone();
    let figures = app.call(move |_| {
        let all = running(&asked.host.path("/"));
        let Some(running) = all.into_iter().find(|one| one.uuid == place.uuid) else {
            return Ok(None);
        };
        asked.layouts.samples.adopt(&place.uuid, &place.samples);
        asked.layouts.places.change(&place.uuid, place.attempt, |place| place.has_come = true);
        let resident = resident(&asked, running);
        let qemu = resident.running.qemu;
        let Some(ram) = resident.ram else { return Ok(None) };
        let memory = &*asked.layouts.memory;
        let mut figures = LayoutFigures::default();
        for bind in within(&place.binds, &ram) {
            let address = ram.address + (bind.offset - ram.offset);
            if let Err(error) = sweep(memory, qemu, (address, bind), &mut figures) {
                warn!(uuid = place.uuid, %error, "where its memory is cannot be told");
                return Ok(None);
            }
        }
        let evicted = place.evicted.iter().map(|one| one.bytes).sum();
        let guest = (place.uuid.as_str(), qemu);
        let sizes = (figures.placed_bytes, evicted);
        if let Err(error) = came(&asked, guest, place.why.as_ref(), place.policy, sizes) {
            warn!(uuid = place.uuid, %error, "why it is where it is is not written down");
        }
        Ok(Some(LayoutFigures { evicted_bytes: evicted, ..figures }))
    });
    figures.await
}

/// What a plan says of a place, and what came of it.
pub(crate) fn view(placement: &Placement) -> mint_api::LayoutView {
    let evicted = placement.evictions.iter().map(|one| one.bytes).sum();
    mint_api::LayoutView {
        policy: placement.policy,
        expected_gain: placement.gain,
        to_evict_bytes: evicted,
        took: None,
    }
}
