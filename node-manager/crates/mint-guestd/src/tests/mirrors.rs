// SPDX-License-Identifier: Apache-2.0
//! Guests of which two hosts keep the same: node 1 runs them, nodes 2 and 3 keep.

use std::fs;
use std::path::{Path, PathBuf};

use mint_api::{HostLeaves, KeptGone};
use mint_split::{Lease, NodeStart, SplitGuest};

use super::memory::{Store, UUID, files, pager, split, tell, third, until};
use super::*;
use crate::mirrors::behind_bytes;
use crate::tend::{set_right, tend};

fn twice() -> String {
    split("node2").replace("chunk='65536'", "chunk='65536' copies='2'")
}

fn guest(folder: &Path) -> SplitGuest {
    serde_json::from_slice(&fs::read(folder.join("guest.json")).unwrap()).unwrap()
}

/// The node has had so many starts; 0: it has crashed.
fn starts(machine: &Machine, node: u32, boots: u32) {
    fs::write(machine.folder.path().join(format!("boots{node}")), boots.to_string()).unwrap();
}

struct Twice {
    store: Store,
    third: Arc<Mutex<Vec<Lease>>>,
    folder: PathBuf,
}

impl Twice {
    /// A guest that runs, with a pager.
    async fn begin(machine: &Machine) -> Self {
        let store = Store::serve(machine, 2);
        let third = third(machine);
        let folder = files(machine, "echo armed").join(format!("run/mint/ram/guests/{UUID}.7"));
        tell(machine, "begin", &twice()).await.unwrap();
        pager(&folder);
        Self { store, third, folder }
    }

    /// The last lease that node 3 gave.
    fn lease3(&self) -> Option<Lease> {
        self.third.lock().unwrap().last().cloned()
    }
}

async fn leave(machine: &Machine, host: u32) -> KeptGone {
    let host = NodeId::new(host).unwrap();
    let path = format!("/v1/local/vms/{UUID}/memory/leave");
    machine
        .client()
        .post(&path, &HostLeaves { host, machine: None, dry_run: false, bandwidth_bytes_s: None })
        .await
        .map_err(body)
        .unwrap()
}

#[test]
fn guest_of_two_copies_has_a_mirror_that_its_memory_server_knows() {
    test(async |machine| {
        let twice = Twice::begin(&machine).await;
        let its = guest(&twice.folder);
        let (server, mirror) = (&its.servers[0], its.servers[0].mirror.clone().unwrap());
        let (first, second) = (twice.store.leases()[0].clone(), twice.lease3().unwrap());
        assert_eq!((server.node.as_str(), mirror.node.as_str()), ("node2", "node3"));
        assert_eq!((first.mirror, first.secret), (Some(mirror.at), server.secret));
        assert_eq!((second.secret, second.limit_bytes), (mirror.at.secret, server.limit_bytes));
        assert_eq!(mirror.start, Some(NodeStart { node: 3, boots: 1 }));
        assert_eq!(behind_bytes(&machine.apps[0], &its, server).await, Some(0));
        twice.store.0.lock().unwrap()[0].epoch = 4;
        assert_eq!(behind_bytes(&machine.apps[0], &its, server).await, Some(3 * 4096));
        twice.store.0.lock().unwrap()[0].epoch = 1;
        // it ends, and nobody keeps anything
        fs::remove_dir_all(machine.folder.path().join("root1/proc/7")).unwrap();
        tell(&machine, "end", &self::twice()).await.unwrap();
        until(|| !twice.folder.exists()).await;
        assert_eq!((twice.store.leases(), twice.lease3()), (Vec::new(), None));
    });
}

#[test]
fn guest_of_two_copies_does_not_start_without_a_node_for_the_second() {
    test(async |machine| {
        let store = Store::serve(&machine, 2);
        let root = files(&machine, "echo armed");
        let refused = tell(&machine, "begin", &twice()).await.unwrap_err();
        assert_eq!(refused.refusals[0].code, RefusalCode::NodeNotRunning, "{refused}");
        assert_eq!(store.leases(), []);
        assert!(!root.join(format!("run/mint/ram/guests/{UUID}.7")).exists());
    });
}

#[test]
fn mirror_takes_the_place_of_a_node_that_has_started_anew_which_then_becomes_its_mirror() {
    test(async |machine| {
        let twice = Twice::begin(&machine).await;
        let before = guest(&twice.folder);
        tend(&machine.apps[0], UUID, true).await;
        assert_eq!(guest(&twice.folder), before, "nothing has happened");
        // what it kept is gone with its memory server's leases
        twice.store.0.lock().unwrap().clear();
        starts(&machine, 2, 0);
        tend(&machine.apps[0], UUID, true).await;
        let now = guest(&twice.folder);
        let (server, old) = (now.servers[0].clone(), before.servers[0].mirror.clone().unwrap());
        assert_eq!((server.node.as_str(), server.address), ("node3", old.at.address));
        assert_eq!((server.mirror.as_ref(), now.servers.len()), (None, 1));
        let lease = twice.lease3().unwrap();
        assert_eq!((lease.secret, lease.stays, lease.mirror), (server.secret, true, None));
        assert_ne!(lease.secret, old.at.secret, "who was before it speaks for it no more");

        starts(&machine, 2, 2);
        tend(&machine.apps[0], UUID, true).await;
        let server = guest(&twice.folder).servers[0].clone();
        let (mirror, lease) = (server.mirror.unwrap(), twice.store.leases()[0].clone());
        assert_eq!((mirror.node.as_str(), mirror.at.secret), ("node2", lease.secret));
        let lease = twice.lease3().unwrap();
        assert_eq!((lease.secret, lease.mirror), (server.secret, Some(mirror.at)));
    });
}

