// SPDX-License-Identifier: Apache-2.0
//! Hosts of a guest's memory that change while it runs: what one of them keeps goes by the main
//! host to another (partial migration by sub hosts alone, S-memV 3-2).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mint_api::{ClientError, ErrorBody, ErrorCode, HostLeaves, KeptGone, NodeKeeps, NodeView};
use mint_split::{Lease, LeaseEnd, NodeStart, Server, SplitGuest, files};
use mint_types::{NodeState, Refusal, RefusalCode, format_bytes};
use serde_json::Value;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::app::{App, client_error, path_of};
use crate::journal::Side;
use crate::memory::{
    ask, failed, kept_lease, known, lease, named, path_to, random_secret, runs, text, write,
};
use crate::mirrors;
use crate::pagers::view;
use crate::rewrite::{self, Unchanged, has_read, read_again};
use crate::servers::{Host, is_on};

/// Between looks at guests of which a host is to keep nothing any more.
const LOOK: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(200);
/// For a mirror to have all of what is kept, when its memory server is to have nothing any more.
const HAS_ALL_WITHIN: Duration = Duration::from_secs(60);

/// What a node keeps of a guest of this node begins to go elsewhere; [`watch`] sees to the rest. Or
/// it is only told where it would go.
///
/// # Errors
/// When the guest's memory is not split, or no other node has room: then nothing has changed. When
/// the guest's pager does not answer: it begins when that does.
pub(crate) async fn leave(
    app: &Arc<App>,
    vm: String,
    from: HostLeaves,
) -> Result<KeptGone, ErrorBody> {
    // what is read before another one's change would undo that
    let _changing = app.begin_after(&vm).await.ok_or_else(|| {
        failed(format_args!("guest {vm} is being moved: ask again when it is not"))
    })?;
    let (folder, guest) = running(app, &vm).ok_or_else(|| {
        failed(format_args!("no guest {vm} runs here whose memory is split over several nodes"))
    })?;
    let nodes = app.nodes().await?;
    let gone = |to| KeptGone { name: guest.name.clone(), uuid: vm.clone(), to };
    let of_host = |name: &str| from.machine.is_none() && is_node(&nodes, name, from.host.as_u32());
    let is_its = |server: &Server| is_on(&nodes, server, from.machine, from.host);
    let here = app.here().await?;
    let main = NodeStart { node: here.id.as_u32(), boots: here.boots };
    if let (true, Some(to)) = (from.dry_run, other_copy(&guest, of_host)) {
        return Ok(gone(Some(to)));
    }
    let is_own = |node: &&NodeView| node.id == from.host && from.machine.is_none();
    if let Some(node) = nodes.iter().find(is_own).filter(|_| !from.dry_run) {
        if let Some(to) = leave_copy(app, &folder, &guest, node, &nodes, main).await? {
            return Ok(gone(Some(to)));
        }
    }
    let server = guest.servers.iter().position(|server| !server.leaves && is_its(server));
    let Some(number) = server else {
        go_at(&folder, &guest, &from, is_its).await?;
        return Ok(gone(None));
    };
    let drains = SplitGuest { drain_bytes_s: from.bandwidth_bytes_s, ..guest.clone() };
    let mut refusals = Vec::new();
    for node in &nodes {
        if node.is_self || is_own(&node) || node.state != NodeState::Running {
            continue;
        }
        if let Some(refusal) = gives_back(&guest, &nodes, &Host::own(node)) {
            refusals.push(refusal);
            continue;
        }
        let given = match from.dry_run {
            true => could_have(app, &guest, &guest.servers[number], node).await,
            false => change(app, &folder, (&guest, &drains), number, node, &nodes, main).await,
        };
        match given {
            Ok(()) => return Ok(gone(Some(node.name.clone()))),
            Err(error) if error.code == ErrorCode::PlanRefused => refusals.extend(error.refusals),
            Err(error) => return Err(error),
        }
    }
    if refusals.is_empty() {
        let what = format!("no other node runs that could keep memory of guest {}", guest.name);
        let resource = format_args!("vm {}", guest.name);
        let refusal = Refusal::new(RefusalCode::NodeNotRunning, resource, what)
            .hint("start another node, or end the guest");
        refusals.push(refusal);
    }
    Err(ErrorBody::refused(refusals))
}

