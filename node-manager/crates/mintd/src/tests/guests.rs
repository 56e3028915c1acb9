// SPDX-License-Identifier: Apache-2.0
//! The door to guests, with a stand-in for mint-guestd behind it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::http::{Method, Uri};
use mint_api::{ErrorCode, NodeKeeps};
use mint_node::fake::FakeMachine;
use mint_types::{NodeId, RefusalCode, Taken};
use serde_json::{Value, json};
use tokio::net::UnixListener;

use super::{Daemon, body, test};
use crate::caller::Caller;
use crate::{keeps, server};

const GUESTD: &str = "run/mint/guestd.sock";

/// A mint-guestd that says what it was asked for.
pub(super) fn guestd(socket: &Path) {
    let echo = async |method: Method, uri: Uri, body: String| {
        let status = if uri.path().ends_with("bad") { 409 } else { 200 };
        let said = json!({ "asked": format!("{method} {uri} {body}"), "code": "plan_refused", "message": "no" });
        (axum::http::StatusCode::from_u16(status).unwrap(), axum::Json(said))
    };
    stand_in(socket, Router::new().fallback(echo));
}

fn stand_in(socket: &Path, router: Router) {
    std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
    let listener = UnixListener::bind(socket).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let caller = Caller::User { uid: 0, pid: None };
            tokio::spawn(server::serve(stream, router.clone(), caller));
        }
    });
}

#[test]
fn requests_about_guests_reach_guestd_as_they_were_made() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        guestd(&daemon.path(GUESTD));
        let asked =
            async |path: &str| daemon.client.get::<Value>(path).await.unwrap()["asked"].clone();
        assert_eq!(asked("/v1/vms").await, "GET /v1/vms ");
        assert_eq!(asked("/v1/vms/a%2Fb").await, "GET /v1/vms/a%2Fb ");
        assert_eq!(asked("/v1/nodes/node0/vms").await, "GET /v1/local/vms ");
        assert_eq!(asked("/v1/nodes/0/arrivals/u").await, "GET /v1/local/arrivals/u ");
        let told: Value = daemon.client.post("/v1/vms/web/start", &json!({})).await.unwrap();
        assert_eq!(told["asked"], "POST /v1/vms/web/start {}");
        // a plan is no operation
        let plan = json!({ "to": "x", "dry_run": true });
        let told: Value = daemon.client.post("/v1/vms/web/migrate", &plan).await.unwrap();
        assert_eq!(told["asked"], "POST /v1/vms/web/migrate {\"dry_run\":true,\"to\":\"x\"}");
        let told: Value = daemon.client.post("/v1/nodes/0/pins", &json!({})).await.unwrap();
        assert_eq!(told["asked"], "POST /v1/local/pins {}");
        let measured = "/v1/nodes/0/layout/measure";
        let told: Value = daemon.client.post(measured, &json!({ "mib": 4 })).await.unwrap();
        assert_eq!(told["asked"], "POST /v1/local/layout/measure {\"mib\":4}");
        let some = json!({ "taken": { "node": 0, "apic_ids": [4] }, "dry_run": true });
        let told: Value = daemon.client.post("/v1/nodes/0/evacuate", &some).await.unwrap();
        assert!(told["asked"].as_str().unwrap().contains("\"apic_ids\":[4]"), "{told}");
        // another node's mintd asks for this node's own, a user does not
        let from_peer: Value = daemon.peer.get("/v1/local/vms").await.unwrap();
        assert_eq!(from_peer["asked"], "GET /v1/local/vms ");
        let lease: Value = daemon.peer.post("/v1/local/leases", &json!({})).await.unwrap();
        assert_eq!(lease["asked"], "POST /v1/local/leases {}");
        let user = daemon.client.get::<Value>("/v1/local/vms").await.map_err(body).unwrap_err();
        assert_eq!(user.code, ErrorCode::NotAllowed);
        // what it refuses is refused
        let refused = daemon.client.get::<Value>("/v1/vms/bad").await.map_err(body).unwrap_err();
        assert_eq!((refused.code, refused.exit_status()), (ErrorCode::PlanRefused, 3));
    });
}

#[test]
fn without_guestd_the_error_says_so_and_where_to_look() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let error = daemon.client.get::<Value>("/v1/vms").await.map_err(body).unwrap_err();
        assert_eq!((error.code, error.exit_status()), (ErrorCode::GuestdDown, 1));
        assert!(error.message.contains("mint-guestd.log"), "{error}");
        let absent = daemon.client.get::<Value>("/v1/nodes/moon/vms").await.map_err(body);
        assert!(absent.unwrap_err().is_absent());
    });
}

#[test]
fn node_that_keeps_memory_of_other_nodes_guests_does_not_end() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let kept = Arc::new(AtomicU64::new(64 << 20));
        let told = kept.clone();
        let keeps = move || {
            let kept_bytes = told.load(Ordering::Relaxed);
            async move {
                axum::Json(NodeKeeps {
                    guests: 1,
                    kept_bytes,
                    limit_bytes: 1 << 30,
                    free_bytes: None,
                    may_bytes: None,
                    mirrors: Vec::new(),
                })
            }
        };
        stand_in(
            &daemon.path(GUESTD),
            Router::new().route("/v1/local/leases", axum::routing::get(keeps)),
        );
        for verb in ["stop", "restart"] {
            let path = format!("/v1/nodes/0/{verb}");
            let asked = daemon.client.post::<Value>(&path, &json!({})).await;
            let refused = asked.map_err(body).unwrap_err();
            assert_eq!(refused.refusals[0].code, RefusalCode::MemoryKept, "{refused}");
            assert!(refused.message.contains("keeps 64M of the memory of 1 guests"), "{refused}");
        }
        // nor do its own guests go first, nor does it lose memory
        for (verb, what) in [
            ("evacuate", json!({ "ends": true })),
            ("resize", json!({ "spec": { "memory": ["-512M"] } })),
        ] {
            let path = format!("/v1/nodes/0/{verb}");
            let refused =
                daemon.client.post::<Value>(&path, &what).await.map_err(body).unwrap_err();
            assert_eq!(refused.refusals[0].code, RefusalCode::MemoryKept, "{verb}: {refused}");
        }
        let taken = |memory_bytes| [Taken { node: NodeId::ZERO, apic_ids: vec![1], memory_bytes }];
        keeps::may_lose(&daemon.app, &taken(0)).await.unwrap();
        let refused = keeps::may_lose(&daemon.app, &taken(256 << 20)).await.unwrap_err();
        assert!(refused.message.contains("has promised 1G in all: without 256M"), "{refused}");
        let force = json!({ "spec": { "memory": ["-512M"] }, "force": true });
        // it is tried: this machine's memory cannot be moved
        let tried = daemon.operate::<Value>("/v1/nodes/0/resize", &force).await;
        assert_eq!(tried.unwrap_err().refusals[0].code, RefusalCode::MemoryBusy);
        kept.store(0, Ordering::Relaxed);
        keeps::may_end(&daemon.app, "0").await.unwrap();
        keeps::may_lose(&daemon.app, &taken(256 << 20)).await.unwrap();
    });
}
