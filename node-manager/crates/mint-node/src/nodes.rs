// SPDX-License-Identifier: Apache-2.0
//! Operations on nodes. One thread owns a [`Nodes`]; each call may block for as
//! long as the kernel's moves take, and returns when the ledger is settled.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mint_types::{
    Gift, Kind, NodeId, NodeName, NodeSpec, NodeStatus, Plan, Refusal, RefusalCode, ResourceKey,
    Step,
};
use tracing::{info, info_span, warn};

use crate::apply::{Applier, ApplyError, StepError};
use crate::bundle::Bundle;
use crate::config::Config;
use crate::describe::describe;
use crate::host::Host;
use crate::inventory::Inventory;
use crate::journal::{Begun, Journal, Operation};
use crate::machine::Machine;
use crate::outcome::{Done, GiveBack, OpError, Times};
use crate::peers::{Peers, Stopped, in_turn};
use crate::planner::{Planner, busy, has_guests};
use crate::specs::{SpecStore, no_description};

/// Whoever asked may have gone, and takes back what he knows of: no more behind his back.
fn still(wanted: &dyn Fn() -> bool) -> Result<(), OpError> {
    if wanted() { Ok(()) } else { Err(OpError::Unwanted) }
}

/// What operations need; see the traits.
pub struct Nodes {
    /// The kernel.
    pub machine: Arc<dyn Machine>,
    /// This node's devices.
    pub host: Arc<dyn Host>,
    /// Other nodes' daemons.
    pub peers: Arc<dyn Peers>,
    /// Maker of bundles.
    pub bundle: Arc<dyn Bundle>,
    /// Settings.
    pub config: Arc<Config>,
    /// The journal.
    pub journal: Journal,
    /// Descriptions.
    pub specs: SpecStore,
}

pub(crate) type Progress<'a> = &'a dyn Fn(&str);

/// After that, a memory block that stays is not replaced by another one any more: a
/// try may take the kernel's whole time limit for emptying a block.
const OTHER_BLOCKS_WITHIN: Duration = Duration::from_secs(60);

impl Nodes {
    /// Makes a node, and starts it if its description says so.
    ///
    /// # Errors
    /// With all refusals, and nothing was changed; or with the step that
    /// failed, and the ones before were taken back.
    pub fn add(
        &mut self,
        spec: &NodeSpec,
        dry_run: bool,
        progress: Progress<'_>,
    ) -> Result<Done, OpError> {
        let _span = info_span!("add", node = %spec.name).entered();
        let inventory = self.inventory()?;
        let plan = |planner: &Planner<'_>| planner.add(spec);
        let (mut done, begun) =
            self.carry_out(Operation::Add, &inventory, plan, dry_run, progress)?;
        if spec.start {
            done.steps.push(format!("load and start node {} ({})", done.node, done.name));
        }
        let Some(begun) = begun else { return Ok(done) };
        if let Err(error) = self.finish_add(&begun, spec, &mut done.times, progress) {
            let left = self.applier(inventory.info.node).roll_back(&begun.steps);
            if let Err(error) = self.specs.forget(begun.node) {
                warn!(%error, "description is left behind");
            }
            return Err(match error {
                OpError::Boot { action, node, hint, source, .. } => {
                    OpError::Boot { action, node, hint, left, source }
                }
                other => other,
            });
        }
        self.journal.end()?;
        info!(id = %begun.node, "added");
        Ok(done)
    }

