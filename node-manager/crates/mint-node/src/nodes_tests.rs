// SPDX-License-Identifier: Apache-2.0
//! Operations on the fake machine: what they do, and that they do all or nothing.

use super::*;
use crate::fake::FakeMachine;
use crate::planner::tests::Images;
use crate::settle::Settled;
use mint_ops::{End, Folder, Request};
use mint_types::{
    Asker, Bdf, BlockPages, HolderKind, NodeState, OperationKind, PageHolder, PageKind,
    PagesOfKind, ResState, ResizeSpec,
};
use std::path::Path;

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

#[test]
fn add_start_kill_remove_leaves_the_ledger_as_it_was() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = nodes(&fake, folder.path());
    let before = fake.ledger();
    let mut spec = images.spec("web");
    spec.devices = vec![disk()];
    for _ in 0..3 {
        let done = nodes.add_now(&spec, false).unwrap();
        assert_eq!(done.node, one());
        assert_eq!(fake.node(one()).unwrap().unwrap().state, NodeState::Running);
        assert_eq!(nodes.specs.get(&nodes.inventory().unwrap(), one()), Some(spec.clone()));
        nodes.kill_now("web").unwrap();
        nodes.start_now("web").unwrap();
        fake.set_state(one(), NodeState::Halted);
        nodes.remove_now("1", false, GiveBack::To(NodeId::ZERO)).unwrap();
        // the driver's name was the kernel's choice again
        fake.unbind(disk()).unwrap();
        Host::bind(&*fake, disk(), Some("nvme")).unwrap();
        assert_eq!(fake.ledger(), before);
        assert_eq!(nodes.specs.get(&nodes.inventory().unwrap(), one()), None);
        assert_eq!(nodes.open(), Vec::new());
    }
}

#[test]
fn dry_run_only_describes() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let done = nodes(&fake, folder.path()).add_now(&images.spec("web"), true).unwrap();
    assert_eq!(done.steps.first().unwrap(), "create node 1 (web)");
    assert_eq!(done.steps.last().unwrap(), "load and start node 1 (web)");
    assert!(done.steps.contains(&"claim memory 1G at 0x100000000 for node 1".to_owned()));
    assert!(fake.calls().is_empty());
}

/// Whatever step fails, everything is as it was before.
#[test]
fn failure_of_any_step_is_rolled_back() {
    let images = Images::new();
    let mut spec = images.spec("web");
    spec.devices = vec![disk()];
    for fault in [
        "create node 1",
        "unbind 0000:03:00.0",
        "claim device 0000:03:00.0 1",
        "claim cpu 3 1",
        "claim cpu 4 1",
        "claim memory block 39 1",
        "load node 1",
        "start node 1",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let fake = Arc::new(FakeMachine::new());
        let nodes = nodes(&fake, folder.path());
        let before = fake.ledger();
        fake.fail(fault);
        let error = nodes.add_now(&spec, false).unwrap_err();
        assert!(!matches!(error, OpError::Refused(_)), "{fault}: {error}");
        assert_eq!(fake.ledger(), before, "{fault}");
        assert_eq!(nodes.open(), Vec::new(), "{fault}");
        assert_eq!(nodes.specs.get(&nodes.inventory().unwrap(), one()), None, "{fault}");
        fake.heal();
        nodes.add_now(&spec, false).unwrap();
    }
}

/// A mintd that is killed after any number of steps: the next one takes back
/// what was done.
#[test]
fn interrupted_add_is_taken_back_at_the_next_start() {
    let images = Images::new();
    let mut spec = images.spec("web");
    spec.devices = vec![disk()];
    spec.start = false;
    let steps = {
        let folder = tempfile::tempdir().unwrap();
        let fake = Arc::new(FakeMachine::new());
        nodes(&fake, folder.path()).plan_for_test(&spec)
    };
    for done in 0..=steps.len() {
        let folder = tempfile::tempdir().unwrap();
        let fake = Arc::new(FakeMachine::new());
        let before = fake.ledger();
        let killed = nodes(&fake, folder.path());
        killed.begin(OperationKind::Add, &steps, done, false);
        drop(killed);
        let next = nodes(&fake, folder.path());
        let taken_back = (OperationKind::Add, Settled::TakenBack(Vec::new()));
        assert_eq!(next.settle_all(), [taken_back]);
        assert_eq!(fake.ledger(), before, "after {done} steps");
        assert!(next.settle_all().is_empty() && next.open().is_empty());
        assert!(nodes(&fake, folder.path()).settle_all().is_empty(), "it is over for good");
    }
}

