// SPDX-License-Identifier: Apache-2.0
//! A node that keeps memory of other nodes' guests does not end because somebody asks for it,
//! unless they insist: those guests would wait for their memory for ever.

use std::time::Duration;

use mint_api::{ClientError, ErrorBody, NodeKeeps};
use mint_types::{Refusal, RefusalCode, format_bytes};
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
    let asked = async {
        if node.id == app.here {
            return guestd(app).get::<NodeKeeps>(PATH).await;
        }
        match app.peers.client(node.id) {
            Ok(client) => client.get(PATH).await,
            Err(error) => Err(ClientError::Refused(Box::new(error))),
        }
    };
    let keeps = match timeout(SAYS_WITHIN, asked).await {
        Ok(Ok(keeps)) => keeps,
        Ok(Err(error)) => {
            info!(node = %node.id, %error, "it does not say what it keeps of other nodes' guests");
            return Ok(());
        }
        Err(_) => return Ok(()),
    };
    if keeps.kept_bytes == 0 {
        return Ok(());
    }
    let name = node.display_name();
    let text = format!(
        "node {name} keeps {} of the memory of {} guests of other nodes, which would be lost",
        format_bytes(keeps.kept_bytes),
        keeps.guests
    );
    let refusal = Refusal::new(RefusalCode::MemoryKept, format_args!("node {name}"), text).hint(
        "end those guests first (mintctl vm memory GUEST names its hosts), or insist: --force",
    );
    Err(ErrorBody::refused(vec![refusal]))
}
