// SPDX-License-Identifier: Apache-2.0
//! A kernel that hangs, or has lost cores, cannot report itself: every daemon watches every
//! node, and tells what changes as events.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mint_types::{Kind, NodeId, Resource};
use tracing::warn;

use crate::app::App;
use crate::events::{now_ns, view};
use crate::health::{Health, Pulse, Reason};

/// How often nodes are looked at.
const PERIOD: Duration = Duration::from_secs(1);

/// How many of these cores a node owns.
fn owned_by(cores: &[Resource], node: NodeId) -> u32 {
    let owned = cores.iter().filter(|core| core.owner == Some(node)).count();
    u32::try_from(owned).unwrap_or(u32::MAX)
}

/// Watches all nodes for ever.
pub(crate) async fn watch(app: Arc<App>) {
    let waits = &app.config.wait;
    let mut pulse = Pulse::new(waits);
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (Ok(nodes), Ok(cores)) = (app.machine.nodes(), app.machine.resources(Kind::Cpu)) else {
            continue;
        };
        let now = Instant::now();
        for node in &nodes {
            let Some(health) = pulse.look(node, owned_by(&cores, node.id), now) else { continue };
            let before = match health {
                Health::Ok => app.marks().health.remove(&node.id),
                bad => app.marks().health.insert(node.id, bad),
            };
            if before.unwrap_or(Health::Ok).word() == health.word() {
                continue;
            }
            let kind = if health == Health::Ok { "recovered" } else { health.word() };
            let mut told = view(kind, node.id, Some(node), now_ns());
            told.reason = Reason(health, &node.display_name(), waits).to_string();
            warn!(node = %node.id, name = %told.name, reason = %told.reason, "{kind}");
            app.events.tell(told);
        }
    }
}
