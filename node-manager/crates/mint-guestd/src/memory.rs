// SPDX-License-Identifier: Apache-2.0
//! Guests of this node whose memory is split (S-memV, 3-1): libvirt's hook says that one begins,
//! and it goes on once other nodes have given it leases and its keeper watches its memory.
//!
//! What the hook asks for calls no libvirt, which waits for its hook.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use mint_api::{ClientError, ErrorBody, ErrorCode};
use mint_guests::domain::Domain;
use mint_guests::split::Split;
use mint_guests::split::monitor;
use mint_split::{
    LeaseEnd, NodeStart, PagerCall, SplitGuest, Uuid, files, limit_bytes, whole_bytes,
};
use mint_types::{Refusal, RefusalCode};
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;
use tracing::{debug, error, info, warn};

use crate::app::{App, client_error};
use crate::journal::Side;
use crate::mirrors;
use crate::pagers::call;
use crate::servers::Host;
pub(crate) use crate::servers::{
    ask, failed, find, kept_lease, lease, named, path_to, random_secret, text,
};

/// Folder with one folder for each guest's QEMU, in the tmpfs that its memory is in.
const FOLDER: &str = "/run/mint/ram/guests";
const KEEPER: &str = "/usr/sbin/mint-keeper";
const LOGS: &str = "/var/log/mint";
/// For a keeper to watch a guest's memory.
const ARMED_WITHIN: Duration = Duration::from_secs(60);
/// Between looks at guests: for those whose end nobody has told, or whose keeper has gone.
const LOOK: Duration = Duration::from_secs(3);
/// Of a main host that is a guest's first.
const FIRST_EPOCH: u64 = 1;

/// What a keeper begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Begin {
    /// A guest that starts.
    Start,
    /// A guest of which another keeper has gone, and the pager has not.
    Adopt,
    /// A guest that comes from another host.
    Come,
}

pub(crate) fn unreadable(error: &dyn std::error::Error) -> ErrorBody {
    ErrorBody::from_error(ErrorCode::BadRequest, error)
}

/// A guest begins: its pages can go and come when this returns. Nothing is to be done for one
/// whose memory is not split.
///
/// # Errors
/// When a host has no room, or its memory cannot be watched: nothing is left of it then, and it
/// must not go on.
pub(crate) async fn begin(app: &Arc<App>, xml: &str) -> Result<(), ErrorBody> {
    let Some(split) = Split::of_domain(xml).map_err(|error| unreadable(&error))? else {
        return Ok(());
    };
    let domain = Domain::parse(xml).map_err(|error| unreadable(&error))?;
    let (uuid, qemu) = (uuid_of(&domain)?, qemu_of(app, &domain.name)?);
    let here = app.here().await?;
    let main = NodeStart { node: here.id.as_u32(), boots: here.boots };
    let mut guest = SplitGuest {
        name: domain.name,
        uuid,
        memory_bytes: domain.memory_bytes,
        main_bytes: match split.shares.is_empty() {
            true => whole_bytes(domain.memory_bytes, split.chunk_bytes),
            false => split.main_bytes,
        },
        chunk_bytes: split.chunk_bytes,
        epoch: FIRST_EPOCH,
        qemu,
        servers: Vec::new(),
        main: Some(main),
        monitor: monitor(xml).map(PathBuf::from),
        policy: split.policy,
        copies: split.copies,
        left: Vec::new(),
        drain_bytes_s: None,
        lent: None,
    };
    let begun = begin_with(app, &mut guest, &split, main).await;
    if begun.is_err() {
        end_leases(app, &guest).await;
        remove(&folder(app, &guest));
    }
    begun
}

async fn begin_with(
    app: &App,
    guest: &mut SplitGuest,
    split: &Split,
    main: NodeStart,
) -> Result<(), ErrorBody> {
    let nodes = app.nodes().await?;
    for share in &split.shares {
        let limit_bytes = limit_bytes(share.bytes, split.main_bytes, split.chunk_bytes);
        let lease = lease(guest, random_secret()?, limit_bytes, main);
        let host = find(app, &nodes, &share.node).await?;
        check_copies(&host, guest.copies, &guest.name)?;
        guest.servers.push(ask(app, &host, &lease).await?);
    }
    for number in 0..guest.servers.len() {
        if guest.copies > 1 {
            let mirror = mirrors::find(app, guest, &guest.servers[number], &nodes, main).await?;
            guest.servers[number].mirror = Some(mirror);
        }
    }
    let folder = folder(app, guest);
    write(&folder, guest)
        .map_err(|error| failed(format_args!("cannot write {}: {error}", folder.display())))?;
    start_keeper(app, guest, &folder, Begin::Start).await?;
    info!(guest = guest.name, qemu = guest.qemu, "its memory is split");
    Ok(())
}

