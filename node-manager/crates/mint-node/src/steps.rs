// SPDX-License-Identifier: Apache-2.0
//! Carries out steps and takes them back.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use mint_fault::fault_point;
use mint_ops::{Cancelled, Intent, JournalError, Op};
use mint_sys::SysError;
use mint_types::{
    Bdf, Gift, HolderKind, Kind, NodeId, NodeStatus, Refusal, ResState, ResourceKey, Step,
};
use tracing::{info, warn};

use crate::facts::refused_by_kernel;
use crate::machine::Machine;
use crate::peers::{PeerError, Peers, Stopped, in_turn};
use mint_host::Host;
use mint_plan::progress;

/// How long a rollback waits for a running peer whose daemon does not answer: what keeps it
/// running starts it again after a second.
const PEER_IS_BACK: Duration = Duration::from_secs(match (cfg!(test), cfg!(feature = "fake")) {
    (true, _) => 0,
    // daemons on a fake machine are there again at once, or not at all
    (false, true) => 1,
    (false, false) => 20,
});
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// One step failed.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The kernel's call.
    #[error(transparent)]
    Kernel(#[from] SysError),
    /// The peer that owns the resource.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The node that it is about is not there any more: its id may be another one's.
    #[error("node {node} is not {name} any more: what {name} gave up stays as it is")]
    Another {
        /// The id.
        node: NodeId,
        /// Whose it was.
        name: String,
    },
    /// Somebody else has it by now.
    #[error("{key} is node {owner}'s by now")]
    Taken {
        /// What was to be claimed.
        key: ResourceKey,
        /// Who owns it.
        owner: NodeId,
    },
    /// This node's kernel could not empty a memory block, which stays.
    #[error("{}", .0.message)]
    Stays(Box<Refusal>),
    /// The driver did not let go.
    #[error("{driver} does not let go of {bdf}")]
    Unbind {
        /// Function.
        bdf: Bdf,
        /// Its driver.
        driver: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl StepError {
    /// What is to be told of the resource, if whoever owns it said.
    pub(crate) fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Stays(refusal) | Self::Peer(PeerError::Refused { refusal, .. }) => Some(refusal),
            _ => None,
        }
    }
}

/// A plan was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// A step failed; those before it were taken back.
    #[error("could not {step}{}", rollback_text(.left))]
    Step {
        /// What was tried.
        step: String,
        /// What could not be taken back, in words.
        left: Vec<String>,
        /// The memory block that its owner tried to give up in vain: another one may do.
        stays: Option<ResourceKey>,
        /// What the owners said: of a memory block, and of those that were tried before.
        refusals: Vec<Refusal>,
        /// Why the step failed.
        #[source]
        source: Box<StepError>,
    },
    /// Nothing is changed without a journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Somebody wanted it to end; what was done was taken back.
    #[error("it was cancelled{}", rollback_text(.left))]
    Cancelled {
        /// What could not be taken back, in words.
        left: Vec<String>,
    },
}

fn rollback_text(left: &[String]) -> String {
    if left.is_empty() {
        "; everything is as it was before".to_owned()
    } else {
        format!("; not taken back: {} (mintctl doctor tells more)", left.join("; "))
    }
}

/// The block that a step should have freed, if it is still its owner's. Of memory
/// only the try shows whether its content can be moved away.
fn stays(step: &Step, error: &StepError) -> Option<ResourceKey> {
    let refused =
        matches!(error, StepError::Kernel(SysError::Move { .. })) || error.refusal().is_some();
    match step {
        Step::Release { key, .. } if refused && key.kind == Kind::Memory => Some(*key),
        _ => None,
    }
}

/// The node whose resource a step moves.
fn node_of(step: &Step) -> Option<NodeId> {
    match step {
        Step::Release { node, .. } | Step::Claim { node, .. } => Some(*node),
        Step::Create { .. } | Step::Destroy { .. } => None,
    }
}

