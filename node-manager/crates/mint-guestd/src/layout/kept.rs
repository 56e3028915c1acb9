// SPDX-License-Identifier: Apache-2.0
//! What this daemon writes down of layouts, for the next one of this boot: why guests are where they are, and what was
//! changed last, so that it can be undone. A guest that has ended takes its part along.

use std::collections::BTreeMap;

use mint_api::LayoutReason;
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
