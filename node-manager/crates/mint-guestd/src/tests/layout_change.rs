// SPDX-License-Identifier: Apache-2.0
//! Guests of a node are arranged anew, and as they were.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mint_api::{KeptBy, LayoutResult, NodeLayout, VmLayout};

use super::layout::{free, kept, may_run, numa, runs_as};
use super::*;

const HOT: u32 = 70;
const COLD: u32 = 80;
const HOT_PLAN: [&str; 2] = ["hot: <layout pins='0:0-1 0:1'/>", "cold: <layout pins='0:0-1 0:0'/>"];

impl Machine {
    pub fn its_root(&self) -> PathBuf {
        self.folder.path().join("root2")
    }

    /// On node 2 hot runs all the time on CPU 0 and has so many MiB of the second NUMA node, cold is idle on CPU 1 and
    /// has 12 MiB of the first one, which has 2 MiB free.
    pub fn astray(&self, hot: &str, mib: u64) {
        let began = Instant::now();
        numa(&self.its_root(), [2, 30]);
        self.fakes[1].define("hot", true, hot);
        self.fakes[1].define("cold", true, &free("cold"));
        for at_s in 0..3 {
            runs_as(&self.its_root(), ("hot", hot), HOT, 0, at_s * 1000);
            runs_as(&self.its_root(), ("cold", &free("cold")), COLD, 1, 0);
            let app = &self.apps[1];
            app.layouts.measure(&app.host.path("/"), began + Duration::from_secs(at_s));
        }
        self.tables[1].put(HOT, 0..mib, 1);
        self.tables[1].put(COLD, 0..12, 0);
    }

    pub async fn arranged(&self, request: Value) -> Result<LayoutResult, ErrorBody> {
        let guestd = Client::unix(self.folder.path().join("guestd2.sock"));
        guestd.operate("/v1/local/layout", &request, |_: &str| ()).await.map_err(body)
    }

    pub async fn layout(&self) -> NodeLayout {
        let guestd = Client::unix(self.folder.path().join("guestd2.sock"));
        guestd.get("/v1/local/layout").await.unwrap()
    }

    fn its_log(&self) -> Vec<String> {
        std::mem::take(&mut *self.fakes[1].log.lock().unwrap())
    }

    fn memory(&self) -> [BTreeMap<u32, u64>; 2] {
        [HOT, COLD].map(|qemu| self.tables[1].there(qemu))
    }
}

fn on(numa: u32, mib: u64) -> BTreeMap<u32, u64> {
    BTreeMap::from([(numa, mib)])
}

#[test]
fn vcpus_change_places_and_go_back() {
    test(async |machine| {
        machine.astray(&free("hot"), 16);
        let plan = machine.arranged(json!({ "dry_run": true })).await.unwrap();
        assert!(!plan.is_done && plan.expected_gain > 0.05, "{plan:?}");
        let names: Vec<&str> = plan.vms.iter().map(|vm| vm.name.as_str()).collect();
        assert_eq!((names, machine.its_log()), (vec!["hot", "cold"], vec![]), "only planned");
        let hot = &plan.vms[0];
        assert_eq!((hot.rank, hot.is_guessed, hot.memory.len()), (1, true, 0));
        let done = machine.arranged(json!({})).await.unwrap();
        assert!(done.is_done);
        // marked before they are pinned
        let pins = ["hot: vCPU 0: CPU 0-1 -> CPU 1", "cold: vCPU 0: CPU 0-1 -> CPU 0"];
        assert_eq!(machine.its_log(), [HOT_PLAN, pins].concat());
        let shown = machine.layout().await;
        assert!(shown.undo_from_s.is_some());
        let hot = &shown.vms[1];
        assert_eq!((hot.name.as_str(), hot.vcpus[0].kept_by), ("hot", KeptBy::Nobody));
        let reason = hot.reason.as_ref().unwrap();
        assert_eq!((reason.rank, reason.before_it_came), (1, false));
        assert_eq!((reason.near_bytes_before, hot.near_bytes), (Some(0), 0), "nobody moves a fake");
        may_run(&machine.its_root(), HOT, "1");
        may_run(&machine.its_root(), COLD, "0");
        let undone = machine.arranged(json!({ "undo": true })).await.unwrap();
        assert!(undone.is_done && undone.vms.len() == 2, "{undone:?}");
        let log = machine.its_log();
        let back = ["hot: vCPU 0: CPU 1 -> CPU 0-1", "cold: vCPU 0: CPU 0 -> CPU 0-1"];
        assert_eq!(log[2..], back, "{log:?}");
        let again = machine.arranged(json!({ "undo": true })).await.unwrap_err();
        assert_eq!(again.refusals[0].code, RefusalCode::UndoAbsent);
        assert!(machine.layout().await.vms.iter().all(|vm| vm.reason.is_none()));
    });
}

