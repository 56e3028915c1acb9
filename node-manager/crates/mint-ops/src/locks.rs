// SPDX-License-Identifier: Apache-2.0
//! Who may change what. A holder gets its whole set or nothing, and never asks for more
//! while it waits: so nobody can wait for one who waits for him. Among those who wait,
//! the older one goes first.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use mint_types::{NodeId, NodeName, ResourceKey};

/// What can be held: by one at a time.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Lock {
    /// A node's being: it is made, loaded, changed or taken apart.
    Node(NodeId),
    /// A name that a node gets.
    Name(NodeName),
    /// A core, memory block or PCI function.
    Resource(ResourceKey),
}

impl fmt::Display for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => write!(f, "node {node}"),
            Self::Name(name) => write!(f, "the name {name}"),
            Self::Resource(key) => key.fmt(f),
        }
    }
}

/// What one wanted is another one's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{lock} is held by {holder}")]
pub struct Held {
    /// The resource or node that is held.
    pub lock: Lock,
    /// By whom, as people read it.
    pub holder: String,
}

/// Names a holder; a lower one is older.
pub(crate) type Turn = u64;

#[derive(Debug)]
struct Holder {
    turn: Turn,
    name: String,
}

/// Who holds what, and who waits for what. Not shared by itself: its owner locks it.
#[derive(Debug, Default)]
pub(crate) struct Table {
    held: BTreeMap<Lock, Holder>,
    waiting: BTreeMap<Turn, (String, BTreeSet<Lock>)>,
    /// Counts what was given back: who waits looks again when it has changed.
    pub given_back: u64,
}

impl Table {
    /// Takes the whole set, in the set's order, or nothing. `waits` says that the taker
    /// comes again: younger ones do not pass it.
    pub fn take(
        &mut self,
        turn: Turn,
        name: &str,
        wanted: &BTreeSet<Lock>,
        waits: bool,
    ) -> Result<(), Held> {
        let passed_by = |lock: &Lock| {
            let mut older = self.waiting.range(..turn).map(|(_, waiting)| waiting);
            older.find(|(_, set)| waits && set.contains(lock)).map(|(name, _)| name)
        };
        let other = |lock: &Lock| {
            let holder = self.held.get(lock).filter(|holder| holder.turn != turn);
            let name = holder.map(|holder| &holder.name).or_else(|| passed_by(lock))?;
            Some(Held { lock: lock.clone(), holder: name.clone() })
        };
        if let Some(held) = wanted.iter().find_map(other) {
            if waits {
                self.waiting.insert(turn, (name.to_owned(), wanted.clone()));
            }
            return Err(held);
        }
        self.waiting.remove(&turn);
        for lock in wanted {
            self.held.insert(lock.clone(), Holder { turn, name: name.to_owned() });
        }
        Ok(())
    }

    /// Gives back all that one holds, and its place among those who wait.
    pub fn give_back(&mut self, turn: Turn) {
        self.held.retain(|_, holder| holder.turn != turn);
        self.waiting.remove(&turn);
        self.given_back += 1;
    }

    /// What others hold, and who; what older ones wait for, too, as it is theirs next.
    pub fn of_others(&self, turn: Turn) -> impl Iterator<Item = Held> {
        let others = self.held.iter().filter(move |(_, holder)| holder.turn != turn);
        let held = others.map(|(lock, holder)| (lock, &holder.name));
        let older = self.waiting.range(..turn).map(|(_, waiting)| waiting);
        let next = older.flat_map(|(name, set)| set.iter().map(move |lock| (lock, name)));
        held.chain(next).map(|(lock, name)| Held { lock: lock.clone(), holder: name.clone() })
    }

