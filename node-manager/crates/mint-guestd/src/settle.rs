// SPDX-License-Identifier: Apache-2.0
//! The end of migrations whose daemon died: each node looks at what it wrote down, asks the
//! other end where the guest is, and deletes the copies that nobody uses. What cannot be told
//! yet stays for the next look.

use std::sync::Arc;
use std::time::Duration;

use mint_api::{ErrorBody, VmView, vm_path};
use mint_types::RefusalCode;
use tracing::info;

use crate::app::{App, client_error, path_of};
use crate::copies::drop_copies;
use crate::hypervisor::{Hypervisor, HypervisorError};
use crate::journal::{Record, Side};
use crate::moves;
use crate::wire::Arrived;

/// Until the next look while nothing is left to settle, and until the second look at what is.
const SOON: Duration = Duration::from_secs(1);
/// Looks at what cannot be settled yet come less and less often, up to this.
const SELDOM: Duration = Duration::from_secs(20);

/// Settles what is left, for ever.
pub(crate) async fn watch(app: Arc<App>) {
    let mut pause = SOON;
    loop {
        let mut left = app.journal.all();
        // its own operation goes on
        left.retain(|record| !app.is_moving(&record.uuid));
        for record in &left {
            settle(&app, record).await;
        }
        pause = if left.is_empty() { SOON } else { SELDOM.min(pause * 2) };
        tokio::time::sleep(pause).await;
    }
}

