// SPDX-License-Identifier: Apache-2.0
//! Copies of disks that no guest of this node has.

use tracing::{info, warn};

use crate::app::App;
use crate::journal::Record;

/// Deletes the copies of a guest's disks that are on this node. Gives whether all are gone.
pub(crate) async fn drop_copies(app: &App, record: &Record, why: &'static str) -> bool {
    let mut all = true;
    for disk in &record.disks {
        let path = disk.clone();
        match app.ask(move |hypervisor| hypervisor.drop_disk(&path)).await {
            Ok(()) => info!(uuid = record.uuid, path = disk, "copy of a disk deleted: {why}"),
            Err(error) => {
                warn!(uuid = record.uuid, path = disk, %error, "a copy of a disk stays");
                all = false;
            }
        }
    }
    all
}
