// SPDX-License-Identifier: Apache-2.0
//! What this node's memory server keeps for guests of other nodes: their daemons ask for a lease,
//! which is given if there is room. One whose guest's node has started anew since, or is gone,
//! ends.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mint_api::{
    ClientError, ErrorBody, ErrorCode, EvacuateRequest, EvacuateResult, HostLeaves, KeptGone,
    KeptMirror, Line, NodeKeeps, NodeView, STORE_PORT, VmView,
};
use mint_serve::lines::Lines;
use mint_split::{Lease, LeaseEnd, LeaseView, NodeStart, PAGE_BYTES, ServerAddress};
use mint_types::{MachineId, NodeId, Refusal, RefusalCode, format_bytes};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::app::{App, client_error, path_of};
use crate::memory::text;
use crate::servers::{failed, has_ended};

/// A guest of a linked machine is not there for so long: it is no more.
const ABSENT_FOR: Duration = Duration::from_secs(60);
/// As libvirt says of one that does not run.
const SHUT_OFF: &str = "shut off";
/// Between looks at who has a lease.
const LOOK: Duration = Duration::from_secs(10);
/// What this node keeps for itself.
pub(crate) const RESERVE_BYTES: u64 = 64 << 20;
const PATH: &str = "/v1/leases";
/// Between looks at what goes elsewhere, and how long it may stand still.
const GOES_POLL: Duration = Duration::from_millis(500);
const STALLED: Duration = Duration::from_secs(120);

/// A guest of another node may keep pages here.
///
/// # Errors
/// When there is no room, or the memory server does not answer.
pub(crate) async fn give(
    app: &App,
    lease: Lease,
    machine: Option<MachineId>,
) -> Result<ServerAddress, ErrorBody> {
    // who asks is not believed where it is from
    let lease = Lease { machine, ..lease };
    let here = app.here().await?;
    let given = list(app).await?;
    // what this guest has from an earlier life goes
    let (own, others): (Vec<_>, Vec<_>) =
        given.into_iter().partition(|given| given.uuid == lease.uuid);
    let goes: u64 = own.iter().map(|given| given.kept_bytes).sum();
    let free = app.host.free_memory_bytes().saturating_add(goes);
    let free = free.saturating_sub(RESERVE_BYTES).saturating_sub(promised(&others));
    if let Some(may) = may_bytes(app, &others).await?.filter(|may| lease.limit_bytes > *may) {
        let text = format!(
            "node {} may keep {} of guests of other nodes besides what it has promised, and is to keep {}",
            here.name,
            format_bytes(may),
            format_bytes(lease.limit_bytes)
        );
        let refusal = Refusal::new(
            RefusalCode::MemoryShort,
            format_args!("node {}", here.name),
            text,
        )
        .hint(
            "split the guest's memory in another way, or raise [memory] keep_max of its mint.toml",
        );
        return Err(ErrorBody::refused(vec![refusal]));
    }
    if lease.limit_bytes > free {
        let text = format!(
            "node {} can keep {} MiB of a guest's memory, and is to keep {} MiB",
            here.name,
            free >> 20,
            lease.limit_bytes >> 20
        );
        let refusal =
            Refusal::new(RefusalCode::MemoryShort, format_args!("node {}", here.name), text)
                .hint("give the node more memory, or split the guest's memory in another way");
        return Err(ErrorBody::refused(vec![refusal]));
    }
    let address = address(&here)?;
    info!(limit = format_bytes(lease.limit_bytes), node = lease.main.node, "a lease");
    let given = app.store.post::<Value>(PATH, &lease).await.map_err(store_error)?;
    Ok(ServerAddress {
        address,
        start: Some(NodeStart { node: here.id.as_u32(), boots: here.boots }),
        mirrors: lease.mirror.is_some() && given.get("mirrors") == Some(&Value::Bool(true)),
    })
}

/// Of this node's memory server.
fn address(here: &NodeView) -> Result<SocketAddr, ErrorBody> {
    let address = here.address.parse().map_err(|_| {
        let text = format!("node {} has no address on mint0", here.name);
        ErrorBody::new(ErrorCode::Failed, text)
    })?;
    Ok(SocketAddr::new(address, STORE_PORT))
}

/// A connection to it.
///
/// # Errors
/// When it does not answer.
pub(crate) async fn connect(app: &App) -> Result<TcpStream, ErrorBody> {
    let address = address(&app.here().await?)?;
    let stream = TcpStream::connect(address).await.and_then(|stream| {
        stream.set_nodelay(true)?;
        Ok(stream)
    });
    stream.map_err(|error| {
        let mut body = ErrorBody::from_error(ErrorCode::Failed, &error);
        body.causes.insert(0, body.message.clone());
        "the memory server of this node does not answer".clone_into(&mut body.message);
        body
    })
}

