// SPDX-License-Identifier: Apache-2.0
//! Operations that are over and not settled: a peer that a rollback needed was not there.
//! What it has to take back is settled when it is there again, without anybody's asking.

use std::sync::Arc;
use std::time::Duration;

use mint_node::{Nodes, Settled};
use mint_ops::Op;
use tracing::{debug, info};

use crate::app::App;
use crate::waiting::HELLO_WITHIN;

/// How often it is looked whether there is something to do: at first, and at most. A node
/// that never comes back is no reason to ask for it every second.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Looks for ever.
pub(crate) async fn watch(app: Arc<App>) {
    let mut pause = PAUSE.0;
    let mut before = 0;
    loop {
        tokio::time::sleep(pause).await;
        let left = settle_all(&app).await;
        pause = if left > 0 && left == before { (pause * 2).min(PAUSE.1) } else { PAUSE.0 };
        before = left;
    }
}

/// Gives how many are still not settled.
async fn settle_all(app: &Arc<App>) -> usize {
    let mut left = 0;
    for op in app.ops.unsettled() {
        left += usize::from(!settle(app, &op).await);
        op.put_down();
    }
    left
}

async fn settle(app: &Arc<App>, op: &Op) -> bool {
    let label = op.entry().label();
    if !are_there(app, op).await {
        return false;
    }
    let its = op.clone();
    let settled = app.blocking(move |nodes: &Nodes| nodes.settle(&its)).await;
    match settled {
        Ok(Ok(Settled::TakenBack(words) | Settled::Finished(words))) => {
            let done = op.entry().open.is_none();
            if done {
                info!(left = words.join("; "), "{label} is settled");
            } else {
                debug!(left = words.join("; "), "{label} is not settled");
            }
            done
        }
        Ok(Ok(Settled::Void)) => true,
        Ok(Ok(other)) => {
            debug!(?other, "{label} is not settled");
            false
        }
        Ok(Err(error)) => {
            debug!(%error, "{label} is not settled");
            false
        }
        Err(_) => false,
    }
}

/// Whether every running node that it concerns has a daemon: while it is settled, what it
/// changes is held, and must not be held up by one that does not answer.
async fn are_there(app: &Arc<App>, op: &Op) -> bool {
    let (Some(open), Ok(nodes)) = (op.entry().open, app.machine.nodes()) else { return false };
    let concerned = |id| id != app.here && open.names.contains_key(&id);
    for node in nodes.iter().filter(|node| node.state.is_live() && concerned(node.id)) {
        if app.peers.hello(node.id, HELLO_WITHIN).await.is_none() {
            return false;
        }
    }
    true
}
