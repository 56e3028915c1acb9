// SPDX-License-Identifier: Apache-2.0
//! All guests that run on this node go to others: first each gets a place, then one after the
//! other goes. If one has no place, none goes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mint_api::{
    ErrorBody, ErrorCode, EvacuateRequest, EvacuateResult, Line, MigrateRequest, MigrateResult,
    NodeView,
};
use mint_guests::arrival::Plan;
use mint_serve::lines::Lines;
use mint_types::{NodeId, NodeState, Refusal, RefusalCode};
use serde_json::json;

use crate::app::App;
use crate::gate::Closed;
use crate::hypervisor::{GuestFacts, Leaving};
use crate::migrate::{depart, prepare};
use crate::plans::plan;

/// For the end of a node to be ordered once its guests are gone.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// Where guests go.
#[derive(Debug)]
pub(crate) struct Places {
    pub here: NodeView,
    /// UUID, name, and where to; the guest with the most memory first.
    pub all: Vec<(String, String, NodeView)>,
}

/// Gives each guest that runs here a place on another node. Changes nothing.
///
/// # Errors
/// With every reason of every node against each guest that has no place.
pub(crate) async fn places(app: &Arc<App>) -> Result<Places, ErrorBody> {
    let mut search = Search::begin(app).await?;
    let (mut all, mut refusals) = (Vec::new(), Vec::new());
    for guest in running(app).await? {
        let uuid = guest.uuid.clone();
        let leaving = app.ask(move |hypervisor| hypervisor.leaving(&uuid)).await?;
        match search.place(app, leaving).await? {
            Ok(node) => all.push((guest.uuid, guest.name, node)),
            Err(why) => refusals.extend(why),
        }
    }
    let here = search.here;
    if refusals.is_empty() { Ok(Places { here, all }) } else { Err(ErrorBody::refused(refusals)) }
}

/// Guests that run here, the one with the most memory first.
///
/// # Errors
/// When libvirt does not answer.
pub(crate) async fn running(app: &App) -> Result<Vec<GuestFacts>, ErrorBody> {
    let mut guests = app.ask(|hypervisor| hypervisor.guests()).await?;
    guests.retain(|guest| guest.active);
    guests.sort_by_key(|guest| std::cmp::Reverse(guest.memory_bytes));
    Ok(guests)
}

/// A search for places on other nodes, one guest after the other.
pub(crate) struct Search {
    pub here: NodeView,
    others: Vec<NodeView>,
    /// Memory that guests with a place will take.
    taken: BTreeMap<NodeId, u64>,
}

impl Search {
    /// Among the nodes that run.
    ///
    /// # Errors
    /// When mintd does not answer.
    pub async fn begin(app: &App) -> Result<Self, ErrorBody> {
        let (own, others): (Vec<_>, Vec<_>) =
            app.nodes().await?.into_iter().partition(|node| node.is_self);
        let here = own.into_iter().next();
        let here =
            here.ok_or_else(|| ErrorBody::new(ErrorCode::Failed, "mintd does not know us"))?;
        let others: Vec<NodeView> =
            others.into_iter().filter(|node| node.state == NodeState::Running).collect();
        Ok(Self { here, others, taken: BTreeMap::new() })
    }

