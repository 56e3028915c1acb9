// SPDX-License-Identifier: Apache-2.0
//! Guests that somebody sees to, each by one at a time.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Their UUIDs.
#[derive(Clone, Default, Debug)]
pub(crate) struct Held(Arc<Mutex<BTreeSet<String>>>);

/// Nobody else holds that guest.
#[derive(Debug)]
pub(crate) struct Hold {
    held: Held,
    uuid: String,
}

impl Held {
    fn all(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a guest until the end of what this gives; none if another one does.
    pub fn hold(&self, uuid: &str) -> Option<Hold> {
        let is_free = self.all().insert(uuid.to_owned());
        is_free.then(|| Hold { held: self.clone(), uuid: uuid.to_owned() })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.held.all().remove(&self.uuid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_is_held_by_one_and_others_are_free() {
        let held = Held::default();
        let (one, other) = (held.hold("a").unwrap(), held.hold("b").unwrap());
        assert!(held.hold("a").is_none());
        drop(one);
        assert!(held.hold("a").is_some() && held.hold("b").is_none());
        drop(other);
    }
}
