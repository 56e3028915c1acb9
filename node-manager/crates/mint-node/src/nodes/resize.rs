// SPDX-License-Identifier: Apache-2.0
//! More or less for a node, while it runs or at rest.

use mint_ops::Op;
use mint_types::{NodeState, NodeStatus, Refusal, RefusalCode, ResizeSpec};
use tracing::{info, info_span};

use crate::nodes::{Carried, Nodes};
use crate::outcome::{Done, OpError};
use mint_plan::Planner;

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
        let plan = |planner: &Planner<'_>| {
            let node = planner.inventory.resolve(reference).map_err(|refusal| vec![refusal])?;
            can_change(node).map_err(|refusal| vec![refusal])?;
            planner.resize(node, spec)
        };
        let (done, carried) = self.carry_out(op, &plan, dry_run)?;
        if let Some(Carried { locks: _locks, .. }) = carried {
            op.commit()?;
            info!(id = %done.node, "resized");
        }
        Ok(done)
    }
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