/// A lease is not wanted any more; none there is no error.
///
/// # Errors
/// When the memory server does not answer.
pub(crate) async fn end(app: &App, end: &LeaseEnd) -> Result<(), ErrorBody> {
    let ended = app.store.post::<Value>(&format!("{PATH}/end"), end).await;
    ended.map(drop).map_err(store_error)
}

/// What this node keeps of guests of other nodes goes to others; this waits until it is gone. Or it
/// is only told where it would go.
///
/// # Errors
/// When no other node has room for what it keeps of a guest, or it does not get on: what is gone by
/// then stays gone, what is on its way goes on.
pub(crate) async fn evacuate(
    app: &App,
    request: &EvacuateRequest,
    lines: &Lines,
) -> Result<EvacuateResult, ErrorBody> {
    if request.bandwidth_bytes_s == Some(0) {
        let text = "bad request: bandwidth_bytes_s is 0; leave it out for no limit";
        return Err(ErrorBody::new(ErrorCode::BadRequest, text));
    }
    let dry_run = request.dry_run;
    let (here, nodes) = (app.here().await?, app.nodes().await?);
    let (mut leaving, mut kept) = (Vec::new(), Vec::new());
    let given = list(app).await?;
    // each guest's pager sees to its own part
    let guests = u64::try_from(given.len()).unwrap_or(u64::MAX).max(1);
    let bandwidth_bytes_s = request.bandwidth_bytes_s.map(|bytes_s| (bytes_s / guests).max(1));
    for lease in given {
        let is_main = |node: &&NodeView| {
            node.id.as_u32() == lease.main.node && node.boots == lease.main.boots
        };
        let path = match lease.machine {
            None => match nodes.iter().find(is_main) {
                Some(main) => path_of(None, main.id),
                // that of a guest that is no more ends by itself
                None => continue,
            },
            machine => path_of(machine, NodeId::new(lease.main.node).map_err(failed)?),
        };
        let path = format!("{path}/vms/{}/memory/leave", text(&lease.uuid));
        let machine = match lease.machine {
            None => None,
            Some(_) => Some(app.machine().await?),
        };
        let leaves = HostLeaves { host: here.id, machine, dry_run, bandwidth_bytes_s };
        let gone: KeptGone = app.mintd.post(&path, &leaves).await.map_err(client_error)?;
        let (name, bytes) = (&gone.name, format_bytes(lease.kept_bytes));
        let to = gone.to.as_deref().unwrap_or("another node already");
        let go = if dry_run { "would go" } else { "go" };
        let what = format!("{} keeps {bytes} of guest {name}, which {go} to {to}", here.name);
        lines.send(&Line::Progress(what)).await;
        if !dry_run {
            leaving.push((lease.uuid, lease.secret));
        }
        kept.push(gone);
    }
    let (mut last, mut since) = (u64::MAX, Instant::now());
    loop {
        let is_leaving = |lease: &&LeaseView| leaving.contains(&(lease.uuid, lease.secret));
        let all = list(app).await?;
        let left: Vec<&LeaseView> = all.iter().filter(is_leaving).collect();
        if left.is_empty() {
            return Ok(EvacuateResult {
                node: here.id,
                vms: Vec::new(),
                repinned: Vec::new(),
                kept,
            });
        }
        let bytes = left.iter().map(|lease| lease.kept_bytes).fold(0, u64::saturating_add);
        if bytes != last {
            let what = format!("{} are left on {}", format_bytes(bytes), here.name);
            lines.send(&Line::Progress(what)).await;
            (last, since) = (bytes, Instant::now());
        }
        if since.elapsed() > STALLED {
            let what = format!(
                "{} keeps {} still: no less since {} s",
                here.name,
                format_bytes(bytes),
                STALLED.as_secs()
            );
            let hint = "mintctl vm memory GUEST tells where its chunks are; it goes on, ask again";
            return Err(ErrorBody::new(ErrorCode::Failed, what).hint(hint));
        }
        sleep(GOES_POLL).await;
    }
}

/// What this node has promised to guests of other nodes, and does not keep yet; nothing where no
/// memory server answers.
pub(crate) async fn promised_bytes(app: &App) -> u64 {
    list(app).await.map_or(0, |given| promised(&given))
}

