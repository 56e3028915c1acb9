// SPDX-License-Identifier: Apache-2.0
//! A guest gets its place before it comes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mint_guests::arrival::{Departure, Plan, Spread};
use mint_layout::NumaId;

use super::layout::{free, may_run, numa, runs};
use super::*;
use crate::layout::tidy;
use crate::wire::{Arrived, Expected};

const WEB: u32 = 70;
pub(super) const COLD: u32 = 80;
/// QEMU of web on node 2.
pub(super) const THERE: u32 = 90;

fn departure(xml: String, spread: Option<Spread>) -> Departure {
    Departure {
        from: NodeId::new(1).unwrap(),
        machine: None,
        from_name: "node1".into(),
        xml,
        persistent_xml: None,
        is_active: true,
        has_job: false,
        host_cpu_xml: None,
        files: BTreeMap::new(),
        on_machine_ethernet: None,
        spread,
        layout: None,
    }
}

impl Machine {
    pub(super) fn root(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("root{node}"))
    }

    fn there(&self) -> Client {
        Client::unix(self.folder.path().join("guestd2.sock"))
    }

    /// libvirt brings web from node 1 to node 2, where its QEMU has 8 MiB on the other NUMA node than it is to have.
    pub(super) fn web_comes(&self) {
        let there = self.fakes[1].clone();
        self.fakes[0].others.lock().unwrap().insert("10.0.0.2".into(), there);
        runs(&self.root(2), "web", THERE, 0, 0);
        self.tables[1].put(THERE, 0..8, 1);
    }

    /// web runs on node 1 all the time, and has 8 MiB; on node 2 cold, which is idle, has 12 MiB of the first NUMA node,
    /// and its vCPU was on the other one. That node has 2 MiB free of the first, and 30 of the second. web's owner
    /// keeps it to CPU 0.
    pub(super) fn pressed(&self) -> String {
        let xml = free("web")
            .replace("</vcpu>", "</vcpu><cputune><vcpupin vcpu='0' cpuset='0'/></cputune>");
        self.fakes[0].define("web", true, &xml);
        self.fakes[1].define("cold", true, &free("cold"));
        let began = Instant::now();
        numa(&self.root(2), [2, 30]);
        for at_s in 0..3 {
            runs(&self.root(1), "web", WEB, 0, at_s * 1000);
            runs(&self.root(2), "cold", COLD, 1, 0);
            for app in &self.apps {
                app.layouts.measure(&app.host.path("/"), began + Duration::from_secs(at_s));
            }
        }
        self.tables[0].put(WEB, 0..8, 0);
        self.tables[1].put(COLD, 0..12, 0);
        xml
    }

    /// What node 1 says to node 2 of web, whose memory is to be near its CPU.
    pub(super) async fn expected(&self) -> Expected {
        let (result, _) =
            migrate(self, json!({ "to": "node2", "dry_run": true, "layout": "before" })).await;
        let result = result.unwrap();
        assert!(
            result.changes.iter().any(|line| line == "memory: 8M on numa0, 8M on numa1"),
            "{result:?}"
        );
        let layout = result.layout.unwrap();
        assert!(layout.expected_gain > 0.05 && layout.took.is_none(), "{layout:?}");
        assert_eq!(layout.to_evict_bytes, 6 << 20);
        self.wished().await
    }

    /// The same, whatever that node plans.
    async fn wished(&self) -> Expected {
        let departure = departure(free("web"), None);
        let wish =
            crate::layout::wish(&self.apps[0], "uuid-web", &departure, Default::default()).await;
        Expected {
            from: NodeId::new(1).unwrap(),
            machine: None,
            attempt: Some(1),
            disks: Vec::new(),
            memory: None,
            layout: Some(wish.unwrap()),
            pins: vec!["0".parse().unwrap()],
            later: None,
        }
    }

    async fn expect(&self, expected: &Expected) -> Result<(), ErrorBody> {
        let path = "/v1/local/arrivals/uuid-web/expect";
        self.there().post::<Value>(path, expected).await.map(drop).map_err(body)
    }

    pub(super) fn cold(&self) -> BTreeMap<u32, u64> {
        self.tables[1].there(COLD)
    }
}

