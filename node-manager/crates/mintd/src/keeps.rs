// SPDX-License-Identifier: Apache-2.0
//! A node that keeps memory of other nodes' guests does not end because somebody asks for it,
//! nor lose memory, unless they insist: those guests would wait for their memory for ever.

use std::time::Duration;

use mint_api::{ClientError, ErrorBody, NodeKeeps};
use mint_types::{NodeId, Refusal, RefusalCode, Taken, format_bytes};
use tokio::time::timeout;
use tracing::info;

use crate::app::App;
use crate::guestd::guestd;
use crate::resolve::{Place, place};

/// A node that does not say what it keeps in this time may have to end because of that.
const SAYS_WITHIN: Duration = Duration::from_secs(10);
const PATH: &str = "/v1/local/leases";

/// Whether a node may end.
///
/// # Errors
/// When it keeps memory of guests of other nodes.
pub(crate) async fn may_end(app: &App, node: &str) -> Result<(), ErrorBody> {
    // another machine's node is its own machine's matter, and no node is told by the operation
    let Ok(Place::Own(node)) = place(app, node) else { return Ok(()) };
    if !node.state.is_live() {
        return Ok(());
    }
    let Some(keeps) = kept(app, node.id).await else { return Ok(()) };
    let text = "which would be lost";
    Err(ErrorBody::refused(vec![refusal(&node.display_name(), &keeps, text)]))
}

/// Whether nodes that run may lose memory. What they keep moves within a node, but what they have
/// promised to keep may have no room any more.
///
/// # Errors
/// With each that keeps memory of guests of other nodes.
pub(crate) async fn may_lose(app: &App, taken: &[Taken]) -> Result<(), ErrorBody> {
    let mut refusals = Vec::new();
    for taken in taken.iter().filter(|taken| taken.memory_bytes > 0) {
        if let Some(keeps) = kept(app, taken.node).await {
            let name = match place(app, &taken.node.to_string()) {
                Ok(Place::Own(node)) => node.display_name(),
                _ => taken.node.to_string(),
            };
            let text = format!(
                "and has promised {} in all: without {} it may have no room for them",
                format_bytes(keeps.limit_bytes),
                format_bytes(taken.memory_bytes)
            );
            refusals.push(refusal(&name, &keeps, &text));
        }
    }
    if refusals.is_empty() { Ok(()) } else { Err(ErrorBody::refused(refusals)) }
}

fn refusal(name: &str, keeps: &NodeKeeps, why: &str) -> Refusal {
    let text = format!(
        "node {name} keeps {} of the memory of {} guests of other nodes, {why}",
        format_bytes(keeps.kept_bytes),
        keeps.guests
    );
    let hint =
        format!("give it to other nodes: mintctl memory evacuate {name}, or insist: --force");
    Refusal::new(RefusalCode::MemoryKept, format_args!("node {name}"), text).hint(hint)
}

/// What a node keeps; none if that is nothing, or it does not say.
async fn kept(app: &App, node: NodeId) -> Option<NodeKeeps> {
    let asked = async {
        if node == app.here {
            return guestd(app).get::<NodeKeeps>(PATH).await;
        }
        match app.peers.client(node) {
            Ok(client) => client.get(PATH).await,
            Err(error) => Err(ClientError::Refused(Box::new(error))),
        }
    };
    match timeout(SAYS_WITHIN, asked).await {
        Ok(Ok(keeps)) => Some(keeps).filter(|keeps| keeps.kept_bytes > 0),
        Ok(Err(error)) => {
            info!(%node, %error, "it does not say what it keeps of other nodes' guests");
            None
        }
        Err(_) => None,
    }
}
