// SPDX-License-Identifier: Apache-2.0
//! All operations of a daemon: the one owner of their entries and locks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex};

use mint_types::{Asker, OperationId, OperationKind, OperationState};
use tracing::warn;

use crate::area::Area;
use crate::entry::{Entry, decode};
use crate::follow::Follower;
use crate::intents::look_at_area;
use crate::locks::{Held, Lock, Table, Turn};
use crate::op::{Locks, Op};
use crate::shared::{Shared, State};
use crate::slot::Slot;
use crate::store::{BadEntry, JournalError, Store};

/// Operations that are not over: more are refused.
const OPEN_MAX: usize = 64;
/// Turns of steps that are no operations: younger than any operation.
const FIRST_STEP: Turn = 1 << 63;

/// What somebody asks for.
#[derive(Clone, Debug)]
pub struct Request {
    /// What to change.
    pub kind: OperationKind,
    /// Which node it is about, as the asker calls it; empty if none.
    pub subject: String,
    /// Who asks.
    pub asked_by: Asker,
    /// The request, as the daemon understands it: to go on with it after a death.
    pub body: serde_json::Value,
    /// The operation that this one is a part of: it is told what this one does, and its
    /// cancel is this one's.
    pub part_of: Option<OperationId>,
    /// Only what would be done is wanted: nobody is told of it, and nothing is kept.
    pub dry_run: bool,
}

/// An operation cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// There are too many already.
    #[error("{OPEN_MAX} operations are queued or running: wait for one, or cancel one")]
    Full,
    /// It cannot be written down.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// An operation is not cancelled.
