// SPDX-License-Identifier: Apache-2.0
//! Random operations, each of them by a daemon that may be killed at any of its acts, and
//! its successor, too. Afterwards an operation was carried out as one that nobody killed
//! carries it out, or it was not; and every resource is somebody's, or free.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use mint_ops::fake::Memory;
use mint_ops::{End, Op, Operations, Request};
use mint_types::{Asker, Kind, NodeId, NodeSpec, NodeState, OperationKind, ResState, ResizeSpec};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config as Runs, TestRunner};
use serde_json::Value;

use super::planner::Images;
use crate::config::Config;
use crate::fake::FakeMachine;
use crate::machine::read_ledger;
use crate::nodes::Nodes;
use crate::outcome::GiveBack;
use crate::settle::Settled;
use crate::specs::SpecStore;

/// Sequences of operations in a run.
const SEQUENCES: u32 = 1000;
const NAMES: [&str; 3] = ["web", "db", "app"];
const DISKS: [&str; 2] = ["0000:02:00.0", "0000:03:00.0"];

/// What somebody does to a node of [`NAMES`].
#[derive(Clone, Debug)]
enum Act {
    Add {
        cpus: u32,
        blocks: u32,
        disk: Option<usize>,
        start: bool,
        from: Option<usize>,
    },
    Resize {
        cpus: i32,
        blocks: i32,
        get: Option<usize>,
        give: Option<usize>,
        from: Option<usize>,
    },
    Remove {
        force: bool,
        keep_free: bool,
    },
    Start,
    Kill,
    /// Its kernel ends by itself.
    End,
}

/// One of them, and at which of its own acts the daemon is killed; and its successor.
type Deed = (usize, Act, Option<(Index, Option<u32>)>);

fn act() -> impl Strategy<Value = Act> {
    let disk = || prop::option::of(0..DISKS.len());
    let from = || prop::option::of(0..NAMES.len());
    prop_oneof![
        4 => (1..3u32, 1..5u32, disk(), any::<bool>(), from())
            .prop_map(|(cpus, blocks, disk, start, from)| Act::Add { cpus, blocks, disk, start, from }),
        5 => (-1..2i32, -2..3i32, disk(), disk(), from())
            .prop_map(|(cpus, blocks, get, give, from)| Act::Resize { cpus, blocks, get, give, from }),
        5 => (any::<bool>(), any::<bool>())
            .prop_map(|(force, keep_free)| Act::Remove { force, keep_free }),
        1 => Just(Act::Start),
        1 => Just(Act::Kill),
        1 => Just(Act::End),
    ]
}

fn deed() -> impl Strategy<Value = Deed> {
    let kill = prop::option::weighted(0.4, (any::<Index>(), prop::option::of(0..12u32)));
    (0..NAMES.len(), act(), kill)
}

fn daemon(fake: &Arc<FakeMachine>, store: &Memory, folder: &Path) -> Nodes {
    Nodes {
        machine: fake.clone(),
        host: fake.clone(),
        peers: fake.clone(),
        bundle: fake.clone(),
        config: Arc::new(Config::default()),
        ops: Operations::open(store.clone(), 42, || 1).unwrap(),
        specs: SpecStore::open(folder).unwrap(),
    }
}

/// Another folder with the same descriptions.
fn copy(folder: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    std::fs::create_dir(to.path().join("nodes")).unwrap();
    for entry in std::fs::read_dir(folder.join("nodes")).into_iter().flatten() {
        let from = entry.unwrap().path();
        std::fs::copy(&from, to.path().join("nodes").join(from.file_name().unwrap())).unwrap();
    }
    to
}

fn submit(nodes: &Nodes, kind: OperationKind, name: &str) -> Op {
    let (subject, asked_by, body) = (name.to_owned(), Asker::Daemon, Value::Null);
    nodes
        .ops
        .submit(Request { kind, subject, asked_by, body, part_of: None, dry_run: false })
        .unwrap()
}