#[test]
fn memory_server_that_leaves_has_its_mirror_until_it_keeps_nothing() {
    test(async |machine| {
        let twice = Twice::begin(&machine).await;
        let mut leaves = guest(&twice.folder);
        leaves.servers[0].leaves = true;
        crate::memory::write(&twice.folder, &leaves).unwrap();
        tend(&machine.apps[0], UUID, true).await;
        assert_eq!(guest(&twice.folder), leaves);
        starts(&machine, 2, 0);
        tend(&machine.apps[0], UUID, true).await;
        let server = guest(&twice.folder).servers[0].clone();
        assert_eq!((server.node.as_str(), server.leaves), ("node3", true));
        // it keeps nothing any more
        starts(&machine, 2, 2);
        leaves.servers[0].limit_bytes = 0;
        crate::memory::write(&twice.folder, &leaves).unwrap();
        tend(&machine.apps[0], UUID, true).await;
        assert_eq!(guest(&twice.folder).servers[0].mirror, None);
        let mirror = leaves.servers[0].mirror.clone().unwrap().at.secret;
        assert!(twice.third.lock().unwrap().iter().all(|lease| lease.secret != mirror));
    });
}

#[test]
fn leases_follow_the_guests_file_whatever_a_daemon_had_begun() {
    test(async |machine| {
        let twice = Twice::begin(&machine).await;
        let server = guest(&twice.folder).servers[0].clone();
        let mirror = server.mirror.clone().unwrap();
        // it died after it had shut the one out, and after it had put the other in its place
        twice.store.0.lock().unwrap()[0].secret = [7; 16];
        let other = Lease { secret: [8; 16], ..twice.lease3().unwrap() };
        twice.third.lock().unwrap().push(other);
        set_right(&machine.apps[0], UUID).await.unwrap();
        let (first, second) = (twice.store.leases()[0].clone(), twice.lease3().unwrap());
        assert_eq!(
            (first.secret, first.mirror, first.stays),
            (server.secret, Some(mirror.at), true)
        );
        assert_eq!((second.secret, second.mirror, second.stays), (mirror.at.secret, None, true));
    });
}

#[test]
fn node_whose_mirror_lacks_something_keeps_what_it_has() {
    test(async |machine| {
        let twice = Twice::begin(&machine).await;
        let before = guest(&twice.folder);
        // the played memory server takes this for pages that its mirror lacks
        twice.store.0.lock().unwrap()[0].epoch = 2;
        let leaves = async {
            let host = NodeId::new(2).unwrap();
            let path = format!("/v1/local/vms/{UUID}/memory/leave");
            machine
                .client()
                .post::<KeptGone>(
                    &path,
                    &HostLeaves { host, machine: None, dry_run: false, bandwidth_bytes_s: None },
                )
                .await
        };
        let waits = tokio::time::timeout(std::time::Duration::from_secs(2), leaves).await;
        assert!(waits.is_err(), "it waits: {waits:?}");
        assert_eq!(guest(&twice.folder), before);
        assert_eq!(twice.store.leases().len(), 1);
    });
}

#[test]
fn mirror_whose_node_has_ended_is_waited_for_no_more() {
    test(async |machine| {
        let twice = Twice::begin(&machine).await;
        let before = guest(&twice.folder).servers[0].clone();
        starts(&machine, 3, 0);
        tend(&machine.apps[0], UUID, true).await;
        let server = guest(&twice.folder).servers[0].clone();
        assert_eq!((server.mirror.as_ref(), server.secret), (None, before.secret));
        let lease = twice.store.leases()[0].clone();
        assert_eq!((lease.mirror, lease.stays, lease.secret), (None, true, before.secret));
        // both have: nothing is left to put right
        starts(&machine, 2, 0);
        tend(&machine.apps[0], UUID, true).await;
        assert_eq!(guest(&twice.folder).servers[0], server);
    });
}

#[test]
fn node_that_is_to_keep_nothing_any_more_leaves_its_copy_to_the_other_one_and_gets_none() {
    test(async |machine| {
        let twice = Twice::begin(&machine).await;
        assert_eq!(leave(&machine, 2).await.to.as_deref(), Some("node3"));
        let server = guest(&twice.folder).servers[0].clone();
        assert_eq!((server.node.as_str(), server.mirror.as_ref()), ("node3", None));
        assert_eq!(twice.lease3().unwrap().secret, server.secret);
        assert_eq!(twice.store.leases(), []);
        tend(&machine.apps[0], UUID, true).await;
        assert_eq!(guest(&twice.folder).servers[0].mirror, None, "not before it has ended");
        starts(&machine, 2, 2);
        tend(&machine.apps[0], UUID, true).await;
        assert_eq!(guest(&twice.folder).servers[0].mirror.as_ref().unwrap().node, "node2");
        // and the one that is a mirror alone
        assert_eq!(leave(&machine, 2).await.to.as_deref(), Some("node3"));
        let server = guest(&twice.folder).servers[0].clone();
        assert_eq!((server.node.as_str(), server.mirror.as_ref()), ("node3", None));
        assert_eq!((twice.lease3().unwrap().mirror, twice.store.leases()), (None, Vec::new()));
    });
}