/// Of two copies of something of which a node has one, the node of the other.
fn other_copy(guest: &SplitGuest, is_its: impl Fn(&str) -> bool) -> Option<String> {
    guest.servers.iter().find_map(|server| {
        let mirror = &server.mirror.as_ref()?.node;
        let (first, second) = (is_its(&server.node), is_its(mirror));
        (first || second).then(|| if first { mirror } else { &server.node }.clone())
    })
}

/// Whether a node has room for what a memory server may keep of a guest.
async fn could_have(
    app: &App,
    guest: &SplitGuest,
    server: &Server,
    node: &NodeView,
) -> Result<(), ErrorBody> {
    let path = format!("{}/leases", path_of(None, node.id));
    let keeps: NodeKeeps = app.mintd.get(&path).await.map_err(client_error)?;
    let (free, wants) = (keeps.room_bytes(), server.limit_bytes);
    if wants <= free {
        return Ok(());
    }
    let text = format!(
        "node {} can keep {} of guest {}, not {}",
        node.name,
        format_bytes(free),
        guest.name,
        format_bytes(wants)
    );
    let refusal = Refusal::new(RefusalCode::MemoryShort, format_args!("node {}", node.name), text);
    Err(ErrorBody::refused(vec![refusal.hint("give it more: mintctl node resize --memory")]))
}

/// A node that has one of two copies of something keeps none any more. Gives which node has the
/// other one; none if it has no copy.
async fn leave_copy(
    app: &App,
    folder: &Path,
    guest: &SplitGuest,
    from: &NodeView,
    nodes: &[NodeView],
    main: NodeStart,
) -> Result<Option<String>, ErrorBody> {
    let its = |name: &str| is_node(nodes, name, from.id.as_u32());
    let has_copy = |server: &Server| {
        server.mirror.as_ref().is_some_and(|mirror| its(&mirror.node) || its(&server.node))
    };
    let Some(number) = guest.servers.iter().position(has_copy) else { return Ok(None) };
    let server = &guest.servers[number];
    let Some(mirror) = &server.mirror else { return Ok(None) };
    let left = NodeStart { node: from.id.as_u32(), boots: from.boots };
    let mut new = guest.clone();
    new.left.push(left);
    let cannot =
        |error| failed(format_args!("cannot change hosts of guest {}: {error}", guest.name));
    let (stays, secret) = match its(&mirror.node) {
        true => (Server { mirror: None, ..server.clone() }, mirror.at.secret),
        false => {
            wait_for_mirror(app, guest, server).await?;
            // it says from here on that it keeps something to nobody: what it has said its mirror has
            let shut = Server { secret: random_secret()?, ..server.clone() };
            new.servers[number] = shut.clone();
            write(folder, &new).map_err(cannot)?;
            mirrors::tell(app, &new, &shut, nodes, main).await?;
            (mirrors::promoted(app, guest, server, mirror, nodes, main).await?, shut.secret)
        }
    };
    new.servers[number] = stays.clone();
    if its(&mirror.node) {
        mirrors::tell(app, &new, &stays, nodes, main).await?;
    }
    write(folder, &new).map_err(cannot)?;
    if !its(&mirror.node) {
        read_again(folder, &new).await;
    }
    let path = path_of(None, from.id);
    let end = LeaseEnd { uuid: guest.uuid, secret, epoch: Some(guest.epoch) };
    let ended: Result<Value, ClientError> =
        app.mintd.post(&format!("{path}/leases/end"), &end).await;
    ended.map_err(client_error)?;
    let (from, to) = (&from.name, &stays.node);
    info!(guest = guest.name, from, to, "one copy has gone, the other stays");
    // there is one copy until there is a node for another one
    match mirrors::find(app, &new, &stays, nodes, main).await {
        Ok(mirror) => {
            new.servers[number].mirror = Some(mirror);
            write(folder, &new).map_err(cannot)?;
        }
        Err(error) => info!(guest = guest.name, %error, "it has one copy"),
    }
    Ok(Some(stays.node))
}

