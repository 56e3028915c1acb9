// SPDX-License-Identifier: Apache-2.0
//! Nodes are made, started, ended and removed: what that does, and that it does all or nothing.

use super::*;

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
