// SPDX-License-Identifier: Apache-2.0
//! What was measured of a vCPU, second by second (L, 4.1).

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Samples that are kept of a vCPU; one is taken each second.
pub const RING: usize = 10;

/// What a vCPU did since the sample before. What nothing counts is none, never 0.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Since the sample before, milliseconds.
    pub span_ms: u32,
    /// For so much of that it ran, milliseconds.
    pub run_ms: u32,
    /// Instructions that the guest executed.
    pub instructions: Option<u64>,
    /// Loads that its last-level cache did not have.
    pub misses: Option<u64>,
    /// Cache lines that came from each NUMA node, in the topology's order.
    pub fills: Option<Vec<u64>>,
}

/// The last samples of a vCPU, the oldest first.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Vec<Sample>", into = "Vec<Sample>")]
pub struct Ring(VecDeque<Sample>);

impl Ring {
    /// Adds a sample; the oldest goes when there are more than [`RING`].
    pub fn push(&mut self, sample: Sample) {
        if self.0.len() == RING {
            self.0.pop_front();
        }
        self.0.push_back(sample);
    }

    /// The samples, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Sample> {
        self.0.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Misses per thousand instructions. None: nothing counted them, or it executed nothing.
    pub fn misses_per_kilo(&self) -> Option<f64> {
        self.median(|sample| match (sample.misses?, sample.instructions?) {
            (_, 0) => None,
            (misses, instructions) => Some(misses as f64 * 1000.0 / instructions as f64),
        })
    }

    /// Instructions a second.
    pub fn instructions_per_s(&self) -> Option<f64> {
        self.median(|sample| per_s(sample.instructions?, sample))
    }

    /// Misses a second.
    pub fn misses_per_s(&self) -> Option<f64> {
        self.median(|sample| per_s(sample.misses?, sample))
    }

    /// For how much of the time it ran: 0 to 1.
    pub fn busy(&self) -> Option<f64> {
        self.median(|sample| {
            (sample.span_ms > 0)
                .then(|| (f64::from(sample.run_ms) / f64::from(sample.span_ms)).min(1.0))
        })
    }

    /// Cache lines a second from each NUMA node, the mean of those samples that say so.
    pub fn fills_per_s(&self) -> Option<Vec<f64>> {
        let told = self.0.iter().filter(|sample| sample.fills.is_some());
        let span_ms: u64 = told.clone().map(|sample| u64::from(sample.span_ms)).sum();
        if span_ms == 0 {
            return None;
        }
        let mut sums = Vec::new();
        for fills in told.filter_map(|sample| sample.fills.as_ref()) {
            sums.resize(sums.len().max(fills.len()), 0.0);
            for (sum, &lines) in sums.iter_mut().zip(fills) {
                *sum += lines as f64 * 1000.0 / span_ms as f64;
            }
        }
        Some(sums)
    }

    /// The middle one of what samples say: a second in which something else went on does not move it.
    fn median(&self, of: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        let mut values: Vec<f64> = self.0.iter().filter_map(of).collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        match values.len() {
            0 => None,
            even if even % 2 == 0 => Some(f64::midpoint(values[middle - 1], values[middle])),
            _ => Some(values[middle]),
        }
    }
}

fn per_s(count: u64, sample: &Sample) -> Option<f64> {
    (sample.span_ms > 0).then(|| count as f64 * 1000.0 / f64::from(sample.span_ms))
}

impl From<Vec<Sample>> for Ring {
    fn from(samples: Vec<Sample>) -> Self {
        let mut ring = Self::default();
        samples.into_iter().for_each(|sample| ring.push(sample));
        ring
    }
}

impl From<Ring> for Vec<Sample> {
    fn from(ring: Ring) -> Self {
        ring.0.into()
    }
}

#[cfg(test)]
#[path = "tests/sample.rs"]
mod tests;
