// SPDX-License-Identifier: Apache-2.0
//! Operations on nodes: the part that changes them, and the waiting around it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mint_api::{
    AddRequest, ErrorBody, ErrorCode, NodeResult, RemoveRequest, ResizePlan, ResizeRequest,
    StartRequest, StopRequest, TimesView,
};
use mint_node::{Done, GiveBack, about, not_running};
use mint_ops::Op;
use mint_plan::Inventory;
use mint_types::{NodeId, NodeSpec, NodeStatus, Refusal, RefusalCode, ResizeSpec};
use serde_json::json;
use tracing::{info, warn};

use crate::app::App;
use crate::ending::{journal_error, op_error};
use crate::waiting::{
    HELLO_FIRST, HELLO_STEP, HELLO_WITHIN, POLL, is_live, ms, result, tell_peers, wait_started,
};
use crate::{description, network, node0, ssh};

/// For a node to take the order to end itself.
const POWEROFF_WITHIN: Duration = Duration::from_secs(5);

/// Makes a node.
pub(crate) async fn add(
    app: Arc<App>,
    op: &Op,
    request: AddRequest,
) -> Result<NodeResult, ErrorBody> {
    let (spec, dry_run) = (request.spec, request.dry_run);
    let starts = spec.start && !dry_run;
    let booted = spec.clone();
    let done = app.carry(op, move |nodes, op| nodes.add(op, &spec, dry_run)).await?;
    let mut times = times(&done);
    if starts {
        let wait = description::wait_for(&app, done.node, Some(&booted), request.wait, op);
        wait_started(&app, done.node, wait, request.wait_s, &mut times, op).await?;
    }
    let mut result = result(&app, done, times).await;
    if dry_run {
        result.dry_run = true;
        result.node = None;
    }
    Ok(result)
}

/// Starts a node at rest.
pub(crate) async fn start(
    app: Arc<App>,
    op: &Op,
    reference: String,
    request: StartRequest,
) -> Result<NodeResult, ErrorBody> {
    let refused = |refusal| ErrorBody::refused(vec![refusal]);
    let inventory = app.inventory()?;
    let node = inventory.resolve(&reference).map_err(refused)?;
    // one that runs is refused when its turn comes
    let spec = if node.state.is_live() {
        None
    } else {
        description::to_boot(&app, &inventory, node, request.default_image).await?
    };
    start_spec(app, op, reference, spec, request).await
}

/// Starts a node at rest; `spec` is what to boot, if this daemon does not have it.
pub(crate) async fn start_spec(
    app: Arc<App>,
    op: &Op,
    reference: String,
    spec: Option<NodeSpec>,
    request: StartRequest,
) -> Result<NodeResult, ErrorBody> {
    let booted = spec.clone();
    let done = app.carry(op, move |nodes, op| nodes.start(op, &reference, spec)).await?;
    let mut times = times(&done);
    let wait = description::wait_for(&app, done.node, booted.as_ref(), request.wait, op);
    wait_started(&app, done.node, wait, request.wait_s, &mut times, op).await?;
    Ok(result(&app, done, times).await)
}

/// Ends a node in an orderly way; by force if that takes too long.
pub(crate) async fn stop(
    app: Arc<App>,
    op: &Op,
    reference: String,
    request: StopRequest,
) -> Result<NodeResult, ErrorBody> {
    let inventory = app.inventory()?;
    let refused = |refusal| ErrorBody::refused(vec![refusal]);
    let node = inventory.resolve(&reference).map_err(refused)?.clone();
    let goes_on = op.entry().past_no_return;
    if !node.state.is_live() && !goes_on {
        return Err(refused(not_running(&node)));
    }
    can_be_stopped(&app, &inventory, &node, request.force).map_err(refused)?;
    let (steps, notes, stop_ms) = if node.state.is_live() {
        end(&app, op, &inventory, &node, request.timeout_s).await?
    } else {
        // the daemon before us asked it to
        (Vec::new(), Vec::new(), 0)
    };
    op.commit().map_err(journal)?;
    let times = mint_node::Times::default();
    let done = Done { node: node.id, name: node.display_name(), steps, notes, times };
    Ok(result(&app, done, TimesView { stop_ms: Some(stop_ms), ..TimesView::default() }).await)
}

fn journal(error: mint_ops::JournalError) -> ErrorBody {
    journal_error(&error)
}

fn can_be_stopped(
    app: &App,
    inventory: &Inventory,
    node: &NodeStatus,
    force: bool,
) -> Result<(), Refusal> {
    if node.id == NodeId::ZERO || node.id == app.here {
        let (why, hint) = if node.id == NodeId::ZERO {
            ("owns the platform: its end is the end of the machine", "run poweroff there")
        } else {
            ("cannot stop itself and tell about it", "do it from another node, or run poweroff")
        };
        let label = node.label();
        let refusal = Refusal::new(RefusalCode::NodeSelf, &label, format_args!("{label} {why}"));
        return Err(refusal.hint(hint));
    }
    match inventory.lends(node.id).filter(|_| !force) {
        Some(refusal) => Err(refusal),
        None => Ok(()),
    }
}

