// SPDX-License-Identifier: Apache-2.0
//! Nodes that ended are started again, if their descriptions say so: at once,
//! and with growing pauses if they end again and again.

use std::sync::Arc;
use std::time::Instant;

use mint_api::StartRequest;
use mint_node::Nodes;
use mint_ops::Op;
use mint_types::{Asker, NodeId, NodeState};
use tracing::{info, warn};

use crate::app::App;
use crate::ending::finish;
use crate::node0;
use crate::request::Request;

/// A node came to such an end: the daemon that added it starts it again, if it shall.
/// Nobody added node 0: of those that run, the one with the lowest id does it.
pub(crate) async fn start_again(app: Arc<App>, node: NodeId, end: NodeState) {
    let (spec, shall) = if node == NodeId::ZERO {
        let spec = node0::fetched(&app).filter(|spec| spec.restart.covers(end));
        let shall = spec.is_some() && is_first_alive(&app);
        (spec, shall)
    } else {
        // the driver reads it again: whether the node is still the one that was added
        let own = app.inventory().ok().and_then(|inventory| app.specs.get(&inventory, node));
        (None, own.is_some_and(|spec| spec.restart.covers(end)))
    };
    if !shall || !ended_by_itself(&app, node, end) {
        return;
    }
    let pause = app.marks().restarts.pause(node, Instant::now());
    if !pause.is_zero() {
        warn!(%node, %end, "ended again: started again in {} s", pause.as_secs());
        tokio::time::sleep(pause).await;
    }
    // meanwhile somebody else may have started or removed it
    if !ended_by_itself(&app, node, end) {
        return;
    }
    let name = app.machine.node(node).ok().flatten().map(|status| status.display_name());
    let request = Request::Start(name.unwrap_or_else(|| node.to_string()), StartRequest::default());
    let started = match app.submit(Asker::Daemon, &request, None) {
        Ok(op) => {
            let work = move |nodes: &Nodes, op: &Op| {
                let started = nodes.start(op, &node.to_string(), spec)?;
                Ok(started.steps)
            };
            let started = app.carry(&op, work).await;
            finish(&op, &started);
            started
        }
        Err(error) => Err(error),
    };
    match started {
        Ok(_) => info!(%node, %end, "started again"),
        Err(error) => warn!(%node, %end, %error, "not started again"),
    }
}

fn is_first_alive(app: &App) -> bool {
    let nodes = app.machine.nodes().unwrap_or_default();
    let first = nodes.iter().filter(|node| node.state.is_live()).map(|node| node.id).min();
    first == Some(app.here)
}

/// Whether the node is at that end now, and nobody asked for it.
fn ended_by_itself(app: &App, node: NodeId, end: NodeState) -> bool {
    let status = app.machine.node(node).ok().flatten();
    status.is_some_and(|status| status.state == end && !app.marks().ordered.has(node, status.boots))
}
