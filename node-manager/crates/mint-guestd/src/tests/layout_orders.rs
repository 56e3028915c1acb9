// SPDX-License-Identifier: Apache-2.0
//! What daemons say to each other of places, in any order.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::layout::{free, kept, runs};
use super::layout_places::{COLD, THERE};
use super::layout_plain::{later_s, settled};
use super::*;
use crate::arrivals;
use crate::layout::{comes, tidy, tidy_at};
use crate::wire::Expected;

/// MINT_ORDERS says how many more are wanted.
const ORDERS: usize = 300;
const WEB: &str = "uuid-web";

/// How often something was seen to happen.
#[derive(Debug, Default)]
struct Seen {
    given: usize,
    refused: usize,
    undone: usize,
    restarts: usize,
    came: usize,
    came_to_a_place: usize,
    plain: usize,
    begun: usize,
    ended: usize,
}

impl Machine {
    /// web is not there, nor expected, and nobody has lost anything.
    fn begins(&self) {
        let its = &self.fakes[1];
        its.guests.lock().unwrap().remove("web");
        self.ends();
        self.tables[1].put(COLD, 0..12, 0);
    }

    fn comes(&self) {
        runs(&self.root(2), "web", THERE, 0, 0);
        self.tables[1].put(THERE, 0..8, 1);
        self.fakes[1].define("web", true, &free("web"));
    }

    /// One thing happens. Gives the daemon that is there then.
    async fn next(
        &self,
        app: Arc<App>,
        expected: &Expected,
        random: &mut Rng,
        (seen, has_come): (&mut Seen, &mut bool),
    ) -> Arc<App> {
        let attempt = Some(random.u64(1..4));
        let is_written = app.journal.get(Side::Arrival, WEB).is_some();
        let is_about_to = is_written || app.layouts.places.count() > 0;
        match random.u8(0..13) {
            0..3 => {
                let expected = Expected { attempt, ..expected.clone() };
                match arrivals::expect(&app, WEB.into(), expected).await {
                    Ok(()) => seen.given += 1,
                    Err(_) => seen.refused += 1,
                }
            }
            3 => {
                let undone = arrivals::undo(&app, WEB.into(), attempt).await;
                seen.undone += usize::from(undone.is_ok());
            }
            4 => settled(tidy(&app).await).await,
            5 => {
                seen.restarts += 1;
                return self.anew();
            }
            6 if !*has_come && is_about_to => {
                seen.came += 1;
                *has_come = true;
                self.comes();
            }
            // by plain virsh migrate: libvirt's hook asks, its QEMU begins, and ends
            8 | 9 if !*has_come => {
                let given = comes(&app, &kept("web", 0)).await;
                seen.plain += usize::from(given.is_ok_and(|xml| xml.is_some()) && !is_written);
            }
            10 if !*has_come && is_about_to => {
                seen.begun += 1;
                self.begins_to_come();
            }
            11 if !*has_come => {
                seen.ended += 1;
                self.ends();
                settled(tidy_at(&app, later_s(u64::from(random.u8(0..10)))).await).await;
            }
            _ => {
                if let Ok(arrived) = arrivals::arrived(&app, WEB.into()).await {
                    seen.came_to_a_place += usize::from(arrived.layout.is_some());
                }
            }
        }
        app
    }
}

#[test]
fn whatever_is_lost_repeated_or_late_nothing_is_kept_for_nobody() {
    test(async |machine| {
        machine.pressed();
        let expected = machine.expected().await;
        let (mut random, mut seen) = (Rng::with_seed(21), Seen::default());
        let mut app = machine.apps[1].clone();
        let orders = std::env::var("MINT_ORDERS").ok().and_then(|text| text.parse().ok());
        let orders = orders.unwrap_or(ORDERS);
        for order in 0..orders {
            machine.begins();
            let mut has_come = false;
            for _ in 0..random.usize(1..9) {
                app = machine.next(app, &expected, &mut random, (&mut seen, &mut has_come)).await;
                let coming = app.layouts.places.count();
                assert!(coming <= 1, "order {order}: {coming} places for one guest");
            }
            // in the end its last node knows where it is
            if has_come {
                arrivals::arrived(&app, WEB.into()).await.unwrap();
            }
            for attempt in 1..4 {
                arrivals::undo(&app, WEB.into(), Some(attempt)).await.unwrap();
            }
            if !has_come {
                machine.ends();
            }
            settled(tidy_at(&app, later_s(100)).await).await;
            assert!(app.journal.get(Side::Arrival, WEB).is_none(), "order {order}");
            assert_eq!(app.layouts.places.count(), 0, "order {order}");
            assert!(machine.anew().layouts.places.is_empty(), "order {order}: written down");
            let (lost, all) = (BTreeMap::from([(0, 6), (1, 6)]), BTreeMap::from([(0, 12)]));
            let cold = machine.cold();
            assert!(cold == all || (has_come && cold == lost), "order {order}: {cold:?}");
        }
        println!("{seen:?}");
        // all of it was tried
        let Seen { given, refused, undone, restarts, came, came_to_a_place, .. } = seen;
        let Seen { plain, begun, ended, .. } = seen;
        let all = [given, refused, undone, restarts, came, came_to_a_place, plain, begun, ended];
        assert!(all.into_iter().min().unwrap() > orders / 20, "{all:?}");
    });
}