/// Carries it out; whether it was.
fn carry_out(nodes: &Nodes, images: &Images, name: &str, act: &Act) -> bool {
    let named = |from: &Option<usize>| from.iter().map(|&at| NAMES[at].to_owned()).collect();
    let disks = |disk: &Option<usize>| disk.iter().map(|&at| DISKS[at].parse().unwrap()).collect();
    let (op, done) = match act {
        Act::Add { cpus, blocks, disk, start, from } => {
            let spec = NodeSpec {
                cpus: None,
                cpu_count: Some(*cpus),
                memory: vec![format!("{}M", 128 * blocks).parse().unwrap()],
                devices: disks(disk),
                start: *start,
                from: named(from),
                ..images.spec(name)
            };
            let op = submit(nodes, OperationKind::Add, name);
            (op.clone(), nodes.add(&op, &spec, false))
        }
        Act::Resize { cpus, blocks, get, give, from } => {
            let spec = ResizeSpec {
                cpus: (*cpus != 0).then(|| format!("{cpus:+}").parse().unwrap()),
                memory: (*blocks != 0)
                    .then(|| format!("{:+}M", 128 * blocks).parse().unwrap())
                    .into_iter()
                    .collect(),
                devices: disks(get),
                drop_devices: disks(give),
                from: named(from),
                ..ResizeSpec::default()
            };
            let op = submit(nodes, OperationKind::Resize, name);
            (op.clone(), nodes.resize(&op, name, &spec, false))
        }
        Act::Remove { force, keep_free } => {
            let to = if *keep_free { GiveBack::KeepFree } else { GiveBack::To(NodeId::ZERO) };
            let op = submit(nodes, OperationKind::Remove, name);
            (op.clone(), nodes.remove(&op, name, *force, to))
        }
        Act::Start => {
            let op = submit(nodes, OperationKind::Start, name);
            (op.clone(), nodes.start(&op, name, None))
        }
        Act::Kill => {
            let op = submit(nodes, OperationKind::Kill, name);
            (op.clone(), nodes.kill(&op, name))
        }
        Act::End => {
            let all = nodes.machine.nodes().unwrap();
            let Some(node) = all.iter().find(|node| node.name == name && node.state.is_live())
            else {
                return false;
            };
            nodes.machine.shutdown(node.id).unwrap();
            return true;
        }
    };
    let ok = done.is_ok();
    op.finish(if ok { End::Done(Value::Null) } else { End::Failed(Value::Null) }).unwrap();
    ok
}

/// The ledger: who has what, and which nodes there are and run. How a node that is at
/// rest came to it is not in it: an image that was taken back leaves no trace.
fn ledger(fake: &FakeMachine) -> Vec<String> {
    let inventory = read_ledger(fake).unwrap();
    let all = Kind::ALL.into_iter().flat_map(|kind| inventory.of_kind(kind));
    let mut lines: Vec<String> =
        all.map(|one| format!("{} {:?} {:?}", one.key, one.state, one.owner)).collect();
    let nodes = inventory.nodes.iter();
    lines.extend(
        nodes.map(|node| format!("{} {} runs: {}", node.id, node.name, node.state.is_live())),
    );
    lines
}

/// Every resource is free, or a node's that is there.
fn assert_partition(fake: &FakeMachine, resources: usize) {
    let inventory = read_ledger(fake).unwrap();
    let all: Vec<_> = Kind::ALL.into_iter().flat_map(|kind| inventory.of_kind(kind)).collect();
    assert_eq!(all.len(), resources);
    for one in all {
        match one.state {
            ResState::Free => assert_eq!(one.owner, None, "{}", one.key),
            ResState::Owned => {
                let owner = one.owner.expect("owned by somebody");
                assert!(inventory.node(owner).is_some(), "{} of node {owner}", one.key);
            }
            other => panic!("{} is {other:?}", one.key),
        }
    }
}

/// What a daemon does when it starts.
fn settle(nodes: &Nodes) {
    for op in nodes.ops.interrupted() {
        let end = match nodes.settle(&op).unwrap() {
            Settled::TakenBack(left) => {
                assert_eq!(left, Vec::<String>::new());
                End::Undone(Value::Null)
            }
            Settled::Finished(notes) => {
                assert_eq!(notes, Vec::<String>::new());
                End::Done(Value::Null)
            }
            other => panic!("{other:?}"),
        };
        op.finish(end).unwrap();
    }
}

/// What was tried and hit in a run.
#[derive(Default)]
struct Counts {
    done: Cell<u32>,
    killed: Cell<u32>,
    killed_twice: Cell<u32>,
    taken_back: Cell<u32>,
    finished: Cell<u32>,
}

fn count(cell: &Cell<u32>) {
    cell.set(cell.get() + 1);
}

