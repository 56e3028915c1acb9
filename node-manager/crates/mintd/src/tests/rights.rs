// SPDX-License-Identifier: Apache-2.0
//! Who may ask for what, who is understood, and what is written down of it.

use std::time::{Duration, Instant};

use mint_api::{Client, ClientError, ErrorCode, Hello, NodeList, NodeResult, Versions};
use mint_types::NodeState;
use serde_json::{Value, json};

use super::machine::{Daemon, Machine, id};
use super::peers::{DISK, core_and_disk_of_web, exec, met, operate, two};
use super::{STUCK, body, test};

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
        for route in crate::routes::routes().iter().filter(|route| route.path.contains("/local/")) {
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
                made.push(mint_serve::listen(&folder.join("mintd.sock")).map(drop));
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
