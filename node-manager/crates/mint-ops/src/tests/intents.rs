// SPDX-License-Identifier: Apache-2.0
//! Intents of nodes that die, with stores and a control area in memory.

use std::panic::{AssertUnwindSafe, catch_unwind};

use mint_types::{Asker, NodeId, OperationKind, OperationState, ResourceKey, Step};
use serde_json::{Value, json};

use crate::entry::tests::intent;
use crate::fake::Memory;
use crate::fake_area::{Slots, SlotsOf};
use crate::{End, Intent, NoRoom, Op, Operations, Place, Request};

const BOOT_ID: u64 = 42;

fn node(id: u32) -> NodeId {
    NodeId::new(id).unwrap()
}

fn open(store: &Memory, area: &SlotsOf) -> Operations {
    Operations::open_with(store.clone(), Some(Box::new(area.clone())), BOOT_ID, || 5).unwrap()
}

fn request() -> Request {
    Request {
        kind: OperationKind::Resize,
        subject: "web".into(),
        asked_by: Asker::User(Some(0)),
        body: json!({"more": 1}),
        part_of: None,
        dry_run: false,
    }
}

fn begun(ops: &Operations) -> Op {
    let op = ops.submit(request()).unwrap();
    op.begin(intent(), false).unwrap();
    op
}

/// A daemon of that node, with a folder of its own.
fn daemon(slots: &Slots, id: u32) -> (Operations, Memory) {
    let store = Memory::default();
    (open(&store, &slots.start(node(id), &store.fuse)), store)
}

fn taken(ops: &Operations) -> Vec<Op> {
    ops.take_over().unwrap().ops
}

/// A node dies after each of the acts of an operation. What another one takes is open
/// exactly from the moment on at which something may have been changed, until all that was
/// is over; and it is taken once.
#[test]
fn node_that_died_leaves_its_operation_wherever_it_died() {
    // submit; slot, file; slot, file, empty; finish
    const ACTS: u32 = 7;
    for acts in 0..=ACTS {
        let slots = Slots::default();
        let store = Memory::default();
        let area = slots.start(node(1), &store.fuse);
        store.fuse.set(acts);
        let life = catch_unwind(AssertUnwindSafe(|| {
            let ops = open(&store, &area);
            let op = begun(&ops);
            op.commit().unwrap();
            op.finish(End::Done(Value::Null)).unwrap();
        }));
        assert_eq!(life.is_err(), acts < ACTS, "{acts}");
        slots.end(node(1));
        let (peer, _) = daemon(&slots, 0);
        let found: Vec<_> = taken(&peer).iter().map(Op::entry).collect();
        let how: Vec<_> =
            found.iter().map(|entry| (entry.open.is_some(), entry.past_no_return)).collect();
        match acts {
            0 | 1 | 6 | 7 => assert_eq!(how, [], "{acts}"),
            2 | 3 => assert_eq!(how, [(true, false)], "{acts}"),
            _ => assert_eq!(how, [(false, true)], "{acts}"),
        }
        for entry in found {
            let from = entry.taken_from.unwrap();
            assert_eq!((from.node, from.name.as_str()), (node(1), "node1"));
            assert_eq!(entry.asked_by, Asker::User(Some(0)));
            assert!(entry.open.is_none_or(|open| open == intent()));
        }
        assert!(taken(&peer).is_empty(), "given once");
    }
}

#[test]
fn one_of_two_that_race_gets_it() {
    let mut won = [0, 0];
    for _ in 0..200 {
        let slots = Slots::default();
        let (first, _) = daemon(&slots, 1);
        begun(&first);
        slots.end(node(1));
        let peers = [daemon(&slots, 0).0, daemon(&slots, 2).0];
        let start = std::sync::Barrier::new(2);
        let race = |ops: &Operations| {
            start.wait();
            taken(ops).len()
        };
        let counts = std::thread::scope(|scope| {
            let other = scope.spawn(|| race(&peers[0]));
            [race(&peers[1]), other.join().unwrap()]
        });
        assert_eq!(counts[0] + counts[1], 1);
        won[counts[0]] += 1;
    }
    println!("the second one won {} of 200 races", won[1]);
}

/// Who takes it may die, too, in the middle of its own taking, at each act.
#[test]
fn taker_that_died_is_taken_over_in_turn() {
    for acts in 0..=4 {
        let slots = Slots::default();
        let (first, _) = daemon(&slots, 1);
        begun(&first);
        slots.end(node(1));
        let store = Memory::default();
        let area = slots.start(node(2), &store.fuse);
        let second = open(&store, &area);
        store.fuse.set(acts);
        // take, file; slot, file, empty
        let life = catch_unwind(AssertUnwindSafe(|| {
            let op = taken(&second).pop().unwrap();
            op.taken_back(Vec::new()).unwrap();
        }));
        assert!(life.is_err());
        slots.end(node(2));
        let (third, _) = daemon(&slots, 0);
        let ops = taken(&third);
        assert_eq!(ops.len(), 1, "{acts}");
        let entry = ops[0].entry();
        assert_eq!(entry.taken_from.unwrap().node, node(1), "who began it");
        assert_eq!(entry.open.is_some(), acts < 3, "{acts}");
        ops[0].taken_back(Vec::new()).unwrap();
        assert!(slots.held().is_empty(), "{acts}");
    }
}

