// SPDX-License-Identifier: Apache-2.0
//! Operations on the fake machine.

mod for_peers;
mod lifecycle;
mod model;
mod planner;
mod resize;
mod settle;
mod takeover;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use mint_host::Host;
use mint_ops::{End, Folder, Intent, Op, Operations, Request};
use mint_plan::Planner;
use mint_types::{
    Asker, Bdf, BlockPages, Gift, HolderKind, Kind, NodeId, NodeName, NodeSpec, NodeState,
    OperationKind, PageHolder, PageKind, PagesOfKind, RefusalCode, ResState, ResizeSpec,
    ResourceKey, Step, Taken,
};

use self::planner::Images;
use crate::config::Config;
use crate::fake::FakeMachine;
use crate::machine::Machine;
use crate::nodes::Nodes;
use crate::outcome::{Done, GiveBack, OpError};
use crate::peers::Stopped;
use crate::settle::Settled;
use crate::specs::SpecStore;
use crate::steps::ApplyError;

fn nodes(fake: &Arc<FakeMachine>, folder: &Path) -> Nodes {
    Nodes {
        machine: fake.clone(),
        host: fake.clone(),
        peers: fake.clone(),
        bundle: fake.clone(),
        config: Arc::new(Config::default()),
        ops: Operations::open(Folder::open(folder).unwrap(), 42, || 1).unwrap(),
        specs: SpecStore::open(folder).unwrap(),
    }
}

impl Nodes {
    /// Carries out an operation by that name, to its end.
    fn run<T>(
        &self,
        kind: OperationKind,
        work: impl FnOnce(&Op) -> Result<T, OpError>,
    ) -> Result<T, OpError> {
        let op = self.submit(kind);
        let result = work(&op);
        let end = if result.is_ok() { End::Done } else { End::Failed };
        op.finish(end(serde_json::Value::Null)).unwrap();
        result
    }

    fn submit(&self, kind: OperationKind) -> Op {
        let request = Request {
            kind,
            subject: "web".into(),
            asked_by: Asker::Daemon,
            body: serde_json::Value::Null,
            part_of: None,
            dry_run: false,
        };
        self.ops.submit(request).unwrap()
    }

    fn add_now(&self, spec: &NodeSpec, dry_run: bool) -> Result<Done, OpError> {
        self.run(OperationKind::Add, |op| self.add(op, spec, dry_run))
    }

    fn start_now(&self, node: &str) -> Result<Done, OpError> {
        self.run(OperationKind::Start, |op| self.start(op, node, None))
    }

    fn kill_now(&self, node: &str) -> Result<Done, OpError> {
        self.run(OperationKind::Kill, |op| self.kill(op, node))
    }

    fn remove_now(&self, node: &str, force: bool, to: GiveBack) -> Result<Done, OpError> {
        self.run(OperationKind::Remove, |op| self.remove(op, node, force, to))
    }

    fn resize_now(&self, node: &str, spec: &ResizeSpec) -> Result<Done, OpError> {
        self.run(OperationKind::Resize, |op| self.resize(op, node, spec, false))
    }

    /// Operations that are not settled.
    fn open(&self) -> Vec<Intent> {
        self.ops.list().into_iter().filter_map(|entry| entry.open).collect()
    }

    /// What a daemon does when it starts.
    fn settle_all(&self) -> Vec<(OperationKind, Settled)> {
        let settle = |op: Op| {
            let kind = op.entry().kind;
            let settled = self.settle(&op).unwrap();
            op.finish(End::Undone(serde_json::Value::Null)).unwrap();
            (kind, settled)
        };
        self.ops.interrupted().into_iter().map(settle).collect()
    }
}

fn one() -> NodeId {
    NodeId::new(1).unwrap()
}

fn disk() -> Bdf {
    "0000:03:00.0".parse().unwrap()
}

impl Nodes {
    /// Begins an operation on node 1 (web), and does the first steps of it.
    fn begin(&self, kind: OperationKind, steps: &[Step], done: usize, past_no_return: bool) {
        let name: NodeName = "web".parse().unwrap();
        let names = BTreeMap::from([(NodeId::ZERO, "node0".to_owned()), (one(), "web".to_owned())]);
        let intent = Intent { node: one(), name, boots: None, steps: steps.to_vec(), names };
        self.submit(kind).begin(intent.clone(), past_no_return).unwrap();
        for step in &steps[..done] {
            self.applier(NodeId::ZERO, &intent.names).step(step).unwrap();
        }
    }

    fn plan_for_test(&self, spec: &NodeSpec) -> Vec<Step> {
        let inventory = self.inventory().unwrap();
        Planner::new(&inventory, &self.answers()).add(spec).unwrap().steps
    }
}

fn running_web(images: &Images, fake: &Arc<FakeMachine>, folder: &Path) -> Nodes {
    let nodes = nodes(fake, folder);
    nodes.add_now(&images.spec("web"), false).unwrap();
    nodes
}
