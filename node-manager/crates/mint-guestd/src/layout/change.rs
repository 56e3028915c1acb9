// SPDX-License-Identifier: Apache-2.0
//! Guests of this node are arranged anew as a policy has it, and as they were before (L, 3.1: the Optimizer).

use std::collections::BTreeMap;
use std::sync::Arc;

use mint_api::{ErrorBody, LayoutReason, LayoutRequest, LayoutResult, Line};
use mint_guests::residents::Resident;
use mint_layout::{
    Bind, Guest, GuestId, Limits, Plan, PolicyError, Relocation, Snapshot, Topology,
};
use mint_serve::lines::Lines;
use mint_types::{LayoutPolicy, NodeId, Refusal, RefusalCode, format_bytes};
use tracing::{info, warn};

use super::files::read;
use super::host::Host;
use super::kept::{FILE, Kept, Reason, Undo};
use super::pages::{address, prefer, relocate};
use super::place::with_room;
use super::reasons::{keep, now_s, reason};
use super::show::near_bytes;
use super::work::{Work, back, before, give_cpus, goes, leave_moving, works};
use crate::app::App;

/// Arranges them anew, or as they were, or says what that would change. `lines` gets what is done, in words.
///
/// # Errors
/// When there is no plan, another request is at it, or libvirt gives no other CPUs: then all is as it was.
pub(crate) async fn change(
    app: &Arc<App>,
    request: &LayoutRequest,
    lines: Option<&Lines>,
) -> Result<LayoutResult, ErrorBody> {
    let here = app.here().await?.id;
    let Ok(_changing) = app.layouts.changing.try_lock() else {
        let refusal = Refusal::new(
            RefusalCode::VmBusy,
            format_args!("layout of node {here}"),
            "guests are arranged anew, or NUMA nodes measured, already",
        );
        return Err(ErrorBody::refused(vec![refusal.hint("try again: mintctl operation list")]));
    };
    if request.undo {
        return undo(app, here, request.dry_run, lines).await;
    }
    let Found { host, snapshot, topology, plan } = plan(app, request.policy).await?;
    let mut work = works(&host, &plan);
    let result = |work: &[Work], is_done| LayoutResult {
        node: here,
        policy: Some(request.policy),
        expected_gain: plan.gain,
        vms: work.iter().map(|one| one.change.clone()).collect(),
        is_done,
    };
    if request.dry_run || work.is_empty() {
        return Ok(result(&work, !request.dry_run));
    }
    let _moving = leave_moving(app, &mut work);
    guard(app, &plan, (&snapshot, &topology), &mut work);
    if work.iter().all(|one| one.change.left_alone.is_some()) {
        return Ok(result(&work, true));
    }
    let last = read::<Kept>(&app.host.path(FILE)).undo;
    keep(app, |kept| kept.undo = Some(Undo { at_s: now_s(), vms: before(&work) }))?;
    if let Err(error) = give_cpus(app, &work).await {
        // libvirt has taken those back that it gave
        keep(app, |kept| kept.undo = last)?;
        return Err(error);
    }
    for one in &mut work {
        one.change.went_bytes = send(app, one).await?;
        if let Some(went) = one.change.went_bytes {
            let (name, went) = (&one.change.name, format_bytes(went));
            say(lines, format!("vm {name}: {went} of its memory are there")).await;
        }
    }
    let reasons = reasons(&host, &plan, &work, request.policy);
    keep(app, |kept| kept.reasons.extend(reasons))?;
    Ok(result(&work, true))
}

async fn say(lines: Option<&Lines>, text: String) {
    if let Some(lines) = lines {
        // whoever listens may have gone
        lines.send(&Line::Progress(text)).await;
    }
}

/// A plan, and what it is of.
struct Found {
    host: Host,
    snapshot: Snapshot,
    topology: Topology,
    plan: Plan,
}

/// What a policy would do with the guests that run, those that are to come where they will be.
async fn plan(app: &Arc<App>, policy: LayoutPolicy) -> Result<Found, ErrorBody> {
    let asked = app.clone();
    let found = app.call(move |_| {
        Ok(Host::look(&asked).map(|host| {
            let mut all = host.snapshot();
            let running: Vec<_> = all.guests.iter().map(|guest| guest.id.clone()).collect();
            let moving = all.guests.iter_mut().filter(|guest| asked.is_moving(&guest.id.0));
            moving.for_each(|guest| stays(guest, &host.topology));
            // it was promised
            let mut coming = asked.layouts.places.guests(&host.topology);
            coming.retain(|guest| !running.contains(&guest.id));
            coming.iter_mut().for_each(|guest| stays(guest, &host.topology));
            all.guests.extend(coming);
            let topology = with_room(&asked, &host.topology);
            let plan = mint_layout::policy(policy).plan(&all, &topology, &Limits::default());
            plan.map(|plan| Found { host, snapshot: all, topology, plan })
        }))
    });
    found.await??.map_err(|error| {
        let hint = match error {
            PolicyError::Lacks { .. } => "wait some seconds, or take another policy: --policy",
            PolicyError::Snapshot(_) => "look again: guests may have moved meanwhile",
        };
        let resource = format!("policy {policy}");
        ErrorBody::refused(vec![
            Refusal::new(RefusalCode::SignalAbsent, resource, error).hint(hint),
        ])
    })
}

/// No plan changes it.
fn stays(guest: &mut Guest, topology: &Topology) {
    guest.is_fixed = true;
    for vcpu in &mut guest.vcpus {
        vcpu.allowed = vcpu.cpus(topology, vcpu.domain);
    }
}

