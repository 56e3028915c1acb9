// SPDX-License-Identifier: Apache-2.0
//! Guests whose memory is split that were to come, or to go, and do not: whose QEMU is ended, and
//! what the operation says.

use std::path::PathBuf;
use std::time::Duration;

use mint_split::{ArrivalView, files};

use super::memory::{UUID, tell, until};
use super::moves::{active, expect, incoming, movable, serve_view};
use super::*;
use crate::given_up;

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
    let path = format!("/v1/local/arrivals/{UUID}/undo");
    machine.client().post(&path, &json!({})).await.map_err(body)
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
