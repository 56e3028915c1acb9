// SPDX-License-Identifier: Apache-2.0
//! Guests that are arranged once they have come and been measured.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mint_layout::RING;
use mint_types::LayoutPolicy;

/// Between samples of what vCPUs do.
pub(super) const EACH: Duration = Duration::from_secs(1);

/// Guests that are to be arranged, by UUID.
#[derive(Default)]
pub(crate) struct Later(Mutex<BTreeMap<String, Waits>>);

/// So often a guest is looked at, if there was nothing to be gained: one that has just come may do little at first.
const TURNS: u8 = 3;

struct Waits {
    policy: LayoutPolicy,
    /// Which of its turns is next, from 1 on.
    turn: u8,
    /// When it was seen to have come, or its last turn was.
    since: Option<Instant>,
}

/// It is a guest's turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Turn {
    /// Its UUID.
    pub uuid: String,
    /// Who arranges it.
    pub policy: LayoutPolicy,
    turn: u8,
}

impl Later {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Waits>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// A guest is about to come, and is to be arranged some seconds later.
    pub fn expect(&self, uuid: &str, policy: LayoutPolicy) {
        self.lock().insert(uuid.to_owned(), Waits { policy, turn: 1, since: None });
    }

    /// Nothing was gained at its turn: it has another one, if it was not the last. One that is about to come anew by then
    /// has its first.
    pub(super) fn again(&self, turn: Turn) {
        if turn.turn < TURNS {
            let waits = Waits { policy: turn.policy, turn: turn.turn + 1, since: None };
            self.lock().entry(turn.uuid).or_insert(waits);
        }
    }

    /// Guests that have been measured for as long as samples are kept; they are given once a turn. Those that neither come
    /// nor run are forgotten.
    pub(super) fn due(
        &self,
        now: Instant,
        comes: impl Fn(&str) -> bool,
        runs: impl Fn(&str) -> bool,
    ) -> Vec<Turn> {
        let mut all = self.lock();
        all.retain(|uuid, _| comes(uuid) || runs(uuid));
        let mut due = Vec::new();
        for (uuid, waits) in all.iter_mut().filter(|(uuid, _)| !comes(uuid)) {
            let since = *waits.since.get_or_insert(now);
            if now.saturating_duration_since(since) >= measured_for() {
                due.push(Turn { uuid: uuid.clone(), policy: waits.policy, turn: waits.turn });
            }
        }
        all.retain(|uuid, _| due.iter().all(|gone| gone.uuid != *uuid));
        due
    }
}

fn measured_for() -> Duration {
    EACH * u32::try_from(RING).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_is_due_once_when_it_has_been_here_as_long_as_samples_are_kept() {
        let later = Later::default();
        let began = Instant::now();
        let at = |s: u64| began + Duration::from_secs(s);
        let due = |s, comes: bool, runs: bool| later.due(at(s), |_| comes, |_| runs).len();
        later.expect("u", LayoutPolicy::Simple);
        // on its way its QEMU runs, too
        assert_eq!((due(0, true, false), due(30, true, true)), (0, 0));
        assert_eq!((due(31, false, true), due(40, false, true)), (0, 0));
        assert_eq!((due(41, false, true), due(60, false, true)), (1, 0));
        // it does not come
        later.expect("u", LayoutPolicy::Simple);
        assert_eq!((due(0, true, false), due(1, false, false)), (0, 0));
        assert_eq!((due(2, false, true), due(90, false, true)), (0, 0));
    }

    #[test]
    fn guest_that_gains_nothing_has_three_turns_unless_it_goes() {
        let later = Later::default();
        let began = Instant::now();
        let due =
            |s: u64, runs: bool| later.due(began + Duration::from_secs(s), |_| false, |_| runs);
        later.expect("u", LayoutPolicy::Dino);
        for turn in 0..3 {
            assert_eq!(due(20 * turn, true), []);
            assert_eq!(due(20 * turn + 9, true), []);
            let [now] = due(20 * turn + 10, true).try_into().unwrap();
            assert_eq!((&*now.uuid, now.policy), ("u", LayoutPolicy::Dino));
            later.again(now);
        }
        assert!(later.is_empty());
        later.expect("u", LayoutPolicy::Dino);
        due(100, true);
        let [first] = due(110, true).try_into().unwrap();
        // it has gone, and is to come again
        later.expect("u", LayoutPolicy::Brm);
        later.again(first);
        due(120, true);
        assert_eq!(due(130, true)[0].policy, LayoutPolicy::Brm);
        later.expect("u", LayoutPolicy::Brm);
        assert_eq!((due(140, false), later.is_empty()), (vec![], true));
    }
}
