// SPDX-License-Identifier: Apache-2.0
//! Operations on nodes: the state driver's part, and the waiting around it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use mint_api::{
    AddRequest, ErrorBody, ErrorCode, NodeResult, OrderedEnd, RemoveRequest, ResizeRequest,
    StartRequest, StopRequest, TimesView, WaitFor,
};
use mint_node::{Done, GiveBack, Inventory, not_running};
use mint_types::{NodeId, NodeSpec, NodeState, NodeStatus, Refusal, RefusalCode};
use serde_json::json;
use tracing::{info, warn};

use crate::app::{App, job_lost, op_error};
use crate::lines::Lines;
use crate::peers::HELLO_AGAIN;
use crate::{description, network, node0, ssh, views};

/// How often a condition is looked at that nobody reports.
const POLL: Duration = Duration::from_millis(20);
/// For one try to reach a node that is just starting. The first ones are short:
/// a packet that came before mint0 was up there is sent again after a second
/// only, a new connection comes through at once. On a slow machine a handshake
/// takes its time, so that later ones are longer.
const HELLO_FIRST: Duration = Duration::from_millis(400);
const HELLO_STEP: Duration = Duration::from_millis(50);
pub(crate) const HELLO_WITHIN: Duration = Duration::from_secs(3);
/// For a node to take the order to end itself.
const POWEROFF_WITHIN: Duration = Duration::from_secs(5);

