// SPDX-License-Identifier: Apache-2.0
//! What daemons of guests say to each other, beside the departure and the plan of
//! `mint_guests::arrival`. It grows by fields that may be left out.

use mint_api::{LayoutFigures, MigrateFigures};
use mint_guests::arrival::LayoutWish;
use mint_types::{CpuSet, LayoutPolicy, MachineId, NodeId};
use serde::{Deserialize, Serialize};

/// A guest that came, as its new node has it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Arrived {
    /// libvirt's word for its state.
    pub state: String,
    /// Whether it has come: it has a process, and no migration is on it.
    pub has_come: bool,
    /// Whether it has no process.
    #[serde(default)]
    pub is_off: bool,
    /// What is missing for it to have come; none if nothing is, or it is not known.
    #[serde(default)]
    pub waits_for: Option<String>,
    /// What its way took; none if it did not come by one.
    #[serde(default)]
    pub figures: Option<MigrateFigures>,
    /// Of a guest that was given a place: what came of it.
    #[serde(default)]
    pub layout: Option<LayoutFigures>,
}

/// A guest that is about to come, and where its disks' copies will be.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Expected {
    /// Node that it comes from.
    pub from: NodeId,
    /// That node's machine, if it is another one.
    #[serde(default)]
    pub machine: Option<MachineId>,
    /// Number of its migration; none from a daemon of before these had numbers.
    #[serde(default)]
    pub attempt: Option<u64>,
    /// Files that its disks are copied to.
    pub disks: Vec<String>,
    /// Of a guest whose memory is split.
    #[serde(default)]
    pub memory: Option<mint_split::Arrival>,
    /// Of a guest that is to have a place before it comes.
    #[serde(default)]
    pub layout: Option<LayoutWish>,
    /// With that: CPUs of each of its vCPUs, as its XML has them.
    #[serde(default)]
    pub pins: Vec<CpuSet>,
    /// Of a guest that is to be arranged with the others when it has come: by whom.
    #[serde(default)]
    pub later: Option<LayoutPolicy>,
}

/// A guest that is about to come is not to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Undo {
    /// Number of its migration, as in [`Expected`]: one that came too late is of none.
    #[serde(default)]
    pub attempt: Option<u64>,
}

/// A guest that was about to come does not, and nothing of it is left there.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Undone {
    /// Why that node has let it come no more; none if it would have.
    #[serde(default)]
    pub why: Option<String>,
}

/// What libvirt's hook is told of a guest that comes.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub(crate) struct Lands {
    /// Its XML here, which is all that is to be done with it; none: as without a place.
    #[serde(default)]
    pub xml: Option<String>,
}

/// What libvirt's hook was told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Told {
    /// The guest's XML.
    pub xml: String,
}
