// SPDX-License-Identifier: Apache-2.0
//! Operations of a daemon: listed, waited for, cancelled, and settled by the next one.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use mint_api::{
    ErrorBody, ErrorCode, NodeList, NodeResult, OperationList, OperationView, ResizeRequest,
    StartRequest,
};
use mint_node::fake::FakeMachine;
use mint_node::{Machine, about};
use mint_ops::{Folder, Intent, Lock, Op, Operations};
use mint_types::{
    Asker, NodeId, NodeState, OperationKind, OperationState, RefusalCode, ResourceKey, Step,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{Daemon, body, parts, test, until, web};
use crate::request::Request;
use crate::run_error::RunError;

fn one() -> NodeId {
    NodeId::new(1).unwrap()
}

/// The journal that a daemon in that folder has, while none runs.
pub(super) fn journal(folder: &Path, boot_id: u64) -> Operations {
    let state = folder.join("var/lib/mint");
    std::fs::create_dir_all(&state).unwrap();
    Operations::open(Folder::open(&state).unwrap(), boot_id, || 1).unwrap()
}

/// An operation that a daemon died in.
pub(super) fn died_in(ops: &Operations, request: &Request) -> Op {
    ops.submit(mint_ops::Request {
        kind: request.kind(),
        subject: request.subject(),
        asked_by: Asker::User(Some(0)),
        body: serde_json::to_value(request).unwrap(),
        part_of: None,
        dry_run: false,
    })
    .unwrap()
}

fn resize() -> Request {
    Request::Resize("node0".into(), ResizeRequest::default())
}

impl Daemon {
    pub(super) async fn operation(&self, id: u64) -> OperationView {
        self.client.get(&format!("/v1/operations/{id}")).await.unwrap()
    }

    pub(super) async fn until_over(&self, id: u64) -> OperationView {
        let ops = self.app.ops.clone();
        let id = mint_types::OperationId(id);
        until(|| ops.get(id).unwrap().state.is_over()).await;
        self.operation(id.0).await
    }

    /// Somebody else has that core for a while.
    fn hold(&self, cpu: u32) -> mint_ops::Locks {
        let lock = BTreeSet::from([Lock::Resource(ResourceKey::cpu(cpu))]);
        self.app.ops.take_for_step("a test", &lock).unwrap()
    }

    /// Status line and body of an answer.
    async fn status(&self, method: &str, path: &str, request: &Value) -> (u16, String) {
        let mut stream = tokio::net::UnixStream::connect(self.path("mintd.sock")).await.unwrap();
        let text = request.to_string();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            text.len()
        );
        stream.write_all((head + &text).as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer)
    }
}

#[test]
fn operations_are_listed_and_shown_with_who_asked_and_how_they_ended() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        daemon.add(web()).await.unwrap();
        daemon.add(web()).await.unwrap_err();
        let mut dry = web();
        dry.dry_run = true;
        dry.spec.name = "db".parse().unwrap();
        daemon.add(dry).await.unwrap_err();
        let list: OperationList = daemon.client.get("/v1/operations").await.unwrap();
        let told: Vec<_> = list
            .operations
            .iter()
            .map(|op| (op.id, op.kind, op.subject.as_str(), op.state))
            .collect();
        let (add, done, refused) =
            (OperationKind::Add, OperationState::Done, OperationState::Refused);
        assert_eq!(told, [(1, add, "web", done), (2, add, "web", refused)], "no dry run");
        let added = daemon.operation(1).await;
        let uid = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap());
        assert_eq!(added.asked_by, Asker::User(Some(uid)).to_string());
        assert!(added.past_no_return && !added.unsettled && !added.cancel);
        assert!(added.progress.contains(&"start node 1 (web)".to_owned()), "{:?}", added.progress);
        assert!(added.created_ns <= added.started_ns.unwrap());
        assert!(added.started_ns <= added.ended_ns);
        let error = daemon.operation(2).await.error.unwrap();
        assert_eq!(error.refusals[0].code, RefusalCode::NameTaken);
        let absent: Result<OperationView, _> = daemon.client.get("/v1/operations/9").await;
        assert_eq!(body(absent.unwrap_err()).code, ErrorCode::NotFound);
    });
}

