// SPDX-License-Identifier: Apache-2.0
//! Moves of guests as operations, with a stand-in for mint-guestd that moves nothing.

use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::{Method, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use mint_api::{ErrorBody, ErrorCode, Line, MigrateRequest, OperationList};
use mint_node::fake::FakeMachine;
use mint_serve::{Failure, lines};
use mint_types::{OperationKind, OperationState, Refusal, RefusalCode};
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::sync::Notify;

use super::operations::{died_in, journal};
use super::{Daemon, body, test, until};
use crate::caller::Caller;
use crate::request::Request;
use crate::server;

/// A mint-guestd that has a guest, `web`.
#[derive(Clone, Default)]
struct Guestd {
    asked: Arc<Mutex<Vec<String>>>,
    /// Its move lasts until it is cancelled; so often there is nothing to cancel yet.
    hangs: Arc<Mutex<Option<u32>>>,
    cancelled: Arc<Notify>,
}

impl Guestd {
    fn serve(&self, daemon: &Daemon) {
        let socket = daemon.path("run/mint/guestd.sock");
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let listener = UnixListener::bind(socket).unwrap();
        let router = Router::new().fallback(Self::answer).with_state(self.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let caller = Caller::User { uid: 0, pid: None };
                tokio::spawn(server::serve(stream, router.clone(), caller));
            }
        });
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    async fn answer(
        State(guestd): State<Self>,
        method: Method,
        uri: Uri,
        body: String,
    ) -> Response {
        guestd.asked.lock().unwrap().push(format!("{method} {uri}"));
        let path = uri.path();
        if method == Method::GET {
            let view = json!({
                "name": "web", "uuid": "u1", "node": 0, "node_name": "node0", "state": "running",
                "vcpus": 1, "memory_bytes": 1, "persistent": true, "autostart": false,
            });
            return Json(view).into_response();
        }
        if path.ends_with("/cancel") {
            let mut hangs = guestd.hangs.lock().unwrap();
            return match *hangs {
                Some(0) => {
                    guestd.cancelled.notify_one();
                    Json(json!({})).into_response()
                }
                Some(early) => {
                    *hangs = Some(early - 1);
                    Failure(ErrorBody::new(ErrorCode::Failed, "no job is active")).into_response()
                }
                None => panic!("nothing was to be cancelled"),
            };
        }
        if body.contains("nowhere") {
            let refusal = Refusal::new(RefusalCode::MemoryShort, "vm web", "no room");
            return Failure(ErrorBody::refused(vec![refusal])).into_response();
        }
        let hangs = guestd.hangs.lock().unwrap().is_some();
        let result = if path.ends_with("evacuate") {
            json!({ "node": 0, "vms": [moved(), moved()] })
        } else {
            moved()
        };
        lines::respond(move |lines| async move {
            lines.send(&Line::Progress("half of it sent".into())).await;
            if hangs {
                guestd.cancelled.notified().await;
                let error = ErrorBody::new(ErrorCode::Failed, "vm web was not moved; it stays");
                lines.send(&Line::Error(error)).await;
            } else {
                lines.send(&Line::Result(result)).await;
            }
        })
    }
}

/// A guest that has moved from node 0 to itself: there is no other node here.
fn moved() -> Value {
    json!({
        "name": "web", "uuid": "u1", "from": 0, "to": 0, "memory_bytes": 1, "disks": [],
        "changes": [], "took": null,
    })
}

async fn with_guestd() -> (Daemon, Guestd) {
    let daemon = Daemon::start(FakeMachine::new()).await;
    let guestd = Guestd::default();
    guestd.serve(&daemon);
    (daemon, guestd)
}

impl Daemon {
    async fn moved(&self, path: &str, to: &str) -> (Result<Value, ErrorBody>, Vec<String>) {
        let mut said = Vec::new();
        let tell = |line: &str| said.push(line.to_owned());
        let result = self.client.operate(path, &json!({ "to": to }), tell).await.map_err(body);
        (result, said)
    }

    async fn operations(&self) -> OperationList {
        self.client.get("/v1/operations").await.unwrap()
    }
}