#[test]
fn daemon_that_comes_back_leaves_it_to_who_took_it() {
    for settled in [false, true] {
        let slots = Slots::default();
        let (first, store) = daemon(&slots, 1);
        let op = begun(&first);
        slots.end(node(1));
        let (peer, _) = daemon(&slots, 0);
        let its = taken(&peer).pop().unwrap();
        if settled {
            its.taken_back(Vec::new()).unwrap();
        }
        let again = open(&store, &slots.start(node(1), &store.fuse));
        assert!(again.interrupted().is_empty() && again.unsettled().is_empty());
        assert!(taken(&again).is_empty());
        let elsewhere = again.elsewhere();
        assert_eq!(elsewhere.len(), 1);
        assert_eq!(elsewhere[0].op.id(), op.id());
        assert_eq!(elsewhere[0].holder, (!settled).then_some(node(0)));
        assert_eq!(elsewhere[0].op.entry().open, None);
        elsewhere[0].op.finish(End::Failed(Value::Null)).unwrap();
        let third = open(&store, &slots.start(node(1), &store.fuse));
        assert!(third.elsewhere().is_empty() && third.interrupted().is_empty());
    }
}

#[test]
fn daemon_that_comes_back_first_settles_it_itself() {
    let slots = Slots::default();
    let (first, store) = daemon(&slots, 1);
    let op = begun(&first);
    slots.end(node(1));
    let again = open(&store, &slots.start(node(1), &store.fuse));
    let (peer, _) = daemon(&slots, 0);
    assert!(taken(&peer).is_empty(), "its holder runs");
    let found = again.interrupted();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].id(), found[0].entry().open), (op.id(), Some(intent())));
    found[0].taken_back(Vec::new()).unwrap();
    assert!(slots.held().is_empty());
}

/// The daemon dies, its node does not: at each act its successor goes by the slot, and takes
/// nothing that is settled for open.
#[test]
fn successor_goes_by_the_slot() {
    for acts in 2..=6 {
        let slots = Slots::default();
        let store = Memory::default();
        let area = slots.start(node(1), &store.fuse);
        store.fuse.set(acts);
        _ = catch_unwind(AssertUnwindSafe(|| {
            let op = begun(&open(&store, &area));
            op.commit().unwrap();
            op.finish(End::Done(Value::Null)).unwrap();
        }));
        store.fuse.mend();
        let next = open(&store, &area);
        let mut ops = next.interrupted();
        ops.extend(taken(&next));
        let open: Vec<_> = ops.iter().map(|op| op.entry().open.is_some()).collect();
        let expected: &[bool] = match acts {
            // the slot alone: the daemon's own is not begun, and what the slot says is
            2 => &[false, true],
            3 => &[true],
            // over in the slot, open in the file
            4 => &[false],
            // its slot was not emptied yet
            5 => &[false, false],
            _ => &[false],
        };
        assert_eq!(open, expected, "{acts}");
        ops.iter().for_each(|op| op.taken_back(Vec::new()).unwrap());
        assert!(slots.held().is_empty(), "{acts}");
    }
}

#[test]
fn damaged_intents_are_told_and_taken_by_nobody() {
    let slots = Slots::default();
    let (first, store) = daemon(&slots, 1);
    let op = begun(&first);
    slots.scribble();
    slots.end(node(1));
    let (peer, _) = daemon(&slots, 0);
    let found = peer.take_over().unwrap();
    assert!(found.ops.is_empty());
    assert_eq!(found.unreadable, ["intent 0 of node 1 in the control area"]);
    // its own daemon cannot know whether somebody had taken it: left to a repair
    let again = open(&store, &slots.start(node(1), &store.fuse));
    assert!(again.is_unknown(op.id()) && again.elsewhere().is_empty());
    assert_eq!(again.take_over().unwrap().unreadable.len(), 1);
    assert!(slots.held().is_empty(), "its slot is good again");
}

#[test]
fn damaged_intent_of_a_node_that_runs_is_made_good_by_its_file() {
    let slots = Slots::default();
    let store = Memory::default();
    let area = slots.start(node(1), &store.fuse);
    begun(&open(&store, &area));
    slots.scribble();
    let next = open(&store, &area);
    let found = next.interrupted();
    assert_eq!(found.len(), 1);
    assert!(found[0].entry().open.is_some() && !next.is_unknown(found[0].id()));
}

#[test]
fn node_whose_cores_are_not_parked_keeps_its_intents_until_they_are() {
    let slots = Slots::default();
    let (first, _) = daemon(&slots, 1);
    begun(&first);
    slots.end(node(1));
    slots.set_unparked(node(1), true);
    let (peer, _) = daemon(&slots, 0);
    let found = peer.take_over().unwrap();
    assert!(found.ops.is_empty());
    assert_eq!(found.unparked, [node(1)]);
    slots.set_unparked(node(1), false);
    assert_eq!(taken(&peer).len(), 1);
}

