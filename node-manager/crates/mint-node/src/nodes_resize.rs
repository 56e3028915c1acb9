// SPDX-License-Identifier: Apache-2.0
//! More or less for a node, while it runs or at rest.

use std::time::Instant;

use mint_types::{NodeState, Refusal, RefusalCode, ResizeSpec};
use tracing::{info, info_span};

use crate::describe::describe;
use crate::journal::{Begun, Operation};
use crate::nodes::{Nodes, Progress, ms};
use crate::outcome::{Done, OpError, Times};

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
        let began = Instant::now();
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
        let plan = self.planner(&inventory).resize(&node, spec).map_err(OpError::Refused)?;
        let mut done = Done {
            node: plan.node,
            name: plan.name.to_string(),
            steps: describe(&plan.steps, &inventory),
            notes: plan.notes,
            times: Times { plan_ms: ms(began), ..Times::default() },
        };
        if dry_run {
            return Ok(done);
        }
        for note in &done.notes {
            progress(note);
        }
        let began = Instant::now();
        let begun = Begun {
            operation: Operation::Resize,
            boot_id: inventory.info.boot_id,
            node: plan.node,
            name: plan.name,
            steps: plan.steps,
        };
        self.applier(inventory.info.node).run(&begun, progress)?;
        self.journal.end()?;
        done.times.apply_ms = ms(began);
        info!(id = %plan.node, "resized");
        Ok(done)
    }
}
