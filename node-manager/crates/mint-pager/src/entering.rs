// SPDX-License-Identifier: Apache-2.0
//! A guest that came: once it runs here, this host is its main host, and its memory servers are
//! told. That it runs here is libvirt's word: until then it may go on where it was.

use std::fs::{remove_file, rename};
use std::io;
use std::thread;
use std::time::Duration;

use mint_split::files::{COMING, ENTERING, HAS_ALL, LEFT_OUT, READY, RUNS};
use tracing::{debug, info, warn};

use crate::shared::{Shared, Stage};
use crate::step::step;

const LOOK: Duration = Duration::from_millis(100);

/// Makes this host the guest's main host, when it runs here.
pub(crate) fn enter(shared: &Shared, stage: Stage) {
    let folder = &shared.home.folder;
    if stage == Stage::Looks {
        while !runs(shared) {
            thread::sleep(LOOK);
        }
        step("pager-runs");
        // from here on it is this host's, whoever dies
        while let Err(error) = rename(folder.join(COMING), folder.join(ENTERING)) {
            warn!(%error, "cannot write down that the guest is here");
            thread::sleep(LOOK);
        }
        step("pager-enters");
        shared.goes_on();
        info!("the guest runs here");
    }
    while !shared.is_entered() {
        thread::sleep(LOOK);
    }
    // or it would be missing in what libvirt saves
    while let Err(error) = shared.home.qemu.leave_memory_out(false) {
        debug!(%error, "QEMU leaves its memory out still");
        thread::sleep(LOOK);
    }
    shared.home.qemu.close();
    for name in [ENTERING, HAS_ALL, LEFT_OUT, READY, RUNS] {
        match remove_file(folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                warn!(name, %error, "is left behind");
            }
            _ => {}
        }
    }
    info!("all of the guest's memory servers know this main host");
}

/// Whether the guest runs here: its QEMU says so, or somebody who has asked libvirt.
fn runs(shared: &Shared) -> bool {
    shared.home.folder.join(RUNS).exists() || shared.home.qemu.runs()
}