/// Ends a node that runs: from here on it is not taken back. The operation stays open.
async fn end(
    app: &Arc<App>,
    op: &Op,
    inventory: &Inventory,
    node: &NodeStatus,
    timeout_s: Option<u64>,
) -> Result<(Vec<String>, Vec<String>, u64), ErrorBody> {
    op.begin(about(node), false).map_err(journal)?;
    let cancelled = |error| ErrorBody::from_error(ErrorCode::Cancelled, &error);
    op.check().map_err(cancelled)?;
    op.no_return().map_err(journal)?;
    app.marks().ordered.note(node.id, node.boots);
    tell_peers(app, inventory, node).await;
    let ended = stop_marked(app, op, node, timeout_s).await;
    if ended.is_err() {
        // it runs on: nothing is left to be finished
        op.taken_back(Vec::new()).map_err(journal)?;
    }
    ended
}

async fn stop_marked(
    app: &Arc<App>,
    op: &Op,
    node: &NodeStatus,
    timeout_s: Option<u64>,
) -> Result<(Vec<String>, Vec<String>, u64), ErrorBody> {
    let began = Instant::now();
    let limit_s = timeout_s.unwrap_or(app.config.wait.stop_s);
    let label = node.label();
    let mut steps = Vec::new();
    let mut notes = Vec::new();
    op.progress(&format!("stop {label}"));
    let within = app.peers.patience(node.id, node.boots, POWEROFF_WITHIN);
    let asked = async {
        if !app.peers.listens(node.id).await {
            return Err(ErrorBody::new(ErrorCode::PeerUnreachable, "no mintd listens there"));
        }
        let client = app.peers.client(node.id)?;
        let nothing = json!({});
        let request = client.post::<serde_json::Value>("/v1/local/poweroff", &nothing);
        match tokio::time::timeout(within, request).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(ErrorBody::from_error(ErrorCode::PeerUnreachable, &error)),
            Err(_) => Err(ErrorBody::new(ErrorCode::PeerUnreachable, "its mintd did not answer")),
        }
    };
    match asked.await {
        Ok(()) => steps.push(format!("poweroff by mintd of {label}")),
        Err(error) => {
            info!(node = %node.id, "asking the kernel to end: {error}");
            match app.machine.shutdown(node.id) {
                Ok(()) => steps.push(format!("poweroff by the kernel of {label}")),
                Err(error) => warn!(node = %node.id, %error, "the kernel cannot be asked"),
            }
        }
    }
    let deadline = began + Duration::from_secs(limit_s);
    while !steps.is_empty() && Instant::now() < deadline {
        if !is_live(app, node.id)? {
            return Ok((steps, notes, ms(began)));
        }
        tokio::time::sleep(POLL).await;
    }
    notes.push(if steps.is_empty() {
        format!("{label} could not be asked to end, and was killed")
    } else {
        format!("{label} had not ended after {limit_s} s, and was killed")
    });
    op.progress(&notes.join(" "));
    let reference = node.id.to_string();
    let killed = app.carry(op, move |nodes, op| nodes.kill(op, &reference)).await;
    // it may have ended at the last moment
    if let (Err(error), true) = (killed, is_live(app, node.id)?) {
        return Err(error);
    }
    steps.push(format!("kill {label}"));
    Ok((steps, notes, ms(began)))
}

/// Stops a node, if it runs, and starts it.
pub(crate) async fn restart(
    app: Arc<App>,
    op: &Op,
    reference: String,
    request: StartRequest,
) -> Result<NodeResult, ErrorBody> {
    let refused = |refusal| ErrorBody::refused(vec![refusal]);
    let inventory = app.inventory()?;
    let node = inventory.resolve(&reference).map_err(refused)?;
    if node.id == NodeId::ZERO {
        return node0::restart(app, op, &inventory, request).await;
    }
    // before it is stopped: one that cannot be started again stays
    let spec = description::to_boot(&app, &inventory, node, request.default_image).await?;
    let mut stopped = None;
    if node.state.is_live() {
        can_be_stopped(&app, &inventory, node, false).map_err(refused)?;
        stopped = Some(end(&app, op, &inventory, node, request.timeout_s).await?);
    }
    let mut started = start_spec(app, op, reference, spec, request).await?;
    if let Some((steps, notes, stop_ms)) = stopped {
        started.steps.splice(0..0, steps);
        started.notes.splice(0..0, notes);
        started.times.stop_ms = Some(stop_ms);
    }
    Ok(started)
}

