// SPDX-License-Identifier: Apache-2.0
//! Operations on nodes. Each call may block for as long as the kernel's moves take, and
//! returns when the ledger is settled; several may run at once (`turn.rs`).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use mint_ops::{Intent, Lock, Op};
use mint_types::{
    Kind, NodeId, NodeName, NodeSpec, NodeStatus, Plan, Refusal, RefusalCode, ResourceKey, Step,
};
use tracing::{info, info_span, warn};

use crate::nodes::{Carried, Nodes, about, intent, ms, name_of, not_running, planned};
use crate::outcome::{Done, GiveBack, OpError, Times};
use crate::specs::no_description;
use crate::steps::ApplyError;
use crate::turn::{Turn, locks_of};
use mint_plan::Inventory;
use mint_plan::Planner;
use mint_plan::{describe, progress};

/// After that, a memory block that stays is not replaced by another one any more: a
/// try may take the kernel's whole time limit for emptying a block.
const OTHER_BLOCKS_WITHIN: Duration = Duration::from_secs(60);

impl Nodes {
    /// Makes a node, and starts it if its description says so.
    ///
    /// # Errors
    /// With all refusals, and nothing was changed; or with the step that
    /// failed, and the ones before were taken back.
    pub fn add(&self, op: &Op, spec: &NodeSpec, dry_run: bool) -> Result<Done, OpError> {
        let _span = info_span!("add", node = %spec.name).entered();
        let plan = |planner: &Planner<'_>| planner.add(spec);
        let (mut done, carried) = self.carry_out(op, &plan, dry_run)?;
        if spec.start {
            done.steps.push(format!("load and start node {} ({})", done.node, done.name));
        }
        let Some(Carried { intent, here, locks: _locks }) = carried else { return Ok(done) };
        if let Err(error) = self.finish_add(op, &intent, spec, &mut done.times) {
            let left = self.applier(here, &intent.names).roll_back(op, &intent.steps);
            if let Err(error) = self.specs.forget(intent.node) {
                warn!(%error, "description is left behind");
            }
            return Err(match error {
                OpError::Boot { action, node, hint, source, .. } => {
                    OpError::Boot { action, node, hint, left, source }
                }
                other => other,
            });
        }
        op.commit()?;
        info!(id = %intent.node, "added");
        Ok(done)
    }

