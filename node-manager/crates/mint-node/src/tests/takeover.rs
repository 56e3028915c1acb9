// SPDX-License-Identifier: Apache-2.0
//! A node dies at each step of what it coordinates, with its folder; two others race for it.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier};

use mint_ops::fake::Memory;
use mint_ops::fake_area::Slots;
use mint_ops::{End, Op, Operations, Request};

use mint_types::{
    Asker, Kind, NodeId, NodeSpec, NodeState, OperationKind, ResState, ResizeSpec, ResourceKey,
};
use serde_json::Value;

use super::planner::Images;
use crate::config::Config;
use crate::fake::FakeMachine;
use crate::machine::read_ledger;
use crate::nodes::Nodes;
use crate::outcome::{GiveBack, OpError};
use crate::settle::Settled;
use crate::specs::SpecStore;

fn id(node: u32) -> NodeId {
    NodeId::new(node).unwrap()
}

/// A machine of three running nodes.
fn machine() -> FakeMachine {
    let one = [ResourceKey::cpu(1), ResourceKey::memory(16), ResourceKey::memory(17)];
    let disk = ResourceKey::device("0000:03:00.0".parse().unwrap());
    let two = [ResourceKey::cpu(3), ResourceKey::cpu(4), ResourceKey::memory(32), disk];
    FakeMachine::new().with_node(1, "one", &one).with_node(2, "two", &two)
}

/// A daemon of one of them.
struct Daemon {
    nodes: Nodes,
    store: Memory,
    _folder: tempfile::TempDir,
}

fn daemon(fake: &Arc<FakeMachine>, slots: &Slots, node: u32, store: Memory) -> Daemon {
    let folder = tempfile::tempdir().unwrap();
    let fake = Arc::new(fake.also_from(node));
    let area = Box::new(slots.start(id(node), &fake.fuse));
    let nodes = Nodes {
        machine: fake.clone(),
        host: fake.clone(),
        peers: fake.clone(),
        bundle: fake.clone(),
        config: Arc::new(Config::default()),
        ops: Operations::open_with(store.clone(), Some(area), 42, || 1).unwrap(),
        specs: SpecStore::open(folder.path()).unwrap(),
    };
    Daemon { nodes, store, _folder: folder }
}

/// Who has what, and which nodes but the one that dies there are and run.
fn ledger(fake: &FakeMachine) -> Vec<String> {
    let inventory = read_ledger(fake).unwrap();
    let all = Kind::ALL.into_iter().flat_map(|kind| inventory.of_kind(kind));
    let mut lines: Vec<String> =
        all.map(|one| format!("{} {:?} {:?}", one.key, one.state, one.owner)).collect();
    let others = inventory.nodes.iter().filter(|node| node.id != id(1));
    lines.extend(others.map(|node| format!("{} {} {}", node.id, node.name, node.state.is_live())));
    lines
}

fn assert_partition(fake: &FakeMachine) {
    let inventory = read_ledger(fake).unwrap();
    for one in Kind::ALL.into_iter().flat_map(|kind| inventory.of_kind(kind)) {
        match (one.state, one.owner) {
            (ResState::Free, None) => {}
            (ResState::Owned, Some(owner)) => {
                assert!(inventory.node(owner).is_some(), "{} of node {owner}", one.key);
            }
            other => panic!("{} is {other:?}", one.key),
        }
    }
}

type Work<'a> = Box<dyn Fn(&Nodes, &Op) -> Result<(), OpError> + 'a>;

/// What node 1 is asked for.
struct Act<'a> {
    kind: OperationKind,
    what: Work<'a>,
}

fn acts(images: &Images) -> Vec<Act<'_>> {
    let from = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let resize = |node: &'static str, spec: ResizeSpec| Act {
        kind: OperationKind::Resize,
        what: Box::new(move |nodes, op| nodes.resize(op, node, &spec, false).map(|_| ())),
    };
    let more = ResizeSpec {
        cpus: Some("+1".parse().unwrap()),
        memory: vec!["+256M".parse().unwrap()],
        devices: vec!["0000:03:00.0".parse().unwrap()],
        from: from(&["two"]),
        ..ResizeSpec::default()
    };
    let less = ResizeSpec { memory: vec!["-128M".parse().unwrap()], ..ResizeSpec::default() };
    let spec = NodeSpec {
        cpus: None,
        cpu_count: Some(1),
        memory: vec!["256M".parse().unwrap()],
        devices: vec!["0000:02:00.0".parse().unwrap()],
        from: from(&["node0", "two"]),
        ..images.spec("db")
    };
    vec![
        resize("one", more.clone()),
        // of another node than the one that coordinates
        resize("two", ResizeSpec { devices: Vec::new(), from: from(&["node0"]), ..more }),
        resize("one", less),
        Act {
            kind: OperationKind::Add,
            what: Box::new(move |nodes, op| nodes.add(op, &spec, false).map(|_| ())),
        },
        Act {
            kind: OperationKind::Remove,
            what: Box::new(|nodes, op| {
                nodes.remove(op, "two", true, GiveBack::To(NodeId::ZERO)).map(|_| ())
            }),
        },
    ]
}