fn released(step: &Step) -> Option<ResourceKey> {
    match step {
        Step::Release { key, .. } => Some(*key),
        _ => None,
    }
}

fn key_of(step: &Step) -> Option<ResourceKey> {
    match step {
        Step::Release { key, .. } | Step::Claim { key, .. } => Some(*key),
        Step::Create { .. } | Step::Destroy { .. } => None,
    }
}

fn claimed(step: &Step) -> Option<Gift> {
    match step {
        Step::Claim { key, driver, .. } => Some(Gift { key: *key, driver: driver.clone() }),
        _ => None,
    }
}

/// Acts on the machine for one operation.
pub(crate) struct Applier<'a> {
    pub machine: &'a dyn Machine,
    pub host: &'a dyn Host,
    pub peers: &'a dyn Peers,
    /// The node that we are on.
    pub here: NodeId,
    /// Names that nodes had when the operation began.
    pub names: &'a BTreeMap<NodeId, String>,
}

impl Applier<'_> {
    /// All steps, or none. The operation stays open: the caller commits it when all
    /// that belongs to it is done.
    pub fn run(&self, op: &Op, intent: &Intent) -> Result<(), ApplyError> {
        op.begin(intent.clone(), false)?;
        fault_point("after-journal");
        let steps = &intent.steps;
        let mut begin = 0;
        while begin < steps.len() {
            if let Err(Cancelled) = op.check() {
                let left = self.roll_back(op, &steps[..begin]);
                return Err(ApplyError::Cancelled { left });
            }
            let end = begin + self.together(&steps[begin..]);
            (begin..end).filter_map(|at| progress(steps, at)).for_each(|text| op.progress(&text));
            if let Err(Stopped { at, error: source }) = self.steps(&steps[begin..end]) {
                let failed = begin + at;
                // a peer that was lost sight of may have done any of them
                let lost = matches!(source, StepError::Peer(PeerError::Unreachable { .. }));
                let done: Vec<Step> = (0..end)
                    .filter(|&index| lost || index != failed)
                    .map(|index| steps[index].clone())
                    .collect();
                let left = self.roll_back(op, &done);
                return Err(ApplyError::Step {
                    step: steps[failed].to_string(),
                    left,
                    stays: stays(&steps[failed], &source),
                    refusals: source.refusal().cloned().into_iter().collect(),
                    source: Box::new(source),
                });
            }
            begin = end;
        }
        fault_point("before-commit");
        Ok(())
    }

    /// How many of these steps, from the first, one request to a peer does.
    fn together(&self, steps: &[Step]) -> usize {
        let Some(node) = steps.first().and_then(|step| self.peer_for(step)) else { return 1 };
        let release = |step: &Step| matches!(step, Step::Release { .. });
        let alike =
            |step: &&Step| release(step) == release(&steps[0]) && node_of(step) == Some(node);
        steps.iter().take_while(alike).count()
    }

    /// The running peer that does this step for us.
    fn peer_for(&self, step: &Step) -> Option<NodeId> {
        let node = node_of(step).filter(|&node| node != self.here)?;
        // a ledger that cannot be read is the step's own failure
        self.is_live(node).unwrap_or(false).then_some(node)
    }

    /// Steps of one node and kind, as [`Self::together`] found them.
    fn steps(&self, steps: &[Step]) -> Result<(), Stopped<StepError>> {
        let Some(node) = steps.first().and_then(|step| self.peer_for(step)) else {
            return in_turn(steps, |step| self.step(step));
        };
        let keys: Vec<_> = steps.iter().filter_map(released).collect();
        let done = if keys.is_empty() {
            let gifts: Vec<_> = steps.iter().filter_map(claimed).collect();
            self.peers.claim(node, &gifts)
        } else {
            self.peers.release(node, &keys)
        };
        done.map_err(|Stopped { at, error }| Stopped { at, error: error.into() })
    }

    /// Takes back steps, last first, and notes what is left. That is returned in words.
    pub fn roll_back(&self, op: &Op, done: &[Step]) -> Vec<String> {
        let (left, words) = self.take_back(done);
        if let Err(error) = op.taken_back(left) {
            warn!(%error, "journal");
        }
        words
    }

    /// Takes back steps, last first. What cannot be taken back is returned, in their
    /// order and in words: the rest is taken back all the same.
    pub fn take_back(&self, done: &[Step]) -> (Vec<Step>, Vec<String>) {
        let (mut left, mut words) = (Vec::new(), Vec::new());
        let mut kept = BTreeSet::new();
        for step in done.iter().rev() {
            let undo = step.undo();
            let key = key_of(step);
            if key.is_some_and(|key| kept.contains(&key)) {
                // where it goes back to cannot claim it while its later owner has it
                left.insert(0, step.clone());
                continue;
            }
            info!(%undo, "roll back");
            if let Err(error) = self.ensure_patiently(&undo) {
                warn!(%undo, %error, "cannot be taken back");
                words.push(format!("{undo}: {error}"));
                // neither a node that is gone nor what another one has comes back: nothing to
                // be repaired
                if !matches!(error, StepError::Another { .. } | StepError::Taken { .. }) {
                    left.insert(0, step.clone());
                    kept.extend(key);
                }
            }
        }
        (left, words)
    }

    /// Whether the node of that id is the one that the operation knew.
    fn is_same(&self, node: NodeId) -> Result<bool, SysError> {
        let Some(name) = self.names.get(&node) else { return Ok(true) };
        Ok(self.machine.node(node)?.is_some_and(|found| found.display_name() == *name))
    }

    /// As [`Self::ensure`]; a peer whose daemon just died is given time to come back.
    fn ensure_patiently(&self, step: &Step) -> Result<(), StepError> {
        let began = Instant::now();
        loop {
            match self.ensure(step) {
                Err(StepError::Peer(PeerError::Unreachable { .. }))
                    if began.elapsed() < PEER_IS_BACK && self.peer_for(step).is_some() =>
                {
                    std::thread::sleep(LOOK_AGAIN);
                }
                done => return done,
            }
        }
    }

    /// Brings a step's outcome about, if it is not there yet: for rollback and
    /// after a crash, where nobody knows how far things went.
    pub fn ensure(&self, step: &Step) -> Result<(), StepError> {
        let entry = |key: ResourceKey| -> Result<(ResState, Option<NodeId>), SysError> {
            let all = self.machine.resources(key.kind)?;
            let found = all.iter().find(|resource| resource.key == key);
            Ok(found.map_or((ResState::Absent, None), |found| (found.state, found.owner)))
        };
        match step {
            Step::Create { node, .. } if self.machine.node(*node)?.is_some() => {
                if self.is_same(*node)? { Ok(()) } else { self.step(step) }
            }
            Step::Destroy { node, name } => match self.machine.node(*node)? {
                Some(found) if found.name == name.as_str() => self.step(step),
                _ => Ok(()),
            },
            Step::Release { key, node, .. } => match entry(*key)? {
                (ResState::Owned | ResState::Moving, Some(owner))
                    if owner == *node && self.is_same(*node)? =>
                {
                    self.step(step)
                }
                _ => Ok(()),
            },
            Step::Claim { node, .. } if !self.is_same(*node)? => {
                let name = self.names.get(node).cloned().unwrap_or_default();
                Err(StepError::Another { node: *node, name })
            }
            Step::Claim { key, node, driver } => match entry(*key)? {
                (ResState::Owned, Some(owner)) if owner == *node => {
                    // one that had no driver may have been left without by its user
                    if driver.is_some() {
                        self.bind_here(*key, *node, driver.as_deref());
                    }
                    Ok(())
                }
                (ResState::Owned, Some(owner)) => Err(StepError::Taken { key: *key, owner }),
                _ => self.step(step),
            },
            Step::Create { .. } => self.step(step),
        }
    }

    /// One step.
    pub fn step(&self, step: &Step) -> Result<(), StepError> {
        if self.peer_for(step).is_some() {
            return self.steps(std::slice::from_ref(step)).map_err(|stopped| stopped.error);
        }
        match step {
            Step::Create { node, name } => Ok(self.machine.create(*node, name.as_str())?),
            Step::Destroy { node, .. } => Ok(self.machine.destroy(*node)?),
            Step::Release { key, node, .. } => self.release(*key, *node),
            Step::Claim { key, node, driver } => self.claim(*key, *node, driver.as_deref()),
        }
    }

    /// Owned by `node` -> free: this node's, or one's that does not run.
    pub fn release(&self, key: ResourceKey, node: NodeId) -> Result<(), StepError> {
        self.release_it(key, node)?;
        fault_point("after-release");
        Ok(())
    }

    fn release_it(&self, key: ResourceKey, node: NodeId) -> Result<(), StepError> {
        if node != self.here {
            return Ok(self.machine.release(key, node, false)?);
        }
        let Some(bdf) = key.bdf() else {
            let done = self.machine.release(key, node, false);
            return done.map_err(|error| self.not_released(key, error));
        };
        let driver = self.host.driver(bdf);
        if let Some(driver) = &driver {
            self.host.unbind(bdf).map_err(|source| StepError::Unbind {
                bdf,
                driver: driver.clone(),
                source,
            })?;
        }
        if let Err(error) = self.machine.release(key, node, false) {
            self.bind_here(key, node, driver.as_deref());
            return Err(error.into());
        }
        Ok(())
    }

    /// Why this node keeps a core or a memory block.
    fn not_released(&self, key: ResourceKey, error: SysError) -> StepError {
        let timed_out = match &error {
            SysError::Move { failure, .. } if key.kind == Kind::Memory => failure.timed_out(),
            _ => return error.into(),
        };
        let phys = self.machine.info().map(|info| info.block_range(key.id));
        // the sooner the truer: what was moved away may come back
        let pages = phys.ok().and_then(|phys| self.host.block_pages(phys, timed_out));
        let here = self.machine.node(self.here).ok().flatten();
        let label = here.as_ref().map_or_else(|| format!("node {}", self.here), NodeStatus::label);
        let mut refusal = refused_by_kernel(key, &label, &error);
        if let Some(pages) = pages {
            if let Some(holder) = pages.holders.first() {
                refusal = refusal.hint(match holder.what {
                    HolderKind::Guest => format!(
                        "end {holder}, move it away first (mintctl vm migrate, node resize \
                         --evacuate), or choose another one"
                    ),
                    _ => format!("end {holder}, or choose another one"),
                });
            }
            refusal = refusal.with_pages(pages);
        }
        StepError::Stays(Box::new(refusal))
    }

    /// Free -> owned by `node`, and its driver bound: this node, or one that does not run.
    pub fn claim(
        &self,
        key: ResourceKey,
        node: NodeId,
        driver: Option<&str>,
    ) -> Result<(), StepError> {
        self.machine.claim(key, node, false)?;
        fault_point("after-claim");
        self.bind_here(key, node, driver);
        Ok(())
    }

    /// A function that came (back) to this node gets a driver. That none fits
    /// is no failure: the function is here, as the ledger says.
    fn bind_here(&self, key: ResourceKey, node: NodeId, driver: Option<&str>) {
        if let (Kind::Device, true, Some(bdf)) = (key.kind, node == self.here, key.bdf()) {
            if let Err(error) = self.host.bind(bdf, driver) {
                warn!(%bdf, driver = driver.unwrap_or("any"), %error, "no driver bound");
            }
        }
    }

    fn is_live(&self, node: NodeId) -> Result<bool, SysError> {
        Ok(self.machine.node(node)?.is_some_and(|node| node.state.is_live()))
    }
}