fn live(images: &Images, deeds: &[Deed], counts: &Counts) {
    let folder = tempfile::tempdir().unwrap();
    let fake = Arc::new(FakeMachine::new());
    let store = Memory::with(&fake.fuse);
    let resources = ledger(&fake).len() - 1;
    for (at, act, kill) in deeds {
        let name = NAMES[*at];
        let before = ledger(&fake);
        // what becomes of it if nobody is killed
        let twin = Arc::new(fake.fork());
        let twins = copy(folder.path());
        let twins_store = Memory::with(&twin.fuse);
        let done = carry_out(&daemon(&twin, &twins_store, twins.path()), images, name, act);
        let acts = twin.fuse.acts();
        let after = ledger(&twin);
        assert!(done || before == after, "{act:?} failed and changed something");
        assert_partition(&twin, resources);

        if let Some((at, _)) = kill.as_ref().filter(|_| acts > 0) {
            fake.fuse.set(u32::try_from(at.index(acts as usize)).unwrap());
        }
        let lived = catch_unwind(AssertUnwindSafe(|| {
            carry_out(&daemon(&fake, &store, folder.path()), images, name, act)
        }));
        let blown = fake.fuse.blown();
        fake.fuse.mend();
        match lived {
            Ok(same) => {
                assert_eq!(same, done, "{act:?}");
                assert_eq!(ledger(&fake), after, "{act:?}");
                if done {
                    count(&counts.done);
                }
            }
            Err(_) => {
                assert!(blown, "{act:?} fell by itself");
                count(&counts.killed);
                if let Some((_, Some(acts))) = kill {
                    fake.fuse.set(*acts);
                    let next = || settle(&daemon(&fake, &store, folder.path()));
                    if catch_unwind(AssertUnwindSafe(next)).is_err() {
                        assert!(fake.fuse.blown(), "the successor fell by itself");
                        count(&counts.killed_twice);
                    }
                    fake.fuse.mend();
                }
                settle(&daemon(&fake, &store, folder.path()));
                let now = ledger(&fake);
                match (now == before, now == after) {
                    (true, _) => count(&counts.taken_back),
                    (false, true) => count(&counts.finished),
                    (false, false) => panic!(
                        "{name} {act:?}, killed at {kill:?}: neither as before nor as after\n\
                         before {before:#?}\nafter {after:#?}\nnow {now:#?}"
                    ),
                }
            }
        }
        assert_partition(&fake, resources);
        let left = daemon(&fake, &store, folder.path());
        assert!(left.ops.interrupted().is_empty() && left.ops.unsettled().is_empty());
        for id in [1, 2, 3].map(|id| NodeId::new(id).unwrap()) {
            let is_there = left.machine.node(id).unwrap().is_some();
            assert_eq!(
                left.specs.get(&left.inventory().unwrap(), id).is_some(),
                is_there,
                "description of node {id}"
            );
        }
    }
}

#[test]
fn ledger_stays_a_partition_whatever_is_killed_at_whatever_act() {
    let images = Images::new();
    let counts = Counts::default();
    let config = Runs { cases: SEQUENCES, failure_persistence: None, ..Runs::default() };
    let sequences = prop::collection::vec(deed(), 1..8);
    let run = TestRunner::new(config).run(&sequences, |deeds| {
        live(&images, &deeds, &counts);
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
    let Counts { done, killed, killed_twice, taken_back, finished } = counts;
    println!(
        "{} done, {} killed ({} of their successors, too), {} taken back, {} finished",
        done.get(),
        killed.get(),
        killed_twice.get(),
        taken_back.get(),
        finished.get()
    );
    // each part of the property was looked at: bounds far below what a run shows
    for (what, count, least) in [
        ("done", done, 100),
        ("killed", killed, 1000),
        ("killed twice", killed_twice, 10),
        ("taken back", taken_back, 300),
        ("finished", finished, 5),
    ] {
        assert!(count.get() >= least, "{what}: {}", count.get());
    }
}

/// A node at rest is not a state that these tests look at: one that was never started is
/// as one that has ended.
#[test]
fn ledger_of_the_model_sees_what_it_is_to_see() {
    let fake = FakeMachine::new().with_node(1, "web", &[]);
    let before = ledger(&fake);
    fake.set_state(NodeId::new(1).unwrap(), NodeState::Crashed);
    assert_ne!(ledger(&fake), before);
}
