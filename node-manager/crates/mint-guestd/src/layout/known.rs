// SPDX-License-Identifier: Apache-2.0
//! What this daemon knows of layouts from one request to the next.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use mint_guests::counters::Counters;
use mint_layout::{Allowed, GuardLimits, Guards, Plan, Snapshot, Topology};

use super::counters::Perf;
use super::later::Later;
use super::measured::Told;
use super::memory::{Kernel, Memory};
use super::meter::Meter;
use super::places::Places;
use super::samples::Samples;
use crate::facts::HostFiles;

/// Below the host's root: guests do not outlive its boot.
const PLACES: &str = "/run/mint/layout-places.json";

/// What this node knows of its guests' layout.
pub(crate) struct Layouts {
    pub(super) samples: Samples,
    pub places: Places,
    pub(super) memory: Arc<dyn Memory>,
    /// Guests that are arranged when they have come.
    pub later: Later,
    /// How much of a plan may be done.
    guards: Mutex<Guards>,
    began: Instant,
    /// Who reads memory of NUMA nodes by the clock.
    pub(super) meter: Arc<dyn Meter>,
    /// Whether what was measured is of no use.
    pub(super) told: Told,
    /// Whoever arranges guests anew, or measures NUMA nodes, has it.
    pub(super) changing: tokio::sync::Mutex<()>,
    /// Whoever changes what is written down has it.
    pub(super) keeping: Mutex<()>,
}

impl Layouts {
    /// Of this node's kernel.
    pub fn of_node(host: &HostFiles) -> Self {
        Self::with(host, Arc::new(Kernel), Arc::new(Perf), Arc::new(Kernel))
    }

    /// Whose pages somebody else sees to, counts its vCPUs, and reads its memory. What the daemon before has written down is known.
    pub fn with(
        host: &HostFiles,
        memory: Arc<dyn Memory>,
        counters: Arc<dyn Counters>,
        meter: Arc<dyn Meter>,
    ) -> Self {
        Self {
            samples: Samples::new(counters),
            places: Places::of_file(host.path(PLACES)),
            memory,
            meter,
            told: Told::default(),
            later: Later::default(),
            guards: Mutex::new(Guards::new(GuardLimits::default())),
            began: Instant::now(),
            changing: tokio::sync::Mutex::default(),
            keeping: Mutex::default(),
        }
    }

    /// The part of a plan that may be done now; it is taken to be done.
    pub(super) fn allow(&self, plan: &Plan, snapshot: &Snapshot, topology: &Topology) -> Allowed {
        let now_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut guards = self.guards.lock().unwrap_or_else(PoisonError::into_inner);
        guards.allow(plan, snapshot, topology, now_ms)
    }

    /// Guests were looked at then.
    #[cfg(test)]
    pub fn measure(&self, root: &std::path::Path, at: std::time::Instant) {
        self.samples.take_at(root, at);
    }
}