/// Settles one migration as far as it can be told how it ended.
pub(crate) async fn settle(app: &Arc<App>, record: &Record) {
    let settled = match end_of(app, record).await {
        Ok(Some(end)) => carry_out(app, record, end).await,
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = settled {
        info!(uuid = record.uuid, %error, "how a migration ended is not known yet");
    }
}

/// How a migration ended, as far as this side has to do with it.
enum End {
    /// Nothing is left to be done.
    Over,
    /// The guest has not come here: its copies go.
    NotHere,
    /// It stays here: its pager gives nothing any more.
    Stays,
    /// It stays here, and stands still.
    StandsStill,
    /// It runs on its new node: what is left of it here goes.
    Left(Here),
    /// It went, and has ended since: its copies go.
    WentAndEnded,
    /// Its new node has lost it.
    Lost,
}

/// Asks both sides; none if it cannot be told yet.
async fn end_of(app: &App, record: &Record) -> Result<Option<End>, ErrorBody> {
    match record.side {
        Side::Arrival => arrival(app, record).await,
        Side::Departure => departure(app, record).await,
    }
}

/// Does what is left to be done, unless the guest is on another way by now.
async fn carry_out(app: &Arc<App>, record: &Record, end: End) -> Result<(), ErrorBody> {
    // while these are held, and that is written down, no other migration of it begins
    let (_moving, _ending) = match record.side {
        Side::Departure => match app.see_to(&record.uuid) {
            None => return Ok(()),
            moving => (moving, None),
        },
        Side::Arrival => match app.ending.hold(&record.uuid) {
            None => return Ok(()),
            ending => (None, ending),
        },
    };
    let Some(now) = app.journal.get(record.side, &record.uuid) else { return Ok(()) };
    if now.attempt != record.attempt {
        return Ok(());
    }
    let uuid = record.uuid.clone();
    let is_over = match end {
        End::Over => true,
        End::NotHere => drop_copies(app, record, "it did not come").await,
        End::Stays => moves::stay(app, &uuid).await.map(|()| true)?,
        // libvirt leaves that to whoever can ask both sides
        End::StandsStill => {
            app.ask(move |hypervisor| hypervisor.resume(&uuid)).await?;
            info!(uuid = record.uuid, "stood still for a switch-over that never was: it goes on");
            moves::stay(app, &record.uuid).await.map(|()| true)?
        }
        End::Left(here) => {
            app.ask(move |hypervisor| leave(hypervisor, &uuid, &here)).await?;
            drop_copies(app, record, "it runs on its new node").await
        }
        End::WentAndEnded => drop_copies(app, record, "it went, and has ended since").await,
        End::Lost => again(app, record).await?,
    };
    if is_over {
        app.journal.forget(record);
    }
    Ok(())
}

/// Of a guest that was to come here.
async fn arrival(app: &App, record: &Record) -> Result<Option<End>, ErrorBody> {
    let here = here(app, &record.uuid).await?;
    if matches!(here, Here::Busy | Here::Settled) {
        return Ok(matches!(here, Here::Settled).then_some(End::Over));
    }
    let peer = path_of(record.machine, record.peer);
    let path = vm_path(&format!("{peer}/vms"), &record.uuid);
    let there: Option<VmView> = known(app.mintd.get(&path).await.map_err(client_error))?;
    Ok(match (here, there) {
        // it came, and has ended since
        (Here::Off, None) => Some(End::Over),
        (Here::Nowhere, Some(there)) if !there.is_busy => Some(End::NotHere),
        _ => None,
    })
}

/// Of a guest that was to leave.
async fn departure(app: &App, record: &Record) -> Result<Option<End>, ErrorBody> {
    let here = here(app, &record.uuid).await?;
    if matches!(here, Here::Settled | Here::Busy) {
        return Ok(matches!(here, Here::Settled).then_some(End::Stays));
    }
    let peer = path_of(record.machine, record.peer);
    let path = format!("{peer}/arrivals/{}", record.uuid);
    let there: Option<Arrived> = known(app.mintd.get(&path).await.map_err(client_error))?;
    Ok(match (here, there) {
        (here, Some(there)) if there.has_come => Some(End::Left(here)),
        (Here::Nowhere, Some(there)) if there.is_off => Some(End::WentAndEnded),
        (Here::Stuck, None) => Some(End::StandsStill),
        // its process ended before it could go
        (Here::Off, None) => Some(End::Over),
        (Here::Nowhere, None) => Some(End::Lost),
        _ => None,
    })
}

/// Takes away what is left here of a guest that runs on its new node: a process that was stopped
/// for the switch-over, when libvirt died; the definition, when this node died before it was on
/// its disk that it is gone.
fn leave(hypervisor: &dyn Hypervisor, uuid: &str, here: &Here) -> Result<(), HypervisorError> {
    if matches!(here, Here::Nowhere) {
        return Ok(());
    }
    info!(uuid, "runs on its new node: what is left of it here is taken away");
    if matches!(here, Here::Stuck) {
        hypervisor.destroy(uuid)?;
    }
    match hypervisor.undefine(uuid) {
        // it had no definition
        Err(HypervisorError::NoGuest(_)) => Ok(()),
        undefined => undefined,
    }
}

/// Defines a guest again that its new node lost: it died before the definition was on its disk.
/// Gives whether there was enough left for that.
async fn again(app: &App, record: &Record) -> Result<bool, ErrorBody> {
    let (Some(xml), host) = (record.xml.clone(), app.host.clone()) else { return Ok(false) };
    let (disks, uuid) = (record.disks.clone(), record.uuid.clone());
    app.ask(move |hypervisor| {
        if host.files(disks.iter().map(String::as_str)).len() < disks.len() {
            return Ok(false);
        }
        info!(uuid, "its new node knows it no more: it is defined here again");
        hypervisor.define(&xml).map(|()| true)
    })
    .await
}

/// A guest on this node.
enum Here {
    /// It has a process, and no migration is on it.
    Settled,
    /// It comes or goes.
    Busy,
    /// It was stopped for the switch-over of a migration, and that is all.
    Stuck,
    /// It is defined, and has no process.
    Off,
    /// It is not known.
    Nowhere,
}

async fn here(app: &App, uuid: &str) -> Result<Here, ErrorBody> {
    let guests = app.ask(|hypervisor| hypervisor.guests()).await?;
    Ok(match guests.iter().find(|guest| guest.uuid == uuid) {
        Some(guest) if guest.active && guest.has_job => Here::Busy,
        Some(guest) if guest.active && guest.is_stuck => Here::Stuck,
        Some(guest) if guest.active => Here::Settled,
        Some(_) => Here::Off,
        None => Here::Nowhere,
    })
}

/// What a node says of a guest; none where its libvirt answers that it knows none.
fn known<T>(answer: Result<T, ErrorBody>) -> Result<Option<T>, ErrorBody> {
    let is_absent = |error: &ErrorBody| {
        error.refusals.iter().any(|refusal| refusal.code == RefusalCode::VmAbsent)
    };
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
