// SPDX-License-Identifier: Apache-2.0
//! The two nodes as two machines that are linked: each calls the other one `b`.

use mint_api::VmList;
use mint_types::MachineId;

use super::*;
use crate::split::Besides;
use crate::{auto, servers};

fn id(node: u32) -> MachineId {
    MachineId::from_random([u8::try_from(node).unwrap(); 16]).unwrap()
}

pub(super) async fn hello(State(mintd): State<Mintd>) -> Json<Value> {
    Json(json!({
        "version": "0", "api_version": 1, "node": mintd.here, "name": "here",
        "machine": id(mintd.here),
    }))
}

pub(super) async fn machine(State(mintd): State<Mintd>) -> Json<Value> {
    let other = 3 - mintd.here;
    let link = json!({
        "name": "b", "machine": id(other), "via": mintd.here, "address": "192.0.2.2",
        "subnet": "10.77.1.0/24", "is_up": true, "reason": "",
        "nodes": [{ "id": other, "name": "far" }],
    });
    let links: Vec<Value> = mintd.is_linked.then_some(link).into_iter().collect();
    Json(json!({ "id": id(mintd.here), "subnet": "10.77.0.0/24", "links": links }))
}

/// The node of the linked machine, if it is meant.
pub(super) fn node(mintd: &Mintd, reference: &str) -> Option<Response> {
    let other = 3 - mintd.here;
    let is_it =
        ["b/far".to_owned(), format!("{}/{other}", id(other))].contains(&reference.to_owned());
    if !mintd.is_linked || !is_it {
        return None;
    }
    let there =
        NodeView { name: "b/far".into(), machine: Some(id(other)), ..view(other, mintd.here) };
    let resources = json!({ "cpus": [], "memory": [], "devices": [] });
    Some(Json(json!({ "node": there, "resources": resources })).into_response())
}

fn test(work: impl AsyncFnOnce(Machine)) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { work(Machine::start(true)).await });
}

#[test]
fn guest_goes_to_a_linked_machine_is_found_there_and_comes_back() {
    test(async |machine| {
        machine.fakes[0].define("web", true, &xml("web"));
        let (here, there) = (machine.fakes[0].clone(), machine.fakes[1].clone());
        here.others.lock().unwrap().insert("10.0.0.2".into(), there.clone());
        there.others.lock().unwrap().insert("10.0.0.1".into(), here.clone());
        let (done, _) = migrate(&machine, json!({ "to": "b/far" })).await;
        let done = done.unwrap();
        assert_eq!((done.to_name.as_str(), done.to_machine), ("b/far", Some(id(2))));
        assert!(!here.has("web") && there.has("web"));
        // libvirt of another machine knows no ssh key of this one's
        let said = here.ways.lock().unwrap().clone();
        assert!(said.contains(&"qemu+tls://10.0.0.2/system tls=true".to_owned()), "{said:?}");
        for app in &machine.apps {
            assert_eq!(app.journal.all(), []);
        }
        let list: VmList = machine.client().get("/v1/vms").await.unwrap();
        let [vm] = &list.vms[..] else { panic!("{list:?}") };
        assert_eq!((vm.node_name.as_str(), vm.machine), ("b/node2", Some(id(2))));
        // a machine calls itself by its id towards others
        let to = format!("{}/1", id(1));
        let (back, _) = migrate(&machine, json!({ "to": to })).await;
        assert_eq!(back.unwrap().to_machine, Some(id(1)));
        assert!(here.has("web") && !there.has("web"));
    });
}

#[test]
fn node_of_another_machine_with_the_same_id_is_another_node() {
    test(async |machine| {
        machine.fakes[0].define("web", true, &xml("web"));
        let departure = json!({
            "from": 2, "from_name": "node2", "xml": xml("web"), "is_active": true, "has_job": false,
        });
        let peer = Client::unix(machine.folder.path().join("guestd2.sock"));
        let ask = async |departure: &Value| {
            peer.post::<Value>("/v1/local/arrivals", departure).await.map_err(body)
        };
        let refused = ask(&departure).await.unwrap_err();
        assert_eq!(refused.refusals[0].code, RefusalCode::VmHere);
        let mut other = departure.clone();
        other["machine"] = json!(id(1));
        ask(&other).await.unwrap();
        // and it is named as this machine names it
        other["is_active"] = json!(false);
        let refused = ask(&other).await.unwrap_err();
        assert!(refused.message.contains("does not run on b/node2"), "{refused}");
    });
}

