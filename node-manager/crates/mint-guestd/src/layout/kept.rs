// SPDX-License-Identifier: Apache-2.0
//! What this daemon writes down of layouts, for the next one of this boot: why guests are where they are, and what was
//! changed last, so that it can be undone. A guest that has ended takes its part along.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use super::files::{read, write};
use crate::app::App;
use mint_api::{ErrorBody, ErrorCode, LayoutReason};
use mint_layout::NumaId;
use mint_types::CpuSet;
use serde::{Deserialize, Serialize};

/// Below the host's root: guests do not outlive its boot.
pub(super) const FILE: &str = "/run/mint/layout.json";

/// All of it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Kept {
    /// By UUID.
    #[serde(default)]
    pub reasons: BTreeMap<String, Reason>,
    /// How it was before the last change.
    #[serde(default)]
    pub undo: Option<Undo>,
}

/// Why a guest is where it is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Reason {
    /// Its QEMU: what is said of another one is said of it no more.
    pub qemu: u32,
    /// What users are told.
    pub reason: LayoutReason,
}

/// How guests were before a change.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Undo {
    /// When that was done, seconds since 1970.
    pub at_s: u64,
    /// Each guest that it changed.
    pub vms: Vec<Before>,
}

/// A guest as it was.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Before {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// Its QEMU.
    pub qemu: u32,
    /// CPUs that vCPUs could run on, by number of those that got others.
    pub vcpus: BTreeMap<u32, CpuSet>,
    /// Memory that another NUMA node got.
    pub memory: Vec<Was>,
}

/// Memory as it was.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Was {
    /// Where it begins in the guest's RAM, as its file has it.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The NUMA node that had it.
    pub numa: NumaId,
}

/// Changes what is written down.
///
/// # Errors
/// When it cannot be written.
pub(super) fn keep(app: &App, change: impl FnOnce(&mut Kept)) -> Result<(), ErrorBody> {
    let _keeping = app.layouts.keeping.lock().unwrap_or_else(PoisonError::into_inner);
    let path = app.host.path(FILE);
    let mut kept: Kept = read(&path);
    let running = mint_guests::running::running(&app.host.path("/"));
    kept.reasons.retain(|uuid, reason| {
        running.iter().any(|one| one.uuid == *uuid && one.qemu == reason.qemu)
    });
    change(&mut kept);
    write(&path, &kept).map_err(|error| {
        let text = format!("{} cannot be written: {error}", path.display());
        ErrorBody::new(ErrorCode::Failed, text).hint("guests are as they were")
    })
}
