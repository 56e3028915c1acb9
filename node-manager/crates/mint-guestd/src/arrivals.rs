// SPDX-License-Identifier: Apache-2.0
//! The destination's part of a migration: whether the guest can come, and whether it did.

use std::sync::Arc;

use mint_api::{ErrorBody, ErrorCode, MigrateFigures};
use mint_guests::arrival::{ArrivalError, Departure, Ground, Plan, plan};
use mint_guests::domain::Domain;
use mint_guests::landing::HostCpus;
use mint_types::NodeState;
use tracing::warn;

use crate::app::App;
use crate::copies::drop_copies;
use crate::given_up;
use crate::hypervisor::Needs;
use crate::journal::{Record, Side};
use crate::layout;
use crate::leases;
use crate::moves;
use crate::step::step;
use crate::wire::{Arrived, Expected, Undone};

/// Where libvirt keeps the definitions of guests.
const DEFINITIONS: &str = "/etc/libvirt/qemu";

/// Plans a guest's arrival on this node. Changes nothing.
///
/// # Errors
/// With every reason why it cannot come.
pub(crate) async fn consider(app: &Arc<App>, mut departure: Departure) -> Result<Plan, ErrorBody> {
    let wish = departure.layout.take();
    let texts =
        [Some(&departure.xml), departure.persistent_xml.as_ref(), departure.host_cpu_xml.as_ref()];
    if texts.into_iter().flatten().any(|text| text.contains('\0')) {
        // the library takes C strings
        return Err(ErrorBody::new(ErrorCode::BadRequest, "XML with a NUL byte"));
    }
    if let Some(machine) = departure.machine {
        // what we call the other machine, it does not know
        let links = app.links().await?.links;
        let link = links.iter().find(|link| link.machine == machine);
        let name = link.map_or_else(|| machine.to_string(), |link| link.name.to_string());
        departure.from_name = format!("{name}/{}", departure.from_name);
    }
    let here = app.here().await?;
    let is_closed = app.gate.is_closed();
    let domain = Domain::parse(&departure.xml)
        .map_err(|error| ErrorBody::from_error(ErrorCode::BadRequest, &error))?;
    let needs = Needs {
        domain_type: domain.kind.clone(),
        machine: domain.machine.clone(),
        folders: domain
            .disks
            .iter()
            .filter_map(|disk| Some(disk.path.as_deref()?.rsplit_once('/')?.0.to_owned()))
            .collect(),
        cpu_xml: if domain.is_host_cpu {
            departure.host_cpu_xml.clone()
        } else {
            domain.cpu_xml.clone()
        },
    };
    let room = app.ask(move |hypervisor| hypervisor.room(&needs)).await?;
    let host = app.host.clone();
    let promised = leases::promised_bytes(app).await;
    let ground = move || {
        let disks = domain.disks.iter().filter_map(|disk| disk.path.as_deref());
        let wanted = disks.chain(domain.boot_files.iter().chain(&domain.nvram).map(String::as_str));
        Ground {
            node: here.id,
            name: here.name,
            is_ending: here.state != NodeState::Running || is_closed,
            cpus: HostCpus {
                online: host.online_cpus(),
                taken: room.pinned,
                numa_nodes: host.numa_nodes(),
            },
            free_memory_bytes: host.free_memory_bytes().saturating_sub(promised),
            guests: room.guests,
            networks: room.networks,
            devices: host.network_devices(),
            on_machine_ethernet: host.is_on_machine_ethernet(),
            machine: room.machine,
            cpu: room.cpu,
            files: host.files(wanted),
            pools: room
                .pools
                .into_iter()
                .map(|pool| (pool.clone(), host.free_bytes(&pool)))
                .collect(),
        }
    };
    // a file system may hang
    let planned = app.call(move |_| Ok(plan(&departure, &ground()))).await?;
    let mut plan = planned.map_err(|error| match error {
        ArrivalError::Refused(refusals) => ErrorBody::refused(refusals),
        ArrivalError::Domain(error) => ErrorBody::from_error(ErrorCode::BadRequest, &error),
    })?;
    if let Some(wish) = wish {
        layout::place(app, wish, &mut plan).await?;
    }
    Ok(plan)
}

