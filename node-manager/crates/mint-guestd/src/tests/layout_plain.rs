// SPDX-License-Identifier: Apache-2.0
//! A guest that comes by plain `virsh migrate` gets its place by libvirt's hook.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mint_guests::domain::Domain;
use mint_guests::marks::owners;
use mint_layout::Profile;
use tokio::task::JoinHandle;

use super::layout::{free, kept, numa, runs, runs_as};
use super::layout_places::THERE;
use super::*;
use crate::layout::{comes, tidy, tidy_at};
use crate::wire::Lands;

const WEB: u32 = 70;
/// MiB of cold on each NUMA node: before, and when it has made room.
const ALL: [(u32, u64); 1] = [(0, 12)];
const LESS: [(u32, u64); 2] = [(0, 6), (1, 6)];

/// So many seconds from now.
pub(super) fn later_s(s: u64) -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.unwrap().as_secs() + s
}

/// Guests have been brought to their places.
pub(super) async fn settled(landing: Vec<JoinHandle<()>>) {
    for one in landing {
        one.await.unwrap();
    }
}

impl Machine {
    /// web's QEMU is on node 2, and libvirt has it on its way.
    pub(super) fn begins_to_come(&self) {
        runs(&self.root(2), "web", THERE, 0, 0);
        let path = self.root(2).join("run/libvirt/qemu/web.xml");
        let job = "<job type='none' async='migration in' phase='prepare'/><domain";
        let record = std::fs::read_to_string(&path).unwrap().replacen("<domain", job, 1);
        std::fs::write(path, record).unwrap();
    }

    /// There is no QEMU of web on node 2.
    pub(super) fn ends(&self) {
        for end in ["xml", "pid"] {
            _ = std::fs::remove_file(self.root(2).join(format!("run/libvirt/qemu/web.{end}")));
        }
        self.tables[1].end(THERE);
    }

    /// What libvirt's hook on node 2 hears.
    async fn asked(&self, xml: &str) -> Result<Option<String>, ErrorBody> {
        let there = Client::unix(self.folder.path().join("guestd2.sock"));
        let told = json!({ "xml": xml });
        let lands: Result<Lands, _> = there.post("/v1/local/layout/arrival", &told).await;
        lands.map(|lands| lands.xml).map_err(body)
    }

    fn made_room(&self) -> bool {
        let cold = self.cold();
        assert!([BTreeMap::from(ALL), BTreeMap::from(LESS)].contains(&cold), "{cold:?}");
        cold == BTreeMap::from(LESS)
    }