/// A client that goes away ends nothing; whoever attaches later gets every line and the
/// same result.
#[test]
fn operation_outlives_its_client_and_is_waited_for_by_another() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let held = daemon.hold(3);
        let request = serde_json::to_vec(&web()).unwrap();
        let mut lines = daemon.client.lines("/v1/nodes", Some(request)).await.unwrap();
        assert_eq!(lines.operation(), Some(mint_types::OperationId(1)));
        let first = lines.next::<Value>().await.unwrap().unwrap();
        assert_eq!(first["progress"], "waiting: cpu 3 is held by a test");
        drop(lines);
        assert_eq!(daemon.operation(1).await.state, OperationState::Queued);
        drop(held);
        let mut told = Vec::new();
        let wait = "/v1/operations/1/wait";
        let say = |text: &str| told.push(text.to_owned());
        let result: NodeResult = daemon.client.attend(wait, say).await.unwrap();
        assert_eq!(result.node.unwrap().state, NodeState::Running);
        assert_eq!(told[0], "waiting: cpu 3 is held by a test");
        assert!(told.contains(&"start node 1 (web)".to_owned()), "{told:?}");
        let mut again = 0;
        let _: NodeResult = daemon.client.attend(wait, |_| again += 1).await.unwrap();
        assert_eq!(again, told.len());
    });
}

#[test]
fn what_waits_is_cancelled_and_what_is_past_its_point_of_no_return_is_not() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let before = daemon.fake.ledger();
        let _held = daemon.hold(3);
        let client = daemon.client.clone();
        let waits = tokio::spawn(async move {
            client.operate::<NodeResult>("/v1/nodes", &web(), |_| {}).await.map_err(body)
        });
        let ops = daemon.app.ops.clone();
        until(|| ops.get(mint_types::OperationId(1)).is_some_and(|op| !op.progress.is_empty()))
            .await;
        let asked: OperationView =
            daemon.client.post("/v1/operations/1/cancel", &json!({})).await.unwrap();
        assert!(asked.cancel);
        assert_eq!(waits.await.unwrap().unwrap_err().code, ErrorCode::Cancelled);
        assert_eq!(daemon.operation(1).await.state, OperationState::Cancelled);
        assert_eq!(daemon.fake.ledger(), before);
        let cancel = async |id: u64| -> ErrorBody {
            let path = format!("/v1/operations/{id}/cancel");
            body(daemon.client.post::<OperationView>(&path, &json!({})).await.unwrap_err())
        };
        assert_eq!(cancel(1).await.refusals[0].code, RefusalCode::OperationOver);
        assert_eq!(cancel(7).await.code, ErrorCode::NotFound);
        let op = died_in(&daemon.app.ops, &Request::Kill("web".into()));
        op.no_return().unwrap();
        let refused = cancel(op.id().0).await;
        assert_eq!(refused.refusals[0].code, RefusalCode::PastNoReturn);
        assert_eq!(refused.exit_status(), 3);
    });
}

/// One operation that waits, or takes long, holds up nothing else.
#[test]
fn others_go_on_beside_one_that_waits() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let held = daemon.hold(3);
        let client = daemon.client.clone();
        let waits =
            tokio::spawn(
                async move { client.operate::<NodeResult>("/v1/nodes", &web(), |_| {}).await },
            );
        let ops = daemon.app.ops.clone();
        until(|| ops.get(mint_types::OperationId(1)).is_some_and(|op| !op.progress.is_empty()))
            .await;
        let mut db = web();
        db.spec.name = "db".parse().unwrap();
        db.spec.cpus = Some("5".parse().unwrap());
        db.spec.devices.clear();
        db.spec.memory = vec!["512M@numa1".parse().unwrap()];
        let added = daemon.add(db).await.unwrap();
        assert_eq!(added.node.unwrap().name, "db");
        let list: NodeList = daemon.client.get("/v1/nodes").await.unwrap();
        assert_eq!(list.nodes.len(), 2, "reads wait for nobody");
        let keys = json!({ "keys": [ResourceKey::cpu(3), ResourceKey::cpu(4)] });
        let asked: Value = daemon.peer.post("/v1/local/releasable", &keys).await.unwrap();
        assert_eq!(asked["refusals"][0]["code"], "operation_holds", "nor does this one");
        assert_eq!(asked["refusals"][1], Value::Null);
        drop(held);
        waits.await.unwrap().unwrap();
    });
}

