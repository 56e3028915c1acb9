// SPDX-License-Identifier: Apache-2.0
//! All guests that run on this node go to others: first each gets a place, then one after the
//! other goes. If one has no place, none goes.

use std::collections::BTreeMap;
use std::sync::Arc;

use mint_api::{
    ErrorBody, ErrorCode, EvacuateRequest, EvacuateResult, Line, MigrateRequest, NodeView,
};
use mint_guests::arrival::{Departure, Plan};
use mint_serve::lines::Lines;
use mint_types::{NodeId, NodeState, Refusal, RefusalCode};
use serde_json::json;

use crate::app::App;
use crate::migrate::{depart, plan, prepare};

/// Where each guest goes.
#[derive(Debug)]
pub(crate) struct Places {
    here: NodeView,
    /// UUID, name, and where to; the guest with the most memory first.
    all: Vec<(String, String, NodeView)>,
}

/// Gives each guest that runs here a place on another node. Changes nothing.
///
/// # Errors
/// With every reason of every node against each guest that has no place.
pub(crate) async fn places(app: &Arc<App>) -> Result<Places, ErrorBody> {
    let (own, others): (Vec<_>, Vec<_>) =
        app.nodes().await?.into_iter().partition(|node| node.is_self);
    let here = own.into_iter().next();
    let here = here.ok_or_else(|| ErrorBody::new(ErrorCode::Failed, "mintd does not know us"))?;
    let others: Vec<NodeView> =
        others.into_iter().filter(|node| node.state == NodeState::Running).collect();
    let mut guests = app.ask(|hypervisor| hypervisor.guests()).await?;
    guests.retain(|guest| guest.active);
    guests.sort_by_key(|guest| std::cmp::Reverse(guest.memory_bytes));
    let mut taken: BTreeMap<NodeId, u64> = BTreeMap::new();
    let (mut all, mut refusals) = (Vec::new(), Vec::new());
    for guest in guests {
        let uuid = guest.uuid.clone();
        let leaving = app.ask(move |hypervisor| hypervisor.leaving(&uuid)).await?;
        let departure = depart(app, &here, leaving).await?;
        match place(app, &departure, &others, &taken).await? {
            Ok((node, bytes)) => {
                *taken.entry(node.id).or_default() += bytes;
                all.push((guest.uuid, guest.name, node));
            }
            Err(why) => refusals.extend(why),
        }
    }
    if refusals.is_empty() { Ok(Places { here, all }) } else { Err(ErrorBody::refused(refusals)) }
}

/// The node that has the most memory left for the guest, and what it takes of it; or why none
/// can have it.
async fn place(
    app: &App,
    departure: &Departure,
    others: &[NodeView],
    taken: &BTreeMap<NodeId, u64>,
) -> Result<Result<(NodeView, u64), Vec<Refusal>>, ErrorBody> {
    let mut best: Option<(u64, u64, &NodeView)> = None;
    let mut refusals = Vec::new();
    for node in others {
        let plan: Plan = match plan(app, departure, node).await {
            Ok(plan) => plan,
            Err(error) if error.code == ErrorCode::PlanRefused => {
                refusals.extend(error.refusals);
                continue;
            }
            Err(error) => return Err(error),
        };
        let (needs, taken) = (plan.needed_bytes(), taken.get(&node.id).copied().unwrap_or(0));
        let left = plan.free_memory_bytes.saturating_sub(taken);
        if left < needs {
            refusals.push(full(&plan, node));
        } else if best.is_none_or(|(most, ..)| left > most) {
            best = Some((left, needs, node));
        }
    }
    if best.is_none() && refusals.is_empty() {
        return Err(ErrorBody::new(ErrorCode::Failed, "no other node runs")
            .hint("mintctl node list shows the nodes; start one"));
    }
    Ok(best.map(|(_, needs, node)| (node.clone(), needs)).ok_or(refusals))
}

/// The guests that go there before it leave it no room.
fn full(plan: &Plan, node: &NodeView) -> Refusal {
    let text = format!("{} has no memory left for vm {} beside the others", node.name, plan.name);
    Refusal::new(RefusalCode::MemoryShort, format_args!("vm {}", plan.name), text)
        .hint("give the node more (mintctl node resize --memory), or end a guest")
}

impl Places {
    /// Moves the guests, one after the other. Plans each way anew: pins depend on who is there.
    pub async fn go(self, app: Arc<App>, request: EvacuateRequest, lines: Lines) {
        let mut vms = Vec::new();
        for (at, (uuid, name, node)) in self.all.iter().enumerate() {
            let migrate = MigrateRequest {
                to: format!("node{}", node.id),
                dry_run: request.dry_run,
                bandwidth_bytes_s: request.bandwidth_bytes_s,
                downtime_ms: request.downtime_ms,
                parallel: request.parallel,
                post_copy_after_s: request.post_copy_after_s,
            };
            let moved = match prepare(&app, uuid.clone(), migrate).await {
                Ok(way) if request.dry_run => Ok(way.result()),
                Ok(way) => way.moved(&app, &lines).await,
                Err(error) => Err(error),
            };
            match moved {
                Ok(result) => vms.push(result),
                Err(error) => {
                    let error = self.stopped(error, at, name);
                    lines.send(&Line::Error(error)).await;
                    return;
                }
            }
        }
        let result = EvacuateResult { node: self.here.id, vms };
        lines.send(&Line::Result(json!(result))).await;
    }

    /// What was done when one could not go after all.
    fn stopped(&self, error: ErrorBody, at: usize, name: &str) -> ErrorBody {
        let names = |some: &[(String, String, NodeView)]| {
            let names: Vec<&str> = some.iter().map(|(_, name, _)| name.as_str()).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        };
        let (gone, left) = self.all.split_at(at);
        let mut body = error;
        let text = format!(
            "{} still has guests: vm {name} did not go; gone: {}; still here: {}",
            self.here.name,
            names(gone),
            names(left)
        );
        body.causes.insert(0, std::mem::replace(&mut body.message, text));
        // a refusal would say that nothing was changed
        if !gone.is_empty() {
            body.code = ErrorCode::Failed;
        }
        body
    }
}
