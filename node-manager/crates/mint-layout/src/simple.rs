// SPDX-License-Identifier: Apache-2.0
//! L's own policy (4.3, table 1): the more often a guest misses, the better the place that it gets.
//!
//! The paper says no more than that. Guests choose in the order of their misses per thousand instructions, the
//! median of ten seconds. Each takes the cache domain from which its memory can be nearest: on NUMA nodes that have
//! room, or where guests that choose later have memory that is used less (L, figure 3). Guests that hardly miss keep
//! what nobody has taken.

use crate::cost::{cost, guest_cost, weights};
use crate::layout::Layout;
use crate::plan::{Plan, Why, pins, relocations};
use crate::policy::{Limits, Policy};
use crate::rank::Ranks;
use crate::snapshot::{Signal, Snapshot};
use crate::table::Table;
use crate::topology::Topology;

/// Below so many misses per thousand instructions a place makes no difference.
const MISSES_PER_KILO: f64 = 1.5;
/// The policy.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Simple {
    ranks: Ranks,
}

impl Policy for Simple {
    fn name(&self) -> &'static str {
        "simple"
    }

    fn needs(&self) -> &'static [Signal] {
        &[Signal::RunTime, Signal::Memory]
    }

    fn arrange(&mut self, snapshot: &Snapshot, topology: &Topology, limits: &Limits) -> Plan {
        let weights = weights(snapshot);
        let order = self.ranks.order(snapshot, &weights);
        let mut table = Table::new(snapshot, topology, &weights, limits);
        for (place, &guest) in order.iter().enumerate() {
            let is_choosy = self.ranks.rate(&snapshot.guests[guest].id) >= MISSES_PER_KILO;
            table.seat(guest, is_choosy.then(|| &order[place + 1..]));
        }
        let (before, after) = (Layout::of(snapshot), table.layout);
        let costs = cost(&weights, topology, &before);
        let gain = costs.gain(cost(&weights, topology, &after));
        if after == before || gain < limits.gain {
            return Plan::nothing(self.name());
        }
        let changes = order.iter().enumerate().filter(|(_, guest)| {
            let guest = **guest;
            before.vcpus[guest] != after.vcpus[guest]
                || before.regions[guest] != after.regions[guest]
        });
        let why = changes.map(|(place, &guest)| {
            let weight = &weights[guest];
            let was = guest_cost(weight, topology, &before, guest);
            let regions = snapshot.guests[guest].regions.iter().zip(&after.regions[guest]);
            let relocated = regions.filter(|(region, now)| region.numa != **now);
            Why {
                guest: snapshot.guests[guest].id.clone(),
                rank: place + 1,
                misses_per_kilo: self.ranks.rate(&snapshot.guests[guest].id),
                confidence: weight.confidence,
                gain: was.gain(guest_cost(weight, topology, &after, guest)),
                relocated_bytes: relocated.map(|(region, _)| region.bytes).sum(),
            }
        });
        Plan {
            policy: self.name().to_owned(),
            why: why.collect(),
            pins: pins(snapshot, topology, &after),
            relocations: relocations(snapshot, topology, &after),
            gain,
        }
    }
}

#[cfg(test)]
#[path = "tests/simple.rs"]
mod tests;
