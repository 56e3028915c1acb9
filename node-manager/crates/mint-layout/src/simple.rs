// SPDX-License-Identifier: Apache-2.0
//! L's own policy (4.3, table 1): the more often a guest misses, the better the place that it gets.
//!
//! The paper says no more than that. Guests choose in the order of their misses per thousand instructions, the
//! median of ten seconds. Each takes the cache domain from which its memory can be nearest: on NUMA nodes that have
//! room, or where guests that choose later have memory that is used less (L, figure 3). Guests that hardly miss keep
//! what nobody has taken.

use crate::case::Case;
use crate::cost::weights;
use crate::plan::Plan;
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
        let (policy, model, after) = (self.name(), self.model(), table.layout);
        let case = Case { policy, model, snapshot, topology, weights: &weights, limits };
        case.plan(&order, |guest| self.ranks.rate(&snapshot.guests[guest].id), &after)
    }
}

#[cfg(test)]
#[path = "tests/simple.rs"]
mod tests;
