// SPDX-License-Identifier: Apache-2.0
//! What becomes of an operation whose node died: the one that took its intent settles it as
//! its own daemon would have, once nobody does a step of it any more.

use std::collections::BTreeMap;

use mint_ops::{Entry, Held, Intent, Lock, Op};
use mint_types::{NodeId, OperationKind, RefusalCode, ResourceKey, Step};

use crate::nodes::Nodes;
use crate::outcome::OpError;
use crate::settle::Settled;

impl Nodes {
    /// As [`Nodes::settle`], of an operation that was taken from a node that died.
    /// A daemon that did a step for that node may be at it still: then it is held. With
    /// `impatient`, one that does not answer is not waited for.
    ///
    /// # Errors
    /// As [`Nodes::settle`]; it stays as it was.
    pub fn settle_taken(&self, op: &Op, impatient: bool) -> Result<Settled, OpError> {
        let entry = op.entry();
        if let Some(open) = entry.open.as_ref().filter(|_| entry.boot_id == self.ops.boot_id()) {
            if let Some(settled) = self.settle_our_end(op, &entry, open)? {
                return Ok(settled);
            }
            if let Some(held) = self.goes_on_elsewhere(open, impatient)? {
                return Ok(Settled::Held(held));
            }
        }
        self.settle(op)
    }

    /// The end of this node, which runs: either that has not begun, or it is over.
    fn settle_our_end(
        &self,
        op: &Op,
        entry: &Entry,
        open: &Intent,
    ) -> Result<Option<Settled>, OpError> {
        let inventory = self.inventory()?;
        let here = inventory.info.node;
        let ends = [
            OperationKind::Stop,
            OperationKind::Restart,
            OperationKind::Kill,
            OperationKind::Remove,
        ];
        if open.node != here || !ends.contains(&entry.kind) {
            return Ok(None);
        }
        let boots = inventory.node(here).map(|node| node.boots);
        if entry.kind == OperationKind::Remove || open.boots == boots {
            op.taken_back(Vec::new())?;
            return Ok(Some(Settled::TakenBack(Vec::new())));
        }
        op.commit()?;
        Ok(Some(Settled::Finished(Vec::new())))
    }

    /// A step of it that another node's daemon does, or might.
    fn goes_on_elsewhere(&self, open: &Intent, impatient: bool) -> Result<Option<Held>, OpError> {
        let inventory = self.inventory()?;
        let mut asked: BTreeMap<NodeId, Vec<ResourceKey>> = BTreeMap::new();
        for step in &open.steps {
            if let Step::Release { key, node, .. } | Step::Claim { key, node, .. } = step {
                if *node != inventory.info.node && inventory.is_live(*node) {
                    asked.entry(*node).or_default().push(*key);
                }
            }
        }
        for (node, keys) in asked {
            let held = |key: ResourceKey, holder: String| {
                Ok(Some(Held { lock: Lock::Resource(key), holder }))
            };
            match self.peers.releasable(node, &keys) {
                Ok(said) => {
                    let busy = |refusal: &&mint_types::Refusal| {
                        refusal.code == RefusalCode::OperationHolds
                    };
                    let mut all = keys.iter().zip(&said);
                    let found =
                        all.find_map(|(key, said)| Some((*key, said.as_ref().err().filter(busy)?)));
                    if let Some((key, refusal)) = found {
                        return held(key, refusal.message.clone());
                    }
                }
                Err(error) if !impatient => return held(keys[0], error.to_string()),
                Err(_) => {}
            }
        }
        Ok(None)
    }
}