#[test]
fn memory_goes_near_to_the_cpus_that_the_owner_chose_and_what_makes_room_and_all_go_back() {
    test(async |machine| {
        machine.astray(&kept("hot", 0), 8);
        let done = machine.arranged(json!({})).await.unwrap();
        assert_eq!(machine.memory(), [on(0, 8), BTreeMap::from([(0, 6), (1, 6)])]);
        let hot = done.vms.iter().find(|vm| vm.name == "hot").unwrap();
        assert_eq!((hot.went_bytes, hot.vcpus.len()), (Some(8 << 20), 0), "its owner's CPU");
        let guestd = Client::unix(machine.folder.path().join("guestd2.sock"));
        let shown: VmLayout = guestd.get("/v1/local/vms/hot/layout").await.unwrap();
        assert_eq!((shown.near_bytes, shown.vcpus[0].kept_by), (8 << 20, KeptBy::Owner));
        let reason = shown.reason.unwrap();
        assert_eq!((reason.placed_bytes, reason.evicted_bytes), (8 << 20, 6 << 20));
        assert_eq!(reason.near_bytes_before, Some(0));
        // what they touch from now on comes there, too
        assert!(!machine.tables[1].preferred.lock().unwrap().is_empty());
        machine.arranged(json!({ "undo": true })).await.unwrap();
        assert_eq!(machine.memory(), [on(1, 8), on(0, 12)]);
    });
}

#[test]
fn guests_are_as_they_were_when_libvirt_gives_one_no_other_cpus() {
    test(async |machine| {
        machine.astray(&free("hot"), 16);
        machine.fakes[1].unpinnable.lock().unwrap().insert("cold".into());
        let error = machine.arranged(json!({})).await.unwrap_err();
        assert!(error.to_string().contains("vm cold was not given other CPUs"), "{error}");
        let log = machine.its_log();
        let back = ["hot: vCPU 0: CPU 0-1 -> CPU 1", "hot: vCPU 0: CPU 1 -> CPU 0-1"];
        assert_eq!(log[2..], back, "{log:?}");
        let shown = machine.layout().await;
        assert!(shown.undo_from_s.is_none() && shown.vms.iter().all(|vm| vm.reason.is_none()));
        assert_eq!(machine.memory(), [on(1, 16), on(0, 12)]);
    });
}

#[test]
fn guest_that_was_just_changed_is_left_alone() {
    test(async |machine| {
        machine.astray(&kept("hot", 0), 8);
        machine.arranged(json!({})).await.unwrap();
        // somebody else brings it back
        machine.tables[1].put(HOT, 0..8, 1);
        machine.tables[1].put(COLD, 0..12, 0);
        let again = machine.arranged(json!({})).await.unwrap();
        let hot = again.vms.iter().find(|vm| vm.name == "hot").unwrap();
        assert!(hot.left_alone.as_ref().unwrap().contains("changed just now"), "{hot:?}");
        assert_eq!(machine.memory(), [on(1, 8), on(0, 12)]);
        // what is undone is the one before, as long as its guests run
        assert!(machine.layout().await.undo_from_s.is_some());
        for (name, process) in [("hot", HOT + 1), ("cold", COLD + 1)] {
            runs_as(&machine.its_root(), (name, &free(name)), process, 0, 0);
        }
        assert!(machine.layout().await.undo_from_s.is_none());
    });
}

#[test]
fn guest_that_somebody_moves_is_left_alone() {
    test(async |machine| {
        machine.astray(&kept("hot", 0), 8);
        let moving = machine.apps[1].begin("uuid-hot").unwrap();
        let done = machine.arranged(json!({})).await.unwrap();
        // nor does anybody make room for it
        assert_eq!((done.vms.len(), machine.memory()), (0, [on(1, 8), on(0, 12)]));
        drop(moving);
        machine.arranged(json!({})).await.unwrap();
        assert_eq!(machine.memory()[0], on(0, 8));
    });
}

#[test]
fn nothing_is_planned_of_guests_of_which_nothing_is_known() {
    test(async |machine| {
        numa(&machine.its_root(), [2, 30]);
        runs_as(&machine.its_root(), ("hot", &free("hot")), HOT, 0, 0);
        machine.tables[1].put(HOT, 0..8, 1);
        let refused = machine.arranged(json!({})).await.unwrap_err();
        assert_eq!(refused.refusals[0].code, RefusalCode::SignalAbsent);
        let bad = machine.arranged(json!({ "policy": "best" })).await.unwrap_err();
        assert_eq!(bad.code, ErrorCode::BadRequest);
    });
}