    /// Whether anybody holds anything.
    pub fn is_idle(&self) -> bool {
        self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cpus(ids: &[u32]) -> BTreeSet<Lock> {
        ids.iter().map(|&id| Lock::Resource(ResourceKey::cpu(id))).collect()
    }

    #[test]
    fn set_is_taken_whole_or_not_at_all() {
        let mut table = Table::default();
        table.take(1, "operation 1", &cpus(&[2, 3]), true).unwrap();
        let held = table.take(2, "operation 2", &cpus(&[1, 2]), false).unwrap_err();
        assert_eq!(held.to_string(), "cpu 2 is held by operation 1");
        // nothing of it was taken
        table.take(3, "operation 3", &cpus(&[1]), true).unwrap();
        table.give_back(1);
        table.take(2, "operation 2", &cpus(&[2]), true).unwrap();
        table.give_back(2);
        table.give_back(3);
        assert!(table.is_idle());
    }

    #[test]
    fn younger_ones_do_not_pass_one_who_waits() {
        let mut table = Table::default();
        table.take(1, "operation 1", &cpus(&[1]), true).unwrap();
        table.take(2, "operation 2", &cpus(&[1, 2]), true).unwrap_err();
        let held = table.take(3, "operation 3", &cpus(&[2]), true).unwrap_err();
        assert_eq!(held.holder, "operation 2");
        let others = |turn| table.of_others(turn).map(|held| held.to_string()).collect::<Vec<_>>();
        let first = "cpu 1 is held by operation 1";
        assert_eq!(others(2), [first]);
        assert!(others(3).contains(&"cpu 2 is held by operation 2".to_owned()));
        // a step for a peer does not wait, and nobody waits for it long
        table.take(4, "a step", &cpus(&[2]), false).unwrap();
        table.give_back(4);
        table.give_back(1);
        table.take(2, "operation 2", &cpus(&[1, 2]), true).unwrap();
    }

    #[test]
    fn one_who_does_not_wait_any_more_is_passed() {
        let mut table = Table::default();
        table.take(1, "operation 1", &cpus(&[1]), true).unwrap();
        table.take(2, "operation 2", &cpus(&[1, 2]), true).unwrap_err();
        table.give_back(2);
        table.take(3, "operation 3", &cpus(&[2]), true).unwrap();
    }

    proptest! {
        /// Takers that come again until they have got their sets all come to their ends,
        /// in whatever order they are asked, and no lock ever has two holders.
        #[test]
        fn everybody_gets_his_turn(
            sets in prop::collection::vec(prop::collection::btree_set(0u32..6, 1..5), 1..8),
            order in prop::collection::vec(any::<prop::sample::Index>(), 200),
        ) {
            let mut table = Table::default();
            let mut left: Vec<(Turn, BTreeSet<Lock>, bool)> = sets
                .iter()
                .zip(1..)
                .map(|(set, turn)| (turn, cpus(&set.iter().copied().collect::<Vec<_>>()), false))
                .collect();
            for pick in order {
                if left.is_empty() {
                    break;
                }
                let at = pick.index(left.len());
                let (turn, set, holds) = &mut left[at];
                if *holds {
                    table.give_back(*turn);
                    left.remove(at);
                    continue;
                }
                let (turn, set) = (*turn, set.clone());
                if table.take(turn, "x", &set, true).is_ok() {
                    let twice = left.iter().any(|(_, other, holds)| *holds && !other.is_disjoint(&set));
                    prop_assert!(!twice);
                    left[at].2 = true;
                }
            }
            // whoever is left: one round each is enough, the oldest first
            while !left.is_empty() {
                let before = left.len();
                for at in (0..left.len()).rev() {
                    if left[at].2 {
                        table.give_back(left.remove(at).0);
                    }
                }
                for (turn, set, holds) in &mut left {
                    *holds = table.take(*turn, "x", set, true).is_ok();
                }
                let moved = left.len() < before || left.iter().any(|(_, _, holds)| *holds);
                prop_assert!(moved, "nobody can go on");
            }
            prop_assert!(table.is_idle());
        }
    }
}
