// SPDX-License-Identifier: Apache-2.0
//! Node 0 ends alone, and a peer starts it again.

use mint_api::{NodeResult, Versions};
use mint_types::NodeState;
use serde_json::{Value, json};

use super::machine::{Machine, id};
use super::peers::{met, operate, two, with_web};
use super::{test, until};

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
        // at once, as a thread of the daemon that has ended may still write a file there
        std::fs::rename(machine.root(0), machine.root(0).with_extension("gone")).unwrap();
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
