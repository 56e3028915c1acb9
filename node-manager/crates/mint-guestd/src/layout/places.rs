// SPDX-License-Identifier: Apache-2.0
//! Places of guests that are to come. They are written down before anything is done for them, so that the next daemon of
//! this boot knows them, too.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mint_layout::{Bind, Guest, NumaId, Ring, Snapshot, Topology, Why};
use mint_types::LayoutPolicy;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::files;
use super::kept::Before;

/// Memory of another guest that goes for one that is to come.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Evicted {
    /// Whose it is, by UUID.
    pub guest: String,
    /// Its QEMU.
    pub qemu: u32,
    /// Where that has it.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Where it was.
    pub from: NumaId,
    /// Where it goes.
    pub to: NumaId,
}

/// Room is made for a guest. Who makes it holds this as long as that takes; who gives it back has that end first.
#[derive(Default, Debug)]
pub(super) struct Making {
    is_stopped: AtomicBool,
    lands: AtomicBool,
    maker: Mutex<()>,
    /// Whoever gives others other CPUs has it.
    pub pinning: tokio::sync::Mutex<()>,
}

impl Making {
    /// Nothing is evicted any more: the guest does not come.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
    }

    /// Whether somebody has said so.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// Somebody brings the guest there. Gives whether nobody does already.
    pub fn lands(&self) -> bool {
        !self.lands.swap(true, Ordering::SeqCst)
    }

    /// Alone. Blocks while room is made, or given back.
    pub fn alone(&self) -> MutexGuard<'_, ()> {
        self.maker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For the QEMU of a guest to begin once libvirt has asked its hook of it; and for a record of one that is there to be
/// gone, seconds.
const BEGINS_WITHIN_S: u64 = 60;
const GONE_FOR_S: u64 = 3;

/// Who owns a place of a guest whose arrival nobody writes down: libvirt's hook has asked for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct ByHook {
    /// When its QEMU was there last, or the hook asked; seconds since 1970.
    pub at_s: u64,
    /// Whether its QEMU has been there.
    pub is_there: bool,
}

impl ByHook {
    /// Whether the guest does not come any more.
    fn is_over(self, now_s: u64) -> bool {
        let within_s = if self.is_there { GONE_FOR_S } else { BEGINS_WITHIN_S };
        now_s.saturating_sub(self.at_s) > within_s
    }
}

/// A place.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    /// What others lose for it.
    pub evicted: Vec<Evicted>,
    /// Others that get other CPUs for its sake, as they were.
    #[serde(default)]
    pub others: Vec<Before>,
    /// Whether it has come.
    pub has_come: bool,
    /// Of a guest whose arrival is not written down.
    #[serde(default)]
    pub by_hook: Option<ByHook>,
    /// Who makes room for it.
    #[serde(skip)]
    pub making: Arc<Making>,
}

/// All of them, by UUID.
pub(crate) struct Places {
    all: Mutex<BTreeMap<String, Place>>,
    /// Where they are written down.
    file: PathBuf,
}

impl Places {
    /// Those that are written down in a file, which has them from now on.
    pub fn of_file(file: PathBuf) -> Self {
        Self { all: Mutex::new(files::read(&file)), file }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Place>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn save(&self, all: &BTreeMap<String, Place>) {
        if let Err(error) = files::write(&self.file, all) {
            warn!(path = %self.file.display(), %error, "places are lost when this daemon ends");
        }
    }

    /// A guest has a place. Gives the one that it had by a migration before.
    pub(super) fn put(&self, place: Place) -> Option<Place> {
        let mut all = self.lock();
        let before = all.insert(place.uuid.clone(), place);
        self.save(&all);
        before
    }

    /// The same, unless it has one. Gives whether it had none.
    pub(super) fn add(&self, place: Place) -> bool {
        let mut all = self.lock();
        let is_new = !all.contains_key(&place.uuid);
        if is_new {
            all.insert(place.uuid.clone(), place);
            self.save(&all);
        }
        is_new
    }

    /// Places that libvirt's hook has asked for.
    pub(super) fn of_hook(&self) -> Vec<Place> {
        self.lock().values().filter(|place| place.by_hook.is_some()).cloned().collect()
    }

    /// Changes what is known of who owns a place of the hook's. That its QEMU is still there is not written down each time.
    pub(super) fn of_hook_now(&self, uuid: &str, now: ByHook) {
        let mut all = self.lock();
        let Some(place) = all.get_mut(uuid).filter(|place| place.by_hook.is_some()) else { return };
        let before = place.by_hook.replace(now);
        if before.is_none_or(|before| before.is_there != now.is_there) {
            self.save(&all);
        }
    }

    /// A guest has been brought to the place that libvirt's hook had asked for.
    pub(super) fn landed(&self, uuid: &str) {
        let mut all = self.lock();
        if all.get(uuid).is_some_and(|place| place.by_hook.is_some() && place.has_come) {
            all.remove(uuid);
            self.save(&all);
        }
    }

    /// A guest's place.
    pub(super) fn get(&self, uuid: &str) -> Option<Place> {
        self.lock().get(uuid).cloned()
    }

    /// Changes the place of a guest's migration, if that is still there.
    pub(super) fn change(&self, uuid: &str, attempt: Option<u64>, change: impl FnOnce(&mut Place)) {
        let mut all = self.lock();
        if let Some(place) = all.get_mut(uuid).filter(|place| place.attempt == attempt) {
            change(place);
            self.save(&all);
        }
    }

    /// Guests that have a place and have not come, each where it will be, if that is still there.
    pub(super) fn guests(&self, topology: &Topology) -> Vec<Guest> {
        let all = self.lock();
        let coming = all.values().filter(|place| !place.has_come).map(|place| place.guest.clone());
        let fits = |guest: &Guest| Snapshot { guests: vec![guest.clone()] }.check(topology).is_ok();
        coming.filter(fits).collect()
    }

    /// How many have not come.
    pub(crate) fn count(&self) -> usize {
        self.lock().values().filter(|place| !place.has_come).count()
    }

    /// Whether there is none at all.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Forgets places of guests that nobody expects; gives those of guests that have not come. A guest whose arrival is
    /// written down has no place of libvirt's hook any more.
    pub(super) fn forget(
        &self,
        now_s: u64,
        is_expected: impl Fn(&str, Option<u64>) -> bool,
    ) -> Vec<Place> {
        let mut all = self.lock();
        let is_kept = |place: &Place| {
            let is_written = is_expected(&place.uuid, place.attempt);
            place.by_hook.map_or(is_written, |hook| !is_written && !hook.is_over(now_s))
        };
        let gone: Vec<String> =
            all.values().filter(|place| !is_kept(place)).map(|place| place.uuid.clone()).collect();
        if gone.is_empty() {
            return Vec::new();
        }
        let gone: Vec<Place> = gone.iter().filter_map(|uuid| all.remove(uuid)).collect();
        self.save(&all);
        gone.into_iter().filter(|place| !place.has_come).collect()
    }
}