    /// Plans, and carries all steps out or none; the operation stays open. A dry run
    /// begins nothing.
    ///
    /// A memory block that turns out to stay where it is costs the rest nothing:
    /// all is taken back, and a plan without that block is carried out.
    pub(crate) fn carry_out(
        &self,
        op: &Op,
        plan: &dyn Fn(&Planner<'_>) -> Result<Plan, Vec<Refusal>>,
        dry_run: bool,
    ) -> Result<(Done, Option<Carried>), OpError> {
        let began = Instant::now();
        let Turn { plan: mut found, mut inventory, locks } = self.turn(op, dry_run, plan)?;
        let mut done = planned(&found, &inventory, began);
        let Some(mut locks) = locks else { return Ok((done, None)) };
        let here = inventory.info.node;
        let mut stay = BTreeSet::new();
        let mut told = Vec::new();
        loop {
            done.notes.iter().for_each(|note| op.progress(note));
            let apply_began = Instant::now();
            let intent = intent(&found, &inventory);
            let mut error = match self.applier(here, &intent.names).run(op, &intent) {
                Ok(()) => {
                    done.times.apply_ms = ms(apply_began);
                    return Ok((done, Some(Carried { intent, here, locks })));
                }
                Err(error) => error,
            };
            let ApplyError::Step { left, stays: Some(block), refusals, source, .. } = &mut error
            else {
                return Err(error.into());
            };
            // each block that was tried has its own reason
            let why =
                refusals.first().map_or_else(|| source.to_string(), |why| why.message.clone());
            if !refusals.is_empty() {
                told.append(refusals);
                refusals.clone_from(&told);
            }
            let late = began.elapsed() > OTHER_BLOCKS_WITHIN;
            if late || !left.is_empty() || !stay.insert(*block) {
                return Err(error.into());
            }
            let text = format!("{block} stays where it is ({why}); looking for another one");
            op.progress(&text);
            inventory = self.inventory()?;
            // who holds something does not wait: what others have is no other block either
            stay.extend(op.held_by_others().into_iter().filter_map(|other| match other.lock {
                Lock::Resource(key) => Some(key),
                Lock::Node(_) | Lock::Name(_) => None,
            }));
            let answers = self.answers();
            let mut planner = Planner::new(&inventory, &answers);
            planner.stay.clone_from(&stay);
            // too few other blocks: the try that failed says more than that
            found = match plan(&planner) {
                Ok(found) if locks.extend(&locks_of(&found)).is_ok() => found,
                _ => return Err(error.into()),
            };
            done = planned(&found, &inventory, began);
        }
    }

    fn finish_add(
        &self,
        op: &Op,
        intent: &Intent,
        spec: &NodeSpec,
        times: &mut Times,
    ) -> Result<(), OpError> {
        self.specs.put(&self.inventory()?, intent.node, spec)?;
        if !spec.start {
            return Ok(());
        }
        op.check()?;
        let progress = |text: &str| op.progress(text);
        let result = self.boot(intent.node, &intent.name, spec, times, &progress);
        if result.is_err() {
            // the ledger refuses to take memory from under a loaded image
            _ = self.machine.unload(intent.node);
        }
        result
    }

    /// Starts a node that is at rest. `spec` is what to boot, where that is not what our
    /// own description says: another mintd has it, or the user asked for something else.
    ///
    /// # Errors
    /// When it runs, nothing says what it boots, or its image is no good.
    pub fn start(&self, op: &Op, reference: &str, spec: Option<NodeSpec>) -> Result<Done, OpError> {
        let id = self.inventory()?.resolve(reference)?.id;
        let _locks = self.node_turn(op, id)?;
        let inventory = self.inventory()?;
        let node = inventory.resolve(reference)?;
        let _span = info_span!("start", node = %node.display_name()).entered();
        if !node.state.is_at_rest() {
            let label = node.label();
            return Err(Refusal::new(
                RefusalCode::NodeRunning,
                &label,
                format_args!("{label} is {} already", node.state),
            )
            .hint(format_args!("to start it anew: mintctl node restart {}", node.display_name()))
            .into());
        }
        let name: NodeName = node.display_name().parse().map_err(|error| {
            Refusal::new(RefusalCode::NameBad, node.label(), error)
                .hint("remove the node and add it again with another name")
        })?;
        let spec = match spec {
            Some(spec) => spec,
            None => {
                let own = self.specs.get(&inventory, node.id);
                let own = own.ok_or_else(|| no_description(node, &[]))?;
                // of what it had once, less and less may be left
                self.specs.put(&inventory, node.id, &own)?;
                own
            }
        };
        let mut times = Times::default();
        let notes = self.fetch_cores(op, node)?;
        op.begin(about(node), false)?;
        let progress = |text: &str| op.progress(text);
        if let Err(error) = self.boot(node.id, &name, &spec, &mut times, &progress) {
            _ = self.machine.unload(node.id);
            op.taken_back(Vec::new())?;
            return Err(error);
        }
        op.commit()?;
        Ok(Done {
            node: node.id,
            name: name.to_string(),
            steps: vec![format!("load and start {}", node.label())],
            notes,
            times,
        })
    }

    /// Ends a node by force, or fetches the cores of one that ended without parking
    /// them. Its resources stay its own. It waits for nobody: what moves to or from the
    /// node fails and is taken back.
    ///
    /// # Errors
    /// When there is nothing to do, it is the node that we are on, or not all its cores
    /// could be parked.
    pub fn kill(&self, op: &Op, reference: &str) -> Result<Done, OpError> {
        let inventory = self.inventory()?;
        let node = inventory.resolve(reference)?;
        let _span = info_span!("kill", node = %node.display_name()).entered();
        self.not_ourselves(&inventory, node, "kill")?;
        if !node.state.is_live() && !self.is_stranded(node)? {
            return Err(not_running(node).into());
        }
        let notes = self.kill_node(op, node)?;
        Ok(Done {
            node: node.id,
            name: node.display_name(),
            steps: vec![format!("kill {}", node.label())],
            notes,
            times: Times::default(),
        })
    }

    /// Frees all that a node at rest owns, and the node itself.
    ///
    /// # Errors
    /// When it runs and `force` is not set, or a resource cannot be released.
    pub fn remove(
        &self,
        op: &Op,
        reference: &str,
        force: bool,
        give_back: GiveBack,
    ) -> Result<Done, OpError> {
        let began = Instant::now();
        let plan = |planner: &Planner<'_>| {
            self.plan_remove(planner.inventory, reference, force, give_back)
        };
        let Turn { plan, inventory, locks: _locks } = self.turn(op, false, &plan)?;
        let _span = info_span!("remove", node = %plan.name).entered();
        let node = inventory.resolve(reference)?;
        op.check()?;
        let mut intent = intent(&plan, &inventory);
        // this start of it may be ended, and no other
        intent.boots = node.state.is_live().then_some(node.boots);
        // there is no way back to a node that the user wanted to be rid of
        op.begin(intent.clone(), true)?;
        let parked = if node.state.is_live() {
            op.progress(&format!("kill {}", node.label()));
            self.kill_node(op, node)
        } else {
            self.fetch_cores(op, node)
        };
        let mut notes = match parked {
            Ok(notes) => notes,
            Err(error) => {
                op.taken_back(Vec::new())?;
                return Err(error);
            }
        };
        (0..plan.steps.len())
            .filter_map(|at| progress(&plan.steps, at))
            .for_each(|text| op.progress(&text));
        let finished = self.finish(inventory.info.node, &op.entry(), &intent);
        let finished = finished.map_err(|source| ApplyError::Step {
            step: format!("remove {}", node.label()),
            left: vec![format!(
                "the steps before it; repeat: mintctl node remove {}",
                node.display_name()
            )],
            stays: None,
            refusals: source.refusal().cloned().into_iter().collect(),
            source: Box::new(source),
        })?;
        notes.extend(finished);
        op.commit()?;
        info!("removed");
        Ok(Done {
            node: node.id,
            name: node.display_name(),
            steps: describe(&plan.steps, &inventory),
            notes,
            times: Times { apply_ms: ms(began), ..Times::default() },
        })
    }

