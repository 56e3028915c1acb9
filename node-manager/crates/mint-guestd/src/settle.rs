// SPDX-License-Identifier: Apache-2.0
//! The end of migrations whose daemon died: each node looks at what it wrote down, asks the
//! other end where the guest is, and deletes the copies that nobody uses. What cannot be told
//! yet stays for the next look.

use std::sync::Arc;
use std::time::Duration;

use mint_api::{ErrorBody, VmView, vm_path};
use tracing::info;

use crate::app::{App, client_error, path_of};
use crate::copies::drop_copies;
use crate::journal::{Record, Side};
use crate::wire::Arrived;

/// Between two looks.
const AGAIN: Duration = Duration::from_secs(20);

/// Settles what is left, for ever.
pub(crate) async fn watch(app: Arc<App>) {
    loop {
        for record in app.journal.all() {
            // its own operation goes on
            if !app.is_moving(&record.uuid) {
                settle(&app, &record).await;
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Settles one migration as far as it can be told how it ended.
pub(crate) async fn settle(app: &App, record: &Record) {
    let outcome = match record.side {
        Side::Arrival => arrival(app, record).await,
        Side::Departure => departure(app, record).await,
    };
    match outcome {
        Ok(true) => app.journal.forget(record.side, &record.uuid),
        Ok(false) => {}
        Err(error) => info!(uuid = record.uuid, %error, "how a migration ended is not known yet"),
    }
}

/// A guest that was to come here. Gives whether that is over.
async fn arrival(app: &App, record: &Record) -> Result<bool, ErrorBody> {
    match here(app, &record.uuid).await? {
        Here::Settled => return Ok(true),
        Here::Busy => return Ok(false),
        Here::Nowhere => {}
    }
    let peer = path_of(record.machine, record.peer);
    let path = vm_path(&format!("{peer}/vms"), &record.uuid);
    let there: VmView = app.mintd.get(&path).await.map_err(client_error)?;
    if there.is_busy {
        return Ok(false);
    }
    Ok(drop_copies(app, record, "it did not come").await)
}

/// A guest that was to leave. Gives whether that is over.
async fn departure(app: &App, record: &Record) -> Result<bool, ErrorBody> {
    match here(app, &record.uuid).await? {
        Here::Settled => return Ok(true),
        Here::Busy => return Ok(false),
        Here::Nowhere => {}
    }
    let peer = path_of(record.machine, record.peer);
    let path = format!("{peer}/arrivals/{}", record.uuid);
    let there: Arrived = app.mintd.get(&path).await.map_err(client_error)?;
    Ok(there.has_come && drop_copies(app, record, "it runs on its new node").await)
}

/// A guest on this node.
enum Here {
    /// It has a process, and no migration is on it.
    Settled,
    /// It comes or goes.
    Busy,
    /// It has no process here.
    Nowhere,
}

async fn here(app: &App, uuid: &str) -> Result<Here, ErrorBody> {
    let guests = app.ask(|hypervisor| hypervisor.guests()).await?;
    Ok(match guests.iter().find(|guest| guest.uuid == uuid && guest.active) {
        Some(guest) if guest.has_job => Here::Busy,
        Some(_) => Here::Settled,
        None => Here::Nowhere,
    })
}
