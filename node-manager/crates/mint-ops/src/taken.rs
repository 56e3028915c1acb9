// SPDX-License-Identifier: Apache-2.0
//! What a daemon does about the intents of dead nodes, and about those of its own that others
//! took: who begins an operation may not be who ends it.

use mint_types::{NodeId, OperationId, OperationState};

use crate::area::{Holder, Place, Took};
use crate::entry::{Entry, Origin};
use crate::intents::{Found, failed, found, is_unreadable, look};
use crate::op::Op;
use crate::operations::Operations;
use crate::shared::State;
use crate::slot::Slot;
use crate::store::JournalError;

/// What was found in the slots of dead nodes.
#[derive(Default)]
pub struct TakenOver {
    /// Operations that are this daemon's now: to be settled.
    pub ops: Vec<Op>,
    /// Nodes with cores that are not parked: what they hold can be taken once they are.
    pub unparked: Vec<NodeId>,
    /// Intents that nobody can read, in words.
    pub unreadable: Vec<String>,
}

/// An operation of this daemon that another node has taken while this one did not run.
pub struct Elsewhere {
    /// The operation.
    pub op: Op,
    /// Who has it; none if it is settled already.
    pub holder: Option<NodeId>,
}

impl Operations {
    /// Intents of dead nodes that nobody has ended, in words; none where there is no room
    /// for intents.
    ///
    /// # Errors
    /// When the area cannot be read.
    pub fn left_by_the_dead(&self) -> Result<Option<Vec<String>>, JournalError> {
        let Some(area) = self.0.area.as_deref() else { return Ok(None) };
        let mut left = Vec::new();
        for Found { place, holder, record } in found(area)? {
            match (holder, record) {
                (Holder::Gone(_), Some((entry, from))) => {
                    let Entry { kind, subject, .. } = entry;
                    left.push(format!("{from} ({kind} {subject}) is not ended"));
                }
                (_, None) if is_unreadable(area, place)? => {
                    left.push(format!("{place} cannot be read"));
                }
                _ => {}
            }
        }
        Ok(Some(left))
    }

    /// Operations of this daemon that another node took while this one did not run: it
    /// ends them. Given once.
    pub fn elsewhere(&self) -> Vec<Elsewhere> {
        let mut state = self.0.lock();
        let taken = state.all.iter_mut().filter_map(|(&id, slot)| {
            let holder = slot.elsewhere.take()?;
            Some(Elsewhere { op: Op { shared: self.0.clone(), id }, holder })
        });
        taken.collect()
    }

    /// Takes what dead nodes were at, in this machine's boot. Of several daemons that do
    /// so, one gets each operation.
    ///
    /// # Errors
    /// When the area or the journal fails; what was taken before is given the next time.
    pub fn take_over(&self) -> Result<TakenOver, JournalError> {
        let mut taken = TakenOver::default();
        let Some(area) = self.0.area.as_deref() else { return Ok(taken) };
        let mut state = self.0.lock();
        for Found { place, holder, record } in found(area)? {
            let known = state.all.values().any(|slot| slot.place == Some(place));
            let ours = place.node == area.here();
            match (holder, &record) {
                (Holder::Nobody | Holder::Live(_), _) => continue,
                (Holder::Us, _) if known => continue,
                (_, Some((entry, _))) if entry.boot_id == self.0.boot_id => {}
                // no daemon ever reads what this one cannot: but its node wants its slots
                (_, None) if ours && is_unreadable(area, place)? => {
                    taken.unreadable.push(place.to_string());
                }
                (_, None) if is_unreadable(area, place)? => {
                    taken.unreadable.push(place.to_string());
                    continue;
                }
                // its node died before it had written anything, or when it had ended
                _ => {}
            }
            match area.take(place).map_err(failed("take it", Some(place)))? {
                Took::Lost => continue,
                Took::NotYet => {
                    if let Holder::Gone(Some(node)) = holder {
                        taken.unparked.push(node);
                    }
                    continue;
                }
                Took::Ours => {}
            }
            // another one may have had it meanwhile
            match look(area, place)?.1 {
                Some((entry, from)) if entry.boot_id == self.0.boot_id => {
                    taken.ops.push(self.begin_taken(&mut state, place, entry, from)?);
                }
                _ => area.clear(place).map_err(failed("clear it", Some(place)))?,
            }
        }
        taken.unparked.sort_unstable();
        taken.unparked.dedup();
        Ok(taken)
    }

    /// An operation of this daemon's, of what it took.
    fn begin_taken(
        &self,
        state: &mut State,
        place: Place,
        entry: Entry,
        from: Origin,
    ) -> Result<Op, JournalError> {
        let id = OperationId(state.next);
        let mut entry = Entry {
            id,
            state: OperationState::Running,
            cancel: false,
            started_ns: Some(self.0.now_ns()),
            ended_ns: None,
            taken_from: Some(from.clone()),
            ..entry
        };
        entry.say(format!("taken over: it was {from}"));
        let mut slot = Slot::new(entry, None, false, true);
        slot.place = Some(place);
        self.0.write(&slot, true)?;
        state.next += 1;
        state.all.insert(id, slot);
        Ok(Op { shared: self.0.clone(), id })
    }
}
