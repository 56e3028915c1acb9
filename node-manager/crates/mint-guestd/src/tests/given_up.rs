// SPDX-License-Identifier: Apache-2.0
//! Guests whose memory is split that were to come, or to go, and do not: whose QEMU is ended, and
//! what the operation says.

use std::path::PathBuf;
use std::time::Duration;

use mint_split::{ArrivalView, DepartureView, MemoryView, SplitGuest, files};
use tokio::io::AsyncWriteExt;

use super::memory::{UUID, files as put_files, tell, until};
use super::moves::{active, expect, goes, incoming, migrate, movable, serve_view};
use super::*;
use crate::{given_up, memory};

/// A guest that comes to node 1, and has passed libvirt's hook: its QEMU waits for its memory.
async fn comes(machine: &Machine) -> (PathBuf, Arc<Mutex<ArrivalView>>) {
    let folder = incoming(machine);
    expect(machine);
    let view: Arc<Mutex<ArrivalView>> =
        Arc::new(Mutex::new(ArrivalView { is_ready: true, ..ArrivalView::default() }));
    let xml = movable("node2");
    let (begun, ()) = tokio::join!(tell(machine, "begin", &xml), serve_view(&folder, view.clone()));
    begun.unwrap();
    active(machine, &xml);
    is(machine, "paused", true);
    (folder, view)
}

/// A guest of node 1 that moves to node 2, and stands still for that: there its QEMU waits. Gives
/// its folder on node 1.
async fn stands_still(machine: &Machine) -> PathBuf {
    let root = put_files(machine, "echo armed");
    let xml = movable("node3");
    super::memory::third(machine);
    tell(machine, "begin", &xml).await.unwrap();
    active(machine, &xml);
    let folder = root.join(format!("run/mint/ram/guests/{UUID}.7"));
    *machine.fakes[0].cancelled.lock().unwrap() = Some(false);
    *machine.fakes[0].has_sent_all.lock().unwrap() = true;
    let there = machine.fakes[1].clone();
    machine.fakes[0].others.lock().unwrap().insert("10.0.0.2".into(), there);
    folder
}

/// What node 2 has of it, once it is expected there.
async fn waits_there(machine: &Machine, folder: &std::path::Path, has_all: bool) {
    until(|| machine.apps[1].journal.get(Side::Arrival, UUID).is_some()).await;
    let root = machine.folder.path().join("root2");
    let text = std::fs::read(folder.join(files::GUEST)).unwrap();
    let guest: SplitGuest = serde_json::from_slice(&text).unwrap();
    let there = root.join(format!("run/mint/ram/guests/{UUID}.9"));
    memory::write(&there, &SplitGuest { qemu: 9, epoch: 2, ..guest }).unwrap();
    let record = machine.apps[1].journal.get(Side::Arrival, UUID).unwrap();
    let source = serde_json::to_vec(&record.memory.unwrap().source).unwrap();
    std::fs::write(there.join(files::COMING), source).unwrap();
    if has_all {
        std::fs::write(there.join(files::HAS_ALL), "").unwrap();
    }
    std::fs::create_dir_all(root.join("proc/9")).unwrap();
    std::fs::write(root.join("proc/9/cmdline"), format!("qemu\0-uuid\0{UUID}\0")).unwrap();
    machine.fakes[1].define("big", true, &movable("node3"));
    let mut guests = machine.fakes[1].guests.lock().unwrap();
    let facts = &mut guests.get_mut("big").unwrap().0;
    (facts.uuid, facts.state, facts.has_job) = (UUID.into(), "paused", true);
}

fn is_active_there(machine: &Machine) -> bool {
    machine.fakes[1].guests.lock().unwrap()["big"].0.active
}

async fn cancel(machine: &Machine) -> Result<VmView, ErrorBody> {
    let path = format!("/v1/local/vms/{UUID}/cancel");
    machine.client().post(&path, &json!({})).await.map_err(body)
}

/// What libvirt of node 1 says of it.
fn is(machine: &Machine, state: &'static str, has_job: bool) {
    let mut guests = machine.fakes[0].guests.lock().unwrap();
    let facts = &mut guests.get_mut("big").unwrap().0;
    (facts.state, facts.has_job) = (state, has_job);
}

fn is_active(machine: &Machine) -> bool {
    machine.fakes[0].guests.lock().unwrap()["big"].0.active
}

