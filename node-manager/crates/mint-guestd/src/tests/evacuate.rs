// SPDX-License-Identifier: Apache-2.0
//! All guests of a node go to others.

use super::*;

pub(super) async fn evacuate(
    machine: &Machine,
    request: Value,
) -> Result<EvacuateResult, ErrorBody> {
    let peer = Client::unix(machine.folder.path().join("guestd1.sock"));
    peer.operate("/v1/local/evacuate", &request, |_| {}).await.map_err(body)
}

#[test]
fn all_guests_that_run_leave_the_largest_first_or_none_does() {
    test(async |machine| {
        let large = xml("large").replace("MiB'>128", "MiB'>512");
        machine.fakes[0].define("small", true, &xml("small"));
        machine.fakes[0].define("large", true, &large);
        machine.fakes[0].guests.lock().unwrap().get_mut("large").unwrap().0.memory_bytes =
            512 << 20;
        machine.fakes[0].define("off", false, &xml("off"));
        let there = machine.fakes[1].clone();
        machine.fakes[0].others.lock().unwrap().insert("10.0.0.2".into(), there);
        // 1 GiB is free there: each has room, a third one of 512 MiB beside them has not
        machine.fakes[0].define("third", true, &xml("third").replace("MiB'>128", "MiB'>512"));
        let refused = evacuate(&machine, json!({})).await.unwrap_err();
        assert_eq!(refused.refusals[0].code, RefusalCode::MemoryShort, "{refused}");
        assert!(machine.fakes[1].guests.lock().unwrap().is_empty(), "none went");
        machine.fakes[0].guests.lock().unwrap().remove("third");
        let plan = evacuate(&machine, json!({ "dry_run": true })).await.unwrap();
        let names = |result: EvacuateResult| -> Vec<String> {
            result.vms.into_iter().map(|vm| vm.name).collect()
        };
        assert_eq!(names(plan), ["large", "small"]);
        assert!(machine.fakes[1].guests.lock().unwrap().is_empty(), "only planned");
        assert_eq!(names(evacuate(&machine, json!({})).await.unwrap()), ["large", "small"]);
        let left: Vec<String> = machine.fakes[0].guests.lock().unwrap().keys().cloned().collect();
        assert_eq!(left, ["off"]);
        assert_eq!(names(evacuate(&machine, json!({})).await.unwrap()), [] as [&str; 0]);
    });
}

#[test]
fn no_guest_comes_to_a_node_whose_guests_go_for_its_end() {
    test(async |machine| {
        machine.fakes[0].others.lock().unwrap().insert("10.0.0.2".into(), machine.fakes[1].clone());
        machine.fakes[1].others.lock().unwrap().insert("10.0.0.1".into(), machine.fakes[0].clone());
        machine.fakes[0].define("old", true, &xml("old"));
        machine.fakes[1].define("web", true, &xml("web"));
        let come = async || {
            let peer = Client::unix(machine.folder.path().join("guestd2.sock"));
            let asked = json!({ "to": "node1", "dry_run": true });
            peer.operate::<MigrateResult>("/v1/local/vms/web/migrate", &asked, |_: &str| ())
                .await
                .map_err(body)
        };
        come().await.unwrap();
        evacuate(&machine, json!({ "dry_run": true, "ends": true })).await.unwrap();
        come().await.unwrap();
        evacuate(&machine, json!({})).await.unwrap();
        come().await.unwrap();
        evacuate(&machine, json!({ "ends": true })).await.unwrap();
        let refused = come().await.unwrap_err();
        assert_eq!(refused.refusals[0].code, RefusalCode::NodeEnding, "{refused}");
        let expected = json!({ "from": 2, "disks": [] });
        let path = "/v1/local/arrivals/uuid-web/expect";
        let late = machine.client().post::<Value>(path, &expected).await.map_err(body).unwrap_err();
        assert!(late.message.contains("about to go"), "{late}");
    });
}

#[test]
fn evacuation_that_stops_says_who_is_where() {
    test(async |machine| {
        machine.fakes[0].define("web", true, &xml("web"));
        let failed = evacuate(&machine, json!({})).await.unwrap_err();
        assert!(
            failed.message.contains("vm web did not go; gone: none; still here: web"),
            "{failed}"
        );
        machine.fakes[1].define("web", true, &xml("web"));
        let refused = evacuate(&machine, json!({})).await.unwrap_err();
        assert_eq!(
            (refused.code, refused.refusals[0].code),
            (ErrorCode::PlanRefused, RefusalCode::VmNameTaken)
        );
    });
}