/// Ends a node by force.
pub(crate) async fn kill(
    app: Arc<App>,
    op: &Op,
    reference: String,
) -> Result<NodeResult, ErrorBody> {
    let began = Instant::now();
    let done = app.carry(op, move |nodes, op| nodes.kill(op, &reference)).await?;
    let times = TimesView { stop_ms: Some(ms(began)), ..TimesView::default() };
    Ok(result(&app, done, times).await)
}

/// Frees what a node owns, and the node.
pub(crate) async fn remove(
    app: Arc<App>,
    op: &Op,
    reference: String,
    request: RemoveRequest,
) -> Result<NodeResult, ErrorBody> {
    let give_back = match (&request.to, request.keep_free) {
        (_, true) => GiveBack::KeepFree,
        (None, false) => GiveBack::To(NodeId::ZERO),
        (Some(to), false) => GiveBack::To(
            app.inventory()?.resolve(to).map_err(|refusal| ErrorBody::refused(vec![refusal]))?.id,
        ),
    };
    let force = request.force;
    let done =
        app.carry(op, move |nodes, op| nodes.remove(op, &reference, force, give_back)).await?;
    refresh_names(&app);
    Ok(NodeResult {
        node: None,
        dry_run: false,
        removed: Some(done.name.clone()),
        id: Some(done.node.as_u32()),
        times: times(&done),
        steps: done.steps,
        notes: done.notes,
    })
}

/// Changes what a node owns.
pub(crate) async fn resize(
    app: Arc<App>,
    op: &Op,
    reference: String,
    request: ResizeRequest,
) -> Result<NodeResult, ErrorBody> {
    let (spec, dry_run) = (request.spec, request.dry_run);
    something(&spec)?;
    let done = app.carry(op, move |nodes, op| nodes.resize(op, &reference, &spec, dry_run)).await?;
    let times = times(&done);
    let mut result = result(&app, done, times).await;
    result.dry_run = dry_run;
    Ok(result)
}

fn something(spec: &ResizeSpec) -> Result<(), ErrorBody> {
    if spec.is_empty() {
        let text = "nothing to change: give cpus, memory or devices";
        return Err(ErrorBody::new(ErrorCode::BadRequest, text));
    }
    Ok(())
}

/// What a resize would do, and what it would take from nodes that run, if guests were in nobody's
/// way. Changes nothing.
///
/// # Errors
/// With all refusals.
pub(crate) async fn plan_resize(
    app: &App,
    reference: String,
    request: ResizeRequest,
) -> Result<ResizePlan, ErrorBody> {
    something(&request.spec)?;
    let planned = app.blocking(move |nodes| nodes.plan_resize(&reference, &request.spec)).await?;
    let (done, taken) = planned.map_err(op_error)?;
    Ok(ResizePlan { steps: done.steps, notes: done.notes, taken })
}

fn times(done: &Done) -> TimesView {
    let known = |ms: u64| Some(ms);
    TimesView {
        plan_ms: known(done.times.plan_ms),
        apply_ms: known(done.times.apply_ms),
        load_ms: known(done.times.load_ms),
        start_ms: known(done.times.start_ms),
        ..TimesView::default()
    }
}

/// Names and host keys of all nodes into the files of this node.
pub(crate) fn refresh_names(app: &App) {
    // several tasks do it at once: who reads the ledger last writes last
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _writing = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Ok(nodes) = app.machine.nodes() else { return };
    if app.config.network.enabled {
        network::write_hosts(&app.root, &app.config.network, &nodes, &app.links.all());
    }
    if app.config.ssh.manage {
        let keys = app.marks().ssh_host_keys.clone();
        if let Err(error) = ssh::write_clients(&app.root, &app.config.network, &nodes, &keys) {
            warn!(%error, "ssh does not know the nodes");
        }
    }
}

/// A peer runs: learns its host keys as soon as its daemon answers; of node 0, what it boots.
pub(crate) async fn meet(app: Arc<App>, node: NodeId) {
    let deadline = Instant::now() + Duration::from_secs(app.config.wait.start_s);
    let mut within = HELLO_FIRST;
    while app.peers.tls.is_some() && Instant::now() < deadline {
        let Ok(Some(status)) = app.machine.node(node) else { return };
        if !status.state.is_live() {
            return;
        }
        if let Some(hello) = app.peers.hello(node, within).await {
            app.peers.note(node, status.boots, true);
            let keys = ssh::checked_host_keys(node, hello.ssh_host_keys);
            app.marks().ssh_host_keys.insert(node, keys);
            let names = app.clone();
            _ = tokio::task::spawn_blocking(move || refresh_names(&names)).await;
            if node == NodeId::ZERO {
                node0::keep(&app).await;
            }
            return;
        }
        within = (within + HELLO_STEP).min(HELLO_WITHIN);
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}
