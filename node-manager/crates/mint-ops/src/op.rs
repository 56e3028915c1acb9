// SPDX-License-Identifier: Apache-2.0
//! An operation in the hands of who carries it out.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use mint_types::{OperationId, OperationState, Step};
use serde_json::Value;

use crate::entry::{Entry, Intent};
use crate::locks::{Held, Lock, Turn};
use crate::shared::Shared;
use crate::store::JournalError;

/// Who waits looks again after that, should he miss that something was given back.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Somebody wants the operation to end, and it is before its point of no return.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("it was cancelled")]
pub struct Cancelled;

/// How an operation ended.
#[derive(Clone, PartialEq, Debug)]
pub enum End {
    /// With that result.
    Done(Value),
    /// Validation said no.
    Refused(Value),
    /// A part of it failed.
    Failed(Value),
    /// Somebody wanted it to end.
    Cancelled(Value),
    /// Its daemon had died.
    Undone(Value),
}

/// An operation that is carried out. Clones are the same one.
#[derive(Clone)]
pub struct Op {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: OperationId,
}

/// What a holder has; given back when this is dropped.
pub struct Locks {
    pub(crate) shared: Arc<Shared>,
    pub(crate) turn: Turn,
    pub(crate) name: String,
}

impl Op {
    /// Its number.
    pub fn id(&self) -> OperationId {
        self.id
    }

    /// As it is now.
    ///
    /// # Panics
    /// Never: an operation that is carried out is kept.
    pub fn entry(&self) -> Entry {
        let state = self.shared.lock();
        state.all[&self.id].entry.clone()
    }

    /// Says what is being done.
    pub fn progress(&self, text: &str) {
        self.shared.say(self.id, text);
    }

    /// Whether to go on.
    ///
    /// # Errors
    /// When somebody wants it to end, and it can.
    pub fn check(&self) -> Result<(), Cancelled> {
        if self.shared.is_cancelled(self.id) && !self.entry().past_no_return {
            return Err(Cancelled);
        }
        Ok(())
    }

    /// Its turn has come.
    ///
    /// # Errors
    /// When the store fails.
    pub fn running(&self) -> Result<(), JournalError> {
        let now = self.shared.now_ns();
        self.shared.change(self.id, false, |entry| run(entry, now))
    }

    /// Writes down what is going to be changed; nothing may be changed before this
    /// returns. `past_no_return`: once begun, it is finished.
    ///
    /// # Errors
    /// When it cannot be written to disk.
    pub fn begin(&self, intent: Intent, past_no_return: bool) -> Result<(), JournalError> {
        let now = self.shared.now_ns();
        self.shared.change(self.id, true, |entry| {
            run(entry, now);
            entry.open = Some(intent);
            entry.past_no_return |= past_no_return;
        })
    }

    /// What comes now is not taken back.
    ///
    /// # Errors
    /// When it cannot be written to disk.
    pub fn no_return(&self) -> Result<(), JournalError> {
        self.shared.change(self.id, true, |entry| entry.past_no_return = true)
    }

    /// All that it changes is changed.
    ///
    /// # Errors
    /// When it cannot be written to disk.
    pub fn commit(&self) -> Result<(), JournalError> {
        self.shared.change(self.id, true, |entry| {
            entry.open = None;
            entry.past_no_return = true;
        })
    }

    /// What it had changed is taken back, but for what these steps changed.
    ///
    /// # Errors
    /// When it cannot be written to disk.
    pub fn taken_back(&self, left: Vec<Step>) -> Result<(), JournalError> {
        self.shared.change(self.id, true, |entry| match &mut entry.open {
            Some(open) if !left.is_empty() => open.steps = left,
            open => *open = None,
        })
    }

    /// It is over. What is still open stays so, for a repair.
    ///
    /// # Errors
    /// When the store fails: it is over all the same.
    pub fn finish(&self, end: End) -> Result<(), JournalError> {
        let now = self.shared.now_ns();
        let written = self.shared.change(self.id, false, |entry| {
            entry.ended_ns = Some(now);
            let (state, result, error) = match end.clone() {
                End::Done(result) => (OperationState::Done, Some(result), None),
                End::Refused(error) => (OperationState::Refused, None, Some(error)),
                End::Failed(error) => (OperationState::Failed, None, Some(error)),
                End::Cancelled(error) => (OperationState::Cancelled, None, Some(error)),
                End::Undone(error) => (OperationState::Undone, None, Some(error)),
            };
            (entry.state, entry.result, entry.error) = (state, result, error);
        });
        self.shared.over(self.id);
        written
    }

    /// Nobody carries it on for now.
    pub fn put_down(&self) {
        self.shared.over(self.id);
    }

    /// What others hold now.
    pub fn held_by_others(&self) -> Vec<Held> {
        self.shared.lock().table.of_others(self.id.0).collect()
    }

    /// Counts what was given back: take it before looking at what is held.
    pub fn given_back(&self) -> u64 {
        self.shared.lock().table.given_back
    }

    /// Takes the whole set, or nothing and a place among those who wait.
    ///
    /// # Errors
    /// With one of those that another one has.
    pub fn take(&self, wanted: &BTreeSet<Lock>) -> Result<Locks, Held> {
        let mut state = self.shared.lock();
        let name = state.all[&self.id].entry.label();
        state.table.take(self.id.0, &name, wanted, true)?;
        Ok(Locks { shared: self.shared.clone(), turn: self.id.0, name })
    }

    /// Waits until something was given back since `given_back` was taken.
    ///
    /// # Errors
    /// When it is cancelled meanwhile.
    pub fn wait(&self, given_back: u64, held: &Held) -> Result<(), Cancelled> {
        self.progress(&format!("waiting: {held}"));
        loop {
            self.check()?;
            let state = self.shared.lock();
            if state.table.given_back != given_back {
                return Ok(());
            }
            let waited = self.shared.changed.wait_timeout(state, LOOK_AGAIN);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
    }
}

impl Locks {
    /// Takes more, or nothing and no place: who holds something does not wait.
    ///
    /// # Errors
    /// With one of those that another one has.
    pub fn extend(&mut self, wanted: &BTreeSet<Lock>) -> Result<(), Held> {
        self.shared.lock().table.take(self.turn, &self.name, wanted, false)
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        self.shared.lock().table.give_back(self.turn);
        self.shared.changed.notify_all();
    }
}

fn run(entry: &mut Entry, now_ns: u64) {
    if entry.state == OperationState::Queued {
        entry.state = OperationState::Running;
        entry.started_ns = Some(now_ns);
    }
}

impl std::fmt::Debug for Locks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Locks").field("name", &self.name).finish_non_exhaustive()
    }
}
