// SPDX-License-Identifier: Apache-2.0
//! An operation as its daemon has it: its entry, and what is not written down.

use mint_types::{NodeId, OperationId};
use tokio::sync::watch;

use crate::area::Place;
use crate::entry::Entry;

pub(crate) struct Slot {
    pub entry: Entry,
    pub told: watch::Sender<()>,
    pub part_of: Option<OperationId>,
    pub dry_run: bool,
    /// Somebody in this daemon carries it out.
    pub taken: bool,
    /// Where its intent is in the control area.
    pub place: Option<Place>,
    /// Another node took it while this one did not run: that one, if it still has it.
    pub elsewhere: Option<Option<NodeId>>,
    /// Another node may have taken it while this one did not run.
    pub unknown: bool,
}

impl Slot {
    pub fn new(entry: Entry, part_of: Option<OperationId>, dry_run: bool, taken: bool) -> Self {
        let told = watch::Sender::new(());
        let (place, elsewhere, unknown) = (None, None, false);
        Self { entry, told, part_of, dry_run, taken, place, elsewhere, unknown }
    }
}