/// What this node can promise besides what it has promised.
fn free_bytes(app: &App, given: &[LeaseView]) -> u64 {
    let free = app.host.free_memory_bytes().saturating_sub(promised(given));
    free.saturating_sub(RESERVE_BYTES)
}

/// What this node's settings let it promise besides; none: they do not bound that.
async fn may_bytes(app: &App, given: &[LeaseView]) -> Result<Option<u64>, ErrorBody> {
    let all = given.iter().map(|given| given.limit_bytes).fold(0, u64::saturating_add);
    Ok(app.keep_max_bytes().await?.map(|max| max.saturating_sub(all)))
}

fn promised(given: &[LeaseView]) -> u64 {
    let each = given.iter().map(|given| given.limit_bytes.saturating_sub(given.kept_bytes));
    each.fold(0, u64::saturating_add)
}

/// What this node keeps of guests of other nodes.
///
/// # Errors
/// When the memory server does not answer.
pub(crate) async fn keeps(app: &App) -> Result<NodeKeeps, ErrorBody> {
    let given = list(app).await?;
    let sum = |of: fn(&LeaseView) -> u64| given.iter().map(of).fold(0, u64::saturating_add);
    Ok(NodeKeeps {
        guests: given.iter().filter(|lease| lease.kept_bytes > 0).count() as u64,
        kept_bytes: sum(|lease| lease.kept_bytes),
        limit_bytes: sum(|lease| lease.limit_bytes),
        free_bytes: Some(free_bytes(app, &given)),
        may_bytes: may_bytes(app, &given).await?,
        mirrors: given.iter().filter_map(mirror).collect(),
    })
}

fn mirror(lease: &LeaseView) -> Option<KeptMirror> {
    let behind_bytes = lease.mirror?.behind_pages.saturating_mul(PAGE_BYTES);
    Some(KeptMirror { uuid: text(&lease.uuid), behind_bytes })
}

async fn list(app: &App) -> Result<Vec<LeaseView>, ErrorBody> {
    app.store.get(PATH).await.map_err(store_error)
}

/// Ends leases of guests that cannot be any more, for ever.
pub(crate) async fn watch(app: Arc<App>) {
    let mut absent: HashMap<[u8; 16], Instant> = HashMap::new();
    loop {
        sleep(LOOK).await;
        // nobody has a lease where no memory server runs
        let Ok(given) = list(&app).await else { continue };
        if given.is_empty() {
            continue;
        }
        let Ok(nodes) = app.nodes().await else { continue };
        absent.retain(|secret, _| given.iter().any(|lease| lease.secret == *secret));
        for lease in given {
            // one that another main host has taken over meanwhile stays
            let LeaseView { uuid, secret, epoch, main, kept_bytes, .. } = lease;
            let is_over = match lease.machine {
                None => has_ended(&nodes, Some(main)),
                Some(machine) if is_absent(&app, machine, &lease).await => {
                    // it may be about to begin there
                    absent.entry(secret).or_insert_with(Instant::now).elapsed() > ABSENT_FOR
                }
                Some(_) => {
                    absent.remove(&secret);
                    false
                }
            };
            if !is_over {
                continue;
            }
            info!(node = main.node, boots = main.boots, kept_bytes, "the guest's node has ended");
            if let Err(error) = end(&app, &LeaseEnd { uuid, secret, epoch }).await {
                warn!(%error, "a lease goes on");
            }
        }
    }
}

/// Whether a linked machine says that the main host of a guest does not run it. One that does not
/// answer says nothing.
async fn is_absent(app: &App, machine: MachineId, lease: &LeaseView) -> bool {
    let Ok(links) = app.links().await else { return false };
    if !links.links.iter().any(|link| link.machine == machine && link.is_up) {
        return false;
    }
    let Ok(node) = NodeId::new(lease.main.node) else { return true };
    let path = format!("{}/vms/{}", path_of(Some(machine), node), text(&lease.uuid));
    match app.mintd.get::<VmView>(&path).await.map_err(client_error) {
        Ok(guest) => guest.state == SHUT_OFF,
        Err(error) => error
            .refusals
            .iter()
            .any(|refusal| matches!(refusal.code, RefusalCode::VmAbsent | RefusalCode::NodeAbsent)),
    }
}

fn store_error(error: ClientError) -> ErrorBody {
    match error {
        ClientError::Refused(body) => *body,
        other => {
            let mut body = ErrorBody::from_error(ErrorCode::Failed, &other);
            body.causes.insert(0, body.message.clone());
            "the memory server of this node does not answer".clone_into(&mut body.message);
            body.hint("its log is /var/log/mint/mint-store.log, or: journalctl -u mint-store")
        }
    }
}
