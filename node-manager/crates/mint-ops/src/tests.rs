// SPDX-License-Identifier: Apache-2.0
//! Lives of operations, with a store in memory.

mod intents;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use mint_types::{Asker, OperationId, OperationKind, OperationState, ResourceKey};
use serde_json::{Value, json};

use crate::entry::tests::intent;
use crate::fake::Memory;
use crate::{CancelError, Cancelled, End, Lock, News, Op, Operations, Request, SubmitError};

fn open(store: &Memory) -> Operations {
    Operations::open(store.clone(), 42, || 5).unwrap()
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

fn submit(ops: &Operations) -> Op {
    ops.submit(request()).unwrap()
}

fn cpu(id: u32) -> BTreeSet<Lock> {
    BTreeSet::from([Lock::Resource(ResourceKey::cpu(id))])
}

fn done() -> End {
    End::Done(Value::Null)
}

/// Whatever a daemon does last, its successor knows the operation, and has what it was
/// changing exactly as long as that is open.
#[test]
fn successor_knows_how_far_it_was_wherever_it_died() {
    // submit, running, begin, commit, finish: so many writes
    for acts in 0..=5 {
        let store = Memory::default();
        store.fuse.set(acts);
        let life = catch_unwind(AssertUnwindSafe(|| {
            let ops = open(&store);
            let op = submit(&ops);
            op.running().unwrap();
            op.begin(intent(), false).unwrap();
            op.commit().unwrap();
            op.finish(done()).unwrap();
        }));
        assert_eq!(life.is_err(), acts < 5);
        store.fuse.mend();
        let next = open(&store);
        let found: Vec<_> = next.interrupted().iter().map(|op| op.entry()).collect();
        let states: Vec<_> = found.iter().map(|entry| entry.state).collect();
        let open: Vec<_> =
            found.iter().map(|entry| (entry.open.is_some(), entry.past_no_return)).collect();
        match acts {
            0 => assert!(next.list().is_empty()),
            1 => assert_eq!(
                (&states[..], &open[..]),
                (&[OperationState::Queued][..], &[(false, false)][..])
            ),
            2 => assert_eq!(open, [(false, false)]),
            3 => assert_eq!(open, [(true, false)]),
            4 => assert_eq!(open, [(false, true)]),
            _ => assert!(found.is_empty() && next.list()[0].state == OperationState::Done),
        }
        assert!(next.interrupted().is_empty(), "each is settled once");
    }
}

#[test]
fn entry_that_is_not_understood_is_told_and_its_number_is_not_used_again() {
    let store = Memory::default();
    store.put(OperationId(4), b"{\"version\":1,\"operation\":{");
    let ops = open(&store);
    assert!(ops.list().is_empty());
    let bad = ops.bad_entries();
    assert_eq!((bad.len(), bad[0].path.to_str()), (1, Some("memory/4.json")));
    assert_eq!(submit(&ops).id(), OperationId(5));
    assert_eq!(store.get(OperationId(4)).unwrap(), b"{\"version\":1,\"operation\":{");
}

#[test]
fn cancel_ends_what_waits_and_what_is_before_its_point_of_no_return() {
    let ops = open(&Memory::default());
    let (first, second) = (submit(&ops), submit(&ops));
    let locks = first.take(&cpu(1)).unwrap();
    let given_back = second.given_back();
    let held = second.take(&cpu(1)).unwrap_err();
    assert_eq!(held.holder, "operation 1 (resize web, asked for by root)");
    let waiting = second.clone();
    let waits = std::thread::spawn(move || waiting.wait(given_back, &held));
    assert!(ops.cancel(second.id()).unwrap().cancel);
    assert_eq!(waits.join().unwrap(), Err(Cancelled));
    second.finish(End::Cancelled(Value::Null)).unwrap();
    assert!(matches!(ops.cancel(second.id()), Err(CancelError::Over(_))));
    first.no_return().unwrap();
    assert!(matches!(ops.cancel(first.id()), Err(CancelError::PastNoReturn(_))));
    assert_eq!(first.check(), Ok(()));
    assert!(matches!(ops.cancel(OperationId(9)), Err(CancelError::Absent(_))));
    drop(locks);
    assert!(ops.is_idle());
}

#[test]
fn who_waits_goes_on_when_the_lock_is_given_back() {
    let ops = open(&Memory::default());
    let (first, second) = (submit(&ops), submit(&ops));
    let locks = first.take(&cpu(1)).unwrap();
    let (given_back, held) = (second.given_back(), second.take(&cpu(1)).unwrap_err());
    let waits = std::thread::spawn(move || {
        second.wait(given_back, &held).unwrap();
        second.take(&cpu(1)).map(drop)
    });
    std::thread::sleep(Duration::from_millis(20));
    drop(locks);
    waits.join().unwrap().unwrap();
}

#[test]
fn what_a_part_says_the_whole_says_and_its_cancel_is_the_parts() {
    let ops = open(&Memory::default());
    let whole = submit(&ops);
    let part = ops.submit(Request { part_of: Some(whole.id()), ..request() }).unwrap();
    part.progress("claim cpu 1");
    assert_eq!(whole.entry().progress, ["claim cpu 1"]);
    ops.cancel(whole.id()).unwrap();
    assert_eq!(part.check(), Err(Cancelled));
}

#[test]
fn every_follower_gets_every_line_and_the_end() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let ops = open(&Memory::default());
    for dry_run in [false, true] {
        let op = ops.submit(Request { dry_run, ..request() }).unwrap();
        let mut early = ops.follow(op.id()).unwrap();
        op.progress("one");
        let mut late = ops.follow(op.id()).unwrap();
        op.progress("two");
        op.finish(done()).unwrap();
        for follower in [&mut early, &mut late] {
            let mut lines = Vec::new();
            let over = runtime.block_on(async {
                loop {
                    match follower.next().await.unwrap() {
                        News::Lines(more) => lines.extend(more),
                        News::Over(entry) => return entry,
                    }
                }
            });
            assert_eq!(
                (lines, over.state),
                (vec!["one".into(), "two".into()], OperationState::Done)
            );
            assert_eq!(runtime.block_on(follower.next()), None);
        }
    }
    assert_eq!(ops.list().len(), 1, "a dry run is nobody else's business");
}

#[test]
fn old_ones_are_dropped_but_not_what_is_not_settled() {
    let store = Memory::default();
    let ops = open(&store);
    let bad = submit(&ops);
    bad.begin(intent(), true).unwrap();
    bad.finish(End::Failed(Value::Null)).unwrap();
    for _ in 0..150 {
        submit(&ops).finish(done()).unwrap();
    }
    let list = ops.list();
    assert_eq!((list.len(), list[0].id, list[1].id), (101, OperationId(1), OperationId(52)));
    assert!(store.get(OperationId(51)).is_none() && store.get(OperationId(1)).is_some());
    let next = open(&store);
    assert!(next.interrupted().is_empty());
    let left = next.unsettled();
    assert_eq!((left.len(), left[0].id()), (1, OperationId(1)));
    assert!(next.unsettled().is_empty(), "one at a time");
    left[0].put_down();
    assert_eq!(next.unsettled().len(), 1);
}

#[test]
fn too_many_at_once_are_refused() {
    let ops = open(&Memory::default());
    let all: Vec<Op> = (0..64).map(|_| submit(&ops)).collect();
    assert!(matches!(ops.submit(request()), Err(SubmitError::Full)));
    all[3].finish(done()).unwrap();
    submit(&ops);
}
