// SPDX-License-Identifier: Apache-2.0
//! A guest whose memory is split moves to another main host (S-memV, 4-1; its sub hosts go on as
//! they are, 3-2): its pager gives what it has to that of the next host, QEMU's stream has the rest.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mint_api::{ErrorBody, Line, NodeView};
use mint_guests::arrival::Spread;
use mint_guests::domain::Domain;
use mint_guests::split::{MONITORS, Split};
use mint_serve::lines::Lines;
use mint_split::{
    Arrival, NodeStart, PAGE_BYTES, PagerAnswer, PagerCall, Server, Source, SplitGuest, files,
    whole_bytes,
};
use mint_types::format_bytes;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::app::App;
use crate::facts::HostFiles;
use crate::given_up;
use crate::journal::Side;
use crate::memory::{
    self, Begin, failed, folder, known, named, qemu_of, random_secret, remove, runs, start_keeper,
    text, unreadable, uuid_of, write,
};
use crate::pagers::{call, view};
use crate::servers::has_ended;
use crate::step::step;

/// Users that QEMU runs as.
const USERS: [&str; 2] = ["libvirt-qemu", "qemu"];
/// Between looks at a guest that comes: its QEMU waits.
const LOOK: Duration = Duration::from_millis(50);
/// Between lines of how far one is that goes.
const TELL: Duration = Duration::from_secs(1);
/// Between looks at the node that it comes from.
const SOURCE_LOOK: Duration = Duration::from_secs(2);
/// No page of it comes for so long: it does not.
const STALLED: Duration = Duration::from_secs(90);

/// Makes the folder that QEMU has its monitors for pagers in.
pub(crate) fn make_folder(host: &HostFiles) {
    let folder = host.path(MONITORS);
    let made = || {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
        let users = fs::read_to_string(host.path("/etc/passwd"))?;
        let ids = users.lines().find_map(|line| {
            let mut words = line.split(':');
            let name = words.next().filter(|name| USERS.contains(name))?;
            let [user, group] = [words.nth(1)?, words.next()?].map(|id| id.parse::<u32>().ok());
            Some((name, user?, group?))
        });
        let (name, user, group) = ids.ok_or(io::ErrorKind::NotFound)?;
        chown(&folder, Some(user), Some(group))?;
        info!(folder = %folder.display(), name, "is QEMU's");
        Ok::<(), io::Error>(())
    };
    if let Err(error) = made() {
        warn!(folder = %folder.display(), %error, "guests whose memory is split do not start");
    }
}

/// What libvirt's hook says of a guest that begins.
///
/// # Errors
/// As [`memory::begin`]; of one that comes, when not all of it does: it stays where it is then.
pub(crate) async fn begin(app: &Arc<App>, xml: &str) -> Result<(), ErrorBody> {
    if Split::of_domain(xml).map_err(|error| unreadable(&error))?.is_none() {
        return Ok(());
    }
    let domain = Domain::parse(xml).map_err(|error| unreadable(&error))?;
    let (uuid, qemu) = (uuid_of(&domain)?, qemu_of(app, &domain.name)?);
    match expected(app, &text(&uuid)).filter(|_| is_incoming(app, qemu)) {
        Some(arrival) => come(app, arrival, qemu).await,
        None => memory::begin(app, xml).await,
    }
}

/// What is known of a guest that is about to come.
fn expected(app: &App, uuid: &str) -> Option<Arrival> {
    app.journal.get(Side::Arrival, uuid)?.memory
}

/// Whether a QEMU waits for a stream: that of a migration, or of a file.
fn is_incoming(app: &App, qemu: u32) -> bool {
    let line = fs::read(app.host.path(&format!("/proc/{qemu}/cmdline"))).unwrap_or_default();
    line.split(|byte| *byte == 0).any(|word| word == b"-incoming")
}

/// A guest is about to come by libvirt: whether its memory comes, too.
///
/// # Errors
/// When nobody has asked for that: plain `virsh migrate` does not.
pub(crate) fn check_expected(app: &App, xml: &str) -> Result<(), ErrorBody> {
    let domain = Domain::parse(xml).map_err(|error| unreadable(&error))?;
    if domain.is_split && expected(app, &text(&uuid_of(&domain)?)).is_none() {
        let what = format!("the memory of guest {} is split over several hosts", domain.name);
        return Err(failed(what).hint("mintctl vm migrate moves it"));
    }
    Ok(())
}

/// Its memory begins to come; this returns when little of it is left.
async fn come(app: &Arc<App>, arrival: Arrival, qemu: u32) -> Result<(), ErrorBody> {
    let Arrival { guest, source } = arrival;
    let here = app.here().await?;
    let main = Some(NodeStart { node: here.id.as_u32(), boots: here.boots });
    let guest = SplitGuest { qemu, main, ..guest };
    let folder = folder(app, &guest);
    let uuid = text(&guest.uuid);
    let come = tokio::select! {
        come = come_with(app, &guest, &folder, source) => come,
        () = source_ends(app, &uuid) => {
            Err(failed(format_args!("the node that guest {} comes from has ended", guest.name)))
        }
        why = given_up::ends(app, &folder, &guest) => Err(why),
    };
    if let Err(error) = &come {
        warn!(guest = guest.name, %error, "it does not come");
        given_up::note(app, &uuid, Some(&source), error.causes.last().unwrap_or(&error.message));
        remove(&folder);
    }
    come
}