#[test]
fn interrupted_remove_is_finished_at_the_next_start() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let first = nodes(&fake, folder.path());
    let mut spec = images.spec("web");
    spec.start = false;
    first.add_now(&spec, false).unwrap();
    fake.fail("release cpu 4 1");
    let error = first.remove_now("web", false, GiveBack::KeepFree).unwrap_err();
    assert!(error.to_string().contains("mintctl node remove web"), "{error}");
    // it is over for its client, and not settled: a repair goes on with it
    assert_eq!(first.open().len(), 1);
    drop(first);
    let next = nodes(&fake, folder.path());
    assert!(next.repair().unwrap()[0].contains("not settled"));
    fake.heal();
    let told = next.repair().unwrap();
    assert!(
        told[0].starts_with("operation 2 (remove web") && told[0].ends_with("is settled"),
        "{told:?}"
    );
    assert_eq!(next.open(), Vec::new());
    assert_eq!(fake.node(one()).unwrap(), None);
    assert_eq!(next.specs.get(&next.inventory().unwrap(), one()), None);
}

/// The command lines that were loaded, in order.
fn loaded(fake: &FakeMachine) -> Vec<String> {
    let load = |call: &String| call.strip_prefix("load 1 ").map(str::to_owned);
    fake.calls().iter().filter_map(load).collect()
}

/// Two daemons, one ledger: B removes what A added, and adds another node of that id.
#[test]
fn description_of_a_removed_node_is_not_booted_for_the_next_of_its_id() {
    let images = Images::new();
    for (next, same_resources) in [("db", true), ("web", true), ("web", false)] {
        let (a_folder, b_folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let fake = Arc::new(FakeMachine::new());
        let (a, b) = (nodes(&fake, a_folder.path()), nodes(&fake, b_folder.path()));
        let mut spec = images.spec("web");
        spec.cmdline = Some("old".into());
        a.add_now(&spec, false).unwrap();
        b.remove_now("web", true, GiveBack::To(NodeId::ZERO)).unwrap();
        let mut spec = images.spec(next);
        spec.cmdline = Some("new".into());
        if !same_resources {
            spec.cpus = Some("5".parse().unwrap());
        }
        b.add_now(&spec, false).unwrap();
        b.kill_now(next).unwrap();
        let result = a.start_now(next);
        assert_eq!(loaded(&fake), ["old", "new"], "{next}: {result:?}");
        let error = result.unwrap_err();
        let OpError::Refused(refusals) = &error else { panic!("{error}") };
        assert_eq!(refusals[0].code, RefusalCode::DescriptionMissing);
        assert!(refusals[0].hint.contains("--default-image"), "{}", refusals[0]);
        assert_eq!(a.specs.get(&a.inventory().unwrap(), one()), None);
        b.start_now(next).unwrap();
        assert_eq!(loaded(&fake), ["old", "new", "new"]);
    }
}

/// Resources come and go; the node stays the same one.
#[test]
fn description_outlives_resizes_and_starts() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let cpus = |text: &str| ResizeSpec { cpus: Some(text.parse().unwrap()), ..Default::default() };
    nodes.resize_now("web", &cpus("4-5")).unwrap();
    nodes.kill_now("web").unwrap();
    nodes.start_now("web").unwrap();
    nodes.kill_now("web").unwrap();
    // what it had when it was added is gone but for its memory; then that goes, too
    nodes.resize_now("web", &cpus("5")).unwrap();
    for block in nodes.inventory().unwrap().owned(one(), Kind::Memory) {
        Machine::release(&*fake, block.key, one(), false).unwrap();
        Machine::claim(&*fake, block.key, one(), false).unwrap();
    }
    nodes.start_now("web").unwrap();
}

