// SPDX-License-Identifier: Apache-2.0
//! What L tells of its runs.

use crate::case::Case;
use crate::error::SimError;
use crate::machine::Machine;
use crate::run::{Mode, Run, run};

/// A guest has its throughput again when it is within this part of the last.
const NEARLY: f64 = 0.02;

/// Of a case.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Figures {
    /// The part of its throughput that the guest loses where nobody does anything: 0.4 is 40 %.
    pub loss: f64,
    /// What it still loses at the end where it is arranged after it has come.
    pub left_after: f64,
    /// What it loses at the end where it is arranged before.
    pub left_before: f64,
    /// Seconds from when it has come until it has its last throughput, arranged after it has come.
    pub recovery_s: usize,
    /// Its throughput in the first second to the last, arranged before it comes.
    pub first_second: f64,
    /// What is moved after it has come: guests that get other CPUs, ranges of memory that get another NUMA node.
    pub moves_after: usize,
    /// The same before it comes.
    pub moves_before: usize,
    /// Bytes that are relocated after it has come.
    pub relocated_bytes: u64,
    /// Bytes of others that are relocated before it comes.
    pub evicted_bytes: u64,
    /// The part of its throughput that the resident loses that loses most, arranged before, to that where nobody does
    /// anything.
    pub price: f64,
}

impl Figures {
    /// Simulates a case in all modes.
    ///
    /// # Errors
    /// As [`run`].
    pub fn of(case: &Case, machine: &Machine) -> Result<Self, SimError> {
        let none = run(case, Mode::None, machine)?;
        let after = run(case, Mode::After, machine)?;
        let before = run(case, Mode::Before, machine)?;
        let guest = case.residents.len();
        let price = (0..guest).map(|at| 1.0 - before.last(at) / none.last(at)).fold(0.0, f64::max);
        Ok(Self {
            loss: 1.0 - none.last(guest),
            left_after: 1.0 - after.last(guest),
            left_before: 1.0 - before.last(guest),
            recovery_s: recovery_s(&after),
            first_second: before.first(guest) / before.last(guest),
            moves_after: after.moves(),
            moves_before: before.moves(),
            relocated_bytes: after.plan.as_ref().map_or(0, mint_layout::Plan::relocated_bytes),
            evicted_bytes: before.evicted_bytes,
            price,
        })
    }
}

/// The first second from which on the guest that came has nearly the throughput that it has in the end.
pub(crate) fn recovery_s(run: &Run) -> usize {
    let last = run.settled.last().copied().unwrap_or(0.0);
    let is_off = |one: f64| (one - last).abs() > NEARLY * last;
    run.incoming().rposition(is_off).map_or(0, |second| second + 1)
}
