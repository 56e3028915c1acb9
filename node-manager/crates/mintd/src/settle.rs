// SPDX-License-Identifier: Apache-2.0
//! How an operation ends that whoever carried it out did not live to end: what is said of it,
//! whoever settles it.

use std::sync::Arc;

use mint_api::{ErrorBody, ErrorCode, NodeResult, TimesView};
use mint_node::{Done, Settled, Times};
use mint_ops::{End, Entry, Op};
use mint_types::OperationKind;
use tracing::{info, warn};

use crate::app::App;
use crate::ending::{end_with, value};
use crate::operate::carry_on;
use crate::waiting;

/// Says how an operation ended that `who` had ended in the middle of; `entry` as it was
/// before it was settled.
pub(crate) async fn conclude(
    app: &Arc<App>,
    op: Op,
    entry: Entry,
    settled: Result<Settled, ErrorBody>,
    who: &str,
) {
    let label = entry.label();
    let failed = |text: String| ErrorBody::new(ErrorCode::Failed, text);
    match settled {
        Ok(Settled::TakenBack(left)) => {
            let mut text = format!("{who} ended in the middle of {label}: it was taken back");
            if !left.is_empty() {
                text += &format!("; not taken back: {}", left.join("; "));
            }
            warn!("{text}");
            end_with(&op, End::Undone(value(&failed(text))));
        }
        Ok(Settled::Finished(mut notes)) => {
            warn!("{label} is finished");
            notes.insert(0, format!("{who} ended in the middle of it; it was finished"));
            let result = finished(app, &entry, notes).await;
            end_with(&op, End::Done(value(&result)));
        }
        Ok(Settled::GoOn) => match serde_json::from_value(entry.request) {
            Ok(request) => {
                warn!("{label} goes on");
                carry_on(app.clone(), op, request);
            }
            Err(error) => {
                let text = format!("{label} cannot go on: its request is not understood: {error}");
                warn!("{text}");
                end_with(&op, End::Failed(value(&failed(text))));
            }
        },
        Ok(Settled::Void) => {
            let text = format!("{label} ended with an earlier boot of the machine");
            info!("{text}");
            end_with(&op, End::Failed(value(&failed(text))));
        }
        Ok(Settled::Held(other)) => {
            let text = format!("{label} is not settled: {other}; mintctl doctor --repair");
            end_with(&op, End::Failed(value(&failed(text))));
        }
        Err(error) => {
            warn!("{label} could not be settled: {error}");
            let mut error = error;
            error.message = format!(
                "{who} ended in the middle of {label}, which could not be settled: {}; \
                     mintctl doctor --repair",
                error.message
            );
            end_with(&op, End::Failed(value(&error)));
        }
    }
}

/// What a finished operation's client would have been told.
async fn finished(app: &Arc<App>, entry: &Entry, notes: Vec<String>) -> NodeResult {
    let about = entry.open.as_ref().map(|open| (open.node, open.name.to_string()));
    let found = || {
        let inventory = app.inventory().ok()?;
        let node = inventory.resolve(&entry.subject).ok()?;
        Some((node.id, node.display_name()))
    };
    let removed = (entry.kind == OperationKind::Remove).then(|| about.clone()).flatten();
    match (removed, about.or_else(found)) {
        (Some((id, name)), _) => NodeResult {
            node: None,
            dry_run: false,
            removed: Some(name),
            id: Some(id.as_u32()),
            steps: Vec::new(),
            notes,
            times: TimesView::default(),
        },
        (None, Some((node, name))) => {
            let done = Done { node, name, steps: Vec::new(), notes, times: Times::default() };
            waiting::result(app, done, TimesView::default()).await
        }
        (None, None) => NodeResult {
            node: None,
            dry_run: false,
            removed: None,
            id: None,
            steps: Vec::new(),
            notes,
            times: TimesView::default(),
        },
    }
}
