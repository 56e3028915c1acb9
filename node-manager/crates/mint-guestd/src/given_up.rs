// SPDX-License-Identifier: Apache-2.0
//! A guest that was to come with its memory, and does not: its QEMU here waits for pages and ends by
//! nothing but force. Once it has, libvirt lets the guest go on where it was. Not so if all of it
//! is here: then it is this host's, and nothing is undone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mint_api::ErrorBody;
use mint_split::{Source, SplitGuest, files};
use tokio::time::sleep;
use tracing::{info, warn};

use crate::app::App;
use crate::held::Hold;
use crate::hypervisor::GuestFacts;
use crate::journal::Record;
use crate::memory::{failed, known, runs, text};
use crate::pagers::view;

/// Between looks at guests that come.
const LOOK: Duration = Duration::from_secs(2);
/// The same while libvirt waits for its hook.
const SOON: Duration = Duration::from_millis(50);

/// Ends guests whose pager says that they do not come, or that somebody has given up, for ever.
pub(crate) async fn watch(app: Arc<App>) {
    loop {
        for (folder, guest) in known(&app) {
            if folder.join(files::COMING).exists() && runs(&app, &guest) {
                look(&app, &folder, &guest).await;
            }
        }
        sleep(LOOK).await;
    }
}

async fn look(app: &Arc<App>, folder: &Path, guest: &SplitGuest) {
    let uuid = text(&guest.uuid);
    if !folder.join(files::GIVEN_UP).exists() {
        let arrival = view(folder).await.ok().and_then(|view| view.arrival);
        let Some(why) = arrival.and_then(|arrival| arrival.failed) else { return };
        warn!(guest = guest.name, why, "it does not come");
        note(app, &uuid, source(folder).as_ref(), &why);
    }
    // who holds that ends it
    let Some(ending) = app.ending.hold(&uuid) else { return };
    if let Err(error) = end(app, &uuid, Some((folder.to_owned(), guest.clone())), ending).await {
        info!(guest = guest.name, %error, "its way here is not over yet");
    }
}

/// Remembers why a guest does not come, for the node that it stays on: that asks when libvirt has
/// told it that. The source is that of the way that ends: it may be on another one by now.
pub(crate) fn note(app: &App, uuid: &str, source: Option<&Source>, why: &str) {
    let is_its = |record: &Record| source.is_some_and(|it| is_by(record, it));
    if let Err(error) = app.journal.note(uuid, is_its, why) {
        warn!(uuid, %error, "why it does not come is not written down");
    }
}

/// Waits, before libvirt's hook has let a guest through, until its way here is over; gives why.
pub(crate) async fn ends(app: &App, folder: &Path, guest: &SplitGuest) -> ErrorBody {
    loop {
        if folder.join(files::GIVEN_UP).exists() {
            return failed(format_args!("guest {} is not to come any more", guest.name));
        }
        if !runs(app, guest) {
            return failed(format_args!("the QEMU of guest {} has ended", guest.name));
        }
        sleep(SOON).await;
    }
}

/// Ends the way of a guest here, whose memory comes to that folder if it does; when this returns,
/// no process of it is here. Gives back who holds its end.
///
/// # Errors
/// When it is here for good, has not ended yet, or libvirt does not answer.
pub(crate) async fn end(
    app: &Arc<App>,
    uuid: &str,
    coming: Option<(PathBuf, SplitGuest)>,
    ending: Hold,
) -> Result<Hold, ErrorBody> {
    let here = || failed(format_args!("guest {uuid} runs here"));
    if let Some((folder, guest)) = &coming {
        let marked = mark(folder).map_err(|error| {
            failed(format_args!("guest {} cannot be given up: {error}", guest.name))
        })?;
        if !marked {
            return Err(here());
        }
    }
    // its hook goes on now, for which libvirt waits
    let guests = app.ask(|hypervisor| hypervisor.guests()).await?;
    let Some(facts) = guests.into_iter().find(|facts| facts.uuid == uuid && facts.active) else {
        return Ok(ending);
    };
    let Some((folder, guest)) = coming else { return Err(here()) };
    if !waits(&facts) {
        unmark(&folder);
        return Err(here());
    }
    info!(guest = guest.name, "its QEMU, which waits for its memory, is ended");
    let (app, name) = (app.clone(), uuid.to_owned());
    // libvirt may wait for who waits for that QEMU
    tokio::spawn(async move {
        if let Err(error) = app.call(move |hypervisor| hypervisor.destroy(&name)).await {
            info!(guest = guest.name, %error, "libvirt does not say that it has ended");
        }
        // until here it could have met another QEMU of that guest
        drop(ending);
    });
    Err(failed(format_args!("guest {uuid} waits here for its memory still, and is ended")))
}

/// One that never ran here. libvirt says that of a guest that it has told to run, though that
/// may wait for its first page: then the host that it left has none of it any more.
fn waits(facts: &GuestFacts) -> bool {
    facts.state != "running" && (facts.has_job || facts.is_stuck)
}

/// A guest whose QEMU here waits for its memory by that migration, and its folder.
pub(crate) fn coming(app: &App, record: &Record) -> Option<(PathBuf, SplitGuest)> {
    let mut guests = known(app).into_iter().filter(|(_, guest)| runs(app, guest));
    guests.find(|(folder, guest)| {
        text(&guest.uuid) == record.uuid && source(folder).is_some_and(|it| is_by(record, &it))
    })
}

/// Where a guest comes from; none of one that does not come.
fn source(folder: &Path) -> Option<Source> {
    serde_json::from_slice(&fs::read(folder.join(files::COMING)).ok()?).ok()
}

/// Each migration has a secret of its own.
fn is_by(record: &Record, source: &Source) -> bool {
    record.memory.as_ref().is_some_and(|arrival| arrival.source.secret == source.secret)
}

/// Gives whether its pager takes nothing of it from now on: it may have all of it.
fn mark(folder: &Path) -> io::Result<bool> {
    fs::write(folder.join(files::GIVEN_UP), "")?;
    let has_all = folder.join(files::HAS_ALL).exists();
    if has_all {
        unmark(folder);
    }
    Ok(!has_all)
}

fn unmark(folder: &Path) {
    match fs::remove_file(folder.join(files::GIVEN_UP)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            warn!(folder = %folder.display(), %error, "is given up still");
        }
        _ => {}
    }
}
