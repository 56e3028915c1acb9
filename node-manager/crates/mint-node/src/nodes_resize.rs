// SPDX-License-Identifier: Apache-2.0
//! More or less for a node, while it runs or at rest.

use mint_types::{NodeState, Refusal, RefusalCode, ResizeSpec};
use tracing::{info, info_span};

use crate::journal::Operation;
use crate::nodes::{Nodes, Progress};
use crate::outcome::{Done, OpError};
use crate::planner::Planner;

impl Nodes {
    /// Changes what a node owns: all of the request, or nothing.
    ///
    /// # Errors
    /// With all refusals, and nothing was changed; or with the step that
    /// failed, and the ones before were taken back.
    pub fn resize(
        &mut self,
        reference: &str,
        spec: &ResizeSpec,
        dry_run: bool,
        progress: Progress<'_>,
    ) -> Result<Done, OpError> {
        let inventory = self.inventory()?;
        let node = inventory.resolve(reference)?.clone();
        let _span = info_span!("resize", node = %node.display_name()).entered();
        let label = node.label();
        if node.state != NodeState::Running && !node.state.is_at_rest() {
            return Err(Refusal::new(
                RefusalCode::NodeNotRunning,
                &label,
                format_args!("{label} is {}: what it owns cannot change now", node.state),
            )
            .hint("wait until it runs, or stop it")
            .into());
        }
        let plan = |planner: &Planner<'_>| planner.resize(&node, spec);
        let (done, begun) =
            self.carry_out(Operation::Resize, &inventory, plan, dry_run, progress)?;
        if begun.is_none() {
            return Ok(done);
        }
        self.journal.end()?;
        info!(id = %node.id, "resized");
        Ok(done)
    }
}