#[test]
fn remove_that_died_half_way_is_finished_at_the_next_start() {
    let images = Images::new();
    let steps = |nodes: &Nodes| {
        let inventory = nodes.inventory().unwrap();
        nodes.plan_remove(&inventory, "web", false, GiveBack::To(NodeId::ZERO)).unwrap().steps
    };
    let mut spec = images.spec("web");
    spec.start = false;
    for done in 0..=13 {
        let folder = tempfile::tempdir().unwrap();
        let fake = Arc::new(FakeMachine::new());
        let before = fake.ledger();
        let first = nodes(&fake, folder.path());
        first.add_now(&spec, false).unwrap();
        let steps = steps(&first);
        assert_eq!(steps.len(), 13, "2 cores and 8 blocks go, the node, and the cores come back");
        first.begin(OperationKind::Remove, &steps, done, true);
        drop(first);
        let next = nodes(&fake, folder.path());
        let finished = (OperationKind::Remove, Settled::Finished(Vec::new()));
        assert_eq!(next.settle_all(), [finished], "after {done} steps");
        assert_eq!(fake.ledger(), before, "after {done} steps");
        assert_eq!(next.specs.get(&next.inventory().unwrap(), one()), None);
    }
}

#[test]
fn journal_of_an_earlier_boot_is_void() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Arc::new(FakeMachine::new());
    let before = fake.ledger();
    let earlier = Nodes {
        ops: Operations::open(Folder::open(folder.path()).unwrap(), 41, || 1).unwrap(),
        ..nodes(&fake, folder.path())
    };
    let release = Step::Release { key: ResourceKey::cpu(5), node: NodeId::ZERO, driver: None };
    earlier.begin(OperationKind::Remove, &[release], 0, true);
    let next = nodes(&fake, folder.path());
    assert_eq!(next.settle_all(), [(OperationKind::Remove, Settled::Void)]);
    assert_eq!(fake.ledger(), before);
    assert_eq!(next.open(), Vec::new());
}

/// Ids are used again: what node 1 (web) gave up is not for the next node 1, and what
/// that one has is not taken from it.
#[test]
fn undo_knows_a_node_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Arc::new(FakeMachine::new().with_node(1, "web", &[ResourceKey::cpu(4)]));
    let killed = nodes(&fake, folder.path());
    let (three, four) = (ResourceKey::cpu(3), ResourceKey::cpu(4));
    let steps = [
        Step::Release { key: four, node: one(), driver: None },
        Step::Release { key: three, node: NodeId::ZERO, driver: None },
        Step::Claim { key: three, node: one(), driver: None },
    ];
    killed.begin(OperationKind::Resize, &steps, 3, false);
    drop(killed);
    // meanwhile somebody else took web apart, and made another node 1 of the same core
    fake.set_state(one(), NodeState::Halted);
    Machine::release(&*fake, three, one(), false).unwrap();
    fake.destroy(one()).unwrap();
    fake.create(one(), "db").unwrap();
    Machine::claim(&*fake, three, one(), false).unwrap();
    let before = fake.ledger();
    let next = nodes(&fake, folder.path());
    let (_, settled) = next.settle_all().remove(0);
    let Settled::TakenBack(left) = settled else { panic!("{settled:?}") };
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(left[1].contains("node 1 is not web any more"), "{left:?}");
    assert_eq!(fake.ledger(), before);
    // neither comes back: nothing is left to be repaired
    assert_eq!(next.open(), Vec::new());
}

#[test]
fn running_node_is_removed_by_force_only() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = nodes(&fake, folder.path());
    nodes.add_now(&images.spec("web"), false).unwrap();
    let before = fake.ledger();
    let give_back = GiveBack::To(NodeId::ZERO);
    let error = nodes.remove_now("web", false, give_back).unwrap_err();
    assert!(matches!(&error, OpError::Refused(r) if r[0].code == RefusalCode::NodeRunning));
    assert_eq!(fake.ledger(), before);
    nodes.remove_now("web", true, give_back).unwrap();
    assert_eq!(fake.node(one()).unwrap(), None);
}