/// Makes a node.
pub(crate) async fn add(
    app: Arc<App>,
    request: AddRequest,
    lines: Lines,
) -> Result<NodeResult, ErrorBody> {
    let (spec, dry_run) = (request.spec, request.dry_run);
    let starts = spec.start && !dry_run;
    let booted = spec.clone();
    let told = lines.clone();
    let done = app
        .driver
        .run(move |nodes| nodes.add(&spec, dry_run, &|text| told.progress(text)))
        .await
        .map_err(job_lost)?
        .map_err(op_error)?;
    let mut times = times(&done);
    if starts {
        let wait = description::wait_for(&app, done.node, Some(&booted), request.wait, &lines);
        wait_started(&app, done.node, wait, request.wait_s, &mut times, &lines).await?;
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
    reference: String,
    request: StartRequest,
    lines: Lines,
) -> Result<NodeResult, ErrorBody> {
    let refused = |refusal| ErrorBody::refused(vec![refusal]);
    let inventory = app.inventory()?;
    let node = inventory.resolve(&reference).map_err(refused)?;
    // one that runs is refused by the state driver
    let spec = if node.state.is_live() {
        None
    } else {
        description::to_boot(&app, &inventory, node, request.default_image).await?
    };
    start_spec(app, reference, spec, request, lines).await
}

/// Starts a node at rest; `spec` is what to boot, if the state driver does not have it.
pub(crate) async fn start_spec(
    app: Arc<App>,
    reference: String,
    spec: Option<NodeSpec>,
    request: StartRequest,
    lines: Lines,
) -> Result<NodeResult, ErrorBody> {
    let told = lines.clone();
    let booted = spec.clone();
    let done = app
        .driver
        .run(move |nodes| nodes.start(&reference, spec, &|text| told.progress(text)))
        .await
        .map_err(job_lost)?
        .map_err(op_error)?;
    let mut times = times(&done);
    let wait = description::wait_for(&app, done.node, booted.as_ref(), request.wait, &lines);
    wait_started(&app, done.node, wait, request.wait_s, &mut times, &lines).await?;
    Ok(result(&app, done, times).await)
}

/// Waits until a node that was started does what is asked for.
pub(crate) async fn wait_started(
    app: &Arc<App>,
    node: NodeId,
    wait: WaitFor,
    wait_s: Option<u64>,
    times: &mut TimesView,
    lines: &Lines,
) -> Result<(), ErrorBody> {
    if wait == WaitFor::Nothing {
        return Ok(());
    }
    let began = Instant::now();
    let limit_s = wait_s.unwrap_or(app.config.wait.start_s);
    let deadline = began + Duration::from_secs(limit_s);
    let wants_mintd = wait == WaitFor::Mintd && app.peers.tls.is_some();
    let mut within = HELLO_FIRST;
    if wait == WaitFor::Mintd && !wants_mintd {
        lines.progress("this mintd serves no mint0: waiting for the kernel only");
    }
    loop {
        let status = app
            .machine
            .node(node)
            .map_err(|error| ErrorBody::from_error(ErrorCode::Failed, &error))?
            .ok_or_else(|| {
                ErrorBody::new(ErrorCode::Failed, format_args!("node {node} was removed meanwhile"))
            })?;
        let (label, name) = (status.label(), status.display_name());
        if status.state == NodeState::Running && times.running_ms.is_none() {
            times.running_ms = Some(ms(began));
            lines.progress(format!("{label} runs {}", status.release));
        }
        match status.state {
            NodeState::Running if !wants_mintd => return Ok(()),
            NodeState::Running => {
                if app.peers.hello(node, within).await.is_some() {
                    app.peers.note(node, status.boots, true);
                    times.mintd_ms = Some(ms(began));
                    lines.progress(format!("mintd of {label} answers"));
                    return Ok(());
                }
                within = (within + HELLO_STEP).min(HELLO_WITHIN);
            }
            NodeState::Starting | NodeState::Loading => {}
            state => {
                let reason = if status.reason.is_empty() {
                    String::new()
                } else {
                    format!(": {}", status.reason)
                };
                return Err(ErrorBody::new(
                    ErrorCode::Failed,
                    format_args!(
                        "{label} ended before its mintd answered ({state}{reason}); \
                         see mintctl node console {name}"
                    ),
                ));
            }
        }
        if Instant::now() >= deadline {
            let missing = if times.running_ms.is_some() {
                "its kernel runs, but its mintd does not answer"
            } else {
                "its kernel does not report that it runs"
            };
            return Err(ErrorBody::new(
                ErrorCode::StartTimeout,
                format_args!(
                    "{label} was started, and after {limit_s} s {missing}; \
                     see mintctl node console {name}, end it with mintctl node kill {name}"
                ),
            ));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Ends a node in an orderly way; by force if that takes too long.
pub(crate) async fn stop(
    app: Arc<App>,
    reference: String,
    request: StopRequest,
    lines: Lines,
) -> Result<NodeResult, ErrorBody> {
    let inventory = app.inventory()?;
    let refused = |refusal| ErrorBody::refused(vec![refusal]);
    let node = inventory.resolve(&reference).map_err(refused)?.clone();
    if !node.state.is_live() {
        return Err(refused(not_running(&node)));
    }
    if node.id == NodeId::ZERO || node.id == app.here {
        let (why, hint) = if node.id == NodeId::ZERO {
            ("owns the platform: its end is the end of the machine", "run poweroff there")
        } else {
            ("cannot stop itself and tell about it", "do it from another node, or run poweroff")
        };
        let label = node.label();
        let refusal = Refusal::new(RefusalCode::NodeSelf, &label, format_args!("{label} {why}"));
        return Err(refused(refusal.hint(hint)));
    }
    if let Some(refusal) = inventory.lends(node.id).filter(|_| !request.force) {
        return Err(refused(refusal));
    }
    app.marks().ordered.note(node.id, node.boots);
    tell_peers(&app, &inventory, &node).await;
    let (how, notes, stop_ms) = stop_marked(&app, &node, request.timeout_s, &lines).await?;
    let done = Done {
        node: node.id,
        name: node.display_name(),
        steps: how,
        notes,
        times: mint_node::Times::default(),
    };
    Ok(result(&app, done, TimesView { stop_ms: Some(stop_ms), ..TimesView::default() }).await)
}

/// The daemon that would start the node again may be any: all are told, at once.
/// One that does not answer does not start anything either.
pub(crate) async fn tell_peers(app: &Arc<App>, inventory: &Inventory, node: &NodeStatus) {
    let end = OrderedEnd { node: node.id, boots: node.boots };
    let mut told = Vec::new();
    for peer in inventory.nodes.iter().filter(|peer| peer.state.is_live()) {
        if peer.id == app.here || peer.id == node.id {
            continue;
        }
        let Ok(client) = app.peers.client(peer.id) else { continue };
        let within = app.peers.patience(peer.id, peer.boots, HELLO_WITHIN);
        let end = end.clone();
        told.push(tokio::spawn(async move {
            let request = client.post::<serde_json::Value>("/v1/local/ordered", &end);
            tokio::time::timeout(within, request).await
        }));
    }
    for answer in told {
        _ = answer.await;
    }
}

async fn stop_marked(
    app: &Arc<App>,
    node: &NodeStatus,
    timeout_s: Option<u64>,
    lines: &Lines,
) -> Result<(Vec<String>, Vec<String>, u64), ErrorBody> {
    let began = Instant::now();
    let limit_s = timeout_s.unwrap_or(app.config.wait.stop_s);
    let label = node.label();
    let mut steps = Vec::new();
    let mut notes = Vec::new();
    lines.progress(format!("stop {label}"));
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
    lines.progress(notes.join(" "));
    let reference = node.id.to_string();
    let killed = app.driver.run(move |nodes| nodes.kill(&reference)).await.map_err(job_lost)?;
    // it may have ended at the last moment
    if let (Err(error), true) = (killed, is_live(app, node.id)?) {
        return Err(op_error(error));
    }
    steps.push(format!("kill {label}"));
    Ok((steps, notes, ms(began)))
}

pub(crate) fn is_live(app: &App, node: NodeId) -> Result<bool, ErrorBody> {
    let status =
        app.machine.node(node).map_err(|error| ErrorBody::from_error(ErrorCode::Failed, &error))?;
    Ok(status.is_some_and(|status| status.state.is_live()))
}

/// Stops a node, if it runs, and starts it.
pub(crate) async fn restart(
    app: Arc<App>,
    reference: String,
    request: StartRequest,
    lines: Lines,
) -> Result<NodeResult, ErrorBody> {
    let refused = |refusal| ErrorBody::refused(vec![refusal]);
    let inventory = app.inventory()?;
    let node = inventory.resolve(&reference).map_err(refused)?;
    if node.id == NodeId::ZERO {
        return node0::restart(app, &inventory, request, lines).await;
    }
    let live = node.state.is_live();
    // before it is stopped: one that cannot be started again stays
    let spec = description::to_boot(&app, &inventory, node, request.default_image).await?;
    let mut stopped = None;
    if live {
        let stop_request = StopRequest { timeout_s: request.timeout_s, force: false };
        stopped = Some(stop(app.clone(), reference.clone(), stop_request, lines.clone()).await?);
    }
    let mut started = start_spec(app, reference, spec, request, lines).await?;
    if let Some(stopped) = stopped {
        started.steps.splice(0..0, stopped.steps);
        started.notes.splice(0..0, stopped.notes);
        started.times.stop_ms = stopped.times.stop_ms;
    }
    Ok(started)
}

/// Ends a node by force.
pub(crate) async fn kill(app: Arc<App>, reference: String) -> Result<NodeResult, ErrorBody> {
    let began = Instant::now();
    let done = app
        .driver
        .run(move |nodes| nodes.kill(&reference))
        .await
        .map_err(job_lost)?
        .map_err(op_error)?;
    let times = TimesView { stop_ms: Some(ms(began)), ..TimesView::default() };
    Ok(result(&app, done, times).await)
}

/// Frees what a node owns, and the node.
pub(crate) async fn remove(
    app: Arc<App>,
    reference: String,
    request: RemoveRequest,
    lines: Lines,
) -> Result<NodeResult, ErrorBody> {
    let give_back = match (&request.to, request.keep_free) {
        (_, true) => GiveBack::KeepFree,
        (None, false) => GiveBack::To(NodeId::ZERO),
        (Some(to), false) => GiveBack::To(
            app.inventory()?.resolve(to).map_err(|refusal| ErrorBody::refused(vec![refusal]))?.id,
        ),
    };
    let told = lines.clone();
    let done = app
        .driver
        .run(move |nodes| {
            nodes.remove(&reference, request.force, give_back, &|text| told.progress(text))
        })
        .await
        .map_err(job_lost)?
        .map_err(op_error)?;
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
    reference: String,
    request: ResizeRequest,
    lines: Lines,
) -> Result<NodeResult, ErrorBody> {
    let (spec, dry_run) = (request.spec, request.dry_run);
    if spec.is_empty() {
        let text = "nothing to change: give cpus, memory or devices";
        return Err(ErrorBody::new(ErrorCode::BadRequest, text));
    }
    let done = app
        .driver
        .run(move |nodes| nodes.resize(&reference, &spec, dry_run, &|text| lines.progress(text)))
        .await
        .map_err(job_lost)?
        .map_err(op_error)?;
    let times = times(&done);
    let mut result = result(&app, done, times).await;
    result.dry_run = dry_run;
    Ok(result)
}

pub(crate) async fn result(app: &Arc<App>, done: Done, times: TimesView) -> NodeResult {
    // who started a node without waiting for its daemon shall not wait for it here
    let hurries = times.start_ms.is_some_and(|ms| ms > 0) && times.mintd_ms.is_none();
    let within = if hurries { HELLO_AGAIN } else { HELLO_WITHIN };
    let view = match app.inventory() {
        Ok(inventory) => match inventory.node(done.node) {
            Some(node) => Some(views::node_view(app, &inventory, node, within).await),
            None => None,
        },
        Err(_) => None,
    };
    NodeResult {
        node: view,
        dry_run: false,
        removed: None,
        id: None,
        steps: done.steps,
        notes: done.notes,
        times,
    }
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
        network::write_hosts(&app.root, &app.config.network, &nodes);
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

pub(crate) fn ms(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}
