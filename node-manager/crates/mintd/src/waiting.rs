// SPDX-License-Identifier: Apache-2.0
//! What operations wait for and tell: nothing here changes a node.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mint_api::{ErrorBody, ErrorCode, NodeResult, OrderedEnd, TimesView, WaitFor};
use mint_node::Done;
use mint_ops::Op;
use mint_plan::Inventory;
use mint_types::{NodeId, NodeState, NodeStatus};

use crate::app::App;
use crate::peer_clients::HELLO_AGAIN;
use crate::views;

/// How often a condition is looked at that nobody reports.
pub(crate) const POLL: Duration = Duration::from_millis(20);
/// For one try to reach a node that is just starting. The first ones are short:
/// a packet that came before mint0 was up there is sent again after a second
/// only, a new connection comes through at once. On a slow machine a handshake
/// takes its time, so that later ones are longer.
pub(crate) const HELLO_FIRST: Duration = Duration::from_millis(400);
pub(crate) const HELLO_STEP: Duration = Duration::from_millis(50);
pub(crate) const HELLO_WITHIN: Duration = Duration::from_secs(3);
/// Between tries: what starts has to answer each that no daemon is there, on what may be its
/// only core.
const HELLO_PAUSE: Duration = Duration::from_millis(100);

/// Waits until a node that was started does what is asked for.
pub(crate) async fn wait_started(
    app: &Arc<App>,
    node: NodeId,
    wait: WaitFor,
    wait_s: Option<u64>,
    times: &mut TimesView,
    op: &Op,
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
        op.progress("this mintd serves no mint0: waiting for the kernel only");
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
            op.progress(&format!("{label} runs {}", status.release));
        }
        let mut pause = POLL;
        match status.state {
            NodeState::Running if !wants_mintd => return Ok(()),
            NodeState::Running => {
                if app.peers.hello(node, within).await.is_some() {
                    app.peers.note(node, status.boots, true);
                    times.mintd_ms = Some(ms(began));
                    op.progress(&format!("mintd of {label} answers"));
                    return Ok(());
                }
                within = (within + HELLO_STEP).min(HELLO_WITHIN);
                pause = HELLO_PAUSE;
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
        tokio::time::sleep(pause).await;
    }
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

/// Whether a kernel runs as that node.
pub(crate) fn is_live(app: &App, node: NodeId) -> Result<bool, ErrorBody> {
    let status =
        app.machine.node(node).map_err(|error| ErrorBody::from_error(ErrorCode::Failed, &error))?;
    Ok(status.is_some_and(|status| status.state.is_live()))
}

/// What is told of a node that an operation was about.
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

/// Milliseconds since then.
pub(crate) fn ms(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}
