// SPDX-License-Identifier: Apache-2.0
//! What daemons do with each other, over TLS.

use std::time::{Duration, Instant};

use mint_api::frame::{ExecExit, ExecRequest, FrameKind, read_frame, write_json};
use mint_api::{Client, ErrorBody, ErrorCode, NodeList, NodeResult, ResizePlan};
use mint_node::fake::FakeMachine;
use mint_types::{NodeState, RefusalCode, ResourceKey};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::machine::{Daemon, Machine, id};
use super::{STUCK, body, test, until, web};
use crate::restart;

pub(super) async fn operate<T: DeserializeOwned>(
    client: &Client,
    path: &str,
    request: Value,
) -> Result<T, ErrorBody> {
    client.operate(path, &request, |_| {}).await.map_err(body)
}

/// Node 0 with its daemon adds node 1, whose daemon then starts.
pub(super) async fn two(machine: &Machine) -> (Daemon, Daemon) {
    let zero = machine.daemon(0);
    with_web(machine, zero).await
}

pub(super) async fn with_web(machine: &Machine, zero: Daemon) -> (Daemon, Daemon) {
    let mut request = web();
    request.wait = mint_api::WaitFor::Running;
    let added: NodeResult =
        operate(&zero.client, "/v1/nodes", serde_json::to_value(request).unwrap()).await.unwrap();
    assert_eq!(added.node.unwrap().id, id(1));
    let one = machine.daemon(1);
    met(&zero, 1).await;
    met(&one, 0).await;
    (zero, one)
}