#[test]
fn wrong_references_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Arc::new(FakeMachine::new().with_node(1, "web", &[]));
    let nodes = nodes(&fake, folder.path());
    let code = |result: Result<Done, OpError>| match result.unwrap_err() {
        OpError::Refused(refusals) => refusals[0].code,
        other => panic!("{other}"),
    };
    assert_eq!(code(nodes.kill_now("nobody")), RefusalCode::NodeAbsent);
    assert_eq!(code(nodes.kill_now("node0")), RefusalCode::NodeSelf);
    assert_eq!(code(nodes.start_now("web")), RefusalCode::NodeRunning);
    fake.set_state(one(), NodeState::Halted);
    assert_eq!(code(nodes.kill_now("1")), RefusalCode::NodeNotRunning);
    let removed = nodes.remove_now("0", true, GiveBack::KeepFree);
    assert_eq!(code(removed), RefusalCode::NodeSelf);
}

#[test]
fn node_is_made_from_another_node_with_a_peers_core() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake =
        Arc::new(FakeMachine::new().with_node(1, "web", &[ResourceKey::cpu(5)]).seen_from(1));
    let nodes = nodes(&fake, folder.path());
    let mut spec = images.spec("db");
    spec.from = vec!["node0".into()];
    nodes.add_now(&spec, false).unwrap();
    assert!(fake.calls().contains(&"peer 0 releases cpu 3".to_owned()));
    fake.set_state(NodeId::new(2).unwrap(), NodeState::Halted);
    nodes.remove_now("db", false, GiveBack::To(NodeId::ZERO)).unwrap();
    assert!(fake.calls().contains(&"peer 0 claims cpu 3".to_owned()));
}

#[test]
fn device_asked_for_by_a_peer_is_given_unless_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Arc::new(FakeMachine::new());
    let nodes = nodes(&fake, folder.path());
    let key = ResourceKey::device(disk());
    let before = fake.ledger();
    let root = ResourceKey::device("0000:01:00.0".parse().unwrap());
    let said = nodes.releasable_here(&[key, root]).unwrap();
    let codes = said.iter().map(|answer| answer.as_ref().err().map(|refusal| refusal.code));
    assert_eq!(codes.collect::<Vec<_>>(), [None, Some(RefusalCode::DeviceBusy)]);
    assert_eq!(fake.ledger(), before);
    nodes.release_here(&[key], &|| true).unwrap();
    nodes.claim_here(&[Gift { key, driver: Some("nvme".into()) }], &|| true).unwrap();
    assert_eq!(fake.ledger(), before);
    let stopped = nodes.release_here(&[root], &|| true).unwrap_err();
    assert!(matches!(stopped.error, OpError::Refused(_)));
    assert_eq!(fake.ledger(), before);
}

#[test]
fn release_for_a_peer_that_has_gone_ends_with_the_resource_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Arc::new(FakeMachine::new());
    let nodes = nodes(&fake, folder.path());
    let keys = [3, 4, 5].map(ResourceKey::cpu);
    let asked = std::cell::Cell::new(0);
    let wanted = || asked.replace(asked.get() + 1) < 2;
    let stopped = nodes.release_here(&keys, &wanted).unwrap_err();
    assert!(matches!(stopped, Stopped { at: 2, error: OpError::Unwanted }), "{stopped:?}");
    let inventory = nodes.inventory().unwrap();
    assert_eq!(inventory.cpus_of(inventory.info.node).to_string(), "0-2,5");
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
        self.planner(&inventory).add(spec).unwrap().steps
    }
}

/// Changes of node 1 in the fake machine, which has node 1 running with cores 3 and 4.
fn resize(nodes: &Nodes, spec: &ResizeSpec) -> Result<Done, OpError> {
    nodes.resize_now("web", spec)
}

fn running_web(images: &Images, fake: &Arc<FakeMachine>, folder: &Path) -> Nodes {
    let nodes = nodes(fake, folder);
    nodes.add_now(&images.spec("web"), false).unwrap();
    nodes
}

