// SPDX-License-Identifier: Apache-2.0
//! Operations that an earlier daemon of this node left in the middle: ended here, but for
//! those that another node took meanwhile.

use std::sync::Arc;

use mint_api::{ErrorBody, ErrorCode};
use mint_ops::{Elsewhere, End, Op};
use tracing::warn;

use crate::app::App;
use crate::ending::{end_with, value};
use crate::settle::conclude;
use crate::{moves, takeover};

/// Ends what an earlier daemon left in the middle: taken back, finished, or gone on with.
pub(crate) async fn settle(app: &Arc<App>) {
    for op in app.ops.interrupted() {
        let entry = op.entry();
        if app.ops.is_unknown(op.id()) {
            leave_to_repair(&op);
            continue;
        }
        if moves::is_one(entry.kind) {
            moves::leave(&op);
            continue;
        }
        if entry.taken_from.is_some() {
            tokio::spawn(takeover::settle(app.clone(), op));
            continue;
        }
        let settled = app.carry(&op, |nodes, op| nodes.settle(op)).await;
        conclude(app, op, entry, settled, "mintd").await;
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

fn failed(text: impl std::fmt::Display) -> End {
    End::Failed(value(&ErrorBody::new(ErrorCode::Failed, text)))
}