    /// The node that has the most memory left for the guest; or why none can have it.
    ///
    /// # Errors
    /// When it cannot be told.
    pub async fn place(
        &mut self,
        app: &App,
        leaving: Leaving,
    ) -> Result<Result<NodeView, Vec<Refusal>>, ErrorBody> {
        let name = leaving.guest.name.clone();
        let departure = depart(app, &self.here, leaving).await?;
        let mut best: Option<(u64, u64, &NodeView)> = None;
        let mut refusals = Vec::new();
        for node in &self.others {
            let plan: Plan = match plan(app, &departure, node).await {
                Ok(plan) => plan,
                Err(error) if error.code == ErrorCode::PlanRefused => {
                    refusals.extend(error.refusals);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let (needs, taken) =
                (plan.needed_bytes(), self.taken.get(&node.id).copied().unwrap_or(0));
            let left = plan.free_memory_bytes.saturating_sub(taken);
            if left < needs {
                refusals.push(full(&plan, node));
            } else if best.is_none_or(|(most, ..)| left > most) {
                best = Some((left, needs, node));
            }
        }
        let Some((_, needs, node)) = best else {
            if refusals.is_empty() {
                let text = format!("no other node runs that could have vm {name}");
                let alone =
                    Refusal::new(RefusalCode::NodeNotRunning, format_args!("vm {name}"), text);
                refusals.push(alone.hint("mintctl node list shows the nodes; start one"));
            }
            return Ok(Err(refusals));
        };
        *self.taken.entry(node.id).or_default() += needs;
        Ok(Ok(node.clone()))
    }
}

/// The guests that go there before it leave it no room.
fn full(plan: &Plan, node: &NodeView) -> Refusal {
    let text = format!("{} has no memory left for vm {} beside the others", node.name, plan.name);
    Refusal::new(RefusalCode::MemoryShort, format_args!("vm {}", plan.name), text)
        .hint("give the node more (mintctl node resize --memory), or end a guest")
}

impl Places {
    /// Moves the guests, and says how that went. No guest comes meanwhile, and none when the node
    /// ends afterwards.
    pub async fn go(
        self,
        app: Arc<App>,
        request: EvacuateRequest,
        lines: Lines,
        closed: Option<Closed>,
    ) {
        let line = match self.all_moved(&app, &request, &lines).await {
            Ok(vms) => {
                if let Some(closed) = closed.filter(|_| request.ends) {
                    closed.stay(ENDS_WITHIN);
                }
                let (repinned, kept) = (Vec::new(), Vec::new());
                let result = EvacuateResult { node: self.here.id, vms, repinned, kept };
                Line::Result(json!(result))
            }
            Err(error) => Line::Error(error),
        };
        lines.send(&line).await;
    }

    /// Moves the guests, also one that was on its way here when the gate closed.
    async fn all_moved(
        &self,
        app: &Arc<App>,
        request: &EvacuateRequest,
        lines: &Lines,
    ) -> Result<Vec<MigrateResult>, ErrorBody> {
        let mut vms = self.moved(app, request, lines).await?;
        if request.dry_run {
            return Ok(vms);
        }
        loop {
            let late = places(app).await?;
            if late.all.is_empty() {
                return Ok(vms);
            }
            vms.extend(late.moved(app, request, lines).await?);
        }
    }

    /// Moves the guests, one after the other. Plans each way anew: pins depend on who is there.
    ///
    /// # Errors
    /// When one does not go: says who is gone and who is still here.
    pub async fn moved(
        &self,
        app: &Arc<App>,
        request: &EvacuateRequest,
        lines: &Lines,
    ) -> Result<Vec<MigrateResult>, ErrorBody> {
        let mut vms = Vec::new();
        for (at, (uuid, name, node)) in self.all.iter().enumerate() {
            let migrate = MigrateRequest {
                to: format!("node{}", node.id),
                dry_run: request.dry_run,
                bandwidth_bytes_s: request.bandwidth_bytes_s,
                downtime_ms: request.downtime_ms,
                parallel: request.parallel,
                compress: request.compress,
                post_copy_after_s: request.post_copy_after_s,
                merge: false,
                main_only: false,
                split: None,
                policy: None,
                copies: None,
                chunk_bytes: None,
                // each gets a place where it can have one: there it stays
                layout: None,
                layout_policy: None,
            };
            let moved = match prepare(app, uuid.clone(), migrate).await {
                Ok(way) if request.dry_run => Ok(way.result()),
                Ok(way) => way.moved(app, lines).await,
                Err(error) => Err(error),
            };
            vms.push(moved.map_err(|error| self.stopped(error, at, name))?);
        }
        Ok(vms)
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
