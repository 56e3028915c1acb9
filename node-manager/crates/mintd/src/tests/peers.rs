// SPDX-License-Identifier: Apache-2.0
//! What daemons do with each other, over TLS.

use std::time::{Duration, Instant};

use mint_api::frame::{ExecExit, ExecRequest, FrameKind, read_frame, write_json};
use mint_api::{Client, ClientError, ErrorBody, ErrorCode, Hello, NodeList, NodeResult, Versions};
use mint_node::fake::FakeMachine;
use mint_types::{NodeState, RefusalCode, ResourceKey};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::machine::{Daemon, Machine, id};
use super::{STUCK, body, test, until, web};
use crate::restart;

async fn operate<T: DeserializeOwned>(
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

async fn with_web(machine: &Machine, zero: Daemon) -> (Daemon, Daemon) {
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

async fn exec(client: &Client, node: &str, argv: &[&str]) -> Result<(i32, String), ErrorBody> {
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

const DISK: &str = "0000:03:00.0";

fn disk() -> ResourceKey {
    ResourceKey::device(DISK.parse().unwrap())
}

/// What node 0 asks for to have core 4 and the disk of node 1.
fn core_and_disk_of_web() -> Value {
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

/// Node 0 ends alone and is started again by node 1, whoever of them is asked.
async fn node_0_restarts(asked_there: bool) {
    let machine = Machine::new();
    let (zero, one) = two(&machine).await;
    let client = if asked_there { zero.client.clone() } else { one.client.clone() };
    let asked = tokio::spawn(async move {
        operate::<NodeResult>(&client, "/v1/nodes/node0/restart", json!({})).await
    });
    until(|| machine.boots(0) == 2).await;
    assert_eq!(machine.state(0), Some(NodeState::Running));
    drop(zero);
    let zero = machine.daemon(0);
    met(&zero, 1).await;
    met(&one, 0).await;
    // who asked node 0 itself loses sight of it with its daemon, or a moment later
    if asked_there {
        _ = asked.await;
    } else {
        assert_eq!(asked.await.unwrap().unwrap().node.unwrap().boots, 2);
    }
    // with its own command line and images, which node 1 had fetched
    let load = "load 0 root=/dev/vda0".to_owned();
    assert!(machine.fake.calls().contains(&load), "{:?}", machine.fake.calls());
    let folder = machine.root(1).join("run/mint/node0");
    let spec: Value =
        serde_json::from_slice(&std::fs::read(folder.join("spec.json")).unwrap()).unwrap();
    let kept = std::fs::read(spec["kernel"].as_str().unwrap()).unwrap();
    assert!(kept == mint_image::kernel_image::pretend_kernel());
}

#[test]
fn node_0_is_restarted_by_a_peer() {
    test(async || node_0_restarts(false).await);
}

#[test]
fn node_0_asks_a_peer_to_restart_it() {
    test(async || node_0_restarts(true).await);
}

/// Its state went with its memory: its starter gives it a key, and tells the others, as it
/// does for any node.
#[test]
fn node_0_without_a_state_folder_on_disk_is_introduced_anew() {
    test(async || {
        let machine = Machine::new();
        // nothing can be a folder there
        let in_memory = |config: &mut mint_node::Config| config.state.dir = "/proc/cmdline".into();
        let zero = machine.daemon_with(0, Versions::OURS, in_memory);
        let (zero, one) = with_web(&machine, zero).await;
        let request = json!({
            "spec": {"name": "db", "cpus": "5", "memory": "512M@numa1", "from": ["node0"]},
            "wait": "running",
        });
        operate::<NodeResult>(&zero.client, "/v1/nodes", request).await.unwrap();
        let two = machine.daemon(2);
        for (daemon, peer) in [(&two, 0), (&two, 1), (&one, 2)] {
            met(daemon, peer).await;
        }
        let before = zero.app.peers.tls.as_ref().unwrap().here();
        let client = one.client.clone();
        let asked = tokio::spawn(async move {
            operate::<NodeResult>(&client, "/v1/nodes/node0/restart", json!({})).await
        });
        until(|| machine.boots(0) == 2).await;
        drop(zero);
        std::fs::remove_dir_all(machine.root(0)).unwrap();
        let zero = machine.daemon_with(0, Versions::OURS, in_memory);
        let tls = zero.app.peers.tls.as_ref().expect("it has a key");
        assert_eq!(tls.here(), before, "the machine is the same");
        for (daemon, peer) in [(&zero, 1), (&zero, 2), (&one, 0), (&two, 0)] {
            met(daemon, peer).await;
        }
        asked.await.unwrap().unwrap();
    });
}

#[test]
fn node_0_that_crashed_is_started_from_what_a_peer_kept() {
    test(async || {
        let machine = Machine::new();
        let (zero, one) = two(&machine).await;
        let spec = machine.root(1).join("run/mint/node0/spec.json");
        until(|| spec.exists()).await;
        machine.fake.set_state(id(0), NodeState::Crashed);
        drop(zero);
        let start = json!({"wait": "running"});
        operate::<NodeResult>(&one.client, "/v1/nodes/node0/start", start).await.unwrap();
        assert_eq!((machine.state(0), machine.boots(0)), (Some(NodeState::Running), 2));
    });
}

#[test]
fn machine_is_switched_off_from_any_node() {
    test(async || {
        let machine = Machine::new();
        let (_zero, one) = two(&machine).await;
        let _: Value = one.client.post("/v1/machine/poweroff", &json!({})).await.unwrap();
        until(|| machine.state(0) == Some(NodeState::Halted)).await;
        assert_eq!(machine.state(1), Some(NodeState::Running));
    });
}

#[test]
fn daemon_of_another_machine_is_turned_away() {
    test(async || {
        let machine = Machine::new();
        let (zero, _one) = two(&machine).await;
        let other = Machine::new();
        let (stranger, _there) = two(&other).await;
        // a node of the same id, with good keys of its own machine
        let (config, name) = stranger.app.peers.tls.as_ref().unwrap().client(id(1)).unwrap();
        let client = Client::tls(machine.address(1), name, config);
        let refused = client.get::<Value>("/v1/hello").await;
        assert!(matches!(refused, Err(ClientError::Connect { .. } | ClientError::Broken { .. })));
        // no certificate at all
        let mut plain = tokio::net::TcpStream::connect(machine.address(0)).await.unwrap();
        let hello = b"GET /v1/hello HTTP/1.1\r\nhost: mintd\r\n\r\n";
        tokio::io::AsyncWriteExt::write_all(&mut plain, hello).await.unwrap();
        let mut answer = Vec::new();
        _ = tokio::io::AsyncReadExt::read_to_end(&mut plain, &mut answer).await;
        assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
        // the same way in works with the machine's own
        let (config, name) = zero.app.peers.tls.as_ref().unwrap().client(id(1)).unwrap();
        let client = Client::tls(machine.address(1), name, config);
        assert_eq!(client.get::<Hello>("/v1/hello").await.unwrap().node, id(1));
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

/// A daemon's audit log.
fn audited(daemon: &Daemon) -> Vec<Value> {
    let text = std::fs::read_to_string(daemon.state_dir().join("audit.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn what_is_for_peers_is_for_peers_only() {
    test(async || {
        let machine = Machine::new();
        let (zero, one) = two(&machine).await;
        let keys = json!({"keys": []});
        let mut tried = 0;
        for route in mint_api::ROUTES.iter().filter(|route| route.path.contains("/local/")) {
            let path = route.path.replace("{node}", "1");
            let refused = match route.method {
                "get" => zero.client.get::<Value>(&path).await,
                _ => zero.client.post::<Value>(&path, &keys).await,
            };
            let refused = body(refused.unwrap_err());
            assert_eq!((refused.code, refused.exit_status()), (ErrorCode::NotAllowed, 3));
            assert!(refused.message.contains(&path), "{refused}");
            tried += 1;
        }
        assert!(tried > 10);
        assert_eq!(machine.state(0), Some(NodeState::Running), "nothing was run");
        let peer = one.app.peers.client(id(0)).unwrap();
        let _: Value = peer.post("/v1/local/releasable", &keys).await.unwrap();
    });
}

#[test]
fn who_asked_for_what_is_written_down() {
    test(async || {
        let machine = Machine::new();
        let (zero, one) = two(&machine).await;
        operate::<NodeResult>(&zero.client, "/v1/nodes/0/resize", core_and_disk_of_web())
            .await
            .unwrap();
        let again = json!({"spec": {"cpus": "9"}});
        let refused = operate::<NodeResult>(&zero.client, "/v1/nodes/0/resize", again).await;
        assert_eq!(refused.unwrap_err().code, ErrorCode::PlanRefused);
        let uid = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&zero.root).unwrap());
        let resizes: Vec<Value> = audited(&zero)
            .into_iter()
            .filter(|line| line["path"] == "/v1/nodes/0/resize")
            .collect();
        assert_eq!(resizes.len(), 2, "{resizes:?}");
        for (line, (result, status)) in resizes.iter().zip([("done", 200), ("plan_refused", 409)]) {
            assert_eq!(line["caller"]["user"]["uid"], uid);
            assert_eq!(line["caller"]["user"]["pid"], std::process::id());
            assert_eq!((&line["result"], &line["status"]), (&result.into(), &status.into()));
        }
        let there = audited(&one);
        let released = there.iter().find(|line| line["path"] == "/v1/local/release").unwrap();
        assert_eq!(released["caller"], json!({"peer": {"node": 0}}));
        assert_eq!((&released["method"], &released["result"]), (&"POST".into(), &"done".into()));
        // what only reads is not there
        assert!(there.iter().all(|line| line["path"] != "/v1/hello"), "{there:?}");
    });
}

#[test]
fn commands_can_be_switched_off() {
    test(async || {
        let machine = Machine::new();
        let (zero, one) = two(&machine).await;
        drop(one);
        let one = machine.daemon_with(1, Versions::OURS, |config| config.exec.enabled = false);
        met(&zero, 1).await;
        for daemon in [&zero, &one] {
            let refused = exec(&daemon.client, "web", &["true"]).await.unwrap_err();
            assert_eq!((refused.code, refused.exit_status()), (ErrorCode::NotAllowed, 3));
            assert!(refused.message.contains("node 1 (web)"), "{refused}");
        }
        // elsewhere they run
        assert_eq!(exec(&one.client, "node0", &["true"]).await.unwrap().0, 0);
    });
}

#[test]
fn newer_peer_may_say_more_and_a_user_may_not() {
    test(async || {
        let machine = Machine::new();
        let (zero, one) = two(&machine).await;
        let request = json!({"keys": [{"kind": "cpu", "id": 4, "later": 1}], "later": {"a": 1}});
        let peer = zero.app.peers.client(id(1)).unwrap();
        let said: Value = peer.post("/v1/local/releasable", &request).await.unwrap();
        assert_eq!(said["refusals"], json!([null]));
        let mistaken = json!({"spec": {"cpus": "3"}, "later": 1});
        let refused = operate::<Value>(&one.client, "/v1/nodes/1/resize", mistaken.clone()).await;
        assert_eq!(refused.unwrap_err().code, ErrorCode::BadRequest);
    });
}

#[test]
fn daemons_without_a_version_in_common_say_so() {
    test(async || {
        let machine = Machine::new();
        let (zero, one) = two(&machine).await;
        drop(one);
        // ranges that meet work together
        let wide = Versions { oldest: 1, newest: 7 };
        let one = machine.daemon_with(1, wide, |_| {});
        met(&zero, 1).await;
        met(&one, 0).await;
        let disk_alone = json!({"spec": {"devices": [DISK], "from": ["web"]}});
        operate::<NodeResult>(&zero.client, "/v1/nodes/0/resize", disk_alone).await.unwrap();
        drop(one);
        let newer = Versions { oldest: 5, newest: 7 };
        let one = machine.daemon_with(1, newer, |_| {});
        let before = machine.fake.ledger();
        let list = async || zero.client.get::<NodeList>("/v1/nodes").await.unwrap();
        let deadline = Instant::now() + STUCK;
        while list().await.nodes[1].mintd != "other version" {
            assert!(Instant::now() < deadline, "{:?}", list().await.nodes[1]);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let give = json!({"spec": {"cpus": "0-2,4-5", "from": ["web"]}});
        let refused =
            operate::<NodeResult>(&zero.client, "/v1/nodes/0/resize", give).await.unwrap_err();
        let said = refused.to_string();
        assert!(said.contains("versions 5-7") && said.contains("node 0 1-1"), "{said}");
        assert_eq!(machine.fake.ledger(), before);
        // one that does not look at hello is told by the other side
        let (config, name) = one.app.peers.tls.as_ref().unwrap().client(id(0)).unwrap();
        let client = Client::tls(machine.address(0), name, config).speaking(newer);
        let refused = body(client.get::<Value>("/v1/local/load").await.unwrap_err());
        assert_eq!(refused.code, ErrorCode::VersionMismatch);
        let said = "mintd of node 1 speaks versions 5-7 of the interface, mintd of node 0 1-1: \
                    none in common\n  update mintd in the image of node 0, and restart it";
        assert_eq!(refused.message, said);
    });
}

#[test]
fn socket_is_private_from_its_first_moment() {
    test(async || {
        use std::os::unix::fs::PermissionsExt;
        let machine = Machine::new();
        let folder = machine.root(0).join("run/mint");
        std::fs::create_dir_all(&folder).unwrap();
        let seen = std::sync::atomic::AtomicBool::new(false);
        let (bad, made) = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut bad = Vec::new();
                loop {
                    let last = seen.load(std::sync::atomic::Ordering::Relaxed);
                    if let Ok(found) = std::fs::metadata(folder.join("mintd.sock")) {
                        let mode = found.permissions().mode() & 0o777;
                        if mode != 0o600 {
                            bad.push(mode);
                        }
                    }
                    if last {
                        return bad;
                    }
                }
            });
            let mut made = Vec::new();
            for _ in 0..200 {
                made.push(crate::run::listen(&folder.join("mintd.sock")).map(drop));
            }
            seen.store(true, std::sync::atomic::Ordering::Relaxed);
            (watcher.join().unwrap(), made)
        });
        assert!(made.iter().all(Result::is_ok), "{made:?}");
        assert_eq!(bad, [] as [u32; 0]);
        let left: Vec<_> = std::fs::read_dir(&folder).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    });
}
