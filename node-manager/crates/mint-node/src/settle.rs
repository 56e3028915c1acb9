// SPDX-License-Identifier: Apache-2.0
//! What becomes of an operation whose daemon died: before its point of no return it is
//! taken back, after it, finished. How far it had come the ledger tells, which cannot be
//! out of date: each step is looked at before it is taken back or done.

use mint_ops::{Entry, Held, Intent, Op};
use mint_types::{NodeId, NodeStatus, OperationKind, Plan, Step};
use tracing::warn;

use crate::nodes::Nodes;
use crate::outcome::OpError;
use crate::steps::StepError;
use crate::turn::locks_of;
use mint_plan::Inventory;

/// What became of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Settled {
    /// Nothing of it is left, but for these steps, in words.
    TakenBack(Vec<String>),
    /// All of it is done, but for these notes.
    Finished(Vec<String>),
    /// It belongs to an earlier boot of the machine: its ledger is gone.
    Void,
    /// It can only be finished by going on with its request.
    GoOn,
    /// Another one changes something of it: later.
    Held(Held),
}

/// A node that has the id and name of the intent's.
fn subject<'i>(intent: &Intent, inventory: &'i Inventory) -> Option<&'i NodeStatus> {
    let node = inventory.node(intent.node)?;
    // a node without a name is called by its id
    (node.display_name() == intent.name.as_str()).then_some(node)
}

/// Whether the node was started since the intent was written.
fn was_started(intent: &Intent, inventory: &Inventory) -> bool {
    let node = subject(intent, inventory);
    node.is_some_and(|node| node.state.is_live() && node.boots > intent.boots.unwrap_or(0))
}

impl Nodes {
    /// Settles an operation that nobody carries out any more. It is not over then: the
    /// caller says how it ended.
    ///
    /// # Errors
    /// When the ledger or the journal cannot be read or written; it stays as it was.
    pub fn settle(&self, op: &Op) -> Result<Settled, OpError> {
        let entry = op.entry();
        if entry.boot_id != self.ops.boot_id() {
            op.taken_back(Vec::new())?;
            return Ok(Settled::Void);
        }
        let Some(intent) = entry.open.clone() else {
            return Ok(match entry.kind {
                // its parts are operations of their own, and all that it does
                OperationKind::Apply if !entry.state.is_over() => Settled::GoOn,
                _ if entry.past_no_return => Settled::Finished(Vec::new()),
                _ => Settled::TakenBack(Vec::new()),
            });
        };
        let changes = Plan {
            node: intent.node,
            name: intent.name.clone(),
            steps: intent.steps.clone(),
            notes: Vec::new(),
        };
        let _locks = match op.take(&locks_of(&changes)) {
            Ok(locks) => locks,
            Err(held) => return Ok(Settled::Held(held)),
        };
        let inventory = self.inventory()?;
        let here = inventory.info.node;
        match entry.kind {
            OperationKind::Add | OperationKind::Start | OperationKind::Restart
                if was_started(&intent, &inventory) =>
            {
                op.commit()?;
                Ok(Settled::Finished(Vec::new()))
            }
            OperationKind::Restart | OperationKind::Stop if entry.past_no_return => {
                Ok(Settled::GoOn)
            }
            OperationKind::Kill => self.settle_kill(op, &intent, &inventory),
            _ if entry.past_no_return => {
                let mut notes = match subject(&intent, &inventory) {
                    Some(node) if !node.state.is_live() => self.fetch_cores(op, node)?,
                    Some(node) if Some(node.boots) == intent.boots => self.kill_node(op, node)?,
                    _ => Vec::new(),
                };
                notes.extend(self.finish(here, &entry, &intent)?);
                op.commit()?;
                Ok(Settled::Finished(notes))
            }
            kind => {
                if subject(&intent, &inventory).is_some_and(|node| node.state.is_at_rest()) {
                    _ = self.machine.unload(intent.node);
                }
                let (left, words) = self.applier(here, &intent.names).take_back(&intent.steps);
                if kind == OperationKind::Add {
                    self.specs.forget(intent.node)?;
                }
                op.taken_back(left)?;
                Ok(Settled::TakenBack(words))
            }
        }
    }

    fn settle_kill(
        &self,
        op: &Op,
        intent: &Intent,
        inventory: &Inventory,
    ) -> Result<Settled, OpError> {
        let runs = subject(intent, inventory)
            .is_some_and(|node| node.state.is_live() && Some(node.boots) == intent.boots);
        if runs {
            op.taken_back(Vec::new())?;
            return Ok(Settled::TakenBack(Vec::new()));
        }
        op.commit()?;
        Ok(Settled::Finished(Vec::new()))
    }

    /// Brings every step's outcome about that is not there yet. What the last steps give
    /// away may stay free; gives that in words.
    ///
    /// # Errors
    /// At the first other step that fails.
    pub(crate) fn finish(
        &self,
        here: NodeId,
        entry: &Entry,
        intent: &Intent,
    ) -> Result<Vec<String>, StepError> {
        if entry.kind == OperationKind::Remove {
            // the ledger refuses to take memory from under a loaded image
            _ = self.machine.unload(intent.node);
        }
        let applier = self.applier(here, &intent.names);
        let mut notes = Vec::new();
        for step in &intent.steps {
            match (applier.ensure(step), step) {
                (Ok(()), _) => {}
                (Err(error), Step::Claim { key, node, .. }) => {
                    warn!(%key, %node, %error, "stays free");
                    notes.push(format!("{key} stays free: node {node} did not take it: {error}"));
                }
                (Err(error), _) => return Err(error),
            }
        }
        if entry.kind == OperationKind::Remove {
            if let Err(error) = self.specs.forget(intent.node) {
                warn!(%error, "description is left behind");
            }
        }
        Ok(notes)
    }
}
