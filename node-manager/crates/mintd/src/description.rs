// SPDX-License-Identifier: Apache-2.0
//! What a node that is started again boots: what the mintd that added it wrote down.
//! Nothing else is booted in its place unless somebody asks for that.

use std::sync::Arc;

use mint_api::{ErrorBody, SpecReply};
use mint_node::{Inventory, no_description};
use mint_types::{NodeId, NodeName, NodeSpec, NodeStatus, Refusal, RefusalCode};
use tokio::time::timeout;

use crate::app::App;
use crate::node0;
use crate::operations::HELLO_WITHIN;

/// What to boot; `None`: the state driver has it.
///
/// # Errors
/// Refused when no daemon that answers knows.
pub(crate) async fn to_boot(
    app: &Arc<App>,
    inventory: &Inventory,
    node: &NodeStatus,
    default_image: bool,
) -> Result<Option<NodeSpec>, ErrorBody> {
    if node.id == NodeId::ZERO {
        return node0::fetched(app).ok_or_else(|| node0::not_fetched(node)).map(Some);
    }
    if default_image {
        let name: NodeName = node.display_name().parse().map_err(|error| {
            ErrorBody::refused(vec![Refusal::new(RefusalCode::NameBad, node.label(), error)])
        })?;
        return Ok(Some(NodeSpec::named(name)));
    }
    if app.specs.get(inventory, node.id).is_some() {
        return Ok(None);
    }
    let mut silent = Vec::new();
    let mut asked = Vec::new();
    for peer in inventory.nodes.iter().filter(|peer| peer.state.is_live()) {
        if peer.id == app.here || peer.id == node.id {
            continue;
        }
        let Ok(client) = app.peers.client(peer.id) else {
            silent.push(peer.label());
            continue;
        };
        let path = format!("/v1/local/specs/{}", node.id);
        let answer = async move { timeout(HELLO_WITHIN, client.get::<SpecReply>(&path)).await };
        asked.push((peer.label(), tokio::spawn(answer)));
    }
    for (label, answer) in asked {
        match answer.await {
            Ok(Ok(Ok(SpecReply { spec: Some(spec) }))) => return Ok(Some(spec)),
            Ok(Ok(Ok(SpecReply { spec: None }))) => {}
            _ => silent.push(label),
        }
    }
    Err(ErrorBody::refused(vec![no_description(node, &silent)]))
}