/// A peer's step waits for no operation of this node: what one holds is refused at once,
/// with its holder, and what none holds is given.
#[test]
fn step_for_a_peer_is_refused_at_once_with_who_holds_the_resource() {
    test(async || {
        // who asks is node 2
        let daemon = Daemon::start(FakeMachine::new().with_node(2, "two", &[])).await;
        let op = died_in(&daemon.app.ops, &Request::Kill("web".into()));
        let _locks = op.take(&BTreeSet::from([Lock::Resource(ResourceKey::cpu(3))])).unwrap();
        let release = async |cpu: u32| -> Value {
            let keys = json!({ "keys": [ResourceKey::cpu(cpu)] });
            daemon.peer.post("/v1/local/release", &keys).await.unwrap()
        };
        let refused = release(3).await;
        let refusal = &refused["stopped"]["error"]["refusals"][0];
        assert_eq!(refusal["code"], "operation_holds");
        let holder = "operation 1 (kill web, asked for by root)";
        assert_eq!(refusal["owner"], holder);
        assert_eq!(refusal["message"], format!("cpu 3 is held by {holder}"));
        assert_eq!(release(4).await["stopped"], Value::Null);
    });
}

#[test]
fn errors_before_the_first_line_have_their_status() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let add = serde_json::to_value(web()).unwrap();
        assert_eq!(daemon.status("POST", "/v1/nodes", &add).await.0, 200);
        let (status, text) = daemon.status("POST", "/v1/nodes", &add).await;
        assert_eq!(status, 409);
        assert!(text.contains("name_taken"), "{text}");
        for (method, path, status) in [
            ("POST", "/v1/nodes/absent/stop", 404),
            ("POST", "/v1/nodes/absent/resize", 400),
            ("GET", "/v1/nodes/absent", 404),
            ("POST", "/v1/nodes/0/stop", 409),
            ("GET", "/v1/operations/77", 404),
            ("GET", "/v1/operations/77/wait", 404),
            ("GET", "/v1/operations/x", 400),
            // the first one is over: its answer is there at once
            ("GET", "/v1/operations/1/wait", 200),
            ("GET", "/v1/operations/2/wait", 409),
        ] {
            let (got, text) = daemon.status(method, path, &json!({})).await;
            assert_eq!(got, status, "{path}: {text}");
        }
    });
}

#[test]
fn part_that_panics_is_settled_and_others_go_on() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let before = daemon.fake.ledger();
        let op = died_in(&daemon.app.ops, &resize());
        let lost = daemon
            .app
            .carry(&op, |nodes, op| -> Result<(), mint_node::OpError> {
                let node = nodes.machine.node(NodeId::ZERO).unwrap().unwrap();
                let key = ResourceKey::cpu(4);
                let steps = vec![Step::Release { key, node: node.id, driver: None }];
                op.begin(Intent { steps, boots: None, ..about(&node) }, false).unwrap();
                nodes.machine.release(key, node.id, false).unwrap();
                panic!("a bug, on purpose")
            })
            .await
            .unwrap_err();
        assert_eq!(lost.code, ErrorCode::Failed);
        assert_eq!(daemon.fake.ledger(), before);
        assert_eq!(op.entry().open, None);
        daemon.add(web()).await.unwrap();
    });
}

/// What is being done by the one that runs is not the other's to settle.
#[test]
fn second_daemon_leaves_the_first_ones_operations_alone() {
    test(async || {
        let folder = tempfile::tempdir().unwrap();
        let fake = Arc::new(FakeMachine::new());
        let first = parts(folder.path(), &fake).start().await.unwrap();
        let op = died_in(&first.app.ops, &resize());
        let core = ResourceKey::cpu(4);
        let node = fake.node(NodeId::ZERO).unwrap().unwrap();
        let steps = vec![Step::Release { key: core, node: NodeId::ZERO, driver: None }];
        op.begin(Intent { steps, ..about(&node) }, false).unwrap();
        fake.release(core, NodeId::ZERO, false).unwrap();
        let before = fake.ledger();
        let second = parts(folder.path(), &fake).start().await.map(drop);
        assert!(matches!(second, Err(RunError::Running { .. })), "{second:?}");
        assert_eq!(fake.ledger(), before);
        assert!(op.entry().open.is_some());
        drop((op, first));
        let third = parts(folder.path(), &fake).start().await.unwrap();
        assert_ne!(fake.ledger(), before, "its successor takes it back");
        drop(third);
    });
}

