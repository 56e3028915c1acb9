// SPDX-License-Identifier: Apache-2.0
//! Where everything is, while a policy thinks.

use crate::snapshot::Snapshot;
use crate::topology::{DomainNo, NumaNo};

/// By the places that guests, vCPUs and regions have in the snapshot.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Layout {
    /// Of each guest, each vCPU's cache domain.
    pub vcpus: Vec<Vec<DomainNo>>,
    /// Of each guest, each region's NUMA node.
    pub regions: Vec<Vec<NumaNo>>,
}

impl Layout {
    /// As the snapshot has it.
    pub fn of(snapshot: &Snapshot) -> Self {
        let guests = || snapshot.guests.iter();
        Self {
            vcpus: guests().map(|one| one.vcpus.iter().map(|vcpu| vcpu.domain).collect()).collect(),
            regions: guests().map(|one| one.regions.iter().map(|at| at.numa).collect()).collect(),
        }
    }
}
