// SPDX-License-Identifier: Apache-2.0
//! Nodes that ended are started again, if their descriptions say so: at once,
//! and with growing pauses if they end again and again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mint_types::{NodeId, NodeState};
use tracing::{info, warn};

use crate::app::{App, op_error};

/// Before the second start in a row; each one after waits twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A node that ran so long has earned a start without a pause.
const FORGET_AFTER: Duration = Duration::from_secs(600);

/// Starts in a row, by node: how many, and when the last one was due.
#[derive(Default)]
pub(crate) struct Restarts(BTreeMap<NodeId, (u32, Instant)>);

impl Restarts {
    /// How long to wait before a node is started again; counts this start.
    pub fn pause(&mut self, node: NodeId, now: Instant) -> Duration {
        let in_a_row = match self.0.get(&node) {
            Some(&(count, last)) if now.saturating_duration_since(last) < FORGET_AFTER => count,
            _ => 0,
        };
        let pause = match in_a_row.checked_sub(1) {
            None => Duration::ZERO,
            Some(doublings) => {
                FIRST_PAUSE.saturating_mul(1 << doublings.min(16)).min(LONGEST_PAUSE)
            }
        };
        self.0.insert(node, (in_a_row.saturating_add(1), now + pause));
        pause
    }
}

/// A node came to such an end: the daemon that added it starts it again, if it shall.
pub(crate) async fn start_again(app: Arc<App>, node: NodeId, end: NodeState) {
    let shall = app.specs.get(node).is_some_and(|spec| spec.restart.covers(end));
    if !shall || app.marks().stopping.contains(&node) {
        return;
    }
    let pause = app.marks().restarts.pause(node, Instant::now());
    if !pause.is_zero() {
        warn!(%node, %end, "ended again: started again in {} s", pause.as_secs());
        tokio::time::sleep(pause).await;
    }
    // meanwhile somebody else may have started or removed it
    let still = app.machine.node(node).ok().flatten().is_some_and(|status| status.state == end);
    if !still || app.marks().stopping.contains(&node) {
        return;
    }
    let started = app.driver.run(move |nodes| nodes.start(&node.to_string(), None, &|_| {})).await;
    match started {
        Ok(Ok(_)) => info!(%node, %end, "started again"),
        Ok(Err(error)) => warn!(%node, %end, "not started again: {}", op_error(error)),
        Err(error) => warn!(%node, %end, %error, "not started again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_minute_and_are_forgotten() {
        let mut restarts = Restarts::default();
        let node = NodeId::new(1).unwrap();
        let start = Instant::now();
        let mut now = start;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let pause = restarts.pause(node, now);
            pauses.push(pause.as_secs());
            now += pause + Duration::from_secs(5);
        }
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
        let other = NodeId::new(2).unwrap();
        assert_eq!(restarts.pause(other, now), Duration::ZERO, "each node has its own count");
        assert_eq!(restarts.pause(node, now + FORGET_AFTER), Duration::ZERO);
    }
}