/// Died before the node was asked to end: nothing is done. Died after: it is started
/// again, whether it has ended by then or not, and once only.
#[test]
fn restart_that_died_in_the_middle_is_undone_or_finished() {
    test(async || {
        for (asked, ended, boots) in
            [(false, false, 1), (true, false, 2), (true, true, 2), (false, true, 1)]
        {
            let folder = tempfile::tempdir().unwrap();
            let fake = Arc::new(FakeMachine::new().with_node(
                1,
                "web",
                &[ResourceKey::cpu(4), ResourceKey::memory(39)],
            ));
            let ops = journal(folder.path(), 42);
            let request = StartRequest {
                wait: mint_api::WaitFor::Running,
                default_image: true,
                ..StartRequest::default()
            };
            let op = died_in(&ops, &Request::Restart("web".into(), request));
            op.begin(about(&fake.node(one()).unwrap().unwrap()), asked).unwrap();
            if ended {
                fake.set_state(one(), NodeState::Halted);
            }
            drop((op, ops));
            let daemon = Daemon::start_in(folder, fake).await;
            let over = daemon.until_over(1).await;
            let node = daemon.fake.node(one()).unwrap().unwrap();
            let what = format!("asked {asked}, ended {ended}: {over:?}");
            assert_eq!(node.boots, boots, "{what}");
            let state = if asked { OperationState::Done } else { OperationState::Undone };
            assert_eq!(over.state, state, "{what}");
            assert_eq!(node.state.is_live(), asked || !ended, "{what}");
        }
    });
}

#[test]
fn stop_that_died_after_it_had_asked_is_done_once_the_node_has_ended() {
    test(async || {
        for ended in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let fake = Arc::new(FakeMachine::new().with_node(1, "web", &[ResourceKey::cpu(4)]));
            let ops = journal(folder.path(), 42);
            let op = died_in(&ops, &Request::Stop("web".into(), mint_api::StopRequest::default()));
            op.begin(about(&fake.node(one()).unwrap().unwrap()), true).unwrap();
            if ended {
                fake.set_state(one(), NodeState::Halted);
            }
            drop((op, ops));
            let daemon = Daemon::start_in(folder, fake).await;
            let over = daemon.until_over(1).await;
            assert_eq!(over.state, OperationState::Done, "{over:?}");
            assert_eq!(daemon.fake.node(one()).unwrap().unwrap().state, NodeState::Halted);
        }
    });
}

/// An entry that this daemon does not understand is told of everywhere, kept as it is,
/// and its number is not given again.
#[test]
fn entry_that_is_not_understood_is_told_and_kept() {
    test(async || {
        let folder = tempfile::tempdir().unwrap();
        let operations = folder.path().join("var/lib/mint/operations");
        std::fs::create_dir_all(&operations).unwrap();
        let text = r#"{"version": 9, "operation": {"id": 5, "shape": "unknown"}}"#;
        std::fs::write(operations.join("5.json"), text).unwrap();
        let daemon = Daemon::start_in(folder, Arc::new(FakeMachine::new())).await;
        let list: OperationList = daemon.client.get("/v1/operations").await.unwrap();
        assert_eq!(list.operations, []);
        assert!(list.unreadable[0].path.ends_with("operations/5.json"), "{list:?}");
        assert_eq!(list.unreadable[0].why, "it has format 9, this mintd reads 1");
        let report: mint_api::DoctorReport = daemon.client.get("/v1/doctor").await.unwrap();
        let check = report.checks.iter().find(|check| check.name == "journal").unwrap();
        assert!(
            !report.ok && check.status == "fail" && check.detail.contains("5.json"),
            "{check:?}"
        );
        daemon.add(web()).await.unwrap();
        let list: OperationList = daemon.client.get("/v1/operations").await.unwrap();
        assert_eq!(list.operations[0].id, 6);
        let kept = daemon.path("var/lib/mint/operations/5.json");
        assert_eq!(std::fs::read_to_string(kept).unwrap(), text);
    });
}
