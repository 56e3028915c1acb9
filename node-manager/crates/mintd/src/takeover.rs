// SPDX-License-Identifier: Apache-2.0
//! What a dead node was at is ended by another: whoever takes its intents, of which each can
//! be taken once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mint_node::{Machine, Settled};
use mint_ops::Op;
use mint_types::{Asker, NodeId};
use tracing::{info, warn};

use crate::app::App;
use crate::settle::conclude;

/// Nodes with lower ids go first, by so much each: it is for people, who then know where to
/// look. That one of them gets it does not depend on it.
const TURN: Duration = Duration::from_secs(if cfg!(test) { 0 } else { 2 });
/// Between looks at what cannot be taken or settled yet.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// For cores of the dead to come to the park loop.
const PARKED_WITHIN: Duration = Duration::from_secs(60);
/// For a daemon that did a step for the dead to answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
/// For what others hold to come free.
const FREE_WITHIN: Duration = Duration::from_secs(600);

/// A node has ended: takes what it was at, after those with lower ids have had their turn.
pub(crate) async fn in_turn(app: Arc<App>) {
    let nodes = app.machine.nodes().unwrap_or_default();
    let first = nodes.iter().filter(|node| node.state.is_live() && node.id < app.here).count();
    tokio::time::sleep(TURN * u32::try_from(first).unwrap_or(u32::MAX)).await;
    take_over(app).await;
}

/// Takes what dead nodes were at, and settles it.
pub(crate) async fn take_over(app: Arc<App>) {
    let began = Instant::now();
    let mut told = BTreeSet::new();
    while !app.ending.load(Ordering::Relaxed) {
        let taken = match app.blocking(|nodes| nodes.ops.take_over()).await {
            Ok(Ok(taken)) => taken,
            Ok(Err(error)) => {
                warn!(%error, "intents of dead nodes are not taken over");
                return;
            }
            Err(_) => return,
        };
        for place in taken.unreadable {
            if told.insert(place.clone()) {
                warn!("{place} cannot be read: look at the ledger, and mintctl doctor");
            }
        }
        for op in taken.ops {
            tokio::spawn(settle(app.clone(), op));
        }
        if taken.unparked.is_empty() || began.elapsed() > PARKED_WITHIN {
            return;
        }
        for node in taken.unparked {
            fetch_cores(&app, node).await;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// A dead node's cores that did not park by themselves are brought to the park loop.
async fn fetch_cores(app: &Arc<App>, node: NodeId) {
    let fetched = app
        .blocking(move |nodes| {
            let status = nodes.machine.node(node)?;
            let dead = status.filter(|status| !status.state.is_live());
            dead.map(|status| nodes.machine.kill(node, status.boots)).transpose()
        })
        .await;
    if let Ok(Err(error)) = fetched {
        warn!(%node, %error, "cores are not parked");
    }
}

/// Settles what was taken, as its own daemon would have.
pub(crate) async fn settle(app: Arc<App>, op: Op) {
    let began = Instant::now();
    let entry = op.entry();
    let who = entry.taken_from.as_ref().map_or_else(
        || "a node".to_owned(),
        |from| {
            info!("taken over: {from}");
            format!("node {} ({})", from.node, from.name)
        },
    );
    let mut waits = false;
    loop {
        let impatient = began.elapsed() > ANSWERS_WITHIN;
        let work = move |nodes: &mint_node::Nodes, op: &Op| nodes.settle_taken(op, impatient);
        match app.carry(&op, work).await {
            Ok(Settled::Held(other)) if began.elapsed() < FREE_WITHIN => {
                if !waits {
                    op.progress(&format!("waiting: {other}"));
                    waits = true;
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            settled => return conclude(&app, op, entry, settled, &who).await,
        }
    }
}

/// Whether the node that asked for a step runs on, too: one that died leaves its connection
/// open, and whoever takes its operation over goes by what is moved until then.
pub(crate) fn asker_waits(
    machine: Arc<dyn Machine>,
    asker: Asker,
    waits: impl Fn() -> bool,
) -> impl Fn() -> bool {
    let life = move || match asker {
        Asker::Peer(Some(node)) => {
            let status = machine.node(node).ok().flatten();
            status.filter(|status| status.state.is_live()).map(|status| status.boots)
        }
        // no node that could die alone
        _ => Some(0),
    };
    let began = life();
    move || waits() && began.is_some() && life() == began
}