#[test]
fn move_is_an_operation_that_the_guests_node_carries_out() {
    test(async || {
        let (daemon, guestd) = with_guestd().await;
        let (done, said) = daemon.moved("/v1/vms/web/migrate", "x").await;
        assert_eq!((done.unwrap(), said), (moved(), vec!["half of it sent".into()]));
        assert_eq!(guestd.asked(), ["GET /v1/vms/web", "POST /v1/local/vms/u1/migrate"]);
        daemon.moved("/v1/nodes/node0/vms/web/migrate", "x").await.0.unwrap();
        assert_eq!(guestd.asked()[2], "GET /v1/local/vms/web");
        let none: Value = json!({});
        let path = "/v1/nodes/node0/evacuate";
        daemon.client.operate::<Value>(path, &none, |_: &str| ()).await.unwrap();
        assert_eq!(guestd.asked().last().unwrap(), "POST /v1/local/evacuate");
        let all = daemon.operations().await.operations;
        let told: Vec<_> = all.iter().map(|op| (op.kind, op.subject.as_str(), op.state)).collect();
        let done = OperationState::Done;
        assert_eq!(
            told,
            [
                (OperationKind::Migrate, "web", done),
                (OperationKind::Migrate, "web", done),
                (OperationKind::Evacuate, "node0", done)
            ]
        );
        assert_eq!(all[0].progress, ["half of it sent"]);
        let (told, _) = daemon.app.events.subscribe(0);
        let told: Vec<_> = told.iter().filter(|event| event.event == "migrated").collect();
        assert_eq!(told.len(), 4);
        assert_eq!((told[0].node, told[0].reason.as_str()), (0, "vm web"));
        assert_eq!(
            (told[0].old.as_deref(), told[0].new.as_deref()),
            (Some("node0"), Some("node0"))
        );
        assert!(daemon.scrape().await.contains("mint_vm_migrations_total{result=\"done\"} 4\n"));
    });
}

#[test]
fn move_that_is_refused_is_a_refused_operation() {
    test(async || {
        let (daemon, _guestd) = with_guestd().await;
        let refused = daemon.moved("/v1/vms/web/migrate", "nowhere").await.0.unwrap_err();
        assert_eq!(refused.refusals[0].code, RefusalCode::MemoryShort);
        assert_eq!(daemon.operations().await.operations[0].state, OperationState::Refused);
        let counted = "mint_vm_migrations_total{result=\"refused\"} 1\n";
        assert!(daemon.scrape().await.contains(counted));
    });
}

#[test]
fn move_ends_when_its_operation_is_cancelled_as_soon_as_there_is_something_to_end() {
    test(async || {
        let (daemon, guestd) = with_guestd().await;
        *guestd.hangs.lock().unwrap() = Some(2);
        let moving = daemon.moved("/v1/vms/web/migrate", "x");
        let cancelling = async {
            let app = daemon.app.clone();
            until(|| app.ops.list().iter().any(|entry| !entry.progress.is_empty())).await;
            let id = daemon.operations().await.operations[0].id;
            let path = format!("/v1/operations/{id}/cancel");
            daemon.client.post::<Value>(&path, &json!({})).await.unwrap();
            id
        };
        let ((result, _), id) = tokio::join!(moving, cancelling);
        let error = result.unwrap_err();
        assert_eq!(error.code, ErrorCode::Cancelled);
        assert!(error.message.contains("it stays"), "{error}");
        assert_eq!(daemon.operation(id).await.state, OperationState::Cancelled);
        let ends = guestd.asked().iter().filter(|line| line.ends_with("u1/cancel")).count();
        assert_eq!(ends, 3, "{:?}", guestd.asked());
    });
}

#[test]
fn move_in_which_mintd_died_is_told_as_one_that_went_on() {
    test(async || {
        let folder = tempfile::tempdir().unwrap();
        let fake = Arc::new(FakeMachine::new());
        let how = MigrateRequest {
            to: "x".into(),
            dry_run: false,
            bandwidth_bytes_s: None,
            downtime_ms: None,
            parallel: None,
            compress: false,
            post_copy_after_s: None,
            merge: false,
            main_only: false,
            split: None,
            policy: None,
            copies: None,
            chunk_bytes: None,
            layout: None,
            layout_policy: None,
        };
        let id = {
            let ops = journal(folder.path(), 42);
            died_in(&ops, &Request::Migrate { vm: "web".into(), node: None, how }).id().0
        };
        let daemon = Daemon::start_in(folder, fake).await;
        let over = daemon.until_over(id).await;
        assert_eq!(over.state, OperationState::Failed);
        let error = over.error.unwrap();
        assert!(error.message.contains("mint-guestd went on"), "{error}");
    });
}
