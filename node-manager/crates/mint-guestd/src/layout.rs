// SPDX-License-Identifier: Apache-2.0
//! Where guests' vCPUs and memory are on this node's NUMA nodes, and where a guest that comes will be before it
//! comes (L; `mint_layout`). This node's daemon measures its own guests, finds places, and makes room for who comes here.
//! Only of a guest that comes by plain `virsh migrate` it asks others ([`plain`]).
//!
//! A guest that is given a place has one as long as the record of its arrival is there
//! ([`crate::journal`]), or, by plain `virsh migrate`, its QEMU: when that is gone and the guest has not come, what others
//! lost for it goes back.

mod after;
mod bring;
mod change;
mod counters;
mod files;
mod host;
mod kept;
pub(crate) mod known;
mod later;
mod measure;
mod measured;
mod memory;
mod meter;
mod pages;
mod place;
mod places;
mod plain;
mod reasons;
mod samples;
mod show;
mod work;

use std::sync::Arc;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tracing::warn;

use self::later::EACH;
use self::reasons::now_s;
use crate::app::App;
use crate::journal::Side;

pub(crate) use bring::{landed, make_room, started, view};
pub(crate) use change::change;
pub(crate) use host::{profile, wish};
pub(crate) use measure::measure;
#[cfg(test)]
pub(crate) use memory::Memory;
#[cfg(test)]
pub(crate) use meter::{Buffer, Meter, Timed};
pub(crate) use place::place;
pub(crate) use plain::comes;
pub(crate) use show::{all, one};

/// Measures this node's guests, and looks after places of guests that do not come, for ever.
pub(crate) async fn watch(app: Arc<App>) {
    loop {
        let began = Instant::now();
        let now = app.clone();
        let looked = app.call(move |_| {
            now.layouts.samples.take(&now.host.path("/"));
            Ok(())
        });
        if let Err(error) = looked.await {
            warn!(%error, "guests are not measured");
        }
        // who brings a guest to its place does so beside the next second's samples
        drop(tidy(&app).await);
        after::tend(&app).await;
        sleep(EACH.saturating_sub(began.elapsed())).await;
    }
}

/// Forgets places of guests that are expected no more; what others lost for one that did not come goes back. Gives who
/// brings guests to their places that came by plain `virsh migrate`.
pub(crate) async fn tidy(app: &Arc<App>) -> Vec<JoinHandle<()>> {
    tidy_at(app, now_s()).await
}

/// The same at another time.
pub(crate) async fn tidy_at(app: &Arc<App>, now_s: u64) -> Vec<JoinHandle<()>> {
    let landing = plain::tend(app, now_s);
    let expected = |uuid: &str, attempt| app.journal.of(Side::Arrival, uuid, attempt).is_some();
    for place in app.layouts.places.forget(now_s, expected) {
        bring::give_back(app, place).await;
    }
    landing
}
