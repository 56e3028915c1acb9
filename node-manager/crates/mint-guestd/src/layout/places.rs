// SPDX-License-Identifier: Apache-2.0
//! Places of guests that are to come.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mint_layout::{Bind, Guest, NumaId, Ring, Why};
use mint_types::LayoutPolicy;

/// Memory of another guest that has gone for one that is to come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Evicted {
    /// Whose it is: its QEMU.
    pub qemu: u32,
    /// Where that has it.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Where it was.
    pub from: NumaId,
}

/// What others lose for a guest. Who makes room holds the list as long as that takes; who gives it back has that end
/// first, so that nothing goes that nobody gives back.
#[derive(Default, Debug)]
pub(super) struct Evictions {
    is_stopped: AtomicBool,
    list: Mutex<Vec<Evicted>>,
}

impl Evictions {
    /// Nothing is evicted any more: the guest does not come.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
    }

    /// Whether somebody has said so.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// The list, for oneself. Blocks while room is made.
    pub fn list(&self) -> MutexGuard<'_, Vec<Evicted>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The guest's UUID.
    pub uuid: String,
    /// Number of its migration.
    pub attempt: Option<u64>,
    /// The guest where it will be.
    pub guest: Guest,
    /// Who found it.
    pub policy: LayoutPolicy,
    /// What that said of it; nothing if it comes to where it would have come.
    pub why: Option<Why>,
    /// NUMA nodes of its memory.
    pub binds: Vec<Bind>,
    /// What its last host has measured.
    pub samples: Vec<Ring>,
    /// What others have lost for it.
    pub evicted: Arc<Evictions>,
    /// Whether it has come.
    pub has_come: bool,
}

/// All of them, by UUID.
#[derive(Default)]
pub(super) struct Places(Mutex<BTreeMap<String, Place>>);

impl Places {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A guest has a place. Gives the one that it had by a migration before.
    pub fn put(&self, place: Place) -> Option<Place> {
        self.lock().insert(place.uuid.clone(), place)
    }

    /// A guest's place.
    pub fn get(&self, uuid: &str) -> Option<Place> {
        self.lock().get(uuid).cloned()
    }

    /// Changes the place of a guest's migration, if that is still there.
    pub fn change(&self, uuid: &str, attempt: Option<u64>, change: impl FnOnce(&mut Place)) {
        if let Some(place) = self.lock().get_mut(uuid).filter(|place| place.attempt == attempt) {
            change(place);
        }
    }

    /// Guests that have a place and have not come, each where it will be.
    pub fn guests(&self) -> Vec<Guest> {
        let all = self.lock();
        all.values().filter(|place| !place.has_come).map(|place| place.guest.clone()).collect()
    }

    /// Forgets places of guests that nobody expects; gives those of guests that have not come.
    pub fn forget(&self, is_expected: impl Fn(&str, Option<u64>) -> bool) -> Vec<Place> {
        let mut all = self.lock();
        let gone: Vec<String> = all
            .values()
            .filter(|place| !is_expected(&place.uuid, place.attempt))
            .map(|place| place.uuid.clone())
            .collect();
        let gone = gone.iter().filter_map(|uuid| all.remove(uuid));
        gone.filter(|place| !place.has_come).collect()
    }
}
