// SPDX-License-Identifier: Apache-2.0
//! Steps that peers ask this node for, each with one lock, and without a wait: two that ask
//! each other would wait for ever.

use std::collections::{BTreeMap, BTreeSet};

use mint_ops::Lock;
use mint_types::{Gift, Refusal, ResourceKey};

use crate::facts::has_guests;
use crate::nodes::Nodes;
use crate::outcome::OpError;
use crate::peers::{Stopped, in_turn};
use crate::steps::StepError;
use crate::turn::held;
use mint_plan::busy;
use mint_plan::{Inventory, Planner};

/// Whoever asked may have gone, and takes back what he knows of: no more behind his back.
fn still(wanted: &dyn Fn() -> bool) -> Result<(), OpError> {
    if wanted() { Ok(()) } else { Err(OpError::Unwanted) }
}

impl Nodes {
    /// Resources of this node, asked for by a peer: out of use, then free, one
    /// after the other. It ends early when nobody waits for it any more. It waits for no
    /// operation of this node: two that ask each other would wait for ever.
    ///
    /// # Errors
    /// At the first that is not ours, in use, another operation's, or that the kernel
    /// refuses.
    pub fn release_here(
        &self,
        keys: &[ResourceKey],
        wanted: &dyn Fn() -> bool,
    ) -> Result<(), Stopped<OpError>> {
        let inventory = self.inventory().map_err(|error| Stopped { at: 0, error })?;
        let here = inventory.info.node;
        let names = BTreeMap::new();
        in_turn(keys, |&key| {
            let _lock = self.step_for_a_peer(key)?;
            // in the lock: who takes over from the one that asked looks at that first
            still(wanted)?;
            self.not_in_use(&inventory, key)?;
            if let Some(refusal) = has_guests(&*self.host, &inventory, key) {
                return Err(refusal.into());
            }
            self.applier(here, &names).release(key, here).map_err(|error| match error {
                StepError::Stays(refusal) => OpError::Refused(vec![*refusal]),
                other => other.into(),
            })
        })
    }

    /// Whether a peer would get these resources of this node, for each of them.
    ///
    /// # Errors
    /// When the ledger cannot be read.
    pub fn releasable_here(
        &self,
        keys: &[ResourceKey],
    ) -> Result<Vec<Result<(), Refusal>>, OpError> {
        let inventory = self.inventory()?;
        let here = inventory.info.node;
        let answers = self.answers();
        let planner = Planner::new(&inventory, &answers);
        let others = self.ops.held();
        let answer = |&key| {
            if let Some(other) = others.iter().find(|other| other.lock == Lock::Resource(key)) {
                return Err(held(other));
            }
            self.not_in_use(&inventory, key)?;
            planner.can_release(key, here)
        };
        Ok(keys.iter().map(answer).collect())
    }

    fn not_in_use(&self, inventory: &Inventory, key: ResourceKey) -> Result<(), Refusal> {
        let users = key.bdf().map(|bdf| self.host.users(bdf)).unwrap_or_default();
        if users.is_empty() {
            return Ok(());
        }
        Err(busy(key, &inventory.label(inventory.info.node), &users))
    }

    /// Free resources for this node, given by a peer, one after the other. It ends
    /// early when nobody waits for it any more.
    ///
    /// # Errors
    /// At the first that the kernel refuses.
    pub fn claim_here(
        &self,
        gifts: &[Gift],
        wanted: &dyn Fn() -> bool,
    ) -> Result<(), Stopped<OpError>> {
        let here = self.inventory().map_err(|error| Stopped { at: 0, error })?.info.node;
        let names = BTreeMap::new();
        in_turn(gifts, |gift| {
            let _lock = self.step_for_a_peer(gift.key)?;
            still(wanted)?;
            Ok(self.applier(here, &names).claim(gift.key, here, gift.driver.as_deref())?)
        })
    }

    fn step_for_a_peer(&self, key: ResourceKey) -> Result<mint_ops::Locks, Refusal> {
        let name = format!("a step that another node asked for ({key})");
        let lock = BTreeSet::from([Lock::Resource(key)]);
        self.ops.take_for_step(&name, &lock).map_err(|other| held(&other))
    }
}