/// Waits for the end of the node that a guest comes from.
async fn source_ends(app: &App, uuid: &str) {
    let peer = app.journal.get(Side::Arrival, uuid).map(|record| record.peer);
    let mut its = None;
    loop {
        if let Ok(nodes) = app.nodes().await {
            let start = |node: &NodeView| NodeStart { node: node.id.as_u32(), boots: node.boots };
            let is_it = |node: &&NodeView| Some(node.id) == peer;
            its = its.or_else(|| nodes.iter().find(is_it).map(start));
            if has_ended(&nodes, its) {
                return;
            }
        }
        sleep(SOURCE_LOOK).await;
    }
}

async fn come_with(
    app: &Arc<App>,
    guest: &SplitGuest,
    folder: &Path,
    source: Source,
) -> Result<(), ErrorBody> {
    let cannot =
        |error: io::Error| failed(format_args!("cannot write {}: {error}", folder.display()));
    // first: one without it is a guest of this host
    write_source(folder, &source).and_then(|()| write(folder, guest)).map_err(cannot)?;
    start_keeper(app, guest, folder, Begin::Come).await?;
    step("memory-comes").await;
    let (mut pages, mut since) = (0, Instant::now());
    loop {
        match view(folder).await.map(|view| view.arrival) {
            Ok(None) => return Ok(()),
            Ok(Some(arrival)) if arrival.is_ready => {
                let bytes = format_bytes(arrival.pages.saturating_mul(PAGE_BYTES));
                info!(guest = guest.name, bytes, "most of its memory has come");
                return Ok(());
            }
            Ok(Some(arrival)) => {
                if let Some(why) = arrival.failed {
                    let what = format_args!("the memory of guest {} does not come", guest.name);
                    let mut error = failed(what);
                    error.causes.push(why);
                    return Err(error);
                }
                if arrival.pages != pages {
                    (pages, since) = (arrival.pages, Instant::now());
                }
            }
            // it may be starting
            Err(_) => {}
        }
        if since.elapsed() > STALLED {
            let what = format_args!(
                "the memory of guest {} does not come: no page of it in {} s",
                guest.name,
                STALLED.as_secs()
            );
            return Err(failed(what).hint("/var/log/mint/memory-NAME.log on both nodes says more"));
        }
        sleep(LOOK).await;
    }
}

fn write_source(folder: &Path, source: &Source) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let mut how = OpenOptions::new();
    let mut file =
        how.write(true).create(true).truncate(true).mode(0o600).open(folder.join(files::COMING))?;
    file.write_all(&serde_json::to_vec(source)?)
}

/// A guest of this node whose QEMU runs, with its folder.
pub(crate) fn running(app: &App, uuid: &str) -> Option<(PathBuf, SplitGuest)> {
    let mut guests = known(app).into_iter().filter(|(_, guest)| runs(app, guest));
    guests.find(|(_, guest)| text(&guest.uuid) == uuid)
}

/// What another host is to have of a guest; none of one that cannot go.
///
/// # Errors
/// When mintd does not answer.
pub(crate) async fn spread(app: &App, domain: &Domain) -> Result<Option<Spread>, ErrorBody> {
    if !domain.is_split {
        return Ok(None);
    }
    let found = running(app, &text(&uuid_of(domain)?));
    let Some((_, guest)) = found.filter(|(_, guest)| guest.monitor.is_some()) else {
        return Ok(None);
    };
    let nodes = app.nodes().await?;
    let its = guest.servers.iter().filter(|server| !server.is_over());
    let names = its.flat_map(|server| {
        let mirror = server.mirror.as_ref().map(|mirror| &mirror.node);
        [Some(&server.node), mirror].into_iter().flatten()
    });
    let hosts = names.filter_map(|name| named(&nodes, name)).map(|node| node.id).collect();
    Ok(Some(Spread { main_bytes: guest.main_bytes.min(guest.memory_bytes), hosts }))
}

/// A guest that is to have all of its memory at its main host, where it comes no faster than that.
pub(crate) fn whole(guest: SplitGuest, drain_bytes_s: Option<u64>) -> SplitGuest {
    let main_bytes = whole_bytes(guest.memory_bytes, guest.chunk_bytes);
    let each = guest.servers.into_iter();
    let servers = each.map(|server| Server { leaves: true, ..server }).collect();
    SplitGuest { main_bytes, servers, drain_bytes_s, ..guest }
}