    /// Who takes a node apart releases all that it has, be it on its way out or in, and
    /// gives cores and functions to another one.
    pub(crate) fn plan_remove(
        &self,
        inventory: &Inventory,
        reference: &str,
        force: bool,
        give_back: GiveBack,
    ) -> Result<Plan, Vec<Refusal>> {
        let node = inventory.resolve(reference).map_err(|refusal| vec![refusal])?;
        self.not_ourselves(inventory, node, "remove").map_err(|refusal| vec![refusal])?;
        let label = node.label();
        if node.id == NodeId::ZERO {
            let why = "node 0 cannot be removed: it owns the platform";
            return Err(vec![Refusal::new(RefusalCode::NodeSelf, label, why)]);
        }
        let can_be_ended = force && node.state.is_live();
        if !node.state.is_at_rest() && !can_be_ended {
            let why = format!("{label} is {}", node.state);
            let name = node.display_name();
            let hint = format!("first: mintctl node stop {name}; or kill it with --force");
            let refusal = Refusal::new(RefusalCode::NodeRunning, &label, why);
            return Err(vec![refusal.owned_by(&label).hint(hint)]);
        }
        let (id, name) = (node.id, name_of(node));
        // also what its kernel was moving when it died
        let owned: Vec<ResourceKey> = inventory.held_by(id).map(|resource| resource.key).collect();
        let release = |&key: &ResourceKey| Step::Release { key, node: id, driver: None };
        let mut steps: Vec<Step> = owned.iter().map(release).collect();
        steps.push(Step::Destroy { node: id, name: name.clone() });
        if let GiveBack::To(to) = give_back {
            let given = owned.iter().filter(|key| key.kind != Kind::Memory);
            steps.extend(given.map(|&key| Step::Claim { key, node: to, driver: None }));
        }
        Ok(Plan { node: id, name, steps, notes: Vec::new() })
    }

    fn not_ourselves(
        &self,
        inventory: &Inventory,
        node: &NodeStatus,
        what: &str,
    ) -> Result<(), Refusal> {
        if node.id != inventory.info.node {
            return Ok(());
        }
        Err(Refusal::new(
            RefusalCode::NodeSelf,
            node.label(),
            format_args!("{} cannot {what} itself", node.label()),
        )
        .hint("do it from another node"))
    }
}