/// Until the mirror of a memory server has all that its main host was told is kept.
async fn wait_for_mirror(app: &App, guest: &SplitGuest, server: &Server) -> Result<(), ErrorBody> {
    let end = Instant::now() + HAS_ALL_WITHIN;
    loop {
        let behind = mirrors::behind_bytes(app, guest, server).await;
        if behind == Some(0) {
            return Ok(());
        }
        if Instant::now() >= end {
            let behind = behind.map_or("an unknown part".to_owned(), format_bytes);
            let text = format!(
                "the second copy of what {} keeps of guest {} lacks {behind}",
                server.node, guest.name
            );
            let refusal =
                Refusal::new(RefusalCode::VmBusy, format_args!("vm {}", guest.name), text)
                    .hint("ask again when it has all: mintctl vm memory tells");
            return Err(ErrorBody::refused(vec![refusal]));
        }
        sleep(AGAIN).await;
    }
}

/// A guest of that UUID, as its file says now, with its folder.
pub(crate) fn running(app: &App, uuid: &str) -> Option<(PathBuf, SplitGuest)> {
    // its hosts do not change while it is between two main hosts
    let is_here = |folder: &Path| {
        ![files::COMING, files::ENTERING].iter().any(|name| folder.join(name).exists())
    };
    let mut guests =
        known(app).into_iter().filter(|(folder, guest)| runs(app, guest) && is_here(folder));
    guests.find(|(_, guest)| text(&guest.uuid) == uuid)
}

fn is_node(nodes: &[NodeView], name: &str, id: u32) -> bool {
    named(nodes, name).is_some_and(|node| node.id.as_u32() == id)
}

/// Why a node gets no lease for a guest now: what it keeps goes elsewhere still, and a new lease
/// would end the one that this lies under.
pub(crate) fn gives_back(guest: &SplitGuest, nodes: &[NodeView], host: &Host) -> Option<Refusal> {
    let mut servers = guest.servers.iter();
    servers.find(|server| {
        server.leaves && !server.is_over() && is_on(nodes, server, host.machine, host.node)
    })?;
    let text = format!("what {} keeps of guest {} goes elsewhere still", host.name, guest.name);
    let refusal = Refusal::new(RefusalCode::VmBusy, format_args!("vm {}", guest.name), text);
    Some(refusal.hint("ask again when it has gone: mintctl vm memory tells"))
}

/// What goes elsewhere already goes at another rate from now on, if somebody says so.
async fn go_at(
    folder: &Path,
    guest: &SplitGuest,
    from: &HostLeaves,
    is_its: impl Fn(&Server) -> bool,
) -> Result<(), ErrorBody> {
    let goes = guest.servers.iter().any(|its| its.leaves && !its.is_over() && is_its(its));
    if !goes || from.dry_run || guest.drain_bytes_s == from.bandwidth_bytes_s {
        return Ok(());
    }
    let new = SplitGuest { drain_bytes_s: from.bandwidth_bytes_s, ..guest.clone() };
    rewrite::change(folder, guest, &new).await.map_err(|error| {
        failed(format_args!("what goes elsewhere of guest {} goes as before: {error}", guest.name))
    })
}

/// A node gets what the memory server of that number has.
async fn change(
    app: &App,
    folder: &Path,
    (guest, drains): (&SplitGuest, &SplitGuest),
    number: usize,
    to: &NodeView,
    nodes: &[NodeView],
    main: NodeStart,
) -> Result<(), ErrorBody> {
    let host = Host::own(to);
    let keeps_some =
        guest.servers.iter().position(|server| !server.leaves && is_on(nodes, server, None, to.id));
    let mut new = drains.clone();
    let moved_bytes = guest.servers.get(number).map_or(0, |server| server.limit_bytes);
    let lease = match keeps_some.and_then(|at| guest.servers.get(at)) {
        Some(server) => {
            let limit_bytes = server.limit_bytes.saturating_add(moved_bytes);
            kept_lease(guest, server, limit_bytes, main)
        }
        None => lease(guest, random_secret()?, moved_bytes, main),
    };
    let server = ask(app, &host, &lease).await?;
    match keeps_some.and_then(|at| new.servers.get_mut(at)) {
        Some(known) => known.limit_bytes = server.limit_bytes,
        None => new.servers.push(server),
    }
    if let Some(leaver) = new.servers.get_mut(number) {
        leaver.leaves = true;
    }
    // from here on a pager may read it, and give the new host pages: nothing is undone but what the
    // pager says that it does not do
    match rewrite::change(folder, guest, &new).await {
        Ok(()) => {
            info!(guest = guest.name, to = to.name, "what another node keeps of it goes there");
            Ok(())
        }
        Err(Unchanged::Later(error)) => {
            let text = format!(
                "guest {}: what another node keeps goes to {} when its pager answers: {error}",
                guest.name, to.name
            );
            Err(failed(text).hint("its keeper starts it again: ask again to wait"))
        }
        Err(Unchanged::Undone(why)) => {
            if keeps_some.is_none() {
                let Lease { uuid, secret, epoch, .. } = lease;
                let end = LeaseEnd { uuid, secret, epoch: Some(epoch) };
                _ = app.mintd.post::<Value>(&format!("{}/leases/end", host.path), &end).await;
            }
            Err(failed(why))
        }
    }
}

