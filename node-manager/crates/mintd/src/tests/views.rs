// SPDX-License-Identifier: Apache-2.0
//! What is read: lists, documents, metrics, memory of the dead.

use std::collections::BTreeSet;

use mint_api::{ClientError, DeviceList, DoctorReport, Hello};
use mint_node::fake::FakeMachine;
use mint_types::{NodeId, NodeState};
use serde_json::Value;

use super::{Daemon, test, web};
use crate::openapi::document;
use crate::routes::routes;

#[test]
fn each_route_is_there_once_and_in_the_document() {
    let routes = routes();
    let table: BTreeSet<_> = routes.iter().map(|route| (route.method, route.path)).collect();
    assert_eq!(table.len(), routes.len(), "a route is there twice");
    let document = document(&routes);
    let paths = document["paths"].as_object().unwrap().iter();
    let described = paths.flat_map(|(path, methods)| {
        methods.as_object().unwrap().keys().map(|method| (method.as_str(), path.as_str()))
    });
    assert_eq!(described.collect::<BTreeSet<_>>(), table);
}

#[test]
fn lists_and_documents_are_served() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let devices: DeviceList = daemon.client.get("/v1/devices").await.unwrap();
        let disk = devices.devices.iter().find(|device| device.bdf == "0000:03:00.0").unwrap();
        assert_eq!((disk.class_name.as_str(), disk.driver.as_deref()), ("NVMe disk", Some("nvme")));
        let raw: Value = daemon.client.get("/v1/devices").await.unwrap();
        let keys = raw["devices"][0].as_object().unwrap();
        for key in ["bdf", "class", "driver", "owner", "state", "numa"] {
            assert!(keys.contains_key(key), "{key}");
        }
        let report: DoctorReport = daemon.client.get("/v1/doctor").await.unwrap();
        assert!(report.ok, "{report:?}");
        let hello: Hello = daemon.client.get("/v1/hello").await.unwrap();
        assert_eq!((hello.node, hello.name.as_str()), (NodeId::ZERO, "node0"));
        let document: Value = daemon.client.get("/v1/openapi.json").await.unwrap();
        assert_eq!(document["openapi"], "3.1.0");
        let config: Value = daemon.client.get("/v1/config").await.unwrap();
        assert_eq!(config["wait"]["hung_s"], 10);
    });
}

#[test]
fn memory_is_dumped_of_a_node_that_ended_and_of_no_other() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        let path = "/v1/nodes/web/vmcore";
        daemon.add(web()).await.unwrap();
        let refused = async || match daemon.client.bytes(path).await.unwrap_err() {
            ClientError::Refused(body) => (body.exit_status(), body.to_string()),
            other => panic!("{other}"),
        };
        let (status, text) = refused().await;
        assert_eq!(status, 3);
        assert!(text.contains("runs") && text.contains("mintctl node kill web"), "{text}");
        let one = NodeId::new(1).unwrap();
        daemon.fake.set_state(one, NodeState::Crashed);
        assert_eq!(refused().await.0, 3);
        let memory: Vec<u8> = (0..1_000_000u32).map(|at| at.to_le_bytes()[1]).collect();
        mint_node::Machine::console_write(&*daemon.fake, one, &memory).unwrap();
        let mut reader = daemon.client.bytes(path).await.unwrap();
        assert_eq!(reader.length(), Some(1_000_000));
        let mut taken = Vec::new();
        while let Some(data) = reader.next().await.unwrap() {
            taken.extend_from_slice(&data);
        }
        assert!(taken == memory);
    });
}

#[test]
fn metrics_tell_of_nodes_and_resources() {
    test(async || {
        let daemon = Daemon::start(FakeMachine::new()).await;
        daemon.add(web()).await.unwrap();
        let text = daemon.scrape().await;
        for line in [
            "mint_node_state{name=\"web\",node=\"1\",state=\"running\"} 1",
            "mint_node_cores{name=\"web\",node=\"1\"} 2",
            "# TYPE mint_node_boots_total counter",
            "mint_node_boots_total{name=\"web\",node=\"1\"} 1",
            "mint_resources{kind=\"cpu\",state=\"moving\"} 0",
        ] {
            assert!(text.lines().any(|got| got == line), "{line} is not in:\n{text}");
        }
        let loads: mint_api::LoadList = daemon.client.get("/v1/loads").await.unwrap();
        let own = loads.nodes.iter().find(|node| node.id == NodeId::ZERO).unwrap();
        assert_eq!(own.load.as_ref().unwrap().uptime_ms, 1000);
    });
}
