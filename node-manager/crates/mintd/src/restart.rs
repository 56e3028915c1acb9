// SPDX-License-Identifier: Apache-2.0
//! Nodes that ended are started again, if their descriptions say so: at once,
//! and with growing pauses if they end again and again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mint_api::StartRequest;
use mint_node::Nodes;
use mint_node::files::write_atomic;
use mint_ops::Op;
use mint_types::{Asker, NodeId, NodeState};
use tracing::{info, warn};

use crate::app::App;
use crate::ending::finish;
use crate::node0;
use crate::request::Request;

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

    /// A node of that id is made or removed: the next one's ends are another matter.
    pub fn forget(&mut self, node: NodeId) {
        self.0.remove(&node);
    }
}

/// Starts of nodes whose end somebody asked for: that end, however long it takes,
/// is no reason to start them again. Kept in a file, as a daemon that starts looks
/// at nodes that have ended.
#[derive(Default)]
pub(crate) struct Ordered {
    boots: BTreeMap<NodeId, u32>,
    file: PathBuf,
}

impl Ordered {
    /// What an earlier daemon of this boot has noted.
    pub fn open(file: PathBuf) -> Self {
        let boots = std::fs::read(&file)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        Self { boots, file }
    }

    /// The end of that start is asked for.
    pub fn note(&mut self, node: NodeId, boots: u32) {
        self.boots.insert(node, boots);
        self.save();
    }

    /// A node of that id is made or removed: its starts are counted anew.
    pub fn forget(&mut self, node: NodeId) {
        if self.boots.remove(&node).is_some() {
            self.save();
        }
    }

    /// Whether the end of that start was asked for.
    pub fn has(&self, node: NodeId, boots: u32) -> bool {
        self.boots.get(&node) == Some(&boots)
    }

    fn save(&self) {
        let text = serde_json::to_vec(&self.boots).expect("numbers are plain data");
        if let Err(error) = write_atomic(&self.file, &text, 0o600) {
            warn!(%error, "ordered ends are not written");
        }
    }
}

/// A node came to such an end: the daemon that added it starts it again, if it shall.
/// Nobody added node 0: of those that run, the one with the lowest id does it.
pub(crate) async fn start_again(app: Arc<App>, node: NodeId, end: NodeState) {
    let (spec, shall) = if node == NodeId::ZERO {
        let spec = node0::fetched(&app).filter(|spec| spec.restart.covers(end));
        let shall = spec.is_some() && is_first_alive(&app);
        (spec, shall)
    } else {
        // the driver reads it again: whether the node is still the one that was added
        let own = app.inventory().ok().and_then(|inventory| app.specs.get(&inventory, node));
        (None, own.is_some_and(|spec| spec.restart.covers(end)))
    };
    if !shall || !ended_by_itself(&app, node, end) {
        return;
    }
    let pause = app.marks().restarts.pause(node, Instant::now());
    if !pause.is_zero() {
        warn!(%node, %end, "ended again: started again in {} s", pause.as_secs());
        tokio::time::sleep(pause).await;
    }
    // meanwhile somebody else may have started or removed it
    if !ended_by_itself(&app, node, end) {
        return;
    }
    let name = app.machine.node(node).ok().flatten().map(|status| status.display_name());
    let request = Request::Start(name.unwrap_or_else(|| node.to_string()), StartRequest::default());
    let started = match app.submit(Asker::Daemon, &request, None) {
        Ok(op) => {
            let work = move |nodes: &Nodes, op: &Op| {
                let started = nodes.start(op, &node.to_string(), spec)?;
                Ok(started.steps)
            };
            let started = app.carry(&op, work).await;
            finish(&op, &started);
            started
        }
        Err(error) => Err(error),
    };
    match started {
        Ok(_) => info!(%node, %end, "started again"),
        Err(error) => warn!(%node, %end, %error, "not started again"),
    }
}

fn is_first_alive(app: &App) -> bool {
    let nodes = app.machine.nodes().unwrap_or_default();
    let first = nodes.iter().filter(|node| node.state.is_live()).map(|node| node.id).min();
    first == Some(app.here)
}

/// Whether the node is at that end now, and nobody asked for it.
fn ended_by_itself(app: &App, node: NodeId, end: NodeState) -> bool {
    let status = app.machine.node(node).ok().flatten();
    status.is_some_and(|status| status.state == end && !app.marks().ordered.has(node, status.boots))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordered_ends_outlive_the_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ordered.json");
        let node = NodeId::new(1).unwrap();
        Ordered::open(file.clone()).note(node, 3);
        let again = Ordered::open(file);
        assert!(again.has(node, 3));
        assert!(!again.has(node, 4), "the next start is another matter");
        let mut again = again;
        again.forget(node);
        assert!(!Ordered::open(again.file).has(node, 3), "so is the next node of that id");
    }

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