/// Looks for hosts that keep nothing of a guest any more, for ever.
pub(crate) async fn watch(app: Arc<App>) {
    loop {
        sleep(LOOK).await;
        for (_, guest) in known(&app) {
            let uuid = text(&guest.uuid);
            if guest.lent.is_none() && !is_leaving(&guest) {
                continue;
            }
            // one that moves is its operation's
            let Some(_changing) = app.see_to(&uuid) else { continue };
            match guest.lent {
                Some(_) => take_back(&app, &uuid).await,
                None => settle(&app, &uuid).await,
            }
        }
    }
}

/// Whether a host of a guest is to keep nothing any more, and has its lease still.
fn is_leaving(guest: &SplitGuest) -> bool {
    guest.servers.iter().any(|server| server.leaves && !server.is_over())
}

/// The guest stays: hosts that gave a lease for its move give it up once they have nothing of it.
/// What cannot be done now is by [`watch`].
pub(crate) async fn take_back(app: &App, uuid: &str) {
    let Some((folder, guest)) = running(app, uuid) else { return };
    // its pager may be sending them something still, and settle.rs ends that
    if guest.lent.is_none()
        || folder.join(files::GOING).exists()
        || app.journal.get(Side::Departure, uuid).is_some()
    {
        return;
    }
    let guest = guest.taken_back();
    match write(&folder, &guest) {
        Ok(()) => read_again(&folder, &guest).await,
        Err(error) => warn!(guest = guest.name, %error, "its hosts cannot be written down"),
    }
}

/// Ends the leases of hosts that keep nothing of a guest any more.
async fn settle(app: &App, uuid: &str) {
    // what is read before another one's change would undo that
    let Some((folder, guest)) = running(app, uuid).filter(|(_, guest)| is_leaving(guest)) else {
        return;
    };
    // one that has not read it gives that host more
    if !has_read(&folder).await {
        return;
    }
    let (Ok(view), Ok(nodes)) = (view(&folder).await, app.nodes().await) else { return };
    let mut new = guest.clone();
    for (server, view) in new.servers.iter_mut().zip(&view.servers) {
        if !server.leaves || server.is_over() || view.chunks > 0 {
            continue;
        }
        let end = LeaseEnd { uuid: guest.uuid, secret: server.secret, epoch: Some(guest.epoch) };
        // the guest's own node, too: it was to keep a part when the guest left it, which it did not
        let ended: Result<Value, ClientError> = match path_to(&nodes, server) {
            Some(path) => app.mintd.post(&format!("{path}/leases/end"), &end).await,
            // a node that is gone keeps nothing
            None => Ok(Value::Null),
        };
        match ended.map_err(client_error) {
            Ok(_) => server.limit_bytes = 0,
            Err(error) => warn!(guest = guest.name, node = server.node, %error, "a lease goes on"),
        }
    }
    if new == guest {
        return;
    }
    if !is_leaving(&new) {
        new.drain_bytes_s = None;
    }
    if let Err(error) = write(&folder, &new) {
        warn!(guest = guest.name, %error, "its hosts cannot be written down");
        return;
    }
    info!(guest = guest.name, "a host keeps nothing of it any more");
    read_again(&folder, &new).await;
}
