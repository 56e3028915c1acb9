// SPDX-License-Identifier: Apache-2.0
//! How running nodes are, as far as their heartbeats and cores tell.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use mint_node::config::Waits;
use mint_types::{NodeId, NodeState, NodeStatus};

/// How a running node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Health {
    /// All is well.
    Ok,
    /// Its heartbeat stands still, not yet for so long that it counts as hung.
    Slow,
    /// It lives, and fewer cores are online than it owns.
    CoresMissing { online: u32, owned: u32 },
    /// Its heartbeat stands still.
    Hung,
}

impl Health {
    /// The word for it, also the name of the event that tells of it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Slow | Self::CoresMissing { .. } => "degraded",
            Self::Hung => "hung",
        }
    }
}

/// What is known, and what to do.
pub(crate) struct Reason<'a>(pub Health, pub &'a str, pub &'a Waits);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(health, name, waits) = self;
        match health {
            Health::Ok => f.write_str("its heartbeat moves, all its cores are online"),
            Health::Slow => write!(
                f,
                "no heartbeat for {} s; look: mintctl node console {name}",
                waits.degraded_s
            ),
            Health::CoresMissing { online, owned } => write!(
                f,
                "{online} of its {owned} cores are online; look there: lscpu, dmesg; give others \
                 away: mintctl node resize {name} --cpus"
            ),
            Health::Hung => write!(
                f,
                "no heartbeat for {} s; look: mintctl node console {name}; \
                 end it: mintctl node kill {name}",
                waits.hung_s
            ),
        }
    }
}

/// When a node was last seen well.
struct Seen {
    heartbeat: u64,
    beat: Instant,
    all_online: Instant,
}

/// All running nodes, as last seen.
pub(crate) struct Pulse {
    seen: BTreeMap<NodeId, Seen>,
    degraded: Duration,
    hung: Duration,
}

impl Pulse {
    /// With the limits of the configuration.
    pub fn new(waits: &Waits) -> Self {
        let [degraded, hung] = [waits.degraded_s, waits.hung_s].map(Duration::from_secs);
        Self { seen: BTreeMap::new(), degraded, hung }
    }

    /// Looks at a node that owns so many cores: how it is, or `None` when it does not run.
    pub fn look(&mut self, node: &NodeStatus, owned: u32, now: Instant) -> Option<Health> {
        if node.state != NodeState::Running {
            self.seen.remove(&node.id);
            return None;
        }
        let heartbeat = node.heartbeat;
        let seen =
            self.seen.entry(node.id).or_insert(Seen { heartbeat, beat: now, all_online: now });
        if seen.heartbeat != heartbeat {
            (seen.heartbeat, seen.beat) = (heartbeat, now);
        }
        let online = node.cpus_online;
        if online >= owned {
            seen.all_online = now;
        }
        let still = now.duration_since(seen.beat);
        Some(match () {
            () if still >= self.hung => Health::Hung,
            () if still >= self.degraded => Health::Slow,
            // a core that comes or goes is one less for a moment
            () if now.duration_since(seen.all_online) >= self.degraded => {
                Health::CoresMissing { online, owned }
            }
            () => Health::Ok,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(heartbeat: u64, cpus_online: u32, state: NodeState) -> NodeStatus {
        NodeStatus {
            id: NodeId::new(1).unwrap(),
            name: "web".into(),
            state,
            boots: 1,
            heartbeat,
            state_change_ns: 0,
            cpus_online,
            boot_cpu: None,
            memory_bytes: 0,
            release: String::new(),
            reason: String::new(),
        }
    }

    #[test]
    fn heart_that_stands_still_is_noticed() {
        let mut pulse = Pulse::new(&Waits::default());
        let start = Instant::now();
        let mut look = |heartbeat, s, state| {
            pulse.look(&node(heartbeat, 1, state), 1, start + Duration::from_secs(s))
        };
        let running = NodeState::Running;
        assert_eq!(look(1, 0, running), Some(Health::Ok));
        assert_eq!(look(1, 4, running), Some(Health::Ok));
        assert_eq!(look(1, 5, running), Some(Health::Slow));
        assert_eq!(look(1, 9, running), Some(Health::Slow));
        assert_eq!(look(1, 10, running), Some(Health::Hung));
        assert_eq!(look(2, 11, running), Some(Health::Ok));
        assert_eq!(look(2, 12, NodeState::Halted), None);
        // a new life starts with a new clock
        assert_eq!(look(2, 30, running), Some(Health::Ok));
    }

    #[test]
    fn core_that_stays_offline_is_noticed() {
        let mut pulse = Pulse::new(&Waits::default());
        let start = Instant::now();
        let mut look = |heartbeat, online| {
            let now = start + Duration::from_secs(heartbeat);
            pulse.look(&node(heartbeat, online, NodeState::Running), 2, now)
        };
        assert_eq!(look(0, 2), Some(Health::Ok));
        assert_eq!(look(4, 1), Some(Health::Ok));
        assert_eq!(look(5, 1), Some(Health::CoresMissing { online: 1, owned: 2 }));
        assert_eq!(look(6, 2), Some(Health::Ok));
        assert_eq!(look(10, 1), Some(Health::Ok));
    }
}
