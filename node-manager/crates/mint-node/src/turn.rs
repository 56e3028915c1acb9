// SPDX-License-Identifier: Apache-2.0
//! When an operation's turn comes: it has a plan, and all that the plan changes is its own.
//!
//! ```text
//!   look at the ledger ─▶ plan ─▶ take all locks ─▶ look again: as planned? ─▶ go
//!          ▲                         │ held                   │ no
//!          └──────── wait ◀──────────┘◀───────────────────────┘
//! ```
//! Who waits holds nothing, and who holds something does not wait: several operations
//! run at once, and none waits for one that waits for it.

use std::collections::BTreeSet;

use mint_ops::{Held, Lock, Locks, Op};
use mint_types::{NodeId, NodeState, NodeStatus, Plan, Refusal, RefusalCode, ResState, Step};

use crate::nodes::Nodes;
use crate::outcome::OpError;
use mint_plan::Inventory;
use mint_plan::Planner;

/// A plan whose turn has come.
pub(crate) struct Turn {
    pub plan: Plan,
    /// The ledger that it was made from.
    pub inventory: Inventory,
    /// None for a dry run.
    pub locks: Option<Locks>,
}

/// All that a plan changes.
pub(crate) fn locks_of(plan: &Plan) -> BTreeSet<Lock> {
    let mut locks = BTreeSet::from([Lock::Node(plan.node)]);
    for step in &plan.steps {
        locks.insert(match step {
            Step::Create { name, .. } => Lock::Name(name.clone()),
            Step::Destroy { node, .. } => Lock::Node(*node),
            Step::Release { key, .. } | Step::Claim { key, .. } => Lock::Resource(*key),
        });
    }
    locks
}

/// The ledger as one sees it who does not wait: what others hold is being moved, and the
/// nodes that they make are there.
fn without(inventory: &Inventory, held: &[Held]) -> Inventory {
    let mut seen = inventory.clone();
    for Held { lock, .. } in held {
        match lock {
            Lock::Resource(key) => {
                let all = [&mut seen.cpus, &mut seen.memory, &mut seen.devices];
                let found = all.into_iter().flatten().find(|resource| resource.key == *key);
                if let Some(resource) = found {
                    resource.state = ResState::Moving;
                }
            }
            Lock::Node(node) if seen.node(*node).is_none() => seen.nodes.push(coming(*node)),
            Lock::Node(_) | Lock::Name(_) => {}
        }
    }
    seen
}

/// A node that another operation makes.
fn coming(id: NodeId) -> NodeStatus {
    NodeStatus {
        id,
        name: String::new(),
        state: NodeState::Stopped,
        boots: 0,
        heartbeat: 0,
        state_change_ns: 0,
        cpus_online: 0,
        boot_cpu: None,
        memory_bytes: 0,
        release: String::new(),
        reason: String::new(),
    }
}

/// Whether each resource of the plan is as it was.
fn is_as_planned(plan: &Plan, then: &Inventory, now: &Inventory) -> bool {
    plan.steps.iter().all(|step| match step {
        Step::Release { key, .. } | Step::Claim { key, .. } => {
            let look = |inventory: &Inventory| {
                inventory.find(*key).map(|resource| (resource.state, resource.owner))
            };
            look(then) == look(now)
        }
        Step::Create { node, .. } => now.node(*node).is_none(),
        Step::Destroy { node, .. } => now.node(*node).is_some(),
    })
}

/// That another operation has it.
pub(crate) fn held(held: &Held) -> Refusal {
    Refusal::new(RefusalCode::OperationHolds, &held.lock, held)
        .owned_by(&held.holder)
        .hint("wait for it: mintctl operation list")
}

impl Nodes {
    /// Plans, and waits until all that the plan changes is this operation's own. A dry
    /// run plans only: it says what others hold, and waits for nobody.
    ///
    /// # Errors
    /// With all refusals; or when it is cancelled while it waits.
    pub(crate) fn turn(
        &self,
        op: &Op,
        dry_run: bool,
        plan: &dyn Fn(&Planner<'_>) -> Result<Plan, Vec<Refusal>>,
    ) -> Result<Turn, OpError> {
        let answers = self.answers();
        loop {
            op.check()?;
            let given_back = op.given_back();
            let others = op.held_by_others();
            let inventory = self.inventory()?;
            let seen = without(&inventory, &others);
            let found = match plan(&Planner::new(&seen, &answers)) {
                Ok(found) => found,
                // where only what others hold stands in the way, it may come free
                Err(_) => plan(&Planner::new(&inventory, &answers)).map_err(OpError::Refused)?,
            };
            let wanted = locks_of(&found);
            if dry_run {
                let other = others.iter().find(|other| wanted.contains(&other.lock));
                return match other {
                    Some(other) => Err(held(other).into()),
                    None => Ok(Turn { plan: found, inventory, locks: None }),
                };
            }
            let blocked = match op.take(&wanted) {
                Ok(locks) if is_as_planned(&found, &inventory, &self.inventory()?) => {
                    op.running()?;
                    return Ok(Turn { plan: found, inventory, locks: Some(locks) });
                }
                // somebody was done just now
                Ok(_) => continue,
                Err(held) => held,
            };
            op.wait(given_back, &blocked)?;
        }
    }

    /// Waits until a node is this operation's own.
    ///
    /// # Errors
    /// When it is cancelled meanwhile.
    pub(crate) fn node_turn(&self, op: &Op, node: NodeId) -> Result<Locks, OpError> {
        loop {
            op.check()?;
            let given_back = op.given_back();
            match op.take(&BTreeSet::from([Lock::Node(node)])) {
                Ok(locks) => {
                    op.running()?;
                    return Ok(locks);
                }
                Err(held) => op.wait(given_back, &held)?,
            }
        }
    }
}
