// SPDX-License-Identifier: Apache-2.0
//! Whether the layout that a policy has found is worth a plan.

use crate::cost::{Cost, Weight};
use crate::layout::Layout;
use crate::model::Model;
use crate::plan::{Plan, Why, pins, relocations};
use crate::policy::Limits;
use crate::snapshot::Snapshot;
use crate::topology::Topology;

/// What a policy was asked.
pub(crate) struct Case<'a> {
    pub policy: &'static str,
    pub model: Model,
    pub snapshot: &'a Snapshot,
    pub topology: &'a Topology,
    pub weights: &'a [Weight],
    pub limits: &'a Limits,
}

impl Case<'_> {
    /// The plan that makes a layout of what is: nothing if it gains less than it has to.
    ///
    /// # Arguments
    /// * `order` - all guests, those that chose first in front.
    /// * `rate` - of a guest, misses per thousand instructions as they counted.
    pub fn plan(&self, order: &[usize], rate: impl Fn(usize) -> f64, after: &Layout) -> Plan {
        let &Self { snapshot, topology, weights, .. } = self;
        let before = Layout::of(snapshot);
        let was = self.model.each(weights, topology, &before);
        let is = self.model.each(weights, topology, after);
        let all = |each: &[Cost]| each.iter().copied().sum::<Cost>();
        let gain = all(&was).gain(all(&is));
        if *after == before || gain < self.limits.gain {
            return Plan::nothing(self.policy);
        }
        let changes = order.iter().enumerate().filter(|(_, guest)| {
            let guest = **guest;
            before.vcpus[guest] != after.vcpus[guest]
                || before.regions[guest] != after.regions[guest]
        });
        let why = changes.map(|(place, &guest)| {
            let regions = snapshot.guests[guest].regions.iter().zip(&after.regions[guest]);
            let relocated = regions.filter(|(region, now)| region.numa != **now);
            Why {
                guest: snapshot.guests[guest].id.clone(),
                rank: place + 1,
                misses_per_kilo: rate(guest),
                confidence: weights[guest].confidence,
                gain: was[guest].gain(is[guest]),
                relocated_bytes: relocated.map(|(region, _)| region.bytes).sum(),
            }
        });
        Plan {
            policy: self.policy.to_owned(),
            why: why.collect(),
            pins: pins(snapshot, topology, after),
            relocations: relocations(snapshot, topology, after),
            gain,
        }
    }
}