fn carry_out(daemon: &Daemon, act: &Act<'_>) {
    let request = Request {
        kind: act.kind,
        subject: "a node".into(),
        asked_by: Asker::User(Some(1000)),
        body: Value::Null,
        part_of: None,
        dry_run: false,
    };
    let op = daemon.nodes.ops.submit(request).unwrap();
    (act.what)(&daemon.nodes, &op).unwrap();
    op.finish(End::Done(Value::Null)).unwrap();
}

/// What it takes, it settles; how that ended.
fn take_over(daemon: &Daemon) -> Vec<Settled> {
    let taken = daemon.nodes.ops.take_over().unwrap();
    assert!(taken.unparked.is_empty() && taken.unreadable.is_empty());
    let settle = |op: Op| {
        let settled = daemon.nodes.settle_taken(&op, false).unwrap();
        assert_eq!(op.entry().asked_by, Asker::User(Some(1000)));
        assert_eq!(op.entry().taken_from.unwrap().node, id(1));
        op.finish(End::Done(Value::Null)).unwrap();
        settled
    };
    taken.ops.into_iter().map(settle).collect()
}

#[test]
fn node_that_dies_at_any_step_of_what_it_coordinates_is_taken_over_once() {
    let images = Images::new();
    let (mut taken_back, mut finished, mut nothing) = (0, 0, 0);
    let mut winners = BTreeSet::new();
    for act in acts(&images) {
        // what becomes of it if nobody dies
        let twin = Arc::new(machine());
        let slots = Slots::default();
        let before = ledger(&twin);
        let lives = daemon(&twin, &slots, 1, Memory::with(&twin.fuse));
        let idle = twin.fuse.acts();
        carry_out(&lives, &act);
        let all = twin.fuse.acts() - idle;
        let after = ledger(&twin);
        assert!(before != after && slots.held().is_empty() && all > 5, "{:?}", act.kind);

        for steps in 0..all {
            let fake = Arc::new(machine());
            let slots = Slots::default();
            let dies = daemon(&fake, &slots, 1, Memory::with(&fake.fuse));
            fake.fuse.set(steps);
            assert!(catch_unwind(AssertUnwindSafe(|| carry_out(&dies, &act))).is_err());
            fake.fuse.mend();
            fake.set_state(id(1), NodeState::Crashed);
            slots.end(id(1));
            let left = slots.held().len();

            let peers = [0, 2].map(|node| daemon(&fake, &slots, node, Memory::default()));
            // node 2 may be the one that is taken apart
            let racers: Vec<&Daemon> = match act.kind {
                OperationKind::Remove => vec![&peers[0]],
                _ => peers.iter().collect(),
            };
            let barrier = Barrier::new(racers.len());
            let settled: Vec<Vec<Settled>> = std::thread::scope(|scope| {
                let barrier = &barrier;
                let race = racers.iter().map(|daemon| {
                    scope.spawn(move || {
                        barrier.wait();
                        take_over(daemon)
                    })
                });
                let threads: Vec<_> = race.collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let what = format!("{:?} after {steps} of {all}: {settled:?}", act.kind);
            winners.extend(settled.iter().position(|one| !one.is_empty()));
            let settled: Vec<Settled> = settled.into_iter().flatten().collect();
            assert_eq!(settled.len(), left, "{what}");
            assert_partition(&fake);
            let now = ledger(&fake);
            match settled.first() {
                Some(Settled::TakenBack(words)) => {
                    assert!(words.is_empty(), "{what}");
                    assert_eq!(now, before, "{what}");
                    taken_back += 1;
                }
                Some(Settled::Finished(words)) => {
                    assert!(words.is_empty(), "{what}");
                    assert_eq!(now, after, "{what}");
                    finished += 1;
                }
                Some(other) => panic!("{what}: {other:?}"),
                None => {
                    assert!(now == before || now == after, "{what}");
                    nothing += 1;
                }
            }
            assert!(slots.held().is_empty(), "{what}");

            // back again, with its folder: it is somebody else's, or over
            let again = daemon(&fake, &slots, 1, dies.store.clone());
            assert!(again.nodes.ops.take_over().unwrap().ops.is_empty());
            for op in again.nodes.ops.interrupted() {
                assert!(op.entry().open.is_none(), "{what}");
            }
            assert_eq!(ledger(&fake), now, "{what}");
        }
    }
    println!(
        "{taken_back} taken back, {finished} finished, {nothing} had nothing open; \
         won by {winners:?}"
    );
    // each of them was looked at
    assert!(taken_back > 20 && finished > 15 && nothing > 10);
}

#[test]
fn step_of_a_peer_for_the_dead_is_waited_for() {
    let fake = Arc::new(machine());
    let slots = Slots::default();
    let dies = daemon(&fake, &slots, 1, Memory::with(&fake.fuse));
    let images = Images::new();
    let act = &acts(&images)[0];
    // submit, running, slot, file; and one step
    fake.fuse.set(5);
    assert!(catch_unwind(AssertUnwindSafe(|| carry_out(&dies, act))).is_err());
    fake.fuse.mend();
    fake.set_state(id(1), NodeState::Crashed);
    slots.end(id(1));
    let zero = daemon(&fake, &slots, 0, Memory::default());
    let op = zero.nodes.ops.take_over().unwrap().ops.pop().unwrap();
    // node 2's daemon does not answer: it may be at it
    fake.fail("peer 2");
    let held = zero.nodes.settle_taken(&op, false).unwrap();
    assert!(matches!(held, Settled::Held(_)), "{held:?}");
    assert!(op.entry().open.is_some());
    fake.heal();
    assert_eq!(zero.nodes.settle_taken(&op, false).unwrap(), Settled::TakenBack(Vec::new()));
    assert_partition(&fake);
}

/// What a peer asks for is an operation of nobody here: it says so who has the lock.
#[test]
fn what_a_step_holds_is_not_releasable() {
    let fake = Arc::new(machine());
    let zero = daemon(&fake, &Slots::default(), 0, Memory::default());
    let key = ResourceKey::cpu(2);
    assert_eq!(zero.nodes.releasable_here(&[key]).unwrap(), [Ok(())]);
    let lock = BTreeSet::from([mint_ops::Lock::Resource(key)]);
    let _held = zero.nodes.ops.take_for_step("a step", &lock).unwrap();
    let said = zero.nodes.releasable_here(&[key]).unwrap();
    let code = said[0].as_ref().unwrap_err().code;
    assert_eq!(code, mint_types::RefusalCode::OperationHolds);
}

/// A stop of this node, which another one was at when it died.
#[test]
fn own_end_is_not_carried_out_by_oneself() {
    for (kind, again) in [
        (OperationKind::Stop, false),
        (OperationKind::Restart, false),
        (OperationKind::Remove, true),
        (OperationKind::Stop, true),
    ] {
        let fake = Arc::new(machine());
        let slots = Slots::default();
        let dies = daemon(&fake, &slots, 1, Memory::default());
        let request = Request {
            kind,
            subject: "two".into(),
            asked_by: Asker::Daemon,
            body: Value::Null,
            part_of: None,
            dry_run: false,
        };
        let op = dies.nodes.ops.submit(request).unwrap();
        let two = fake.also_from(2);
        let inventory = read_ledger(&two).unwrap();
        let mut intent = crate::about(inventory.node(id(2)).unwrap());
        if again {
            intent.boots = intent.boots.map(|boots| boots.wrapping_sub(1));
        }
        op.begin(intent, true).unwrap();
        fake.set_state(id(1), NodeState::Crashed);
        slots.end(id(1));
        let before = ledger(&fake);
        let two = daemon(&fake, &slots, 2, Memory::default());
        let op = two.nodes.ops.take_over().unwrap().ops.pop().unwrap();
        let settled = two.nodes.settle_taken(&op, false).unwrap();
        let done = again && kind == OperationKind::Stop;
        assert_eq!(matches!(settled, Settled::Finished(_)), done, "{kind}: {settled:?}");
        assert_eq!(ledger(&fake), before);
        assert!(slots.held().is_empty());
    }
}