/// Two copies are of nodes of one machine.
///
/// # Errors
/// When a host of another one is to have one.
pub(crate) fn check_copies(host: &Host, copies: u32, guest: &str) -> Result<(), ErrorBody> {
    if host.machine.is_none() || copies < 2 {
        return Ok(());
    }
    let text = format!("{} is of another machine, which keeps no second copy", host.name);
    let refusal = Refusal::new(RefusalCode::VmTied, format_args!("vm {guest}"), text)
        .hint("leave --copies out, or name nodes of this machine");
    Err(ErrorBody::refused(vec![refusal]))
}

/// The keeper outlives this daemon.
///
/// # Errors
/// When the guest's memory is not watched.
pub(crate) async fn start_keeper(
    app: &App,
    guest: &SplitGuest,
    folder: &Path,
    begin: Begin,
) -> Result<(), ErrorBody> {
    let keeper = app.host.path(KEEPER);
    let log = app.host.path(LOGS).join(format!("memory-{}.log", guest.name));
    let output = OpenOptions::new().create(true).append(true).mode(0o600).open(&log);
    let output =
        output.map_err(|error| failed(format_args!("cannot use {}: {error}", log.display())))?;
    let mut command = Command::new(&keeper);
    command
        .args(match begin {
            Begin::Start => None,
            Begin::Adopt => Some("--adopt"),
            Begin::Come => Some("--coming"),
        })
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(output);
    let started = command.process_group(0).spawn();
    let mut keeper = started
        .map_err(|error| failed(format_args!("cannot start {}: {error}", keeper.display())))?;
    let said = keeper.stdout.take().map(BufReader::new).map(BufReader::lines);
    let armed = timeout(ARMED_WITHIN, async {
        match said {
            Some(mut lines) => lines.next_line().await,
            None => Ok(None),
        }
    });
    if matches!(armed.await, Ok(Ok(Some(line))) if line == "armed") {
        return Ok(());
    }
    // it may only be slow, and must not begin later
    _ = keeper.kill().await;
    let text = fs::read_to_string(&log).unwrap_or_default();
    let last = text.lines().last().unwrap_or("it said nothing").to_owned();
    let mut error = failed(format_args!("the memory of guest {} cannot be watched", guest.name));
    error.causes.push(last);
    Err(error.hint(format_args!("all that it said: {}", log.display())))
}

/// A guest's QEMU has ended, libvirt says.
pub(crate) async fn ended(app: &App, xml: &str) -> Result<(), ErrorBody> {
    let uuid = uuid_of(&Domain::parse(xml).map_err(|error| unreadable(&error))?)?;
    for (folder, guest) in known(app) {
        if guest.uuid == uuid && !runs(app, &guest) && is_over(app, &folder, &guest).await {
            end(app, &folder, &guest).await;
        }
    }
    Ok(())
}