#[test]
fn what_has_no_room_is_refused_before_it_begins() {
    let slots = Slots::default();
    let (ops, store) = daemon(&slots, 1);
    // blocks that are far from each other, of a machine of some TiB
    let mut id = 7u64;
    let mut next = || {
        id = id * 48271 % 0x7fff_ffff;
        let key = ResourceKey::memory(u32::try_from(id).unwrap());
        Step::Claim { key, node: node(1), driver: None }
    };
    let steps: Vec<Step> = (0..4000).map(|_| next()).collect();
    let op = ops.submit(request()).unwrap();
    let error = op.begin(Intent { steps, ..intent() }, false).unwrap_err();
    assert!(matches!(error.no_room(), Some(NoRoom::TooLong { room: 4080, .. })), "{error}");
    assert!(op.entry().open.is_none() && slots.held().is_empty());
    op.finish(End::Refused(Value::Null)).unwrap();
    let held: Vec<Op> = (0..16).map(|_| begun(&ops)).collect();
    let op = ops.submit(request()).unwrap();
    let error = op.begin(intent(), false).unwrap_err();
    assert_eq!(error.no_room(), Some(NoRoom::Full { slots: 16 }));
    held[3].commit().unwrap();
    op.begin(intent(), false).unwrap();
    assert_eq!(slots.held().len(), 16);
    drop(store);
}

/// What cannot be kept in the folder is not in the area either.
#[test]
fn slot_says_what_the_file_says_when_the_folder_is_full() {
    let slots = Slots::default();
    let (ops, store) = daemon(&slots, 1);
    let op = ops.submit(request()).unwrap();
    store.fail(true);
    op.begin(intent(), false).unwrap_err();
    assert!(slots.held().is_empty());
    store.fail(false);
    op.begin(intent(), false).unwrap();
    store.fail(true);
    op.commit().unwrap_err();
    slots.end(node(1));
    let (peer, _) = daemon(&slots, 0);
    assert_eq!(taken(&peer)[0].entry().open, Some(intent()), "it is not committed");
}

#[test]
fn operation_that_is_settled_in_part_keeps_its_slot() {
    let slots = Slots::default();
    let (ops, _) = daemon(&slots, 1);
    let op = begun(&ops);
    let left = intent().steps;
    op.taken_back(left.clone()).unwrap();
    op.finish(End::Failed(Value::Null)).unwrap();
    slots.end(node(1));
    let (peer, _) = daemon(&slots, 0);
    let its = taken(&peer).pop().unwrap().entry();
    assert_eq!(its.open.unwrap().steps, left);
    assert_eq!(its.state, OperationState::Running);
}

#[test]
fn machine_without_room_for_intents_works_by_files() {
    let store = Memory::default();
    let ops = Operations::open(store.clone(), BOOT_ID, || 5).unwrap();
    begun(&ops);
    let next = Operations::open(store, BOOT_ID, || 5).unwrap();
    assert_eq!(next.interrupted().len(), 1);
    assert!(next.take_over().unwrap().ops.is_empty());
}

/// A kernel that does not know them, on a node whose last one did.
#[test]
fn operation_that_another_may_have_taken_unseen_is_left_to_a_repair() {
    let slots = Slots::default();
    let (ops, store) = daemon(&slots, 1);
    let op = begun(&ops);
    let next = Operations::open(store, BOOT_ID, || 5).unwrap();
    assert!(next.is_unknown(op.id()));
}

#[test]
fn intents_of_another_version_stay_with_who_can_read_them() {
    let slots = Slots::default();
    let (first, _) = daemon(&slots, 1);
    begun(&first);
    slots.put(Place { node: node(1), slot: 0 }, b"from tomorrow");
    slots.end(node(1));
    let (peer, _) = daemon(&slots, 0);
    let found = peer.take_over().unwrap();
    assert_eq!((found.ops.len(), found.unreadable.len()), (0, 1));
    assert_eq!(slots.held().len(), 1);
}

/// Whatever is written over the slots, a node's operations go on, and one that died is told.
#[test]
fn slots_that_were_written_over_are_used_again() {
    let slots = Slots::default();
    let (first, _) = daemon(&slots, 1);
    for _ in 0..16 {
        begun(&first);
    }
    slots.scribble();
    slots.end(node(1));
    let (peer, _) = daemon(&slots, 0);
    assert_eq!(peer.left_by_the_dead().unwrap().unwrap().len(), 16);
    let (next, _) = daemon(&slots, 1);
    let op = begun(&next);
    assert_eq!(peer.left_by_the_dead().unwrap().unwrap().len(), 15);
    op.commit().unwrap();
    assert_eq!(slots.held().len(), 15);
}

#[test]
fn what_nobody_has_taken_yet_is_told() {
    let slots = Slots::default();
    let (first, _) = daemon(&slots, 1);
    begun(&first);
    let (peer, _) = daemon(&slots, 0);
    assert_eq!(peer.left_by_the_dead().unwrap(), Some(Vec::new()));
    slots.end(node(1));
    let told = peer.left_by_the_dead().unwrap().unwrap();
    assert_eq!(told, ["operation 1 of node 1 (node1) (resize web) is not ended"]);
}
