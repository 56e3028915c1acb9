// SPDX-License-Identifier: Apache-2.0
//! A guest gets a place before it comes unless it is told otherwise, and goes without where there is none.

use std::collections::BTreeMap;

use super::layout::{free, kept, numa, runs_as};
use super::layout_places::THERE;
use super::*;

const WEB: u32 = 70;

impl Machine {
    /// Nobody has said anything of a place: web would go without, for that reason. Whoever wants one is refused.
    async fn goes_without(&self, why: &str, code: RefusalCode) {
        let planned = async |layout: Value| {
            let mut request = json!({ "to": "node2", "dry_run": true });
            request.as_object_mut().unwrap().extend(layout.as_object().unwrap().clone());
            migrate(self, request).await.0
        };
        let plan = planned(json!({})).await.unwrap();
        assert_eq!(plan.layout, None, "{why}");
        let line = plan.changes.last().unwrap();
        assert!(line.starts_with("it gets no place on NUMA nodes before it comes: "), "{line}");
        assert!(line.contains(why), "{line}");
        for asked in [json!({ "layout": "before" }), json!({ "layout_policy": "simple" })] {
            let refused = planned(asked).await.unwrap_err();
            assert_eq!(refused.refusals[0].code, code, "{refused}");
            assert!(refused.refusals[0].message.contains(why), "{refused}");
        }
        let none = planned(json!({ "layout": "none" })).await.unwrap();
        assert!(none.layout.is_none() && none.changes.is_empty(), "{none:?}");
    }
}

#[test]
fn guest_of_which_nobody_says_anything_gets_a_place() {
    test(async |machine| {
        machine.pressed();
        machine.web_comes();
        let (done, _) = migrate(&machine, json!({ "to": "node2" })).await;
        let done = done.unwrap();
        assert!(
            done.changes.iter().any(|line| line == "memory: 8M on numa0, 8M on numa1"),
            "{done:?}"
        );
        assert_eq!(done.layout.unwrap().took.unwrap().placed_bytes, 8 << 20);
        assert_eq!(machine.tables[1].there(THERE), BTreeMap::from([(0, 8)]));
        assert_eq!(machine.cold(), BTreeMap::from([(0, 6), (1, 6)]));
    });
}

#[test]
fn guest_that_can_have_no_place_goes_without_unless_its_user_wants_one() {
    test(async |machine| {
        machine.pressed();
        machine.fakes[0].define("web", true, &kept("web", 0));
        let locked =
            kept("web", 0).replace("</vcpu>", "</vcpu><memoryBacking><locked/></memoryBacking>");
        runs_as(&machine.root(1), ("web", &locked), WEB, 0, 0);
        machine.goes_without("has a device of its host, locked memory", RefusalCode::VmTied).await;
    });
}

#[test]
fn guest_for_which_no_numa_node_has_room_goes_without_unless_its_user_wants_one() {
    test(async |machine| {
        machine.pressed();
        numa(&machine.root(2), [2, 2]);
        machine.goes_without("vm web gets no place: ", RefusalCode::MemoryShort).await;
    });
}

#[test]
fn guest_goes_without_a_place_to_a_node_that_gives_none_unless_its_user_wants_one() {
    test(async |machine| {
        machine.pressed();
        std::fs::write(machine.folder.path().join("older2"), "").unwrap();
        machine.goes_without("node2 gives guests no place", RefusalCode::VmTied).await;
    });
}

#[test]
fn policy_that_a_user_names_is_that_of_the_place() {
    test(async |machine| {
        machine.pressed();
        let planned = async |policy: &str| {
            let request = json!({ "to": "node2", "dry_run": true, "layout_policy": policy });
            migrate(&machine, request).await.0
        };
        assert_eq!(planned("simple").await.unwrap().layout.unwrap().policy, Default::default());
        let refused = planned("carrefour").await.unwrap_err();
        assert_eq!(refused.refusals[0].code, RefusalCode::SignalAbsent, "{refused}");
    });
}

/// There may be more of them tomorrow.
#[test]
fn guest_is_not_kept_to_all_cpus_that_there_are() {
    test(async |machine| {
        machine.pressed();
        machine.fakes[0].define("web", true, &free("web"));
        let planned = async || {
            let (plan, _) = migrate(&machine, json!({ "to": "node2", "dry_run": true })).await;
            plan.unwrap().changes
        };
        assert!(planned().await.iter().any(|line| line.starts_with("vCPU 0: kept to CPUs")));
        let node = machine.root(2).join("sys/devices/system/node");
        std::fs::write(node.join("online"), "0\n").unwrap();
        std::fs::write(node.join("node0/cpulist"), "0-1\n").unwrap();
        std::fs::write(node.join("node0/distance"), "10\n").unwrap();
        std::fs::remove_dir_all(node.join("node1")).unwrap();
        std::fs::write(node.join("node0/meminfo"), "Node 0 MemFree: 204800 kB\n").unwrap();
        assert_eq!(planned().await, ["memory: 16M on numa0"]);
    });
}
