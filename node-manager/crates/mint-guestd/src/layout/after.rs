// SPDX-License-Identifier: Apache-2.0
//! Guests that have come without a place are arranged once they have been measured here: what hosts do that know nothing of
//! a guest before it comes (L, 2: the existing way, which its own is compared with).

use std::sync::Arc;
use std::time::Instant;

use mint_api::LayoutRequest;
use tracing::{info, warn};

use super::change::change;
use crate::app::App;
use crate::journal::Side;

/// Arranges those that have been measured.
pub(super) async fn tend(app: &Arc<App>) {
    if app.layouts.later.is_empty() {
        return;
    }
    let root = app.host.path("/");
    let running: Vec<String> =
        mint_guests::running::running(&root).into_iter().map(|one| one.uuid).collect();
    let comes = |uuid: &str| app.journal.get(Side::Arrival, uuid).is_some();
    let runs = |uuid: &str| running.iter().any(|one| one == uuid);
    for turn in app.layouts.later.due(Instant::now(), comes, runs) {
        let (app, uuid) = (app.clone(), turn.uuid.clone());
        // the next second's samples do not wait for it
        tokio::spawn(async move {
            let request = LayoutRequest { policy: turn.policy, ..LayoutRequest::default() };
            match change(&app, &request, None).await {
                Ok(done) => {
                    info!(uuid, guests = done.vms.len(), "arranged after a guest has come");
                    if done.vms.iter().all(|vm| vm.left_alone.is_some()) {
                        app.layouts.later.again(turn);
                    }
                }
                Err(error) => warn!(uuid, %error, "a guest that has come stays where it is"),
            }
        });
    }
}