#[derive(Debug, thiserror::Error)]
pub enum CancelError {
    /// There is none.
    #[error("there is no operation {0}")]
    Absent(OperationId),
    /// It has ended.
    #[error("{} is over: it is {}", .0.label(), .0.state)]
    Over(Box<Entry>),
    /// What it did is not taken back.
    #[error("{} is past its point of no return", .0.label())]
    PastNoReturn(Box<Entry>),
    /// It cannot be written down.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// All operations of a daemon. Clones share them.
#[derive(Clone)]
pub struct Operations(pub(crate) Arc<Shared>);

impl Operations {
    /// Reads what is kept. `clock` gives ns since 1970.
    ///
    /// # Errors
    /// When the store cannot be read. What is in it and not understood is no error: see
    /// [`Self::bad_entries`].
    pub fn open(
        store: impl Store + 'static,
        boot_id: u64,
        clock: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<Self, JournalError> {
        Self::open_with(store, None, boot_id, clock)
    }

    /// The same, and intents are in the control area, too, if there is room for them.
    ///
    /// # Errors
    /// When the store or the area cannot be read.
    pub fn open_with(
        store: impl Store + 'static,
        area: Option<Box<dyn Area>>,
        boot_id: u64,
        clock: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<Self, JournalError> {
        let kept = store.read()?;
        let strange = "it is no entry of this journal: an earlier mintd's, or somebody else's";
        let mut bad: Vec<BadEntry> =
            kept.strange.into_iter().map(|path| BadEntry { path, why: strange.into() }).collect();
        // numbers of entries that are not understood are not given again
        let next = kept.entries.last().map_or(1, |(id, _)| id.0.saturating_add(1));
        let mut all = BTreeMap::new();
        for (id, data) in kept.entries {
            match decode(id, &data) {
                Ok(entry) => _ = all.insert(id, Slot::new(entry, None, false, false)),
                Err(why) => bad.push(BadEntry { path: store.place(id), why: why.to_string() }),
            }
        }
        for BadEntry { path, why } in &bad {
            warn!(path = %path.display(), why, "entry of the journal is not understood, and kept");
        }
        look_at_area(area.as_deref(), boot_id, all.values_mut())?;
        let state = State { all, table: Table::default(), next, next_step: FIRST_STEP, bad };
        let (store, clock) = (Box::new(store), Box::new(clock));
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let shared = Shared { store, area, boot_id, clock, state, changed };
        Ok(Self(Arc::new(shared)))
    }

    /// Writes a new operation down.
    ///
    /// # Errors
    /// When there are too many, or the store fails.
    pub fn submit(&self, request: Request) -> Result<Op, SubmitError> {
        let mut state = self.0.lock();
        let open = state.all.values().filter(|slot| !slot.entry.state.is_over()).count();
        if open >= OPEN_MAX && request.part_of.is_none() {
            return Err(SubmitError::Full);
        }
        let id = OperationId(state.next);
        let entry = Entry {
            id,
            kind: request.kind,
            subject: request.subject,
            asked_by: request.asked_by,
            boot_id: self.0.boot_id,
            created_ns: (self.0.clock)(),
            started_ns: None,
            ended_ns: None,
            state: OperationState::Queued,
            cancel: false,
            past_no_return: false,
            open: None,
            in_area: None,
            taken_from: None,
            request: request.body,
            progress: Vec::new(),
            dropped_lines: 0,
            result: None,
            error: None,
        };
        let slot = Slot::new(entry, request.part_of, request.dry_run, true);
        self.0.write(&slot, false)?;
        state.next += 1;
        state.all.insert(id, slot);
        Ok(Op { shared: self.0.clone(), id })
    }

    /// All that are told of, by number.
    pub fn list(&self) -> Vec<Entry> {
        let state = self.0.lock();
        let listed = state.all.values().filter(|slot| !slot.dry_run);
        listed.map(|slot| slot.entry.clone()).collect()
    }

    /// One of them.
    pub fn get(&self, id: OperationId) -> Option<Entry> {
        self.0.lock().all.get(&id).map(|slot| slot.entry.clone())
    }

    /// What the journal holds and this daemon does not understand.
    pub fn bad_entries(&self) -> Vec<BadEntry> {
        self.0.lock().bad.clone()
    }

    /// Follows an operation: from its first kept line on, to its end.
    pub fn follow(&self, id: OperationId) -> Option<Follower> {
        let told = self.0.lock().all.get(&id)?.told.subscribe();
        Some(Follower::new(self.0.clone(), id, told))
    }

    /// Asks an operation to end. One that waits for its turn ends at once, one that runs
    /// after the step that it is at; what it did is taken back.
    ///
    /// # Errors
    /// When it is over or past its point of no return.
    pub fn cancel(&self, id: OperationId) -> Result<Entry, CancelError> {
        let mut state = self.0.lock();
        let slot = state.all.get_mut(&id).ok_or(CancelError::Absent(id))?;
        let entry = || Box::new(slot.entry.clone());
        if slot.entry.state.is_over() {
            return Err(CancelError::Over(entry()));
        }
        if slot.entry.past_no_return {
            return Err(CancelError::PastNoReturn(entry()));
        }
        slot.entry.cancel = true;
        let entry = slot.entry.clone();
        self.0.write(slot, false)?;
        slot.told.send_replace(());
        self.0.changed.notify_all();
        Ok(entry)
    }

    /// Operations that a daemon before this one left in the middle, the newest first.
    /// Who asks carries them on: nobody gets them again.
    pub fn interrupted(&self) -> Vec<Op> {
        self.take_up(|slot| !slot.entry.state.is_over() && slot.elsewhere.is_none())
    }

    /// Whether another node may have ended this one while ours did not run, and nobody can
    /// tell: it is left to a repair.
    pub fn is_unknown(&self, id: OperationId) -> bool {
        self.0.lock().all.get(&id).is_some_and(|slot| slot.unknown)
    }

    /// Operations that are over and could not be settled: a part of what they changed
    /// was neither finished nor taken back. Each is given to one at a time.
    pub fn unsettled(&self) -> Vec<Op> {
        self.take_up(|slot| slot.entry.state.is_over() && slot.entry.open.is_some())
    }

    fn take_up(&self, which: impl Fn(&Slot) -> bool) -> Vec<Op> {
        let mut state = self.0.lock();
        let found = state.all.iter_mut().rev().filter(|(_, slot)| !slot.taken && which(slot));
        let ids: Vec<OperationId> = found
            .map(|(&id, slot)| {
                slot.taken = true;
                id
            })
            .collect();
        ids.into_iter().map(|id| Op { shared: self.0.clone(), id }).collect()
    }

    /// Takes the set for a short step that is no operation, or says at once who has it.
    ///
    /// # Errors
    /// When a part of it is held.
    pub fn take_for_step(&self, name: &str, wanted: &BTreeSet<Lock>) -> Result<Locks, Held> {
        let mut state = self.0.lock();
        let turn = state.next_step;
        state.next_step += 1;
        state.table.take(turn, name, wanted, false)?;
        Ok(Locks { shared: self.0.clone(), turn, name: name.to_owned() })
    }

    /// Whether nothing is being changed.
    pub fn is_idle(&self) -> bool {
        self.0.lock().table.is_idle()
    }

    /// What is held now.
    pub fn held(&self) -> Vec<Held> {
        self.0.lock().table.of_others(0).collect()
    }

    /// Of this boot of the machine.
    pub fn boot_id(&self) -> u64 {
        self.0.boot_id
    }
}