#[test]
fn room_is_made_memory_comes_there_and_what_did_not_is_relocated() {
    test(async |machine| {
        let xml = machine.pressed();
        let expected = machine.expected().await;
        assert_eq!(machine.cold(), BTreeMap::from([(0, 12)]), "only planned");
        machine.expect(&expected).await.unwrap();
        assert_eq!(machine.cold(), BTreeMap::from([(0, 6), (1, 6)]));
        // its QEMU is there, and libvirt asks its hook
        runs(&machine.root(2), "web", THERE, 0, 0);
        let told = json!({ "xml": xml });
        machine.there().post::<Value>("/v1/local/layout/started", &told).await.unwrap();
        let file =
            machine.root(2).join(format!("proc/{THERE}/map_files/7f0000000000-7f0001000000"));
        assert_eq!(
            *machine.tables[1].preferred.lock().unwrap(),
            [(file.clone(), 0, 8, 0), (file, 8, 8, 1)]
        );
        // some of it was there before
        machine.tables[1].put(THERE, 0..6, 0);
        machine.tables[1].put(THERE, 6..8, 1);
        machine.fakes[1].define("web", true, &xml);
        let path = "/v1/local/arrivals/uuid-web";
        let arrived: Arrived = machine.there().get(path).await.unwrap();
        let figures = arrived.layout.unwrap();
        assert_eq!((figures.placed_bytes, figures.relocated_bytes), (8 << 20, 2 << 20));
        assert_eq!((figures.elsewhere_bytes, figures.evicted_bytes), (0, 6 << 20));
        assert_eq!(machine.tables[1].there(THERE), BTreeMap::from([(0, 8)]));
        // it has come: what others lost stays lost
        tidy(&machine.apps[1]).await;
        assert_eq!(machine.cold(), BTreeMap::from([(0, 6), (1, 6)]));
        let again: Arrived = machine.there().get(path).await.unwrap();
        assert_eq!(again.layout, None, "its place is forgotten");
    });
}

#[test]
fn what_others_lost_goes_back_when_the_guest_does_not_come() {
    test(async |machine| {
        machine.pressed();
        let expected = machine.expected().await;
        machine.expect(&expected).await.unwrap();
        tidy(&machine.apps[1]).await;
        assert_eq!(machine.cold(), BTreeMap::from([(0, 6), (1, 6)]), "it is expected");
        let undo = json!({ "attempt": 1 });
        machine.there().post::<Value>("/v1/local/arrivals/uuid-web/undo", &undo).await.unwrap();
        tidy(&machine.apps[1]).await;
        assert_eq!(machine.cold(), BTreeMap::from([(0, 12)]));
        // and once more
        machine.expect(&Expected { attempt: Some(2), ..expected }).await.unwrap();
        assert_eq!(machine.cold(), BTreeMap::from([(0, 6), (1, 6)]));
    });
}

#[test]
fn what_is_about_to_go_when_it_is_given_up_stays_or_goes_back() {
    test(async |machine| {
        machine.pressed();
        let expected = machine.expected().await;
        let (undone, is_undone) = std::sync::mpsc::channel();
        let (waits, waited) = std::sync::mpsc::channel();
        let (app, places) = (machine.apps[1].clone(), machine.apps[1].clone());
        let handle = tokio::runtime::Handle::current();
        // while the first pages go the arrival is undone, as far as that gets before they have gone
        let undo = move || {
            app.journal.forget(&app.journal.get(Side::Arrival, "uuid-web").unwrap());
            let tidy = handle.spawn(async move {
                tidy(&app).await;
                undone.send(()).unwrap();
            });
            // it has the place, and is about to give back what went
            let end = Instant::now() + Duration::from_secs(60);
            while places.layouts.places.count() > 0 && Instant::now() < end {
                std::thread::yield_now();
            }
            // what must not happen has the time to
            std::thread::sleep(Duration::from_millis(300));
            // a panic here would be a fault of the call
            waits.send((places.layouts.places.count(), tidy.is_finished())).unwrap();
        };
        *machine.tables[1].at_next.lock().unwrap() = Some(Box::new(undo));
        machine.expect(&expected).await.unwrap();
        assert_eq!(waited.recv().unwrap(), (0, false), "forgotten, and waits for those that go");
        tokio::task::spawn_blocking(move || is_undone.recv().unwrap()).await.unwrap();
        assert_eq!(machine.cold(), BTreeMap::from([(0, 12)]));
    });
}