    /// Plans, and carries all steps out or none; the journal stays open. A dry run
    /// begins nothing.
    ///
    /// A memory block that turns out to stay where it is costs the rest nothing:
    /// all is taken back, and a plan without that block is carried out.
    pub(crate) fn carry_out(
        &mut self,
        operation: Operation,
        inventory: &Inventory,
        plan: impl Fn(&Planner<'_>) -> Result<Plan, Vec<Refusal>>,
        dry_run: bool,
        progress: Progress<'_>,
    ) -> Result<(Done, Option<Begun>), OpError> {
        let began = Instant::now();
        let mut stay = BTreeSet::new();
        let mut told = Vec::new();
        let mut failed: Option<ApplyError> = None;
        loop {
            let mut planner = self.planner(inventory);
            planner.stay.clone_from(&stay);
            // too few other blocks: the try that failed says more than that
            let found = plan(&planner).map_err(|refusals| {
                failed.take().map_or(OpError::Refused(refusals), OpError::Apply)
            })?;
            let mut done = planned(&found, inventory, began);
            if dry_run {
                return Ok((done, None));
            }
            for note in &done.notes {
                progress(note);
            }
            let apply_began = Instant::now();
            let begun = Begun {
                operation,
                boot_id: inventory.info.boot_id,
                node: found.node,
                name: found.name,
                steps: found.steps,
            };
            let mut error = match self.applier(inventory.info.node).run(&begun, progress) {
                Ok(()) => {
                    done.times.apply_ms = ms(apply_began);
                    return Ok((done, Some(begun)));
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
            progress(&format!("{block} stays where it is ({why}); looking for another one"));
            failed = Some(error);
        }
    }

    fn finish_add(
        &mut self,
        begun: &Begun,
        spec: &NodeSpec,
        times: &mut Times,
        progress: Progress<'_>,
    ) -> Result<(), OpError> {
        self.specs.put(&self.inventory()?, begun.node, spec)?;
        if !spec.start {
            return Ok(());
        }
        let result = self.boot(begun.node, &begun.name, spec, times, progress);
        if result.is_err() {
            // the ledger refuses to take memory from under a loaded image
            _ = self.machine.unload(begun.node);
        }
        result
    }

    /// Starts a node that is at rest. `spec` is what to boot, where that is not what our
    /// own description says: another mintd has it, or the user asked for something else.
    ///
    /// # Errors
    /// When it runs, nothing says what it boots, or its image is no good.
    pub fn start(
        &mut self,
        reference: &str,
        spec: Option<NodeSpec>,
        progress: Progress<'_>,
    ) -> Result<Done, OpError> {
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
        let notes = self.fetch_cores(node, progress)?;
        self.boot(node.id, &name, &spec, &mut times, progress)?;
        Ok(Done {
            node: node.id,
            name: name.to_string(),
            steps: vec![format!("load and start {}", node.label())],
            notes,
            times,
        })
    }

    /// Ends a node by force, or fetches the cores of one that ended without parking
    /// them. Its resources stay its own.
    ///
    /// # Errors
    /// When there is nothing to do, it is the node that we are on, or not all its cores
    /// could be parked.
    pub fn kill(&mut self, reference: &str) -> Result<Done, OpError> {
        let inventory = self.inventory()?;
        let node = inventory.resolve(reference)?;
        let _span = info_span!("kill", node = %node.display_name()).entered();
        self.not_ourselves(&inventory, node, "kill")?;
        if !node.state.is_live() && !self.is_stranded(node)? {
            return Err(not_running(node).into());
        }
        let notes = self.kill_node(node)?;
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
        &mut self,
        reference: &str,
        force: bool,
        give_back: GiveBack,
        progress: Progress<'_>,
    ) -> Result<Done, OpError> {
        let began = Instant::now();
        let inventory = self.inventory()?;
        let node = inventory.resolve(reference)?.clone();
        let _span = info_span!("remove", node = %node.display_name()).entered();
        self.not_ourselves(&inventory, &node, "remove")?;
        if node.id == NodeId::ZERO {
            return Err(Refusal::new(
                RefusalCode::NodeSelf,
                node.label(),
                "node 0 cannot be removed: it owns the platform",
            )
            .into());
        }
        let notes = if node.state.is_at_rest() {
            self.fetch_cores(&node, progress)?
        } else {
            if !force || !node.state.is_live() {
                let label = node.label();
                return Err(Refusal::new(
                    RefusalCode::NodeRunning,
                    &label,
                    format_args!("{label} is {}", node.state),
                )
                .owned_by(&label)
                .hint(format_args!(
                    "first: mintctl node stop {}; or kill it with --force",
                    node.display_name()
                ))
                .into());
            }
            progress(&format!("kill {}", node.label()));
            self.kill_node(&node)?
        };
        // also what its kernel was moving when it died
        let inventory = self.inventory()?;
        let owned: Vec<ResourceKey> =
            inventory.held_by(node.id).map(|resource| resource.key).collect();
        let name: NodeName = node
            .name
            .parse()
            .unwrap_or_else(|_| format!("node{}", node.id).parse().expect("nodeN is a good name"));
        let mut steps: Vec<Step> =
            owned.iter().map(|&key| Step::Release { key, node: node.id, driver: None }).collect();
        steps.push(Step::Destroy { node: node.id, name: name.clone() });
        let begun = Begun {
            operation: Operation::Remove,
            boot_id: inventory.info.boot_id,
            node: node.id,
            name,
            steps,
        };
        self.journal.begin(&begun)?;
        _ = self.machine.unload(node.id);
        self.finish_remove(inventory.info.node, &begun, progress)?;
        let mut done = Done {
            node: node.id,
            name: node.display_name(),
            steps: describe(&begun.steps, &inventory),
            notes,
            times: Times { apply_ms: ms(began), ..Times::default() },
        };
        if let GiveBack::To(to) = give_back {
            self.give_back(&inventory, to, &owned, &mut done, progress);
        }
        info!("removed");
        Ok(done)
    }

    /// Remove goes on where it was interrupted: each step only if needed.
    fn finish_remove(
        &mut self,
        here: NodeId,
        begun: &Begun,
        progress: Progress<'_>,
    ) -> Result<(), OpError> {
        for (index, step) in begun.steps.iter().enumerate() {
            if let Some(text) = begun.progress(index) {
                progress(&text);
            }
            let applier = self.applier(here);
            applier.ensure(step).map_err(|source| ApplyError::Step {
                step: step.to_string(),
                left: vec![format!(
                    "the steps before it; repeat: mintctl node remove {}",
                    begun.name
                )],
                stays: None,
                refusals: source.refusal().cloned().into_iter().collect(),
                source: Box::new(source),
            })?;
        }
        self.journal.end()?;
        self.specs.forget(begun.node)?;
        Ok(())
    }

    fn give_back(
        &mut self,
        inventory: &Inventory,
        to: NodeId,
        owned: &[ResourceKey],
        done: &mut Done,
        progress: Progress<'_>,
    ) {
        let label = inventory.label(to);
        for &key in owned.iter().filter(|key| key.kind != Kind::Memory) {
            let step = Step::Claim { key, node: to, driver: None };
            progress(&step.to_string());
            let applier = self.applier(inventory.info.node);
            match applier.step(&step) {
                Ok(()) => done.steps.push(step.to_string()),
                Err(error) => {
                    warn!(%key, %to, %error, "stays free");
                    done.notes.push(format!("{key} stays free: {label} did not take it: {error}"));
                }
            }
        }
    }

    /// Resources of this node, asked for by a peer: out of use, then free, one
    /// after the other. It ends early when nobody waits for it any more.
    ///
    /// # Errors
    /// At the first that is not ours, in use, or that the kernel refuses.
    pub fn release_here(
        &mut self,
        keys: &[ResourceKey],
        wanted: &dyn Fn() -> bool,
    ) -> Result<(), Stopped<OpError>> {
        let inventory = self.inventory().map_err(|error| Stopped { at: 0, error })?;
        let here = inventory.info.node;
        in_turn(keys, |&key| {
            still(wanted)?;
            self.not_in_use(&inventory, key)?;
            if let Some(refusal) = has_guests(&*self.host, &inventory, key) {
                return Err(refusal.into());
            }
            self.applier(here).release(key, here).map_err(|error| match error {
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
        let planner = self.planner(&inventory);
        let answer = |&key| {
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
        &mut self,
        gifts: &[Gift],
        wanted: &dyn Fn() -> bool,
    ) -> Result<(), Stopped<OpError>> {
        let here = self.inventory().map_err(|error| Stopped { at: 0, error })?.info.node;
        in_turn(gifts, |gift| {
            still(wanted)?;
            Ok(self.applier(here).claim(gift.key, here, gift.driver.as_deref())?)
        })
    }

    /// Ends what a killed mintd left half done, by the journal. Returns what was
    /// done, in words.
    ///
    /// # Errors
    /// When the journal or the kernel fails.
    pub fn reconcile(&mut self) -> Result<Vec<String>, OpError> {
        let Some(begun) = self.journal.open_operation()? else { return Ok(Vec::new()) };
        let inventory = self.inventory()?;
        if begun.boot_id != inventory.info.boot_id {
            self.journal.end()?;
            return Ok(vec![format!(
                "journal of an earlier boot of the machine dropped ({})",
                begun.name
            )]);
        }
        match begun.operation {
            Operation::Add if inventory.is_live(begun.node) => {
                self.journal.end()?;
                Ok(vec![format!("node {} had been started: kept", begun.name)])
            }
            Operation::Add | Operation::Resize => {
                let is_add = begun.operation == Operation::Add;
                if is_add {
                    _ = self.machine.unload(begun.node);
                }
                // those that were never done are found as they should be
                let left = self.applier(inventory.info.node).roll_back(&begun.steps);
                if is_add {
                    self.specs.forget(begun.node)?;
                }
                let what = if is_add { "add" } else { "resize" };
                let mut told = vec![format!("unfinished node {what} {} taken back", begun.name)];
                told.extend(left);
                Ok(told)
            }
            Operation::Remove => {
                self.finish_remove(inventory.info.node, &begun, &|_| {})?;
                Ok(vec![format!("unfinished node remove {} finished", begun.name)])
            }
        }
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

    pub(crate) fn inventory(&self) -> Result<Inventory, OpError> {
        Inventory::read(&*self.machine)
            .map_err(|source| OpError::Kernel { action: "read the ledger".into(), source })
    }

    pub(crate) fn planner<'a>(&'a self, inventory: &'a Inventory) -> Planner<'a> {
        Planner {
            inventory,
            machine: &*self.machine,
            host: &*self.host,
            peers: &*self.peers,
            config: &self.config,
            stay: BTreeSet::new(),
            answers: RefCell::default(),
        }
    }

    pub(crate) fn applier(&mut self, here: NodeId) -> Applier<'_> {
        Applier {
            machine: &*self.machine,
            host: &*self.host,
            peers: &*self.peers,
            journal: &mut self.journal,
            here,
        }
    }
}

/// That an operation wants a running node.
pub fn not_running(node: &NodeStatus) -> Refusal {
    let label = node.label();
    Refusal::new(
        RefusalCode::NodeNotRunning,
        &label,
        format_args!("{label} does not run: it is {}", node.state),
    )
    .hint(format_args!("start it: mintctl node start {}", node.display_name()))
}

/// What a plan will have done when it is carried out; `began` is when planning did.
pub(crate) fn planned(plan: &Plan, inventory: &Inventory, began: Instant) -> Done {
    Done {
        node: plan.node,
        name: plan.name.to_string(),
        steps: describe(&plan.steps, inventory),
        notes: plan.notes.clone(),
        times: Times { plan_ms: ms(began), ..Times::default() },
    }
}

pub(crate) fn ms(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "nodes_tests.rs"]
mod tests;
