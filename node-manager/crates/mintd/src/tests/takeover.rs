// SPDX-License-Identifier: Apache-2.0
//! What a node that died was at: taken over, shown, and left alone when the node is back.

use std::sync::Arc;

use mint_api::{ErrorCode, OperationList, OperationView};
use mint_node::Machine;
use mint_node::fake::FakeMachine;
use mint_ops::fake::{Fuse, Memory};
use mint_ops::fake_area::Slots;
use mint_ops::{Folder, Intent, JournalError, NoRoom, Op, Operations, Request};
use mint_sys::Event;
use mint_types::{
    Asker, Kind, NodeId, NodeState, OperationKind, OperationState, RefusalCode, ResState,
    ResourceKey, Step,
};
use serde_json::Value;

use super::{Daemon, parts, test, until};
use crate::changes;
use crate::ending::journal_error;
use crate::takeover::asker_waits;

fn id(node: u32) -> NodeId {
    NodeId::new(node).unwrap()
}

fn machine() -> Arc<FakeMachine> {
    let owned = [ResourceKey::cpu(4), ResourceKey::memory(32)];
    Arc::new(FakeMachine::new().with_node(1, "one", &owned))
}

async fn daemon(fake: &Arc<FakeMachine>, slots: &Slots, folder: tempfile::TempDir) -> Daemon {
    let here = fake.info().unwrap().node;
    let area = slots.start(here, &Fuse::default());
    let mut parts = parts(folder.path(), fake);
    parts.area = Some(Box::new(area));
    Daemon::start_parts(folder, fake.clone(), parts).await
}

/// Core 3 on its way from node 0 to node 1, which coordinates it: released, not claimed.
fn half_moved(ops: &Operations, fake: &FakeMachine) -> Op {
    let op = ops
        .submit(Request {
            kind: OperationKind::Resize,
            subject: "one".into(),
            asked_by: Asker::User(Some(0)),
            body: Value::Null,
            part_of: None,
            dry_run: false,
        })
        .unwrap();
    let key = ResourceKey::cpu(3);
    let steps = vec![
        Step::Release { key, node: id(0), driver: None },
        Step::Claim { key, node: id(1), driver: None },
    ];
    let names = [(id(0), "node0".to_owned()), (id(1), "one".to_owned())].into();
    let name = "one".parse().unwrap();
    op.begin(Intent { node: id(1), name, boots: None, steps, names }, false).unwrap();
    fake.also_from(0).release(key, id(0), false).unwrap();
    op
}

fn crash(fake: &FakeMachine, slots: &Slots) -> Event {
    fake.set_state(id(1), NodeState::Crashed);
    slots.end(id(1));
    Event {
        seq: 1,
        time_ns: 1,
        node: id(1),
        old: NodeState::Running,
        new: NodeState::Crashed,
        lost: 0,
    }
}

fn owner(fake: &FakeMachine, cpu: u32) -> (ResState, Option<NodeId>) {
    let all = fake.resources(Kind::Cpu).unwrap();
    let found = all.iter().find(|one| one.key == ResourceKey::cpu(cpu)).unwrap();
    (found.state, found.owner)
}

async fn operations(daemon: &Daemon) -> Vec<OperationView> {
    let list: OperationList = daemon.client.get("/v1/operations").await.unwrap();
    list.operations
}

#[test]
fn node_that_dies_is_taken_over_and_shown() {
    test(async || {
        let (fake, slots) = (machine(), Slots::default());
        let zero = daemon(&fake, &slots, tempfile::tempdir().unwrap()).await;
        let area = Box::new(slots.start(id(1), &Fuse::default()));
        let boot_id = fake.info().unwrap().boot_id;
        let store = Memory::default();
        let ops = Operations::open_with(store, Some(area), boot_id, || 1).unwrap();
        let died = half_moved(&ops, &fake);
        // while it runs, it is its own
        crate::takeover::take_over(zero.app.clone()).await;
        assert!(operations(&zero).await.is_empty());

        changes::state_changed(&zero.app, &crash(&fake, &slots));
        let app = zero.app.clone();
        until(|| app.ops.list().iter().any(|entry| entry.state.is_over())).await;
        let all = operations(&zero).await;
        assert_eq!(all.len(), 1);
        let from = all[0].taken_from.as_ref().unwrap();
        assert_eq!((from.node, from.name.as_str(), from.id), (1, "node1", died.id().0));
        assert_eq!((all[0].asked_by.as_str(), all[0].subject.as_str()), ("root", "one"));
        assert_eq!(all[0].state, OperationState::Undone);
        let text = &all[0].error.as_ref().unwrap().message;
        assert!(text.starts_with("node 1 (node1) ended in the middle of"), "{text}");
        assert_eq!(owner(&fake, 3), (ResState::Owned, Some(id(0))), "as it was before");
        assert!(slots.held().is_empty());
    });
}

#[test]
fn node_that_is_back_sees_who_took_it() {
    test(async || {
        let (fake, slots) = (machine(), Slots::default());
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("var/lib/mint");
        std::fs::create_dir_all(&state).unwrap();
        let boot_id = fake.info().unwrap().boot_id;
        let begun = {
            let area = Box::new(slots.start(id(1), &Fuse::default()));
            let store = Folder::open(&state).unwrap();
            let ops = Operations::open_with(store, Some(area), boot_id, || 1).unwrap();
            half_moved(&ops, &fake).id()
        };
        crash(&fake, &slots);
        let area = Box::new(slots.start(id(0), &Fuse::default()));
        let zero = Operations::open_with(Memory::default(), Some(area), boot_id, || 1).unwrap();
        let taken = zero.take_over().unwrap().ops;
        assert_eq!(taken.len(), 1);

        fake.set_state(id(1), NodeState::Running);
        let one = Arc::new(fake.also_from(1));
        let back = daemon(&one, &slots, folder).await;
        let all = operations(&back).await;
        assert_eq!((all.len(), all[0].id), (1, begun.0));
        assert_eq!((all[0].state, all[0].unsettled), (OperationState::Failed, false));
        let text = &all[0].error.as_ref().unwrap().message;
        assert!(text.contains("node 0 took it over"), "{text}");
        assert_eq!(owner(&fake, 3), (ResState::Free, None), "it did nothing about it");
    });
}

/// Somebody's step for a node that died is not begun: what is moved after that nobody would
/// take back.
#[test]
fn step_for_a_node_that_died_is_not_done() {
    let fake = machine();
    let waits = |asker| asker_waits(fake.clone(), asker, || true);
    let (one, user) = (waits(Asker::Peer(Some(id(1)))), waits(Asker::User(Some(0))));
    let gone = asker_waits(fake.clone(), Asker::Peer(Some(id(1))), || false);
    assert!(one() && user() && !gone());
    fake.set_state(id(1), NodeState::Crashed);
    assert!(!one() && user());
    assert!(!waits(Asker::Peer(Some(id(1))))(), "nor one that it had asked for before");
}

#[test]
fn no_room_for_an_intent_is_a_refusal() {
    let error = |source: std::io::Error| JournalError {
        action: "write it",
        path: "control area".into(),
        source,
    };
    let long = NoRoom::TooLong { bytes: 5000, room: 4080 };
    let body = journal_error(&error(std::io::Error::other(long)));
    assert_eq!(body.code, ErrorCode::PlanRefused);
    assert_eq!(body.refusals[0].code, RefusalCode::IntentRoom);
    let disk = journal_error(&error(std::io::ErrorKind::StorageFull.into()));
    assert_eq!(disk.code, ErrorCode::Failed);
}
