// SPDX-License-Identifier: Apache-2.0
//! What this node's memory server keeps for guests of other nodes: their daemons ask for a lease,
//! which is given if there is room. One whose guest's node has started anew since, or is gone,
//! ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mint_api::{ClientError, ErrorBody, ErrorCode, NodeKeeps, STORE_PORT};
use mint_split::{Lease, LeaseEnd, LeaseView, NodeStart, ServerAddress};
use mint_types::{Refusal, RefusalCode, format_bytes};
use serde_json::Value;
use tracing::{info, warn};

use crate::app::App;

/// Between looks at who has a lease.
const LOOK: Duration = Duration::from_secs(10);
/// What this node keeps for itself.
const RESERVE_BYTES: u64 = 64 << 20;
const PATH: &str = "/v1/leases";

/// A guest of another node may keep pages here.
///
/// # Errors
/// When there is no room, or the memory server does not answer.
pub(crate) async fn give(app: &App, lease: Lease) -> Result<ServerAddress, ErrorBody> {
    let here = app.here().await?;
    let given = list(app).await?;
    // what this guest has from an earlier life goes
    let (own, others): (Vec<_>, Vec<_>) =
        given.into_iter().partition(|given| given.uuid == lease.uuid);
    let goes: u64 = own.iter().map(|given| given.kept_bytes).sum();
    let free = app.host.free_memory_bytes().saturating_add(goes);
    let free = free.saturating_sub(RESERVE_BYTES).saturating_sub(promised(&others));
    if lease.limit_bytes > free {
        let text = format!(
            "node {} can keep {} MiB of a guest's memory, and is to keep {} MiB",
            here.name,
            free >> 20,
            lease.limit_bytes >> 20
        );
        let refusal =
            Refusal::new(RefusalCode::MemoryShort, format_args!("node {}", here.name), text)
                .hint("give the node more memory, or split the guest's memory in another way");
        return Err(ErrorBody::refused(vec![refusal]));
    }
    let address = here.address.parse().map_err(|_| {
        let text = format!("node {} has no address on mint0", here.name);
        ErrorBody::new(ErrorCode::Failed, text)
    })?;
    info!(limit = format_bytes(lease.limit_bytes), node = lease.main.node, "a lease");
    app.store.post::<Value>(PATH, &lease).await.map_err(store_error)?;
    Ok(ServerAddress { address: SocketAddr::new(address, STORE_PORT) })
}

/// A lease is not wanted any more; none there is no error.
///
/// # Errors
/// When the memory server does not answer.
pub(crate) async fn end(app: &App, end: &LeaseEnd) -> Result<(), ErrorBody> {
    let ended = app.store.post::<Value>(&format!("{PATH}/end"), end).await;
    ended.map(drop).map_err(store_error)
}

/// What this node has promised to guests of other nodes, and does not keep yet; nothing where no
/// memory server answers.
pub(crate) async fn promised_bytes(app: &App) -> u64 {
    list(app).await.map_or(0, |given| promised(&given))
}

fn promised(given: &[LeaseView]) -> u64 {
    let each = given.iter().map(|given| given.limit_bytes.saturating_sub(given.kept_bytes));
    each.fold(0, u64::saturating_add)
}

/// What this node keeps of guests of other nodes.
///
/// # Errors
/// When the memory server does not answer.
pub(crate) async fn keeps(app: &App) -> Result<NodeKeeps, ErrorBody> {
    let given = list(app).await?;
    let sum = |of: fn(&LeaseView) -> u64| given.iter().map(of).fold(0, u64::saturating_add);
    Ok(NodeKeeps {
        guests: given.iter().filter(|lease| lease.kept_bytes > 0).count() as u64,
        kept_bytes: sum(|lease| lease.kept_bytes),
        limit_bytes: sum(|lease| lease.limit_bytes),
    })
}

async fn list(app: &App) -> Result<Vec<LeaseView>, ErrorBody> {
    app.store.get(PATH).await.map_err(store_error)
}

/// Ends leases of guests that cannot be any more, for ever.
pub(crate) async fn watch(app: Arc<App>) {
    loop {
        tokio::time::sleep(LOOK).await;
        // nobody has a lease where no memory server runs
        let Ok(given) = list(&app).await else { continue };
        if given.is_empty() {
            continue;
        }
        let Ok(nodes) = app.nodes().await else { continue };
        let runs = |start: NodeStart| {
            nodes.iter().any(|node| {
                node.id.as_u32() == start.node && node.boots == start.boots && node.state.is_live()
            })
        };
        for lease in given.into_iter().filter(|lease| !runs(lease.main)) {
            let LeaseView { uuid, secret, main, kept_bytes, .. } = lease;
            info!(node = main.node, boots = main.boots, kept_bytes, "the guest's node has ended");
            if let Err(error) = end(&app, &LeaseEnd { uuid, secret }).await {
                warn!(%error, "a lease goes on");
            }
        }
    }
}

fn store_error(error: ClientError) -> ErrorBody {
    match error {
        ClientError::Refused(body) => *body,
        other => {
            let mut body = ErrorBody::from_error(ErrorCode::Failed, &other);
            body.causes.insert(0, body.message.clone());
            "the memory server of this node does not answer".clone_into(&mut body.message);
            body.hint("its log is /var/log/mint/mint-store.log, or: journalctl -u mint-store")
        }
    }
}