#[test]
fn resize_there_and_back_leaves_the_ledger_as_it_was() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let before = fake.ledger();
    let more = ResizeSpec {
        cpus: Some("+1".parse().unwrap()),
        // two requests for one place: each gets blocks of its own
        memory: vec!["+128M@numa1".parse().unwrap(), "+128M@numa1".parse().unwrap()],
        devices: vec![disk()],
        ..ResizeSpec::default()
    };
    let done = resize(&nodes, &more).unwrap();
    assert_eq!(done.node, one());
    let inventory = nodes.inventory().unwrap();
    assert_eq!(inventory.cpus_of(one()).to_string(), "3-5");
    assert_eq!(inventory.owned(one(), Kind::Memory).count(), 10);
    assert_eq!(inventory.find(ResourceKey::device(disk())).unwrap().owner, Some(one()));
    let less = ResizeSpec {
        cpus: Some("-1".parse().unwrap()),
        memory: vec!["1G".parse().unwrap()],
        drop_devices: vec![disk()],
        ..ResizeSpec::default()
    };
    resize(&nodes, &less).unwrap();
    fake.unbind(disk()).unwrap();
    Host::bind(&*fake, disk(), Some("nvme")).unwrap();
    assert_eq!(fake.ledger(), before);
    assert_eq!(nodes.open(), Vec::new());
}

#[test]
fn owner_is_asked_for_all_of_a_kind_at_once() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let less = ResizeSpec { memory: vec!["-256M".parse().unwrap()], ..ResizeSpec::default() };
    resize(&nodes, &less).unwrap();
    let asked: Vec<String> =
        fake.calls().into_iter().filter(|call| call.contains("is asked")).collect();
    assert_eq!(asked, ["peer 1 is asked for 8"], "all that it has");
}

#[test]
fn peer_that_did_it_all_and_was_lost_sight_of_gets_all_back() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let before = fake.ledger();
    fake.fail("answer of peer 1");
    let less = ResizeSpec { memory: vec!["-256M".parse().unwrap()], ..ResizeSpec::default() };
    let error = resize(&nodes, &less).unwrap_err();
    assert!(matches!(error, OpError::Apply(_)), "{error}");
    let moved = fake.calls().into_iter().filter(|call| call.starts_with("peer 1 releases"));
    assert_eq!(moved.count(), 2);
    assert_eq!(fake.ledger(), before);
}

#[test]
fn resize_that_fails_half_way_is_taken_back() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let before = fake.ledger();
    let spec = ResizeSpec {
        cpus: Some("2-4".parse().unwrap()),
        memory: vec!["+128M@numa1".parse().unwrap()],
        ..ResizeSpec::default()
    };
    fake.fail("claims of peer 1");
    let error = resize(&nodes, &spec).unwrap_err();
    assert!(matches!(error, OpError::Apply(_)), "{error}");
    assert_eq!(fake.ledger(), before);
    // and one that was killed half way is taken back by the next daemon
    fake.heal();
    let steps = vec![
        Step::Release { key: ResourceKey::cpu(2), node: NodeId::ZERO, driver: None },
        Step::Claim { key: ResourceKey::cpu(2), node: one(), driver: None },
    ];
    nodes.begin(OperationKind::Resize, &steps, 2, false);
    assert_ne!(fake.ledger(), before);
    drop(nodes);
    let nodes = self::nodes(&fake, folder.path());
    let taken_back = (OperationKind::Resize, Settled::TakenBack(Vec::new()));
    assert_eq!(nodes.settle_all(), [taken_back]);
    assert_eq!(fake.ledger(), before);
}

