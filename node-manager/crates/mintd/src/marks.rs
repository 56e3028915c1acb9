// SPDX-License-Identifier: Apache-2.0
//! What a daemon knows of nodes beside the ledger.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mint_node::files::write_atomic;
use mint_types::NodeId;
use tracing::warn;

use crate::health::Health;

/// What is known of nodes beside the ledger.
#[derive(Default)]
pub(crate) struct Marks {
    /// How those are that run and are not well.
    pub health: BTreeMap<NodeId, Health>,
    /// Ends that somebody asked for.
    pub ordered: Ordered,
    /// Starts of nodes that ended by themselves.
    pub restarts: Restarts,
    /// Names as last seen: one that was removed has none any more.
    pub names: BTreeMap<NodeId, String>,
    /// Public host keys of their ssh servers.
    pub ssh_host_keys: BTreeMap<NodeId, Vec<String>>,
}

impl Marks {
    /// How a node is that runs.
    pub fn health_of(&self, node: NodeId) -> Health {
        self.health.get(&node).copied().unwrap_or(Health::Ok)
    }
}

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