/// Writes down that a guest is about to come: from now on what is left of it is known, whoever
/// dies. One that is to have a place gets it.
///
/// # Errors
/// When another one of that UUID is expected, a file is there by now, or it cannot be written.
pub(crate) async fn expect(
    app: &Arc<App>,
    uuid: String,
    expected: Expected,
) -> Result<(), ErrorBody> {
    let Expected { from, machine, attempt, disks, memory, layout: wish, pins, later } = expected;
    let guest = uuid.clone();
    let (side, peer) = (Side::Arrival, from);
    let record = Record { side, uuid, attempt, peer, machine, disks, xml: None, memory, why: None };
    let (journal, host, gate) = (app.journal.clone(), app.host.clone(), app.gate.clone());
    let failed = |text: String| ErrorBody::new(ErrorCode::Failed, text);
    app.ask(move |_| {
        if record.disks.iter().any(|path| path.contains('\0')) {
            return Ok(Err(failed("a path with a NUL byte".to_owned())));
        }
        if journal.get(Side::Arrival, &record.uuid).is_some() {
            return Ok(Err(failed(format!("guest {} is expected here already", record.uuid))));
        }
        if let Some(path) = host.files(record.disks.iter().map(String::as_str)).into_keys().next() {
            return Ok(Err(failed(format!("{path} is there by now"))));
        }
        let Some(written) = gate.pass(|| journal.write(&record)) else {
            return Ok(Err(failed(
                "this node's guests are about to go, and none comes".to_owned(),
            )));
        };
        Ok(written.map_err(|error| failed(format!("cannot write a record: {error}"))))
    })
    .await??;
    step("arrival-written").await;
    if let Some(policy) = later {
        app.layouts.later.expect(&guest, policy);
    }
    if let Some(wish) = wish {
        // the guest can come without
        if let Err(error) = layout::make_room(app, &guest, attempt, wish, pins).await {
            warn!(uuid = guest, %error, "its place is not ready");
        }
        step("arrival-cleared").await;
    }
    Ok(())
}

/// The guest does not come by that migration: its half copies go. Of one that waits for its memory
/// QEMU is ended first; ask again then.
///
/// # Errors
/// When it did come, has not ended yet, somebody else ends it now, or libvirt does not answer.
pub(crate) async fn undo(
    app: &Arc<App>,
    uuid: String,
    attempt: Option<u64>,
) -> Result<Undone, ErrorBody> {
    let expected = || app.journal.of(Side::Arrival, &uuid, attempt);
    if expected().is_none() {
        return Ok(Undone::default());
    }
    // as long as this is held and that is written down, no other migration of it begins here
    let ending = app.ending.hold(&uuid).ok_or_else(|| {
        let text = format!("the way of guest {uuid} here is being ended already");
        ErrorBody::new(ErrorCode::Failed, text)
    })?;
    let Some(record) = expected() else { return Ok(Undone::default()) };
    let _ending = given_up::end(app, &uuid, given_up::coming(app, &record), ending).await?;
    // it may say more by now
    let record = expected().unwrap_or(record);
    step("arrival-undo").await;
    if drop_copies(app, &record, "it does not come").await {
        step("arrival-dropped").await;
        app.journal.forget(&record);
    }
    Ok(Undone { why: record.why })
}

/// Whether a guest runs here, and what its way took. One that does is expected no more.
///
/// # Errors
/// When it is not here, or libvirt does not answer.
pub(crate) async fn arrived(app: &Arc<App>, vm: String) -> Result<Arrived, ErrorBody> {
    let reference = vm.clone();
    let (mut arrived, is_stuck) = app
        .ask(move |hypervisor| {
            let guest = hypervisor.guest(&vm)?;
            // what it took is no reason to doubt that it is here
            let figures = hypervisor.arrived(&vm).ok().flatten();
            let arrived = Arrived {
                state: guest.state.to_owned(),
                has_come: guest.active && !guest.has_job,
                is_off: !guest.active,
                waits_for: guest.has_job.then(|| "libvirt still moves it".to_owned()),
                figures: figures.map(|figures| MigrateFigures {
                    total_ms: figures.total_ms,
                    downtime_ms: figures.downtime_ms,
                    memory_sent_bytes: figures.memory_sent_bytes,
                    disk_sent_bytes: figures.disk_sent_bytes,
                    rounds: figures.rounds,
                }),
                layout: None,
            };
            Ok((arrived, guest.is_stuck))
        })
        .await?;
    // one that stands still for a switch-over may go on where it was
    if arrived.has_come {
        let waits_for = moves::waits_for(app, &reference, !is_stuck);
        arrived.has_come = waits_for.is_none();
        arrived.waits_for = waits_for.map(str::to_owned);
    }
    if arrived.has_come {
        let record = app.journal.get(Side::Arrival, &reference);
        if let Some(record) = &record {
            keep(app, record).await?;
        }
        step("arrival-seen").await;
        arrived.layout = layout::landed(app, &reference).await.unwrap_or_default();
        if let Some(record) = &record {
            app.journal.forget(record);
        }
        step("arrival-forgotten").await;
    }
    Ok(arrived)
}

/// The other side deletes its copies once it knows that the guest is here: so what came with it
/// must outlive the death of this node.
async fn keep(app: &App, record: &Record) -> Result<(), ErrorBody> {
    let (host, disks) = (app.host.clone(), record.disks.clone());
    let kept =
        app.call(move |_| Ok(host.sync(disks.iter().map(String::as_str).chain([DEFINITIONS]))));
    kept.await?.map_err(|error| ErrorBody::from_error(ErrorCode::Failed, &error))
}
