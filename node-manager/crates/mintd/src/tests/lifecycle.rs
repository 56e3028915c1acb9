// SPDX-License-Identifier: Apache-2.0
//! Nodes are added, started, stopped, described, removed.

use mint_api::{
    ApplyRequest, ApplyResult, ErrorCode, Line, NodeDetail, NodeList, NodeResult, RemoveRequest,
    StartRequest, WaitFor,
};
use mint_node::fake::FakeMachine;
use mint_types::{NodeId, NodeState, RefusalCode, ResourceKey, RestartPolicy};
use serde_json::{Value, json};

use super::ends::event;
use super::{Daemon, body, test, until, web};
use crate::{changes, restart};

#[test]
fn life_of_a_node() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let before = daemon.fake.ledger();

        let mut dry = web();
        dry.dry_run = true;
        let planned = daemon.add(dry).await.unwrap();
        assert!(planned.dry_run && planned.node.is_none());
        assert_eq!(daemon.fake.ledger(), before);

        let added = daemon.add(web()).await.unwrap();
        let node = added.node.unwrap();
        assert_eq!((node.name.as_str(), node.state), ("web", NodeState::Running));
        assert_eq!((node.cpus.as_str(), node.address.as_str()), ("3-4", "10.77.0.11"));
        assert!(added.times.running_ms.is_some());

        let list: NodeList = daemon.client.get("/v1/nodes").await.unwrap();
        assert_eq!(list.nodes.len(), 2);
        assert!(list.nodes[0].is_self && list.nodes[0].mintd == "ok");
        let detail: NodeDetail = daemon.client.get("/v1/nodes/web").await.unwrap();
        assert_eq!(detail.resources.memory.len(), 8);
        assert_eq!(detail.spec.unwrap().name.as_str(), "web");

        let again = daemon.add(web()).await.unwrap_err();
        assert_eq!(again.exit_status(), 3);
        assert_eq!(again.refusals[0].code, RefusalCode::NameTaken);

        let killed: NodeResult = daemon.operate("/v1/nodes/1/kill", &json!({})).await.unwrap();
        assert_eq!(killed.node.unwrap().state, NodeState::Killed);
        let start = serde_json::to_value(StartRequest::default()).unwrap();
        let started: NodeResult = daemon.operate("/v1/nodes/web/start", &start).await.unwrap();
        assert_eq!(started.node.unwrap().boots, 2);
        // no peer answers here: the kernel is asked
        let stopped: NodeResult = daemon.operate("/v1/nodes/web/stop", &json!({})).await.unwrap();
        assert_eq!(stopped.node.unwrap().state, NodeState::Halted);
        let request = serde_json::to_value(RemoveRequest::default()).unwrap();
        let removed: NodeResult = daemon.operate("/v1/nodes/web/remove", &request).await.unwrap();
        assert_eq!((removed.removed.as_deref(), removed.id), (Some("web"), Some(1)));
        let gone: Result<NodeDetail, _> = daemon.client.get("/v1/nodes/web").await;
        assert_eq!(body(gone.unwrap_err()).refusals[0].code, RefusalCode::NodeAbsent);
    });
}

#[test]
fn stop_of_a_deaf_node_ends_in_a_kill() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        daemon.add(web()).await.unwrap();
        daemon.fake.fail("shutdown node 1");
        let stopped: NodeResult =
            daemon.operate("/v1/nodes/web/stop", &json!({"timeout_s": 1})).await.unwrap();
        assert_eq!(stopped.node.unwrap().state, NodeState::Killed);
        assert!(stopped.notes[0].contains("was killed"), "{:?}", stopped.notes);
    });
}

#[test]
fn node_0_and_ourselves_are_not_stopped() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let stop: Result<NodeResult, _> = daemon.operate("/v1/nodes/0/stop", &json!({})).await;
        assert_eq!(stop.unwrap_err().refusals[0].code, RefusalCode::NodeSelf);
    });
}

