// SPDX-License-Identifier: Apache-2.0
//! What operations on nodes have in common: the traits that they act through, and words for
//! what they are about.

mod fetch;
mod repair;
mod resize;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use mint_host::Host;
use mint_image::Bundle;
use mint_ops::{Intent, Operations};
use mint_types::{NodeId, NodeName, NodeStatus, Plan, Refusal, RefusalCode, Step};

use crate::config::Config;
use crate::facts::Answers;
use crate::machine::{Machine, read_ledger};
use crate::outcome::{Done, OpError, Times};
use crate::peers::Peers;
use crate::specs::SpecStore;
use crate::steps::Applier;
use mint_plan::Inventory;
use mint_plan::describe;

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
    /// What `mint.toml` says.
    pub config: Arc<Config>,
    /// The journal and the locks.
    pub ops: Operations,
    /// Descriptions.
    pub specs: SpecStore,
}

pub(crate) type Progress<'a> = &'a dyn Fn(&str);

impl Nodes {
    pub(crate) fn inventory(&self) -> Result<Inventory, OpError> {
        read_ledger(&*self.machine)
            .map_err(|source| OpError::Kernel { action: "read the ledger".into(), source })
    }

    /// What plans are told beyond the ledger.
    pub(crate) fn answers(&self) -> Answers<'_> {
        Answers {
            machine: &*self.machine,
            host: &*self.host,
            peers: &*self.peers,
            config: &self.config,
        }
    }

    pub(crate) fn applier<'a>(
        &'a self,
        here: NodeId,
        names: &'a BTreeMap<NodeId, String>,
    ) -> Applier<'a> {
        Applier { machine: &*self.machine, host: &*self.host, peers: &*self.peers, here, names }
    }
}

/// What was carried out, and is not committed yet.
pub(crate) struct Carried {
    pub intent: Intent,
    /// The node that we are on.
    pub here: NodeId,
    /// Held until it is over.
    pub locks: mint_ops::Locks,
}

/// What a plan is going to change, with the names of all whom it concerns.
pub(crate) fn intent(plan: &Plan, inventory: &Inventory) -> Intent {
    let name = |node: NodeId| inventory.node(node).map(NodeStatus::display_name);
    let mut names = BTreeMap::from([(plan.node, plan.name.to_string())]);
    for step in &plan.steps {
        if let Step::Release { node, .. } | Step::Claim { node, .. } = step {
            let named = name(*node).unwrap_or_else(|| plan.name.to_string());
            names.entry(*node).or_insert(named);
        }
    }
    let (node, name, steps) = (plan.node, plan.name.clone(), plan.steps.clone());
    Intent { node, name, boots: None, steps, names }
}

/// That a node changes, in this start of it, and nothing that it owns.
pub fn about(node: &NodeStatus) -> Intent {
    let name = name_of(node);
    let names = BTreeMap::from([(node.id, name.to_string())]);
    Intent { node: node.id, name, boots: Some(node.boots), steps: Vec::new(), names }
}

/// A node's name; of one whose name is none, what stands for its id.
pub(crate) fn name_of(node: &NodeStatus) -> NodeName {
    let plain = || format!("node{}", node.id).parse().expect("nodeN is a good name");
    node.display_name().parse().unwrap_or_else(|_| plain())
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