/// `device move --to` a running node whose mintd does not answer: the plan says so, and
/// the function keeps its driver.
#[test]
fn deaf_taker_is_refused_before_anything_is_unbound() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let (before, calls) = (fake.ledger(), fake.calls());
    fake.fail("peer 1");
    let get = with(|spec| spec.devices = vec![disk()]);
    let OpError::Refused(refusals) = resize(&nodes, &get).unwrap_err() else { panic!() };
    assert_eq!((refusals.len(), refusals[0].code), (1, RefusalCode::PeerUnreachable));
    assert_eq!(refusals[0].owner, "node 0");
    assert!(refusals[0].message.contains("node 1 (web) runs and cannot take device 0000:03:00.0"));
    assert_eq!(fake.ledger(), before);
    assert_eq!(fake.calls(), calls, "not even tried");
    // one that does not run has nobody to be asked
    fake.set_state(one(), NodeState::Halted);
    resize(&nodes, &get).unwrap();
}

#[test]
fn every_refusal_of_a_resize_leaves_all_as_it_is() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let before = fake.ledger();
    let cases: [(&str, ResizeSpec, RefusalCode); 6] = [
        ("web", with(|spec| spec.cpus = Some("-3".parse().unwrap())), RefusalCode::CpuLast),
        ("web", with(|spec| spec.memory = vec!["-1G".parse().unwrap()]), RefusalCode::MemoryShort),
        ("web", with(|spec| spec.drop_devices = vec![disk()]), RefusalCode::DeviceOwned),
        ("web", with(|spec| spec.to = Some("web".into())), RefusalCode::NodeSelf),
        ("web", with(|spec| spec.from = vec!["db".into()]), RefusalCode::NodeAbsent),
        ("0", with(|spec| spec.cpus = Some("1-2".parse().unwrap())), RefusalCode::CpuBoot),
    ];
    for (node, spec, code) in cases {
        match nodes.resize_now(node, &spec).unwrap_err() {
            OpError::Refused(refusals) => assert_eq!(refusals[0].code, code, "{refusals:?}"),
            other => panic!("{code:?}: {other}"),
        }
        assert_eq!(fake.ledger(), before, "{code:?}");
    }
}

fn with(change: impl FnOnce(&mut ResizeSpec)) -> ResizeSpec {
    let mut spec = ResizeSpec::default();
    change(&mut spec);
    spec
}

#[test]
fn node_that_does_not_run_keeps_a_core_and_starts_again() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    nodes.kill_now("web").unwrap();
    let before = fake.ledger();
    let all = with(|spec| spec.cpus = Some("-2".parse().unwrap()));
    match resize(&nodes, &all).unwrap_err() {
        OpError::Refused(refusals) => assert_eq!(refusals[0].code, RefusalCode::CpuLast),
        other => panic!("{other}"),
    }
    assert_eq!(fake.ledger(), before);
    resize(&nodes, &with(|spec| spec.cpus = Some("-1".parse().unwrap()))).unwrap();
    nodes.start_now("web").unwrap();
}

#[test]
fn memory_that_can_be_moved_goes_first() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let inventory = nodes.inventory().unwrap();
    let owned: Vec<u32> = inventory.owned(one(), Kind::Memory).map(|block| block.key.id).collect();
    for (&block, kib) in owned[2..].iter().zip([512, 4, 512, 512, 4, 512]) {
        fake.pin(block, kib);
    }
    let less = with(|spec| spec.memory = vec!["-384M".parse().unwrap()]);
    resize(&nodes, &less).unwrap();
    let inventory = nodes.inventory().unwrap();
    let left: Vec<u32> = inventory.owned(one(), Kind::Memory).map(|block| block.key.id).collect();
    let wanted = [2, 3, 4, 5, 7].map(|index| owned[index]);
    assert_eq!(left, wanted, "two that can go, then the last one of those with the least in them");
}