#[test]
fn requests_that_make_no_sense_are_usage_errors() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        for (path, request) in [
            ("/v1/nodes", json!({"spec": {"name": "web", "cores": 2}})),
            ("/v1/nodes", json!({"spec": {"name": "Web"}})),
            ("/v1/nodes/web/stop", json!({"timeout": 2})),
        ] {
            let error = daemon.operate::<Value>(path, &request).await.unwrap_err();
            assert_eq!(error.code, ErrorCode::BadRequest, "{path} {request}");
            assert_eq!(error.exit_status(), 2);
        }
        let nowhere: Result<Value, _> = daemon.client.get("/v1/nowhere").await;
        assert_eq!(body(nowhere.unwrap_err()).code, ErrorCode::NotFound);
    });
}

/// A limit that no clock can be set to is refused before anything is done.
#[test]
fn endless_time_limits_are_usage_errors_and_change_nothing() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        daemon.add(web()).await.unwrap();
        let before = daemon.fake.ledger();
        let endless = u64::MAX;
        for (path, request) in [
            ("/v1/nodes/web/stop", json!({ "timeout_s": endless })),
            ("/v1/nodes/web/restart", json!({ "timeout_s": endless })),
            ("/v1/nodes/0/restart", json!({ "timeout_s": endless })),
            ("/v1/nodes/web/start", json!({ "wait_s": endless })),
            ("/v1/nodes", json!({ "spec": { "name": "db" }, "wait_s": endless })),
        ] {
            let error = daemon.operate::<Value>(path, &request).await.unwrap_err();
            assert_eq!((error.code, error.exit_status()), (ErrorCode::BadRequest, 2), "{path}");
            assert!(error.message.contains("at most 31536000 s"), "{}", error.message);
            assert_eq!(daemon.fake.ledger(), before, "{path}");
        }
    });
}

#[test]
fn gift_with_a_driver_that_leads_elsewhere_is_not_taken() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let before = daemon.fake.ledger();
        let gift = |driver: &str| {
            let key = ResourceKey::device("0000:03:00.0".parse().unwrap());
            let key = serde_json::to_value(key).unwrap();
            json!({"gifts": [{"key": key, "driver": driver}]})
        };
        for driver in ["../../../../tmp/x", "", "a/b"] {
            let claimed: Result<Value, _> =
                daemon.peer.post("/v1/local/claim", &gift(driver)).await;
            assert_eq!(body(claimed.unwrap_err()).code, ErrorCode::BadRequest, "{driver}");
        }
        assert_eq!(daemon.fake.ledger(), before);
        // a good one comes as far as the kernel, which says that it is not free
        let claimed: Value = daemon.peer.post("/v1/local/claim", &gift("nvme")).await.unwrap();
        assert_eq!(claimed["stopped"]["at"], 0, "{claimed}");
    });
}

/// Another daemon removed what this one added, and made the next node of that id.
#[test]
fn node_of_another_daemon_is_not_started_again_by_an_old_description() {
    test(async || {
        let one = NodeId::new(1).unwrap();
        let ours = Daemon::start(FakeMachine::new()).await;
        let theirs = Daemon::start(ours.fake.clone()).await;
        let mut request = web();
        request.spec.restart = RestartPolicy::Always;
        ours.add(request).await.unwrap();
        let force = json!({ "force": true });
        theirs.operate::<NodeResult>("/v1/nodes/web/remove", &force).await.unwrap();
        let mut request = web();
        request.spec.restart = RestartPolicy::Never;
        theirs.add(request).await.unwrap();
        let end = NodeState::Crashed;
        ours.fake.set_state(one, end);
        restart::start_again(ours.app.clone(), one, end).await;
        restart::start_again(theirs.app.clone(), one, end).await;
        let node = mint_node::Machine::node(&*ours.fake, one).unwrap().unwrap();
        assert_eq!((node.state, node.boots), (end, 1));
        // nor is the old one told to anybody
        let stale: mint_api::SpecReply = ours.peer.get("/v1/local/specs/1").await.unwrap();
        assert_eq!(stale.spec, None);
        let kept = |daemon: &Daemon| {
            let (root, dir) = (&daemon.app.root, &daemon.app.config.state.dir);
            crate::identity::state_dir(root, dir).unwrap().join("nodes/1.json").exists()
        };
        for daemon in [&ours, &theirs] {
            changes::state_changed(&daemon.app, &event(NodeState::Stopped, NodeState::Unused));
        }
        assert_eq!((kept(&ours), kept(&theirs)), (false, true));
    });
}

