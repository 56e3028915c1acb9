// SPDX-License-Identifier: Apache-2.0
//! What a dead node was at is ended by another: whoever takes its intents, of which each can
//! be taken once. A node that comes back leaves to the other what that one took.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mint_api::{ErrorBody, ErrorCode};
use mint_node::doctor::{Check, CheckStatus};
use mint_node::{Machine, Settled};
use mint_ops::{Elsewhere, End, Op, Operations};
use mint_types::{Asker, NodeId};
use tracing::{info, warn};

use crate::app::App;
use crate::ending::{end_with, value};
use crate::operate;

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

fn failed(text: impl std::fmt::Display) -> End {
    End::Failed(value(&ErrorBody::new(ErrorCode::Failed, text)))
}

/// Whether what dead nodes were at has been ended.
pub(crate) fn check(ops: &Operations) -> Check {
    let (status, good) = (CheckStatus::Warn, "what dead nodes were at is ended".to_owned());
    match ops.left_by_the_dead() {
        Ok(Some(left)) => Check::of("intents", status, &left, good),
        Ok(None) => {
            let good = "no room for them in the control area: a node that dies with its state \
                        folder leaves half done what it was at";
            Check::of("intents", status, &[], good.to_owned())
        }
        Err(error) => Check::of("intents", status, &[error.to_string()], good),
    }
}

/// Operations of this daemon that others took while this node did not run.
pub(crate) fn end_elsewhere(app: &App) {
    for Elsewhere { op, holder } in app.ops.elsewhere() {
        let entry = op.entry();
        let label = entry.label();
        let who = holder.map_or_else(|| "another node".to_owned(), |node| format!("node {node}"));
        let text = format!(
            "this node ended in the middle of {label}, and {who} took it over: see mintctl \
             operation list there"
        );
        warn!("{text}");
        if entry.state.is_over() {
            if let Err(error) = op.taken_back(Vec::new()) {
                warn!(%error, "journal");
            }
        } else {
            end_with(&op, failed(text));
        }
    }
}

/// An operation of which nobody can tell whether another node has ended it.
pub(crate) fn leave_to_repair(op: &Op) {
    let text = format!(
        "this node ended in the middle of {}, and its intent in the control area cannot be read: \
         look at the ledger, then mintctl doctor --repair",
        op.entry().label()
    );
    warn!("{text}");
    end_with(op, failed(text));
}

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
            settled => return operate::conclude(&app, op, entry, settled, &who).await,
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
