// SPDX-License-Identifier: Apache-2.0
//! Which guest chooses first.

use std::collections::BTreeMap;

use crate::cost::Weight;
use crate::snapshot::{GuestId, Snapshot};

/// A rate counts as changed when it has by more than this part.
const CHANGED: f64 = 0.10;

/// Rates of guests as they counted last.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Ranks(BTreeMap<GuestId, f64>);

impl Ranks {
    /// The guests, those that miss more often first; and of equal ones, by their name. A rate that has hardly
    /// changed counts as it did, so that two of about the same do not change places each second.
    pub fn order(&mut self, snapshot: &Snapshot, weights: &[Weight]) -> Vec<usize> {
        let mut now = BTreeMap::new();
        for (guest, weight) in snapshot.guests.iter().zip(weights) {
            let rate = weight.misses_per_kilo;
            let before = self.0.get(&guest.id).copied();
            let same = before.filter(|before| (rate - before).abs() <= CHANGED * before);
            now.insert(guest.id.clone(), same.unwrap_or(rate));
        }
        self.0 = now;
        let mut order: Vec<usize> = (0..snapshot.guests.len()).collect();
        let key = |at: usize| {
            let id = &snapshot.guests[at].id;
            (self.rate(id), id)
        };
        order.sort_by(|&one, &other| {
            let ((rate, id), (other_rate, other_id)) = (key(one), key(other));
            other_rate.total_cmp(&rate).then_with(|| id.cmp(other_id))
        });
        order
    }

    /// As it counts.
    pub fn rate(&self, guest: &GuestId) -> f64 {
        self.0.get(guest).copied().unwrap_or(0.0)
    }
}