#[test]
fn node_without_a_description_is_started_with_default_images_only_if_asked_for() {
    test(async || {
        let one = NodeId::new(1).unwrap();
        let fake = FakeMachine::new()
            .with_node(1, "web", &[ResourceKey::cpu(3), ResourceKey::memory(16)])
            .with_node(2, "db", &[ResourceKey::cpu(4)]);
        let daemon = Daemon::start(fake).await;
        let state = || mint_node::Machine::node(&*daemon.fake, one).unwrap().unwrap().state;
        let refused = async |path: &str| {
            let error = daemon.operate::<NodeResult>(path, &json!({})).await.unwrap_err();
            assert_eq!(error.exit_status(), 3, "{path}");
            let refusal = error.refusals.into_iter().next().unwrap();
            assert_eq!(refusal.code, RefusalCode::DescriptionMissing);
            refusal.to_string()
        };
        // before it is stopped
        let text = refused("/v1/nodes/web/restart").await;
        assert_eq!(state(), NodeState::Running);
        assert!(text.contains("node 2 (db) does not answer"), "{text}");
        assert!(text.contains("mintctl node start web --default-image"), "{text}");
        daemon.fake.set_state(one, NodeState::Halted);
        refused("/v1/nodes/web/start").await;
        assert_eq!(state(), NodeState::Halted);
        assert_eq!(daemon.fake.calls(), Vec::<String>::new());
        let default = json!({ "default_image": true });
        daemon.operate::<NodeResult>("/v1/nodes/web/start", &default).await.unwrap();
        let loads = format!("load 1 {}", daemon.app.config.node.cmdline);
        // the fake's cores come to the park loop only when somebody fetches them
        assert_eq!(daemon.fake.calls(), ["kill 1", loads.as_str(), "start 1"]);
    });
}

#[test]
fn daemon_that_cannot_come_is_not_waited_for() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        // told apart by what it says: without mint0 here nobody waits for a daemon anyhow
        let waits_for = async |devices: &[&str], cmdline: Option<&str>| {
            let mut request = web();
            request.spec.devices = devices.iter().map(|bdf| bdf.parse().unwrap()).collect();
            request.spec.cmdline = cmdline.map(str::to_owned);
            let mut told = Vec::new();
            let take = |text: &str| told.push(text.to_owned());
            let _: NodeResult = daemon.client.operate("/v1/nodes", &request, take).await.unwrap();
            let take = |text: &str| told.push(text.to_owned());
            let stop = json!({ "timeout_s": 1 });
            daemon.operate::<NodeResult>("/v1/nodes/web/stop", &stop).await.unwrap();
            let path = "/v1/nodes/web/start";
            let _: NodeResult = daemon.client.operate(path, &json!({}), take).await.unwrap();
            let force = json!({ "force": true });
            daemon.operate::<NodeResult>("/v1/nodes/web/remove", &force).await.unwrap();
            told.retain(|text| text.contains("waiting for the kernel only: "));
            told
        };
        let disk = "0000:03:00.0";
        assert_eq!(waits_for(&[disk], None).await, Vec::<String>::new());
        let told = waits_for(&[], None).await;
        assert!(told.len() == 2 && told[0].contains("no disk or network card"), "{told:?}");
        let told = waits_for(&[disk], Some("console=hvc0 mint.root=initrd")).await;
        assert!(told.len() == 2 && told[1].contains("by mint.root=initrd"), "{told:?}");
        let mut initrd = mint_image::cpio::Archive::new();
        initrd.file("sbin/mintd", 0o755, b"x");
        std::fs::write(&daemon.app.config.node.initrd, initrd.finish()).unwrap();
        assert_eq!(waits_for(&[], None).await, Vec::<String>::new());
        std::fs::write(&daemon.app.config.node.initrd, b"\xfd7zXZ\0abc").unwrap();
        assert_eq!(waits_for(&[], None).await, Vec::<String>::new(), "who knows");
    });
}

