// SPDX-License-Identifier: Apache-2.0
//! What becomes of operations whose daemon died, and of what dead kernels left.

use super::*;

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