async fn undo(machine: &Machine) -> Result<Value, ErrorBody> {
    undo_of(machine, json!({})).await
}

async fn undo_of(machine: &Machine, request: Value) -> Result<Value, ErrorBody> {
    let path = format!("/v1/local/arrivals/{UUID}/undo");
    machine.client().post(&path, &request).await.map_err(body)
}

#[test]
fn undo_that_comes_late_ends_nothing_of_the_guests_next_move() {
    test(async |machine| {
        let (folder, _view) = comes(&machine).await;
        let record = machine.apps[0].journal.get(Side::Arrival, UUID).unwrap();
        let next = Record { attempt: Some(2), ..record };
        machine.apps[0].journal.write(&next).unwrap();
        let (late, its) = (json!({ "attempt": 1 }), json!({ "attempt": 2 }));
        assert_eq!(undo_of(&machine, late).await.unwrap(), json!({ "why": null }));
        assert!(!folder.join(files::GIVEN_UP).exists() && is_active(&machine));
        assert_eq!(machine.apps[0].journal.get(Side::Arrival, UUID), Some(next));
        // another one ends it
        let ending = machine.apps[0].ending.hold(UUID).unwrap();
        let error = undo_of(&machine, its.clone()).await.unwrap_err();
        assert!(error.message.ends_with("is being ended already"), "{error}");
        assert!(!folder.join(files::GIVEN_UP).exists() && is_active(&machine));
        drop(ending);
        undo_of(&machine, its).await.unwrap_err();
        until(|| !is_active(&machine)).await;
    });
}

#[test]
fn memory_of_another_way_is_not_given_up() {
    test(async |machine| {
        let (folder, _view) = comes(&machine).await;
        let mut record = machine.apps[0].journal.get(Side::Arrival, UUID).unwrap();
        record.memory.as_mut().unwrap().source.secret = [4; 16];
        machine.apps[0].journal.write(&record).unwrap();
        let error = undo(&machine).await.unwrap_err();
        assert!(error.message.ends_with("runs here"), "{error}");
        assert!(!folder.join(files::GIVEN_UP).exists() && is_active(&machine));
    });
}

#[test]
fn guest_that_waits_for_its_memory_is_ended_when_it_is_not_to_come() {
    test(async |machine| {
        let (folder, _view) = comes(&machine).await;
        let error = undo(&machine).await.unwrap_err();
        assert!(
            error.message.ends_with("waits here for its memory still, and is ended"),
            "{error}"
        );
        assert!(folder.join(files::GIVEN_UP).exists());
        until(|| !is_active(&machine)).await;
        assert_eq!(undo(&machine).await.unwrap(), json!({ "why": null }));
        assert_eq!(machine.apps[0].journal.get(Side::Arrival, UUID), None);
    });
}

#[test]
fn guest_that_is_here_or_that_libvirt_lets_run_is_not_ended() {
    test(async |machine| {
        let (folder, _view) = comes(&machine).await;
        let [has_all, given_up] = [files::HAS_ALL, files::GIVEN_UP].map(|name| folder.join(name));
        std::fs::write(&has_all, "").unwrap();
        let error = undo(&machine).await.unwrap_err();
        assert!(error.message.ends_with("runs here"), "{error}");
        assert!(!given_up.exists());
        std::fs::remove_file(&has_all).unwrap();
        is(&machine, "running", false);
        let error = undo(&machine).await.unwrap_err();
        assert!(error.message.ends_with("runs here"), "{error}");
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(!given_up.exists() && is_active(&machine));
    });
}

#[test]
fn guest_whose_pager_says_that_it_does_not_come_is_ended_and_the_other_side_hears_why() {
    test(async |machine| {
        let (folder, view) = comes(&machine).await;
        tokio::spawn(given_up::watch(machine.apps[0].clone()));
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(is_active(&machine), "it comes");
        view.lock().unwrap().failed = Some("page 1 is at 0x4".into());
        until(|| !is_active(&machine)).await;
        assert!(folder.join(files::GIVEN_UP).exists());
        assert_eq!(undo(&machine).await.unwrap(), json!({ "why": "page 1 is at 0x4" }));
    });
}