/// Looks for guests that have ended and nobody told, and for those whose keeper has gone, for
/// ever.
pub(crate) async fn watch(app: Arc<App>) {
    loop {
        for (folder, guest) in known(&app) {
            if runs(&app, &guest) {
                guard(&app, &folder, &guest).await;
            } else if is_over(&app, &folder, &guest).await {
                end(&app, &folder, &guest).await;
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// A guest goes on only with a keeper.
async fn guard(app: &App, folder: &Path, guest: &SplitGuest) {
    match (is_held(&folder.join("keeper.lock")), is_held(&folder.join("places"))) {
        // it begins, or all is well
        (None | Some(true), _) => {}
        (Some(false), Some(true)) => {
            warn!(guest = guest.name, "its keeper has gone: another one takes over");
            if let Err(error) = start_keeper(app, guest, folder, Begin::Adopt).await {
                warn!(guest = guest.name, %error, "no keeper");
            }
        }
        // nobody has its userfaultfd any more: what it touches elsewhere it never gets
        (Some(false), None | Some(false)) => {
            error!(guest = guest.name, "keeper and pager have gone: it cannot go on, and is ended");
            let uuid = text(&guest.uuid);
            if let Err(error) = app.call(move |hypervisor| hypervisor.destroy(&uuid)).await {
                warn!(guest = guest.name, %error, "it does not end");
            }
        }
    }
}

/// Whether a process has the lock of a file; none if there is no file.
fn is_held(path: &Path) -> Option<bool> {
    let file = fs::File::open(path).ok()?;
    Some(flock(&file, FlockOperation::NonBlockingLockShared).is_err())
}

/// Whether nobody wants what is left of a guest whose QEMU has ended. One that went to another
/// host is over once that is sure to have all of it: so long the guest's departure is remembered.
async fn is_over(app: &App, folder: &Path, guest: &SplitGuest) -> bool {
    let is_going = folder.join(files::GOING).exists();
    if app.journal.get(Side::Departure, &text(&guest.uuid)).is_some() {
        return !is_going && !folder.join(files::GONE).exists();
    }
    if is_going && !folder.join(files::GONE).exists() {
        // its pager waits for a host that does not come
        if let Err(error) = call(folder, &PagerCall::Stay).await {
            warn!(guest = guest.name, %error, "its pager does not answer");
        }
    }
    true
}

/// Ends a guest's leases; what cannot be told yet stays known.
pub(crate) async fn end(app: &App, folder: &Path, guest: &SplitGuest) {
    // one that was about to come has its leases where it was
    if folder.join(files::COMING).exists() {
        info!(guest = guest.name, "it did not come");
        remove(folder);
    } else if !folder.join(files::GUEST).exists() {
        // somebody else removes it now: that it was about to come may be told no more
        debug!(guest = guest.name, "is removed already");
    } else if end_leases(app, guest).await {
        info!(guest = guest.name, "its memory is nowhere any more");
        remove(folder);
    }
}

/// Gives whether all have ended.
async fn end_leases(app: &App, guest: &SplitGuest) -> bool {
    let Ok(nodes) = app.nodes().await else { return guest.servers.is_empty() };
    let mut all = true;
    for server in &guest.servers {
        if let Some(mirror) = &server.mirror {
            mirrors::forget(app, guest, mirror, &nodes).await;
        }
        // a node that is gone keeps nothing
        let Some(path) = path_to(&nodes, server) else { continue };
        let end = LeaseEnd { uuid: guest.uuid, secret: server.secret, epoch: Some(guest.epoch) };
        let ended: Result<Value, ClientError> =
            app.mintd.post(&format!("{path}/leases/end"), &end).await;
        match ended.map_err(client_error) {
            Err(error) if error.code != ErrorCode::PlanRefused => {
                warn!(guest = guest.name, node = server.node, %error, "a lease goes on");
                all = false;
            }
            _ => {}
        }
    }
    all
}

/// Those of this node that have a folder, with it.
pub(crate) fn known(app: &App) -> Vec<(PathBuf, SplitGuest)> {
    let Ok(entries) = fs::read_dir(app.host.path(FOLDER)) else { return Vec::new() };
    let guest = |path: PathBuf| {
        let text = fs::read(path.join(files::GUEST)).ok()?;
        Some((path, serde_json::from_slice(&text).ok()?))
    };
    entries.flatten().filter_map(|entry| guest(entry.path())).collect()
}

/// Whether that QEMU is there: its number may be another process's by now.
pub(crate) fn runs(app: &App, guest: &SplitGuest) -> bool {
    let line = fs::read(app.host.path(&format!("/proc/{}/cmdline", guest.qemu)));
    let uuid = text(&guest.uuid);
    line.is_ok_and(|line| line.windows(uuid.len()).any(|part| part == uuid.as_bytes()))
}

pub(crate) fn folder(app: &App, guest: &SplitGuest) -> PathBuf {
    app.host.path(FOLDER).join(format!("{}.{}", text(&guest.uuid), guest.qemu))
}

pub(crate) fn write(folder: &Path, guest: &SplitGuest) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // nobody looks before it is whole
    let new = folder.join(format!("{}.new", files::GUEST));
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&serde_json::to_vec(guest).map_err(io::Error::other)?)?;
    fs::rename(new, folder.join(files::GUEST))
}

pub(crate) fn remove(folder: &Path) {
    // the others tell what it was, to whoever has found this one before: `end` asks them
    _ = fs::remove_file(folder.join(files::GUEST));
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            warn!(folder = %folder.display(), %error, "is left behind");
        }
        _ => {}
    }
}

pub(crate) fn qemu_of(app: &App, name: &str) -> Result<u32, ErrorBody> {
    let path = app.host.path(&format!("/run/libvirt/qemu/{name}.pid"));
    let text = fs::read_to_string(&path).map_err(|error| {
        failed(format_args!("no QEMU of guest {name}: {}: {error}", path.display()))
    })?;
    text.trim().parse().map_err(|_| failed(format_args!("{} is no process id", path.display())))
}

pub(crate) fn uuid_of(domain: &Domain) -> Result<Uuid, ErrorBody> {
    let digits: String =
        domain.uuid.iter().flat_map(|uuid| uuid.chars()).filter(|c| *c != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32);
    let number = number.ok_or_else(|| failed(format_args!("guest {} has no UUID", domain.name)))?;
    Ok(number.to_be_bytes())
}