impl Machine {
    /// Node 2's daemon, when the one before has ended.
    pub(super) fn anew(&self) -> Arc<App> {
        let root = self.root(2);
        let app =
            super::daemon(self.folder.path(), 2, self.fakes[1].clone(), self.tables[1].clone());
        let began = Instant::now();
        for at_s in 0..3 {
            app.layouts.measure(&root, began + Duration::from_secs(at_s));
        }
        app
    }
}

#[test]
fn place_outlives_the_daemon_that_found_it() {
    test(async |machine| {
        machine.pressed();
        let expected = machine.expected().await;
        machine.expect(&expected).await.unwrap();
        let anew = machine.anew();
        tidy(&anew).await;
        assert_eq!(machine.cold(), BTreeMap::from([(0, 6), (1, 6)]), "it is expected");
        // it comes all the same
        runs(&machine.root(2), "web", THERE, 0, 0);
        machine.tables[1].put(THERE, 0..8, 1);
        let figures = crate::layout::landed(&anew, "uuid-web").await.unwrap().unwrap();
        assert_eq!((figures.placed_bytes, figures.evicted_bytes), (8 << 20, 6 << 20));
    });
}

#[test]
fn what_others_lost_goes_back_also_by_the_next_daemon() {
    test(async |machine| {
        machine.pressed();
        let expected = machine.expected().await;
        machine.expect(&expected).await.unwrap();
        let anew = machine.anew();
        anew.journal.forget(&anew.journal.get(Side::Arrival, "uuid-web").unwrap());
        tidy(&anew).await;
        assert_eq!(machine.cold(), BTreeMap::from([(0, 12)]));
        // once
        machine.tables[1].put(COLD, 0..12, 1);
        tidy(&machine.anew()).await;
        assert_eq!(machine.cold(), BTreeMap::from([(1, 12)]));
    });
}

#[test]
fn what_a_guest_lost_does_not_go_to_another_process_of_that_number() {
    test(async |machine| {
        machine.pressed();
        let expected = machine.expected().await;
        machine.expect(&expected).await.unwrap();
        let record = machine.root(2).join("run/libvirt/qemu/cold.xml");
        let other = std::fs::read_to_string(&record).unwrap().replace("uuid-cold", "uuid-other");
        std::fs::write(&record, other).unwrap();
        let undo = json!({ "attempt": 1 });
        machine.there().post::<Value>("/v1/local/arrivals/uuid-web/undo", &undo).await.unwrap();
        tidy(&machine.apps[1]).await;
        assert_eq!(machine.cold(), BTreeMap::from([(0, 6), (1, 6)]));
    });
}

/// L, section 7.
#[test]
fn guest_that_has_a_place_is_one_of_the_others_for_the_next() {
    test(async |machine| {
        machine.pressed();
        let expected = machine.expected().await;
        machine.expect(&expected).await.unwrap();
        // room for it was made; for another one as large there is too little
        numa(&machine.root(2), [8 + 64, 24 + 64]);
        let mut other = expected.clone();
        let wish = other.layout.as_mut().unwrap();
        wish.profile.id.0 = "uuid-other".into();
        wish.profile.ranges.truncate(1);
        wish.profile.ranges[0].bytes = 26 << 20;
        let departure = Departure { layout: other.layout, ..departure(free("other"), None) };
        let plan = machine.there().post::<Plan>("/v1/local/arrivals", &departure).await;
        let refused = body(plan.unwrap_err());
        assert_eq!(refused.refusals[0].code, RefusalCode::MemoryShort);
        assert!(refused.refusals[0].message.contains("needs 26M"), "{refused}");
    });
}