#[test]
fn node_of_a_linked_machine_may_keep_memory_and_is_named_as_this_one_names_it() {
    test(async |machine| {
        let app = &machine.apps[0];
        let nodes = app.nodes().await.unwrap();
        let far = servers::find(app, &nodes, "b/far").await.unwrap();
        assert_eq!((far.name.as_str(), far.machine, far.node.as_u32()), ("b/far", Some(id(2)), 2));
        assert_eq!(far.path, format!("/v1/nodes/{}%2F2", id(2)));
        for name in [format!("{}/2", id(2)), "b/node2".to_owned()] {
            assert_eq!(servers::find(app, &nodes, &name).await.unwrap(), far, "{name}");
        }
        for (name, code) in
            [("c/far", RefusalCode::MachineAbsent), ("b/near", RefusalCode::NodeAbsent)]
        {
            let refused = servers::find(app, &nodes, name).await.unwrap_err();
            assert_eq!(refused.refusals[0].code, code, "{refused}");
        }
        let server = mint_split::Server {
            node: far.name.clone(),
            address: "10.77.1.2:7778".parse().unwrap(),
            secret: [1; 16],
            limit_bytes: 1 << 20,
            leaves: false,
            start: Some(mint_split::NodeStart { node: 2, boots: 9 }),
            mirror: None,
            machine: far.machine,
        };
        assert_eq!(server.way().unwrap(), format!("{}/pages", far.path));
        assert_eq!(servers::path_to(&nodes, &server), Some(far.path.clone()));
        assert!(servers::is_on(&nodes, &server, far.machine, far.node));
        // this machine's node of that number is another one, whenever it started
        assert!(!servers::is_on(&nodes, &server, None, far.node));
    });
}

#[test]
fn lease_is_of_the_machine_that_asked_and_not_of_the_one_that_it_names() {
    test(async |machine| {
        let store = super::memory::Store::serve(&machine, 2);
        let peer = Client::unix(machine.folder.path().join("guestd2.sock"));
        let lease = mint_split::Lease {
            uuid: [7; 16],
            secret: [8; 16],
            epoch: 1,
            memory_bytes: 1 << 20,
            limit_bytes: 1 << 20,
            main: mint_split::NodeStart { node: 1, boots: 1 },
            stays: false,
            mirror: None,
            machine: Some(id(2)),
        };
        let own = format!("/v1/local/linked/{}/leases", id(1));
        for (path, machine) in [(own.as_str(), Some(id(1))), ("/v1/local/leases", None)] {
            peer.post::<Value>(path, &lease).await.map_err(body).unwrap();
            assert_eq!(store.leases().last().unwrap().machine, machine);
        }
    });
}

#[test]
fn node_of_a_linked_machine_is_asked_what_it_could_keep_but_of_two_copies_none() {
    test(async |machine| {
        let [own, store] = [1, 2].map(|node| super::memory::Store::serve(&machine, node));
        let app = &machine.apps[0];
        let root = super::memory::files(&machine, "echo armed");
        super::memory::tell(&machine, "begin", &super::memory::split("b/far")).await.unwrap();
        assert_eq!((own.leases().len(), store.leases().len()), (0, 1));
        let to = app.here().await.unwrap();
        let resolve = async |copies| {
            let besides = Besides { copies, ..Besides::default() };
            let resolved = auto::resolve(app, super::memory::UUID, "big", &to, besides).await;
            resolved.map_err(|error| error.to_string())
        };
        assert_eq!(resolve(None).await, Ok(None), "it has room for all");
        // of which 64 MiB are its own
        let meminfo = format!("MemAvailable: {} kB\n", (64 + 100) << 10);
        std::fs::write(root.join("proc/meminfo"), meminfo).unwrap();
        let words = format!("main={}K,b/far={}K", 100 << 10, 156 << 10);
        assert_eq!(resolve(None).await, Ok(Some(words.clone())));
        assert_eq!(resolve(Some(1)).await, Ok(Some(words)));
        let none = resolve(Some(2)).await.unwrap_err();
        assert!(none.contains("156M of vm big have room on no node"), "{none}");
        // one that is silent has no room, and that is no error of its own
        std::fs::remove_file(machine.folder.path().join("guestd2.sock")).unwrap();
        let none = resolve(None).await.unwrap_err();
        assert!(none.contains("have room on no node: main="), "{none}");
    });
}