/// A guest of this node is about to go, to a host that has so much for it (none: as much as this
/// one): what that is to be told.
///
/// # Errors
/// When its pager does not give its pages: it stays as it is.
pub(crate) async fn go(
    app: &App,
    here: &NodeView,
    uuid: &str,
    bandwidth_bytes_s: Option<u64>,
    merge: bool,
    main_bytes: Option<u64>,
) -> Result<Arrival, ErrorBody> {
    let (folder, guest) = running(app, uuid)
        .ok_or_else(|| failed(format_args!("guest {uuid} does not run here any more")))?;
    let cannot = |why: &dyn std::fmt::Display| {
        failed(format_args!("the pager of guest {} does not give its memory: {why}", guest.name))
    };
    let ip: IpAddr = here
        .address
        .parse()
        .map_err(|_| failed(format_args!("node {} has no address on mint0", here.name)))?;
    let secret = random_secret()?;
    let asked = PagerCall::Go { ip, secret, bandwidth_bytes_s, main_bytes };
    match call(&folder, &asked).await {
        Ok(PagerAnswer::Goes(address)) => {
            let guest = if merge { whole(guest, bandwidth_bytes_s) } else { guest };
            let main_bytes = main_bytes.unwrap_or(guest.main_bytes);
            let epoch = guest.epoch + 1;
            let guest = SplitGuest { main_bytes, epoch, qemu: 0, main: None, lent: None, ..guest };
            let source = Source { address, secret, bandwidth_bytes_s };
            Ok(Arrival { guest, source })
        }
        Ok(PagerAnswer::Cannot(why)) => Err(cannot(&why)),
        Ok(PagerAnswer::Stays) => Err(cannot(&"it says that the guest stays")),
        Err(error) => Err(cannot(&error)),
    }
}

/// Tells how far the memory of a guest is that goes, for ever.
pub(crate) async fn tell(app: Arc<App>, uuid: String, lines: Lines) {
    let mut last = None;
    while let Some((folder, _)) = running(&app, &uuid) {
        let told = view(&folder).await.ok().and_then(|view| view.departure);
        if let Some(told) = told.filter(|_| told != last) {
            let bytes = |pages: u64| format_bytes(pages.saturating_mul(PAGE_BYTES));
            let (sent, rest) = (bytes(told.sent_pages), bytes(told.rest_pages));
            let ahead = match told.ahead_pages {
                0 => String::new(),
                pages => format!(", {} with other hosts", bytes(pages)),
            };
            let round = told.rounds.max(1);
            let text = format!("{sent} of memory sent{ahead}, round {round}, {rest} left");
            lines.send(&Line::Progress(text)).await;
            last = Some(told);
        }
        sleep(TELL).await;
    }
}

/// Waits for the end of a node that keeps memory of a guest of which another node has a copy; gives
/// both nodes' names. The copy takes its place once the guest does not move.
pub(crate) async fn loses(app: &App, uuid: &str) -> (String, String) {
    loop {
        sleep(SOURCE_LOOK).await;
        let (Some((_, guest)), Ok(nodes)) = (running(app, uuid), app.nodes().await) else {
            continue;
        };
        let lost = guest.servers.into_iter().find_map(|server| {
            let is_lost = !server.is_over() && has_ended(&nodes, server.start);
            server.mirror.filter(|_| is_lost).map(|mirror| (server.node, mirror.node))
        });
        if let Some(lost) = lost {
            return lost;
        }
    }
}

/// Whether the pager of a guest of this node gives its memory to another host.
pub(crate) fn is_going(app: &App, uuid: &str) -> bool {
    running(app, uuid).is_some_and(|(folder, _)| folder.join(files::GOING).exists())
}

/// A guest stays: its pager gives nothing any more. One whose memory is not split has none.
///
/// # Errors
/// When that does not say so.
pub(crate) async fn stay(app: &App, uuid: &str) -> Result<(), ErrorBody> {
    let Some((folder, guest)) = running(app, uuid) else { return Ok(()) };
    if !folder.join(files::GOING).exists() {
        return Ok(());
    }
    match call(&folder, &PagerCall::Stay).await {
        Ok(PagerAnswer::Stays) => Ok(()),
        other => Err(failed(format_args!("the pager of guest {} says {other:?}", guest.name))),
    }
}

/// libvirt says that a guest is here: its pager is told, in case that its QEMU does not say so
/// (it may be paused), if that is sure. Gives what it waits for until it is this host's; none of
/// one that is, or whose memory is not split.
pub(crate) fn waits_for(app: &App, uuid: &str, is_sure: bool) -> Option<&'static str> {
    let (folder, guest) = running(app, uuid)?;
    if folder.join(files::COMING).exists() {
        let told = if is_sure { fs::write(folder.join(files::RUNS), "") } else { Ok(()) };
        if let Err(error) = told {
            warn!(guest = guest.name, %error, "its pager is not told that it runs here");
        }
        return Some("its pager has not seen it run");
    }
    let is_entering = folder.join(files::ENTERING).exists();
    is_entering.then_some("not all of its memory servers know this host")
}
