// SPDX-License-Identifier: Apache-2.0
//! Hosts have given leases for a guest's move, and the daemon that moves it dies.

use std::time::Duration;

use mint_guests::split::Split;
use mint_split::SplitGuest;

use super::memory::{Store, UUID, files, pager, split, tell, third, until};
use super::*;
use crate::{hosts, split};

#[test]
fn leases_for_a_move_that_nobody_ends_are_given_back_once_it_is_sure_that_the_guest_stays() {
    test(async |machine| {
        let store = Store::serve(&machine, 2);
        let root = files(&machine, "echo armed");
        tell(&machine, "begin", &split("node2")).await.unwrap();
        let folder = root.join(format!("run/mint/ram/guests/{UUID}.7"));
        let guest = || -> SplitGuest {
            serde_json::from_slice(&std::fs::read(folder.join("guest.json")).unwrap()).unwrap()
        };
        let (given, app) = (third(&machine), &machine.apps[0]);
        pager(&folder);
        let before = guest();
        let wanted = Split::parse("main=96M,node3=rest", "64K", 256 << 20).unwrap();
        split::lend(app, UUID, &wanted, NodeId::new(2).unwrap()).await.unwrap();
        assert_eq!((store.leases().len(), given.lock().unwrap().len()), (1, 1));
        let lent = guest();
        assert!(lent.servers[0].leaves && !lent.servers[1].leaves, "{lent:?}");
        assert_eq!(lent.main_bytes, 96 << 20);

        // its operation goes on; then that has died, and where the guest is is not known yet
        let operation = app.begin(UUID).unwrap();
        let watch = tokio::spawn(hosts::watch(app.clone()));
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(guest(), lent, "it moves");
        let record = json!({ "side": "departure", "uuid": UUID, "peer": 2, "disks": [] });
        let record = serde_json::from_value(record).unwrap();
        app.journal.write(&record).unwrap();
        drop(operation);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(guest(), lent, "it may have moved");
        app.journal.forget(&record);
        until(|| guest().servers[1].is_over()).await;
        let after = guest();
        assert_eq!(after.servers[0], before.servers[0]);
        assert_eq!((after.lent, after.main_bytes), (None, before.main_bytes));
        assert_eq!((store.leases().len(), given.lock().unwrap().len()), (1, 0));
        watch.abort();

        // what is asked for next does not begin where that ended
        split::lend(app, UUID, &wanted, NodeId::new(2).unwrap()).await.unwrap();
        let again = Split::parse("main=64M,node2=rest", "64K", 256 << 20).unwrap();
        split::lend(app, UUID, &again, NodeId::new(2).unwrap()).await.unwrap();
        let guest = guest().taken_back();
        assert_eq!((guest.main_bytes, guest.servers[0].leaves), (before.main_bytes, false));
    });
}