#[test]
fn block_that_proves_immovable_is_left_and_another_one_goes() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let inventory = nodes.inventory().unwrap();
    let owned: Vec<u32> = inventory.owned(one(), Kind::Memory).map(|block| block.key.id).collect();
    for &block in &owned[6..] {
        fake.stick(block);
    }
    let less = with(|spec| {
        spec.cpus = Some("-1".parse().unwrap());
        spec.memory = vec!["-256M".parse().unwrap()];
    });
    let op = nodes.submit(OperationKind::Resize);
    let done = nodes.resize(&op, "web", &less, false).unwrap();
    let told = op.entry().progress;
    assert_eq!(told.iter().filter(|text| text.contains("stays where it is")).count(), 2);
    assert!(!done.steps.is_empty());
    let inventory = nodes.inventory().unwrap();
    let left: Vec<u32> = inventory.owned(one(), Kind::Memory).map(|block| block.key.id).collect();
    assert_eq!(left, [&owned[..4], &owned[6..]].concat());
    // none is left that goes: all is as before, and the error names a block
    for &block in &owned {
        fake.stick(block);
    }
    let before = fake.ledger();
    let error = resize(&nodes, &with(|spec| spec.memory = less.memory.clone())).unwrap_err();
    let OpError::Apply(ApplyError::Step { refusals, left, .. }) = error else { panic!("{error}") };
    assert_eq!(left, Vec::<String>::new());
    assert_eq!(fake.ledger(), before);
    // each that was tried has its reason
    let told: BTreeSet<&str> = refusals.iter().map(|one| one.resource.as_str()).collect();
    assert_eq!((told.len(), refusals.len()), (5, 5), "{refusals:?}");
}

#[test]
fn all_memory_of_a_numa_node_may_go_if_there_is_more_elsewhere() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let before = fake.ledger();
    for change in ["+256M@numa0", "-256M@numa0"] {
        assert_ne!(change.starts_with('-'), fake.ledger() == before);
        resize(&nodes, &with(|spec| spec.memory = vec![change.parse().unwrap()])).unwrap();
    }
    assert_eq!(fake.ledger(), before);
}

#[test]
fn block_of_the_boot_without_anything_that_stays_goes_after_one_that_proves_immovable() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    let inventory = nodes.inventory().unwrap();
    let owned: Vec<u32> = inventory.owned(one(), Kind::Memory).map(|block| block.key.id).collect();
    for &block in &owned[..7] {
        fake.pin(block, if block == owned[2] { 0 } else { 4 });
    }
    // the only one of the movable zone
    fake.stick(owned[7]);
    resize(&nodes, &with(|spec| spec.memory = vec!["-128M".parse().unwrap()])).unwrap();
    let left = nodes.inventory().unwrap();
    let left: Vec<u32> = left.owned(one(), Kind::Memory).map(|block| block.key.id).collect();
    assert_eq!(left, [&owned[..2], &owned[3..]].concat());
}

#[test]
fn block_that_stays_is_told_with_what_is_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let fake = Arc::new(FakeMachine::new());
    let nodes = nodes(&fake, folder.path());
    let refusal = |block| match nodes.release_here(&[ResourceKey::memory(block)], &|| true) {
        Err(Stopped { at: 0, error: OpError::Refused(mut refusals) }) => refusals.remove(0),
        other => panic!("{other:?}"),
    };
    fake.fill(
        3,
        BlockPages {
            kinds: vec![PagesOfKind { kind: PageKind::PageTables, kib: 8 }],
            holders: vec![PageHolder {
                what: HolderKind::Guest,
                name: "demo".into(),
                pid: Some(8),
                kib: 8,
            }],
            complete: true,
            ..BlockPages::default()
        },
    );
    let told = refusal(3);
    assert_eq!((told.code, told.owner.as_str()), (RefusalCode::MemoryBusy, "node 0"));
    assert_eq!(
        told.message,
        "memory block 3 of node 0 cannot be released: the memory holds pages that cannot be \
         migrated (EBUSY); node 0 owns it now; in it: 8K of page tables; held by guest demo (process 8): 8K"
    );
    assert_eq!(told.hint, "end guest demo (process 8), or choose another one");
    assert_eq!(told.pages.unwrap().kinds[0].kind, PageKind::PageTables);
    // a kernel that does not tell
    let told = refusal(4);
    assert_eq!((told.pages, told.hint.as_str()), (None, "choose another one"));
    assert!(told.message.ends_with("node 0 owns it now"), "{}", told.message);
}

