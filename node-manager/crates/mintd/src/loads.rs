// SPDX-License-Identifier: Apache-2.0
//! What running nodes use: each daemon says it of its own node.

use std::sync::Arc;
use std::time::Duration;

use mint_api::{ErrorBody, LoadList, NodeLoad};
use mint_types::Load;
use tokio::time::timeout;

use crate::app::App;

/// For a peer to say what it uses.
const ASK_WITHIN: Duration = Duration::from_secs(3);

/// Of this node. Reading it walks all processes.
pub(crate) async fn own(app: &Arc<App>) -> Load {
    let app = app.clone();
    tokio::task::spawn_blocking(move || app.host.load()).await.unwrap_or_default()
}

/// Of all running nodes, asked at once.
///
/// # Errors
/// When the ledger cannot be read.
pub(crate) async fn all(app: &Arc<App>) -> Result<LoadList, ErrorBody> {
    let inventory = app.inventory()?;
    let mut asked = Vec::new();
    for node in inventory.nodes.iter().filter(|node| node.state.is_live()) {
        let (id, name) = (node.id, node.display_name());
        let cpus = inventory.cpus_of(id).to_string();
        let within = app.peers.patience(id, node.boots, ASK_WITHIN);
        let app = app.clone();
        asked.push(tokio::spawn(async move {
            let load = if id == app.here {
                Some(own(&app).await)
            } else {
                of_peer(&app, id, within).await
            };
            NodeLoad { id, name, cpus, load }
        }));
    }
    let mut nodes = Vec::new();
    for task in asked {
        nodes.extend(task.await);
    }
    Ok(LoadList { nodes })
}

async fn of_peer(app: &App, node: mint_types::NodeId, within: Duration) -> Option<Load> {
    let client = app.peers.client(node).ok()?;
    timeout(within, client.get("/v1/local/load")).await.ok()?.ok()
}
