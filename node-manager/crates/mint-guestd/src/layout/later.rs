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

struct Waits {
    policy: LayoutPolicy,
    /// When it was seen to have come.
    came: Option<Instant>,
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
        self.lock().insert(uuid.to_owned(), Waits { policy, came: None });
    }

    /// Guests that have been measured for as long as samples are kept; they are given once. Those that neither come nor
    /// run are forgotten.
    pub(super) fn due(
        &self,
        now: Instant,
        comes: impl Fn(&str) -> bool,
        runs: impl Fn(&str) -> bool,
    ) -> Vec<(String, LayoutPolicy)> {
        let mut all = self.lock();
        all.retain(|uuid, _| comes(uuid) || runs(uuid));
        let mut due = Vec::new();
        for (uuid, waits) in all.iter_mut().filter(|(uuid, _)| !comes(uuid)) {
            let came = *waits.came.get_or_insert(now);
            if now.saturating_duration_since(came) >= measured_for() {
                due.push((uuid.clone(), waits.policy));
            }
        }
        all.retain(|uuid, _| due.iter().all(|(gone, _)| gone != uuid));
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
}
