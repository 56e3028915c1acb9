// SPDX-License-Identifier: Apache-2.0
//! The entries and locks of a daemon's operations, which all that handles one shares. An
//! entry is changed here and nowhere else: in the control area, on disk, then in memory.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use mint_types::OperationId;
use tracing::warn;

use crate::area::Area;
use crate::entry::{Entry, encode};
use crate::intents::{publish, unpublish, withdraw};
use crate::locks::{Table, Turn};
use crate::slot::Slot;
use crate::store::{BadEntry, JournalError, Store};

/// Operations that are over and still told of: the last ones.
const OVER_KEPT: usize = 100;

pub(crate) struct State {
    pub all: BTreeMap<OperationId, Slot>,
    pub table: Table,
    pub next: u64,
    pub next_step: Turn,
    pub bad: Vec<BadEntry>,
}

pub(crate) struct Shared {
    pub store: Box<dyn Store>,
    /// Where other nodes find intents, if the machine has room for them.
    pub area: Option<Box<dyn Area>>,
    pub boot_id: u64,
    pub clock: Box<dyn Fn() -> u64 + Send + Sync>,
    pub state: Mutex<State>,
    /// Something was given back, or cancelled.
    pub changed: Condvar,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn now_ns(&self) -> u64 {
        (self.clock)()
    }

    pub fn write(&self, slot: &Slot, durable: bool) -> Result<(), JournalError> {
        if slot.dry_run {
            return Ok(());
        }
        self.store.write(slot.entry.id, &encode(&slot.entry), durable)
    }

    /// Changes an entry, in the control area and on disk first: what cannot be written is
    /// not changed.
    pub fn change(
        &self,
        id: OperationId,
        durable: bool,
        change: impl FnOnce(&mut Entry),
    ) -> Result<(), JournalError> {
        let area = self.area.as_deref();
        let mut state = self.lock();
        let Some(slot) = state.all.get_mut(&id) else { return Ok(()) };
        let (before, was_in) = (slot.entry.clone(), slot.place);
        change(&mut slot.entry);
        let written = publish(area, slot).and_then(|()| self.write(slot, durable));
        if let Err(error) = written {
            slot.entry = before;
            unpublish(area, slot, was_in);
            return Err(error);
        }
        withdraw(area, slot);
        slot.told.send_replace(());
        Ok(())
    }

    /// A line of progress: kept with the next change, told at once, to what it is a part
    /// of as well.
    pub fn say(&self, id: OperationId, text: &str) {
        let mut state = self.lock();
        let mut next = Some(id);
        while let Some(slot) = next.and_then(|id| state.all.get_mut(&id)) {
            slot.entry.say(text.to_owned());
            slot.told.send_replace(());
            next = slot.part_of;
        }
    }

    /// Whether somebody wants it, or what it is a part of, to end.
    pub fn is_cancelled(&self, id: OperationId) -> bool {
        let state = self.lock();
        let mut next = Some(id);
        while let Some(slot) = next.and_then(|id| state.all.get(&id)) {
            if slot.entry.cancel {
                return true;
            }
            next = slot.part_of;
        }
        false
    }

    /// It is over: nobody carries it out any more; the oldest that are over are dropped.
    pub fn over(&self, id: OperationId) {
        let mut state = self.lock();
        state.table.give_back(id.0);
        if let Some(slot) = state.all.get_mut(&id) {
            slot.taken = false;
        }
        let settled =
            |slot: &Slot| slot.entry.state.is_over() && slot.entry.open.is_none() && !slot.taken;
        let dry = state.all.iter().filter(|(_, slot)| slot.dry_run && settled(slot));
        // whoever follows one still has to see its end
        let unseen = |slot: &Slot| slot.told.receiver_count() > 0;
        let dry = dry.filter(|(_, slot)| !unseen(slot));
        let mut drop: Vec<OperationId> = dry.map(|(&id, _)| id).collect();
        let over = state.all.iter().filter(|(_, slot)| !slot.dry_run && settled(slot));
        let over: Vec<OperationId> = over.map(|(&id, _)| id).collect();
        drop.extend(&over[..over.len().saturating_sub(OVER_KEPT)]);
        for id in drop {
            let Some(slot) = state.all.remove(&id) else { continue };
            if slot.dry_run {
                continue;
            }
            if let Err(error) = self.store.remove(id) {
                warn!(%error, "an old operation is kept");
            }
        }
        self.changed.notify_all();
    }
}