#[test]
fn apply_is_idempotent_and_starts_what_has_stopped() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let dir = daemon.path("nodes.d");
        std::fs::create_dir(&dir).unwrap();
        let text = "name = \"web\"\ncpus = \"3-4\"\nmemory = \"1G@numa1\"\n";
        std::fs::write(dir.join("web.toml"), text).unwrap();
        std::fs::write(dir.join("bad.toml"), "name = \"bad\"\ncpus = \"9\"\nmemory = \"1G\"\n")
            .unwrap();
        let request =
            ApplyRequest { dir: Some(dir.to_string_lossy().into_owned()), wait: WaitFor::Running };
        let request = serde_json::to_value(request).unwrap();
        let apply = async || {
            let result: Result<ApplyResult, _> = daemon.operate("/v1/apply", &request).await;
            result.map(|result| {
                result.nodes.into_iter().map(|node| node.result).collect::<Vec<_>>().join(" ")
            })
        };
        assert_eq!(apply().await.unwrap(), "failed added");
        assert_eq!(apply().await.unwrap(), "failed unchanged");
        daemon.fake.set_state(NodeId::new(1).unwrap(), NodeState::Halted);
        assert_eq!(apply().await.unwrap(), "failed started");
        let before = daemon.fake.ledger();
        std::fs::write(dir.join("bad.toml"), "name = \"bad\"\ncolour = \"red\"\n").unwrap();
        let error = apply().await.unwrap_err();
        assert_eq!((error.code, error.exit_status()), (ErrorCode::ConfigBad, 2));
        assert!(error.causes[0].contains("colour"), "{error:?}");
        assert_eq!(daemon.fake.ledger(), before);
    });
}

#[test]
fn apply_starts_a_node_by_its_file_where_nobody_else_describes_it() {
    test(async || {
        let owned = [ResourceKey::cpu(3), ResourceKey::memory(16)];
        let daemon = Daemon::start(FakeMachine::new().with_node(1, "web", &owned)).await;
        daemon.fake.set_state(NodeId::new(1).unwrap(), NodeState::Halted);
        let dir = daemon.path("nodes.d");
        std::fs::create_dir(&dir).unwrap();
        let text = "name = \"web\"\ncpus = \"3\"\nmemory = \"128M\"\ncmdline = \"of the file\"\n";
        std::fs::write(dir.join("web.toml"), text).unwrap();
        let request = json!({ "dir": dir, "wait": "running" });
        let result: ApplyResult = daemon.operate("/v1/apply", &request).await.unwrap();
        assert_eq!(result.nodes[0].result, "started", "{:?}", result.nodes[0].error);
        assert_eq!(daemon.fake.calls(), ["kill 1", "load 1 of the file", "start 1"]);
    });
}

#[test]
fn two_adds_at_once_get_different_nodes() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let mut db = web();
        db.spec.name = "db".parse().unwrap();
        db.spec.cpus = Some("5".parse().unwrap());
        db.spec.memory = vec!["512M@numa1".parse().unwrap()];
        db.spec.devices.clear();
        let (one, two) = tokio::join!(daemon.add(web()), daemon.add(db));
        assert_ne!(one.unwrap().node.unwrap().id, two.unwrap().node.unwrap().id);
    });
}

#[test]
fn driver_survives_a_panic_and_settles_the_journal() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let before = daemon.fake.ledger();
        // a bug, in the middle of an operation: some of its steps are done
        daemon.fake.panic_at("claim cpu 4 1");
        let lost = daemon.add(web()).await.unwrap_err();
        assert_eq!(lost.code, ErrorCode::Failed, "{lost}");
        let calls = daemon.fake.calls();
        assert!(calls.contains(&"claim cpu 3 1".to_owned()), "{calls:?}");
        until(|| daemon.fake.ledger() == before).await;
        daemon.add(web()).await.unwrap();
    });
}

#[test]
fn progress_comes_before_the_result() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let request = serde_json::to_vec(&web()).unwrap();
        let mut lines = daemon.client.lines("/v1/nodes", Some(request)).await.unwrap();
        let mut all = Vec::new();
        while let Some(line) = lines.next::<Line>().await.unwrap() {
            all.push(line);
        }
        let (last, before) = all.split_last().unwrap();
        assert!(matches!(last, Line::Result(_)));
        assert!(before.len() > 5 && before.iter().all(|line| matches!(line, Line::Progress(_))));
    });
}