#[test]
fn core_that_a_guest_is_pinned_to_stays() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = running_web(&images, &fake, folder.path());
    fake.pin_guest(5);
    // of those that may be taken, another one is chosen
    resize(&nodes, &with(|spec| spec.cpus = Some("+1".parse().unwrap()))).unwrap();
    assert_eq!(nodes.inventory().unwrap().cpus_of(one()).to_string(), "2-4");
    let before = fake.ledger();
    let spec = with(|spec| spec.cpus = Some("2-5".parse().unwrap()));
    match resize(&nodes, &spec).unwrap_err() {
        OpError::Refused(refusals) => {
            assert_eq!(refusals[0].code, RefusalCode::CpuPinned);
            assert!(refusals[0].message.contains("guest demo"), "{}", refusals[0].message);
        }
        other => panic!("{other}"),
    }
    assert!(nodes.release_here(&[ResourceKey::cpu(5)], &|| true).is_err());
    assert_eq!(fake.ledger(), before);
}

/// A node whose kernel died while it gave a core away, and a core that is not parked.
#[test]
fn what_a_dead_kernel_was_moving_is_its_owners_again() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = nodes(&fake, folder.path());
    nodes.add_now(&images.spec("web"), false).unwrap();
    let core = ResourceKey::cpu(4);
    fake.set_moving(core);
    // its kernel is at it: nobody else touches that
    assert_eq!(nodes.repair().unwrap(), Vec::<String>::new());
    assert_eq!(nodes.inventory().unwrap().find(core).unwrap().state, ResState::Moving);
    fake.set_state(one(), NodeState::Crashed);
    assert_eq!(
        nodes.repair().unwrap(),
        [
            "node 1 (web): 2 of 2 cores are parked",
            "cpu 4 is node 1 (web)'s, as before it was moved"
        ]
    );
    assert_eq!(nodes.inventory().unwrap().find(core).unwrap().state, ResState::Owned);
    fake.set_moving(core);
    nodes.remove_now("web", false, GiveBack::KeepFree).unwrap();
    assert!(fake.calls().contains(&"release cpu 4 1".to_owned()), "{:?}", fake.calls());
}

/// A panic under `panic=0` and the like: what did not park is fetched first, whichever way the node goes on.
#[test]
fn cores_that_a_dead_node_left_are_fetched() {
    type Way = fn(&Nodes) -> Result<Done, OpError>;
    let ways: [(Way, NodeState); 3] = [
        (|nodes| nodes.kill_now("web"), NodeState::Crashed),
        (|nodes| nodes.remove_now("web", false, GiveBack::KeepFree), NodeState::Unused),
        (|nodes| nodes.start_now("web"), NodeState::Running),
    ];
    for (way, state) in ways {
        let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
        let fake = Arc::new(FakeMachine::new());
        let nodes = nodes(&fake, folder.path());
        nodes.add_now(&images.spec("web"), false).unwrap();
        fake.set_state(one(), NodeState::Crashed);
        let before = fake.calls().len();
        way(&nodes).unwrap();
        assert_eq!(fake.calls()[before], "kill 1", "{:?}", fake.calls());
        let now = nodes.machine.node(one()).unwrap().map_or(NodeState::Unused, |node| node.state);
        assert_eq!(now, state);
        // there is nothing left to fetch: a node at rest is not killed
        fake.set_state(one(), NodeState::Crashed);
        if state == NodeState::Crashed {
            assert!(nodes.kill_now("web").is_err());
        }
    }
}

/// Between the look at a node and its kill somebody else has started it again: that start is not killed.
#[test]
fn slow_killer_leaves_a_node_that_runs_again() {
    let (images, folder) = (Images::new(), tempfile::tempdir().unwrap());
    let fake = Arc::new(FakeMachine::new());
    let nodes = nodes(&fake, folder.path());
    nodes.add_now(&images.spec("web"), false).unwrap();
    let seen = nodes.machine.node(one()).unwrap().unwrap();
    nodes.kill_now("web").unwrap();
    nodes.start_now("web").unwrap();
    let killed = nodes.run(OperationKind::Kill, |op| nodes.kill_node(op, &seen));
    assert!(killed.is_err());
    assert_eq!(nodes.machine.node(one()).unwrap().unwrap().state, NodeState::Running);
}
