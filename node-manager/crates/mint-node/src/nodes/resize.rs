// SPDX-License-Identifier: Apache-2.0
//! More or less for a node, while it runs or at rest.

use std::time::Instant;

use mint_ops::Op;
use mint_types::{NodeState, NodeStatus, Plan, Refusal, RefusalCode, ResizeSpec, Taken};
use tracing::{info, info_span};

use crate::nodes::{Carried, Nodes, planned};
use crate::outcome::{Done, OpError};
use mint_plan::{Planner, taken};

impl Nodes {
    /// Changes what a node owns: all of the request, or nothing.
    ///
    /// # Errors
    /// With all refusals, and nothing was changed; or with the step that
    /// failed, and the ones before were taken back.
    pub fn resize(
        &self,
        op: &Op,
        reference: &str,
        spec: &ResizeSpec,
        dry_run: bool,
    ) -> Result<Done, OpError> {
        let _span = info_span!("resize", node = %reference).entered();
        let plan = |planner: &Planner<'_>| plan(planner, reference, spec);
        let (done, carried) = self.carry_out(op, &plan, dry_run)?;
        if let Some(Carried { locks: _locks, .. }) = carried {
            op.commit()?;
            info!(id = %done.node, "resized");
        }
        Ok(done)
    }

    /// What a resize would do, and what it would take from nodes that run, if no guest was pinned
    /// to a core of theirs. Changes nothing, and waits for no operation.
    ///
    /// # Errors
    /// With all refusals.
    pub fn plan_resize(
        &self,
        reference: &str,
        spec: &ResizeSpec,
    ) -> Result<(Done, Vec<Taken>), OpError> {
        let (began, inventory, answers) = (Instant::now(), self.inventory()?, self.answers());
        let planner = Planner { repins: true, ..Planner::new(&inventory, &answers) };
        let found = plan(&planner, reference, spec).map_err(OpError::Refused)?;
        Ok((planned(&found, &inventory, began), taken(&found.steps, &inventory)))
    }
}

fn plan(planner: &Planner<'_>, reference: &str, spec: &ResizeSpec) -> Result<Plan, Vec<Refusal>> {
    let node = planner.inventory.resolve(reference).map_err(|refusal| vec![refusal])?;
    can_change(node).map_err(|refusal| vec![refusal])?;
    planner.resize(node, spec)
}

fn can_change(node: &NodeStatus) -> Result<(), Refusal> {
    if node.state == NodeState::Running || node.state.is_at_rest() {
        return Ok(());
    }
    let label = node.label();
    let why = format!("{label} is {}: what it owns cannot change now", node.state);
    Err(Refusal::new(RefusalCode::NodeNotRunning, &label, why)
        .hint("wait until it runs, or stop it"))
}