    async fn soon(&self, what: &str, is_so: impl Fn() -> bool) {
        for _ in 0..1000 {
            if is_so() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("not in time: {what}");
    }
}

#[test]
fn plain_guest_finds_room_and_is_brought_to_its_place_when_it_has_come() {
    test(async |machine| {
        let xml = machine.pressed();
        assert_eq!(machine.asked(&xml).await.unwrap().unwrap(), xml, "its owner keeps it there");
        assert!(machine.made_room());
        machine.begins_to_come();
        settled(tidy(&machine.apps[1]).await).await;
        crate::layout::started(&machine.apps[1], &xml).await.unwrap();
        let told: Vec<_> = machine.tables[1].preferred.lock().unwrap().clone();
        let told: Vec<_> = told.iter().map(|(_, at, mib, numa)| (*at, *mib, *numa)).collect();
        assert_eq!(told, [(0, 8, 0), (8, 8, 1)]);
        // some of it is elsewhere all the same
        machine.tables[1].put(THERE, 0..6, 0);
        machine.tables[1].put(THERE, 6..8, 1);
        settled(tidy_at(&machine.apps[1], later_s(1000)).await).await;
        assert_eq!(machine.tables[1].there(THERE), BTreeMap::from([(0, 6), (1, 2)]), "it comes");
        runs(&machine.root(2), "web", THERE, 0, 0);
        settled(tidy(&machine.apps[1]).await).await;
        assert_eq!(machine.tables[1].there(THERE), BTreeMap::from([(0, 8)]));
        assert!(machine.made_room() && machine.apps[1].layouts.places.is_empty());
        machine.ends();
        settled(tidy_at(&machine.apps[1], later_s(2000)).await).await;
        assert!(machine.made_room(), "it has come: what others lost stays lost");
    });
}

#[test]
fn plain_guest_is_kept_to_its_place_and_not_by_its_owner() {
    test(async |machine| {
        machine.pressed();
        let given = machine.asked(&free("web")).await.unwrap().unwrap();
        let domain = Domain::parse(&given).unwrap();
        assert_eq!((domain.vcpu_pins.len(), owners(&given, &domain).len()), (1, 0), "{given}");
        // a CPU that this node has not is no wish that it can have
        settled(tidy_at(&machine.apps[1], later_s(100)).await).await;
        let given = machine.asked(&kept("web", 7)).await.unwrap().unwrap();
        let domain = Domain::parse(&given).unwrap();
        assert_eq!(domain.vcpu_pins[0].cpus.to_string(), "0", "{given}");
        assert_eq!(owners(&given, &domain).len(), 1);
    });
}

#[test]
fn what_made_room_for_a_plain_guest_goes_back_when_it_does_not_come() {
    test(async |machine| {
        let xml = machine.pressed();
        let mut app = machine.apps[1].clone();
        // its QEMU never begins: also seen by the next daemon
        for is_next in [false, true] {
            machine.asked(&xml).await.unwrap().unwrap();
            if is_next {
                app = machine.anew();
            }
            settled(tidy_at(&app, later_s(50)).await).await;
            assert!(machine.made_room(), "it may come");
            settled(tidy_at(&app, later_s(70)).await).await;
            assert!(!machine.made_room() && machine.anew().layouts.places.is_empty());
            if is_next {
                // what the daemon before knows
                settled(tidy_at(&machine.apps[1], later_s(70)).await).await;
            }
        }
        // it begins, and ends
        let app = &machine.apps[1];
        machine.asked(&xml).await.unwrap().unwrap();
        machine.begins_to_come();
        settled(tidy(app).await).await;
        machine.ends();
        settled(tidy_at(app, later_s(1)).await).await;
        assert!(machine.made_room(), "a record may be gone for a moment");
        settled(tidy_at(app, later_s(6)).await).await;
        assert!(!machine.made_room() && app.layouts.places.is_empty());
    });
}

#[test]
fn plain_guest_that_is_asked_for_again_has_one_place_the_same() {
    test(async |machine| {
        machine.pressed();
        let first = machine.asked(&free("web")).await.unwrap();
        let cold = machine.cold();
        assert_eq!(machine.asked(&free("web")).await.unwrap(), first);
        assert_eq!((machine.apps[1].layouts.places.count(), machine.cold()), (1, cold));
        // another one of its kind is another one
        numa(&machine.root(2), [2 + 64, 30 + 64]);
        let began = Instant::now();
        for at_s in 0..3 {
            runs(&machine.root(1), "other", 71, 0, at_s * 1000);
            machine.apps[0]
                .layouts
                .measure(&machine.root(1), began + Duration::from_secs(9 + at_s));
        }
        machine.tables[0].put(71, 0..16, 0);
        let other = machine.asked(&free("other")).await;
        assert!(other.is_ok(), "{other:?}");
        assert_eq!(machine.apps[1].layouts.places.count(), 2);
    });
}

#[test]
fn guest_that_mintctl_moves_keeps_what_its_plan_keeps_it_to() {
    test(async |machine| {
        machine.pressed();
        let expected = machine.expected().await;
        let there = Client::unix(machine.folder.path().join("guestd2.sock"));
        let expect = "/v1/local/arrivals/uuid-web/expect";
        there.post::<Value>(expect, &expected).await.unwrap();
        let planned = mint_guests::pins::keep_to(&free("web"), &["0".parse().unwrap()]).unwrap();
        assert_eq!(machine.asked(&planned).await.unwrap(), Some(planned));
        assert_eq!(machine.apps[1].layouts.places.count(), 1);
        // without a place the hook does as ever
        let undo = json!({ "attempt": 1 });
        there.post::<Value>("/v1/local/arrivals/uuid-web/undo", &undo).await.unwrap();
        tidy(&machine.apps[1]).await;
        let plain = crate::wire::Expected { layout: None, ..expected };
        there.post::<Value>(expect, &plain).await.unwrap();
        assert_eq!(machine.asked(&free("web")).await.unwrap(), None);
        assert!(machine.apps[1].layouts.places.is_empty());
    });
}

#[test]
fn guest_whose_arrival_is_written_down_has_no_place_of_the_hooks_any_more() {
    test(async |machine| {
        let xml = machine.pressed();
        let expected = machine.expected().await;
        machine.asked(&xml).await.unwrap().unwrap();
        let there = Client::unix(machine.folder.path().join("guestd2.sock"));
        let plain = crate::wire::Expected { layout: None, ..expected };
        there.post::<Value>("/v1/local/arrivals/uuid-web/expect", &plain).await.unwrap();
        settled(tidy(&machine.apps[1]).await).await;
        assert!(!machine.made_room() && machine.apps[1].layouts.places.is_empty());
    });
}

#[test]
fn nothing_that_the_hook_waits_for_asks_libvirt() {
    test(async |machine| {
        machine.pressed();
        numa(&machine.root(2), [0, 30]);
        machine.fakes[1].log.lock().unwrap().clear();
        // libvirt of both nodes answers nobody
        let (ends, is_over) = std::sync::mpsc::channel::<()>();
        let (holds, is_held) = std::sync::mpsc::channel();
        let fakes = machine.fakes.clone();
        let holder = std::thread::spawn(move || {
            let held = fakes.each_ref().map(|fake| fake.guests.lock().unwrap());
            holds.send(()).unwrap();
            _ = is_over.recv();
            drop(held);
        });
        is_held.recv().unwrap();
        let xml = free("web");
        let asked = machine.asked(&xml);
        let given = tokio::time::timeout(Duration::from_secs(20), asked).await;
        ends.send(()).unwrap();
        holder.join().unwrap();
        assert!(given.expect("it waits for libvirt").unwrap().is_some());
        // others get their CPUs beside it
        let gave = "cold: vCPU 0: CPU 0-1 -> CPU 0";
        let log = || machine.fakes[1].log.lock().unwrap().clone();
        machine.soon("cold gives way", || log().iter().any(|line| line == gave)).await;
        super::layout::may_run(&machine.root(2), super::layout_places::COLD, "0");
        settled(tidy_at(&machine.apps[1], later_s(100)).await).await;
        assert_eq!(log().last().unwrap(), "cold: vCPU 0: CPU 0 -> CPU 0-1");
    });
}

#[test]
fn plain_guest_of_which_no_node_says_anything_true_gets_no_place() {
    test(async |machine| {
        let xml = machine.pressed();
        let none = async |why: &str| {
            let refused = machine.asked(&xml).await.unwrap_err();
            assert!(refused.to_string().contains(why), "{refused}");
            assert!(!machine.made_room() && machine.apps[1].layouts.places.is_empty());
        };
        let told = crate::layout::profile(&machine.apps[0], "uuid-web").await.unwrap();
        let mut other = told.clone();
        other.id.0 = "uuid-other".into();
        let mut large = told.clone();
        large.vcpus.clear();
        for lie in [json!(other), json!(large), json!(7)] {
            std::fs::write(machine.folder.path().join("profile"), lie.to_string()).unwrap();
            none("no node that answers").await;
        }
        std::fs::remove_file(machine.folder.path().join("profile")).unwrap();
        std::fs::remove_file(machine.root(1).join("run/libvirt/qemu/web.xml")).unwrap();
        none("no node that answers").await;
        let bad = machine.asked("<domain").await.unwrap_err();
        assert_eq!(bad.code, ErrorCode::BadRequest);
    });
}

#[test]
fn node_tells_what_a_guest_is_like_that_runs_there_and_may_go_by_parts() {
    test(async |machine| {
        machine.pressed();
        let client = machine.client();
        let told = async |vm: &str| {
            let path = format!("/v1/local/vms/{vm}/profile");
            client.get::<Profile>(&path).await.map_err(body)
        };
        assert_eq!(told("uuid-web").await.unwrap().bytes(), 16 << 20);
        let refused = async |vm: &str| told(vm).await.unwrap_err().refusals[0].code;
        assert_eq!(refused("uuid-gone").await, RefusalCode::VmAbsent);
        let locked =
            free("web").replace("</vcpu>", "</vcpu><memoryBacking><locked/></memoryBacking>");
        runs_as(&machine.root(1), ("web", &locked), WEB, 0, 0);
        assert_eq!(refused("uuid-web").await, RefusalCode::VmTied);
        // it is on its way to there
        machine.begins_to_come();
        let there = crate::layout::profile(&machine.apps[1], "uuid-web").await.unwrap_err();
        assert_eq!(there.refusals[0].code, RefusalCode::VmAbsent);
    });
}

#[test]
fn plain_guest_of_a_linked_machine_gets_a_place_too() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let machine = Machine::start(true);
        let xml = machine.pressed();
        assert!(comes(&machine.apps[1], &xml).await.unwrap().is_some());
        assert!(machine.made_room());
    });
}