#[test]
fn hook_lets_no_guest_through_that_is_given_up_or_has_ended() {
    test(async |machine| {
        for (ends, words) in [(false, "is not to come any more"), (true, "has ended")] {
            let folder = incoming(&machine);
            expect(&machine);
            let (view, xml) = (Arc::default(), movable("node2"));
            let (begun, ()) = tokio::join!(tell(&machine, "begin", &xml), async {
                serve_view(&folder, view).await;
                until(|| folder.join("started").exists()).await;
                if ends {
                    let process = machine.folder.path().join("root1/proc/7");
                    std::fs::remove_dir_all(process).unwrap();
                } else {
                    // libvirt knows of no guest while its hook runs
                    undo(&machine).await.unwrap();
                }
            });
            let error = begun.unwrap_err();
            assert!(error.message.ends_with(words), "{error}");
            assert!(!folder.exists());
        }
    });
}

#[test]
fn cancelled_move_ends_though_libvirt_has_nothing_to_cancel() {
    test(async |machine| {
        let folder = stands_still(&machine).await;
        let asked = goes(&folder);
        let (moved, ()) = tokio::join!(migrate(&machine, UUID, json!({ "to": "node2" })), async {
            waits_there(&machine, &folder, false).await;
            cancel(&machine).await.unwrap();
            until(|| !is_active_there(&machine)).await;
        });
        let error = moved.unwrap_err();
        assert!(error.message.contains("was not moved to node2; it stays on node1"), "{error}");
        let last = asked.lock().unwrap().last().cloned();
        assert_eq!(last, Some(mint_split::PagerCall::Stay));
        for (app, side) in [(0, Side::Departure), (1, Side::Arrival)] {
            assert_eq!(machine.apps[app].journal.get(side, UUID), None);
        }
    });
}

#[test]
fn cancelled_move_goes_on_when_all_of_the_guest_is_there() {
    test(async |machine| {
        let folder = stands_still(&machine).await;
        let asked = goes(&folder);
        let request = json!({ "to": "node2" });
        let moving = migrate(&machine, UUID, request);
        let ends = async {
            waits_there(&machine, &folder, true).await;
            cancel(&machine).await.unwrap();
            // it is asked more than once
            tokio::time::sleep(Duration::from_millis(2500)).await;
        };
        tokio::select! {
            moved = moving => panic!("{moved:?}"),
            () = ends => {}
        }
        assert!(is_active_there(&machine));
        assert_eq!(asked.lock().unwrap().len(), 1, "nobody tells its pager that it stays");
        // for its thread to end
        *machine.fakes[0].cancelled.lock().unwrap() = None;
    });
}

#[test]
fn move_of_a_guest_that_stands_still_for_too_long_ends_and_says_why() {
    test(async |machine| {
        let folder = stands_still(&machine).await;
        goes(&folder);
        let pager = UnixListener::bind(folder.join("pager.sock")).unwrap();
        tokio::spawn(async move {
            for finals in 4.. {
                let (mut stream, _) = pager.accept().await.unwrap();
                let departure = Some(DepartureView { finals, ..DepartureView::default() });
                let view = MemoryView { departure, ..MemoryView::default() };
                _ = stream.write_all(&serde_json::to_vec(&view).unwrap()).await;
            }
        });
        let (moved, ()) = tokio::join!(
            migrate(&machine, UUID, json!({ "to": "node2" })),
            waits_there(&machine, &folder, false)
        );
        let error = moved.unwrap_err();
        let why = "its next host asked 8 times for the last of its memory";
        assert!(error.causes.iter().any(|cause| cause == why), "{error:?}");
        assert!(!is_active_there(&machine));
    });
}

#[test]
fn move_says_what_its_next_host_has_said() {
    test(async |machine| {
        let folder = stands_still(&machine).await;
        goes(&folder);
        let (moved, ()) = tokio::join!(migrate(&machine, UUID, json!({ "to": "node2" })), async {
            waits_there(&machine, &folder, false).await;
            let record = machine.apps[1].journal.get(Side::Arrival, UUID).unwrap();
            let source = record.memory.unwrap().source;
            let other = mint_split::Source { secret: [9; 16], ..source };
            given_up::note(&machine.apps[1], UUID, Some(&other), "of another way");
            given_up::note(&machine.apps[1], UUID, Some(&source), "page 1 is at 0x4");
            machine.fakes[1].guests.lock().unwrap().get_mut("big").unwrap().0.active = false;
        });
        let error = moved.unwrap_err();
        assert!(error.causes.iter().any(|cause| cause == "page 1 is at 0x4"), "{error:?}");
    });
}