/// Waits until one daemon reaches a peer's.
pub(super) async fn met(daemon: &Daemon, peer: u32) {
    let deadline = Instant::now() + STUCK;
    while daemon.app.peers.hello(id(peer), Duration::from_secs(3)).await.is_none() {
        assert!(Instant::now() < deadline, "node {peer} does not answer");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn started_node_answers_its_starter_and_all_see_each_other() {
    test(async || {
        let machine = Machine::new();
        let zero = machine.daemon(0);
        let adding = tokio::spawn({
            let client = zero.client.clone();
            async move {
                // waits for the new node's daemon
                operate::<NodeResult>(&client, "/v1/nodes", serde_json::to_value(web()).unwrap())
                    .await
            }
        });
        until(|| machine.state(1) == Some(NodeState::Running)).await;
        assert!(!adding.is_finished());
        let one = machine.daemon(1);
        let added = adding.await.unwrap().unwrap();
        assert!(added.times.mintd_ms.is_some());
        met(&one, 0).await;
        for daemon in [&zero, &one] {
            let list: NodeList = daemon.client.get("/v1/nodes").await.unwrap();
            let answers: Vec<_> = list.nodes.iter().map(|node| node.mintd.as_str()).collect();
            assert_eq!(answers, ["ok", "ok"]);
            let address = machine.address(1).ip().to_string();
            assert_eq!(list.nodes[1].address, address);
            let hosts = || std::fs::read_to_string(daemon.root.join("etc/hosts"));
            until(|| hosts().is_ok_and(|text| text.contains(&format!("{address} node1 web"))))
                .await;
        }
    });
}

#[test]
fn who_asks_a_silent_node_does_not_wait_for_others() {
    test(async || {
        let machine = Machine::new();
        let (zero, mut one) = two(&machine).await;
        let spec = json!({"name": "db", "cpus": "5", "memory": "512M@numa1", "from": ["node0"]});
        let request = json!({"spec": spec, "wait": "running"});
        operate::<NodeResult>(&zero.client, "/v1/nodes", request).await.unwrap();
        let mut two = machine.daemon(2);
        met(&zero, 2).await;
        one.kill();
        two.kill();
        let (given_up, mut gives_up) = mpsc::unbounded_channel();
        for node in [1, 2] {
            // somebody listens there still, and says nothing
            let listener = loop {
                if let Ok(listener) = TcpListener::bind(machine.address(node)).await {
                    break listener;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            };
            let given_up = given_up.clone();
            tokio::spawn(async move {
                while let Ok((mut asked, _)) = listener.accept().await {
                    let (given_up, since) = (given_up.clone(), Instant::now());
                    tokio::spawn(async move {
                        _ = asked.read_to_end(&mut Vec::new()).await;
                        // who looks whether it is there again does so briefly
                        if since.elapsed() > Duration::from_secs(2) {
                            _ = given_up.send(node);
                        }
                    });
                }
            });
        }
        *zero.app.peers.learned.lock().unwrap() = None;
        // nobody has introduced node 3, so that both are asked who that is
        let hello = zero.app.peers.hello(id(3), Duration::from_secs(3));
        tokio::select! {
            biased;
            node = gives_up.recv() => panic!("node {node:?} was waited for"),
            answer = hello => assert!(answer.is_none()),
        }
        let mut asked = [gives_up.recv().await, gives_up.recv().await];
        asked.sort_unstable();
        assert_eq!(asked, [Some(1), Some(2)]);
    });
}

pub(super) async fn exec(
    client: &Client,
    node: &str,
    argv: &[&str],
) -> Result<(i32, String), ErrorBody> {
    let io = client.upgrade(&format!("/v1/nodes/{node}/exec")).await.map_err(body)?;
    let (mut reader, mut writer) = tokio::io::split(io);
    let argv = argv.iter().map(|&text| text.to_owned()).collect();
    write_json(&mut writer, FrameKind::Request, &ExecRequest { argv }).await.unwrap();
    let mut output = String::new();
    loop {
        let frame = read_frame(&mut reader).await.unwrap().expect("ends with a last frame");
        let text = String::from_utf8_lossy(&frame.data).into_owned();
        match frame.kind {
            FrameKind::Stdout => output.push_str(&text),
            FrameKind::Exit => {
                let exit: ExecExit = serde_json::from_str(&text).unwrap();
                return Ok((exit.status, output));
            }
            FrameKind::Error => return Err(serde_json::from_str(&text).unwrap()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn commands_are_forwarded_to_the_node_they_are_for() {
    test(async || {
        let machine = Machine::new();
        let (zero, one) = two(&machine).await;
        let script = ["sh", "-c", "echo done; exit 4"];
        for (daemon, node) in [(&zero, "web"), (&one, "node0")] {
            let (status, output) = exec(&daemon.client, node, &script).await.unwrap();
            assert_eq!((status, output.as_str()), (4, "done\n"));
        }
        drop(one);
        let error = exec(&zero.client, "web", &script).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::PeerUnreachable);
        assert!(error.message.contains("node 1 (web)"), "{error}");
    });
}

pub(super) const DISK: &str = "0000:03:00.0";

pub(super) fn disk() -> ResourceKey {
    ResourceKey::device(DISK.parse().unwrap())
}

/// What node 0 asks for to have core 4 and the disk of node 1.
pub(super) fn core_and_disk_of_web() -> Value {
    json!({"spec": {"cpus": "0-2,4-5", "devices": [DISK], "from": ["web"]}})
}

#[test]
fn resources_move_between_running_nodes_both_ways() {
    test(async || {
        let machine = Machine::new();
        let (zero, one) = two(&machine).await;
        let cpu = ResourceKey::cpu(4);
        assert_eq!((machine.owner(disk()), machine.owner(cpu)), (Some(1), Some(1)));
        let done: NodeResult =
            operate(&zero.client, "/v1/nodes/0/resize", core_and_disk_of_web()).await.unwrap();
        assert_eq!((machine.owner(disk()), machine.owner(cpu)), (Some(0), Some(0)));
        // each owner's own kernel let go, asked by its own daemon
        let calls = machine.fake.calls();
        for call in [format!("release {cpu} 1"), format!("claim {cpu} 0")] {
            assert!(calls.contains(&call), "{call} is not in {calls:?}");
        }
        assert_eq!(done.node.unwrap().cpus, "0-2,4-5");

        // and back: planned by the node that takes
        let back = json!({"spec": {"cpus": "3-4", "devices": [DISK], "from": ["node0"]}});
        operate::<NodeResult>(&one.client, "/v1/nodes/web/resize", back).await.unwrap();
        assert_eq!((machine.owner(disk()), machine.owner(cpu)), (Some(1), Some(1)));
        // planned by the node that gives: the other one claims
        let give = json!({"spec": {"cpus": "3", "to": "node0"}});
        operate::<NodeResult>(&one.client, "/v1/nodes/web/resize", give).await.unwrap();
        assert_eq!(machine.owner(cpu), Some(0));
    });
}

#[test]
fn owner_is_asked_first_and_its_reason_is_told() {
    test(async || {
        let machine = Machine::new();
        let (zero, _one) = two(&machine).await;
        machine.fake.pin_guest(4);
        let before = machine.fake.ledger();
        let calls = machine.fake.calls();
        let refused =
            operate::<NodeResult>(&zero.client, "/v1/nodes/0/resize", core_and_disk_of_web())
                .await
                .unwrap_err();
        assert_eq!(refused.exit_status(), 3, "{refused}");
        assert_eq!(refused.refusals[0].code, RefusalCode::CpuPinned, "{refused}");
        assert!(refused.to_string().contains("vCPU 0 of guest demo"), "{refused}");
        assert_eq!(machine.fake.ledger(), before);
        assert_eq!(machine.fake.calls(), calls, "nothing was tried");
        // were the guest not pinned there
        let plan: ResizePlan =
            zero.client.post("/v1/nodes/0/resize/plan", &core_and_disk_of_web()).await.unwrap();
        let lost: Vec<_> =
            plan.taken.iter().map(|taken| (taken.node, taken.apic_ids.len())).collect();
        assert_eq!(lost, [(id(1), 1)], "{plan:?}");
        assert!(plan.steps.iter().any(|step| step.contains("release cpu 4")), "{plan:?}");
        assert_eq!(machine.fake.ledger(), before);
        let nothing =
            zero.client.post::<Value>("/v1/nodes/0/resize/plan", &json!({"spec": {}})).await;
        assert_eq!(body(nothing.unwrap_err()).exit_status(), 2);
    });
}

#[test]
fn move_that_fails_at_the_peer_is_taken_back_there() {
    test(async || {
        let machine = Machine::new();
        let (zero, _one) = two(&machine).await;
        // the disk goes first; that the core stays is seen only when it is tried
        machine.fake.fail(&format!("try release {} 1", ResourceKey::cpu(4)));
        let before = machine.fake.ledger();
        let failed =
            operate::<NodeResult>(&zero.client, "/v1/nodes/0/resize", core_and_disk_of_web())
                .await
                .unwrap_err();
        assert_eq!(failed.exit_status(), 1, "{failed}");
        assert!(failed.to_string().contains("cpu 4"), "{failed}");
        let calls = machine.fake.calls();
        let (_, tried) = calls.split_at(calls.iter().position(|call| call == "start 1").unwrap());
        let disk = |call: &str, node: u32| format!("{call} {} {node}", disk());
        let there_and_back =
            [disk("release", 1), disk("claim", 0), disk("release", 0), disk("claim", 1)];
        assert_eq!(tried[1..], there_and_back);
        assert_eq!(machine.fake.ledger(), before);
    });
}

#[test]
fn node_is_started_by_another_node_than_node_0() {
    test(async || {
        let machine = Machine::new();
        let (zero, one) = two(&machine).await;
        let request = json!({
            "spec": {"name": "db", "cpus": "5", "memory": "512M@numa1", "from": ["node0"]},
            "wait": "running",
        });
        let added: NodeResult = operate(&one.client, "/v1/nodes", request).await.unwrap();
        assert_eq!(added.node.unwrap().id, id(2));
        assert_eq!(machine.owner(ResourceKey::cpu(5)), Some(2));
        let two = machine.daemon(2);
        for (daemon, peer) in [(&zero, 2), (&one, 2), (&two, 0), (&two, 1)] {
            met(daemon, peer).await;
        }
        // the description is its starter's; any node can start it again with it
        operate::<NodeResult>(&zero.client, "/v1/nodes/db/kill", json!({})).await.unwrap();
        drop(two);
        let start = json!({"wait": "running"});
        operate::<NodeResult>(&zero.client, "/v1/nodes/db/start", start).await.unwrap();
        assert_eq!((machine.state(2), machine.boots(2)), (Some(NodeState::Running), 2));
        let two = machine.daemon(2);
        for (daemon, peer) in [(&zero, 2), (&one, 2), (&two, 0), (&two, 1)] {
            met(daemon, peer).await;
        }
    });
}

/// How many nodes there can be the kernel says.
#[test]
fn node_of_an_id_above_15_is_a_peer_like_any() {
    test(async || {
        let machine = Machine::with(FakeMachine::new().with_room(40));
        let zero = machine.daemon(0);
        let request = |name: &str| {
            let spec = json!({"name": name, "cpus": "5", "memory": "512M@numa1"});
            json!({ "spec": spec, "wait": "running" })
        };
        let refused = operate::<NodeResult>(&zero.client, "/v1/nodes", request("node40")).await;
        assert_eq!(refused.unwrap_err().refusals[0].code, RefusalCode::NameBad);
        let added: NodeResult =
            operate(&zero.client, "/v1/nodes", request("node39")).await.unwrap();
        assert_eq!(added.node.unwrap().id, id(39));
        let far = machine.daemon(39);
        met(&zero, 39).await;
        met(&far, 0).await;
        assert_eq!(exec(&zero.client, "node39", &["true"]).await.unwrap().0, 0);
        let give = json!({"spec": {"devices": [DISK], "from": ["node0"]}});
        operate::<NodeResult>(&far.client, "/v1/nodes/39/resize", give).await.unwrap();
        assert_eq!(machine.owner(disk()), Some(39));
        let list: NodeList = far.client.get("/v1/nodes").await.unwrap();
        assert_eq!(list.nodes[1].address, machine.address(39).ip().to_string());
    });
}

#[test]
fn peer_whose_record_was_written_over_for_a_while_is_still_one() {
    test(async || {
        let machine = Machine::new();
        let (zero, one) = two(&machine).await;
        let told = zero.app.events.told();
        let record = machine.fake.lose_record(id(1));
        until(|| zero.app.events.told() > told).await;
        machine.fake.put_record(record);
        met(&zero, 1).await;
        met(&one, 0).await;
        let inventory = zero.app.inventory().unwrap();
        assert!(zero.app.specs.get(&inventory, id(1)).is_some(), "what it boots is forgotten");
    });
}

#[test]
fn node_is_stopped_by_its_own_daemon_and_stays_down() {
    test(async || {
        let machine = Machine::new();
        let zero = machine.daemon(0);
        let mut request = web();
        request.wait = mint_api::WaitFor::Running;
        request.spec.restart = mint_types::RestartPolicy::Always;
        let request = serde_json::to_value(request).unwrap();
        operate::<NodeResult>(&zero.client, "/v1/nodes", request).await.unwrap();
        let one = machine.daemon(1);
        met(&zero, 1).await;
        // the fake kernel cannot be asked: only its daemon can
        machine.fake.fail("shutdown node 1");
        let stopped: NodeResult =
            operate(&zero.client, "/v1/nodes/web/stop", json!({})).await.unwrap();
        assert_eq!(stopped.steps, ["poweroff by mintd of node 1 (web)"]);
        assert_eq!(machine.state(1), Some(NodeState::Halted));
        drop(one);
        // everybody has seen the end, and nobody takes it for a reason to start the node
        let seen = || zero.app.events.subscribe(0).0;
        until(|| seen().iter().any(|event| event.new.as_deref() == Some("halted"))).await;
        restart::start_again(zero.app.clone(), id(1), NodeState::Halted).await;
        assert_eq!((machine.state(1), machine.boots(1)), (Some(NodeState::Halted), 1));
    });
}

#[test]
fn peer_without_a_daemon_fails_the_request_and_changes_nothing() {
    test(async || {
        let machine = Machine::new();
        let (zero, one) = two(&machine).await;
        drop(one);
        let before = machine.fake.ledger();
        let failed =
            operate::<NodeResult>(&zero.client, "/v1/nodes/0/resize", core_and_disk_of_web())
                .await
                .unwrap_err();
        assert!(failed.to_string().contains("node 1"), "{failed}");
        assert_eq!(machine.fake.ledger(), before);
        let list: NodeList = zero.client.get("/v1/nodes").await.unwrap();
        assert_eq!(list.nodes[1].mintd, "no answer");
    });
}

#[test]
fn peer_that_accepts_and_says_nothing_is_given_up() {
    test(async || {
        let machine = Machine::new();
        let (zero, one) = two(&machine).await;
        drop(one);
        // its kernel takes connections, its daemon hangs
        let address = machine.address(1);
        let mut listener = None;
        let deadline = Instant::now() + STUCK;
        while listener.is_none() && Instant::now() < deadline {
            listener = tokio::net::TcpListener::bind(address).await.ok();
        }
        let _deaf = listener.expect("the address is free again");
        let before = machine.fake.ledger();
        let failed =
            operate::<NodeResult>(&zero.client, "/v1/nodes/0/resize", core_and_disk_of_web())
                .await
                .unwrap_err();
        assert!(failed.to_string().contains("node 1"), "{failed}");
        assert_eq!(machine.fake.ledger(), before);
    });
}
