// SPDX-License-Identifier: Apache-2.0
//! What every policy is.

use crate::model::Model;
use crate::plan::Plan;
use crate::snapshot::{Signal, Snapshot, SnapshotError};
use crate::topology::Topology;

/// What a plan may cost.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    /// Bytes of memory that may get another NUMA node.
    pub relocated_bytes: u64,
    /// A plan that gains less is none.
    pub gain: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { relocated_bytes: u64::MAX, gain: 0.05 }
    }
}

/// Why there is no plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PolicyError {
    /// What it needs was not measured.
    #[error("policy {policy} needs {}, which was not measured of all guests", list(.lacks))]
    Lacks {
        /// Its name.
        policy: &'static str,
        /// What was not.
        lacks: Vec<Signal>,
    },
    /// The snapshot is none of that topology.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
}

fn list(signals: &[Signal]) -> String {
    signals.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

/// Finds a better layout (L, table 1). The same snapshots in the same order give the same plans.
pub trait Policy {
    /// As people write it.
    fn name(&self) -> &'static str;

    /// Without which it cannot say anything.
    fn needs(&self) -> &'static [Signal];

    /// By what it judges layouts: its plans' gains are in these cycles.
    fn model(&self) -> Model {
        Model::Distances
    }

    /// A plan for a snapshot that has what it needs.
    fn arrange(&mut self, snapshot: &Snapshot, topology: &Topology, limits: &Limits) -> Plan;

    /// A plan for a snapshot.
    ///
    /// # Errors
    /// When the snapshot is none of that topology, or lacks what the policy needs.
    fn plan(
        &mut self,
        snapshot: &Snapshot,
        topology: &Topology,
        limits: &Limits,
    ) -> Result<Plan, PolicyError> {
        snapshot.check(topology)?;
        let needs = self.needs().iter().copied();
        let lacks: Vec<Signal> = needs.filter(|&signal| !snapshot.has(signal)).collect();
        if !lacks.is_empty() {
            return Err(PolicyError::Lacks { policy: self.name(), lacks });
        }
        Ok(self.arrange(snapshot, topology, limits))
    }
}