#[test]
fn guest_with_a_place_is_moved_and_the_result_says_what_came_of_it() {
    test(async |machine| {
        machine.pressed();
        machine.web_comes();
        let (done, said) = migrate(&machine, json!({ "to": "node2", "layout": "before" })).await;
        let took = done.unwrap().layout.unwrap().took.unwrap();
        assert_eq!((took.placed_bytes, took.elsewhere_bytes), (8 << 20, 0));
        assert!(
            said.iter().any(|line| line == "on node2: memory: 8M on numa0, 8M on numa1"),
            "{said:?}"
        );
        assert_eq!(machine.tables[1].there(THERE), BTreeMap::from([(0, 8)]));
    });
}

#[test]
fn memory_for_which_there_is_no_room_any_more_is_told() {
    test(async |machine| {
        machine.pressed();
        machine.web_comes();
        machine.tables[1].full.lock().unwrap().insert(NumaId(0));
        let (done, _) = migrate(&machine, json!({ "to": "node2", "layout": "before" })).await;
        let took = done.unwrap().layout.unwrap().took.unwrap();
        assert_eq!((took.placed_bytes, took.elsewhere_bytes), (0, 8 << 20));
    });
}

#[test]
fn guest_of_which_nothing_is_known_is_refused_a_place_and_moves_without() {
    test(async |machine| {
        machine.fakes[0].define("web", true, &free("web"));
        let there = machine.fakes[1].clone();
        machine.fakes[0].others.lock().unwrap().insert("10.0.0.2".into(), there);
        let request = |layout: &str| json!({ "to": "node2", "layout": layout });
        let (refused, _) = migrate(&machine, request("before")).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.refusals[0].code, RefusalCode::VmTied, "{refused}");
        let (done, _) = migrate(&machine, request("none")).await;
        assert_eq!(done.unwrap().layout, None);
    });
}

#[test]
fn guest_that_has_memory_elsewhere_is_refused_a_place() {
    test(async |machine| {
        machine.pressed();
        let wish = async |main_bytes: u64| {
            let spread = Spread { main_bytes, hosts: vec![NodeId::new(3).unwrap()] };
            let departure = departure(free("web"), Some(spread));
            crate::layout::wish(&machine.apps[0], "uuid-web", &departure, Default::default()).await
        };
        let refused = wish(8 << 20).await.unwrap_err();
        assert_eq!(refused.refusals[0].code, RefusalCode::VmTied, "{refused}");
        assert!(wish(16 << 20).await.is_ok(), "all of it is here");
    });
}

#[test]
fn others_vcpus_give_way_and_come_back_when_the_guest_does_not() {
    test(async |machine| {
        machine.pressed();
        // web may run anywhere, and there is only room for it near the CPU that cold is on
        numa(&machine.root(2), [0, 30]);
        let expected = Expected { pins: Vec::new(), ..machine.wished().await };
        let log = || std::mem::take(&mut *machine.fakes[1].log.lock().unwrap());
        log();
        machine.expect(&expected).await.unwrap();
        assert_eq!(log(), ["cold: <layout pins='0:0-1 0:0'/>", "cold: vCPU 0: CPU 0-1 -> CPU 0"]);
        may_run(&machine.root(2), COLD, "0");
        let undo = json!({ "attempt": 1 });
        machine.there().post::<Value>("/v1/local/arrivals/uuid-web/undo", &undo).await.unwrap();
        tidy(&machine.anew()).await;
        assert_eq!(log().last().unwrap(), "cold: vCPU 0: CPU 0 -> CPU 0-1", "by the next daemon");
        assert_eq!(machine.cold(), BTreeMap::from([(0, 12)]));
    });
}