/// What guards hold back is not done.
fn guard(app: &App, plan: &Plan, (snapshot, topology): (&Snapshot, &Topology), work: &mut [Work]) {
    let goes_on = |id: &GuestId| {
        work.iter().any(|one| one.change.uuid == id.0 && one.change.left_alone.is_none())
    };
    let mut asked = plan.clone();
    asked.pins.retain(|pins| goes_on(&pins.guest));
    asked.relocations.retain(|one| goes_on(&one.guest));
    let allowed = app.layouts.allow(&asked, snapshot, topology);
    for one in work.iter_mut().filter(|one| one.change.left_alone.is_none()) {
        let is_its = |id: &GuestId| id.0 == one.change.uuid;
        let relocations = allowed.relocations.iter().filter(|relocation| is_its(&relocation.guest));
        one.relocations = relocations.cloned().collect();
        one.change.memory = goes(one.relocations.iter());
        if !allowed.pins.iter().any(|pins| is_its(&pins.guest)) {
            one.change.vcpus.clear();
        }
        let held = allowed.held.iter().filter(|held| is_its(&held.guest));
        let why: Vec<String> = held.map(|held| held.why.to_string()).collect();
        let why = (!why.is_empty()).then(|| why.join("; "));
        if one.change.vcpus.is_empty() && one.relocations.is_empty() {
            one.change.left_alone = Some(why.unwrap_or_else(|| "nothing is left to do".to_owned()));
        } else {
            one.change.waits = why;
        }
    }
}

/// A guest's memory goes; gives what is there then. Nothing of one without any.
async fn send(app: &Arc<App>, work: &Work) -> Result<Option<u64>, ErrorBody> {
    if work.relocations.is_empty() {
        return Ok(None);
    }
    let (asked, resident) = (app.clone(), work.resident.clone());
    let relocations = work.relocations.clone();
    app.call(move |_| {
        let each = relocations.iter().map(|one| go(&asked, &resident, one));
        Ok(Some(each.sum()))
    })
    .await
}

fn go(app: &App, resident: &Resident, one: &Relocation) -> u64 {
    let Some(start) = address(resident, one.offset) else { return 0 };
    let (qemu, memory) = (resident.running.qemu, &*app.layouts.memory);
    // what it touches first later comes there, too
    if let Some(ram) = resident.ram.as_ref().filter(|ram| ram.is_file) {
        let bind = Bind { offset: one.offset, bytes: one.bytes, numa: one.to };
        if let Err(error) = prefer(memory, &app.host.path(&ram.path(qemu)), &bind) {
            warn!(guest = %one.guest, %error, "what it touches later comes to where it comes");
        }
    }
    let went = relocate(memory, qemu, (start, one.bytes), one.to, || true);
    info!(guest = %one.guest, to = %one.to, bytes = one.bytes, went, "is arranged anew");
    went
}

/// Why each guest is where it is from now on.
fn reasons(
    host: &Host,
    plan: &Plan,
    work: &[Work],
    policy: LayoutPolicy,
) -> BTreeMap<String, Reason> {
    let done = work.iter().filter(|one| one.change.left_alone.is_none());
    let of = |one: &Work| {
        let guest = one.resident.guest(&host.topology, &one.pieces);
        let all: u64 = plan.relocations.iter().map(|one| one.bytes).sum();
        let own: u64 = one.relocations.iter().map(|one| one.bytes).sum();
        let rates = guest.vcpus.iter().map(|vcpu| vcpu.samples.instructions_per_s());
        let why = plan.why.iter().find(|why| why.guest == guest.id);
        let reason = LayoutReason {
            near_bytes_before: Some(near_bytes(&host.topology, &guest, &one.pieces)),
            instructions_s_before: rates.sum(),
            ..reason(why, policy, own, if why.is_some() { all - own } else { 0 })
        };
        (one.change.uuid.clone(), Reason { qemu: one.resident.running.qemu, reason })
    };
    done.map(of).collect()
}

/// Guests that still run as they did get the CPUs and NUMA nodes back that they had before the last change.
async fn undo(
    app: &Arc<App>,
    here: NodeId,
    dry_run: bool,
    lines: Option<&Lines>,
) -> Result<LayoutResult, ErrorBody> {
    let asked = app.clone();
    let looked = app.call(move |_| {
        Ok(Host::look(&asked).map(|host| (host, read::<Kept>(&asked.host.path(FILE)).undo)))
    });
    let (host, undo) = looked.await??;
    let Some(undo) = undo else {
        let text = "nothing was arranged anew since this node booted, or that is undone already";
        let resource = format!("layout of node {here}");
        let refusal = Refusal::new(RefusalCode::UndoAbsent, resource, text);
        return Err(ErrorBody::refused(vec![refusal.hint("mintctl layout show")]));
    };
    let mut work: Vec<Work> = undo.vms.iter().filter_map(|before| back(&host, before)).collect();
    if !dry_run {
        let _moving = leave_moving(app, &mut work);
        give_cpus(app, &work).await?;
        for one in &mut work {
            one.change.went_bytes = send(app, one).await?;
            say(lines, format!("vm {}: as it was", one.change.name)).await;
        }
        let names: Vec<String> = work.iter().map(|one| one.change.uuid.clone()).collect();
        keep(app, |kept| {
            kept.undo = None;
            kept.reasons.retain(|uuid, _| !names.contains(uuid));
        })?;
    }
    let vms = work.into_iter().map(|one| one.change).collect();
    Ok(LayoutResult { node: here, policy: None, expected_gain: 0.0, vms, is_done: !dry_run })
}
