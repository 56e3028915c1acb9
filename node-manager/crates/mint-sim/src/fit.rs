// SPDX-License-Identifier: Apache-2.0
//! The two constants that nothing tells, from one case.

use crate::case::Case;
use crate::error::SimError;
use crate::figures::recovery_s;
use crate::machine::Machine;
use crate::run::{Mode, run};

/// What the guest of case 1-1 loses where nobody does anything (L, 5.3.2).
pub const FITTED_LOSS: f64 = 0.404;
/// Seconds until it has its throughput again where it is arranged after it has come (L, 5.3.2).
pub const FITTED_RECOVERY_S: usize = 22;
/// Cycles of a miss are sought below this,
const MISS_CYCLES_MAX: f64 = 1000.0;
/// and bytes a second between these.
const MOVE_BYTES_S: (f64, f64) = (1e7, 1e11);
/// An interval that is halved so often is a point.
const HALVES: u32 = 20;

/// Cycles of a miss by which the case loses [`FITTED_LOSS`], and bytes a second by which it takes
/// [`FITTED_RECOVERY_S`] to recover: the middle of all that do.
///
/// # Arguments
/// * `machine` - whose other constants stay.
///
/// # Errors
/// When there are none.
pub fn fit(case: &Case, machine: &Machine) -> Result<Machine, SimError> {
    let with_cycles = |miss_cycles| Machine { miss_cycles, ..*machine };
    let loss = |cycles| -> Result<f64, SimError> {
        Ok(1.0 - run(case, Mode::None, &with_cycles(cycles))?.last(case.residents.len()))
    };
    if loss(MISS_CYCLES_MAX)? < FITTED_LOSS {
        return Err(SimError::Unreachable("cycles of a miss"));
    }
    let miss_cycles =
        edge((0.0, MISS_CYCLES_MAX), |cycles| Ok(loss(cycles)? >= FITTED_LOSS), f64::midpoint)?;
    let fitted = with_cycles(miss_cycles);
    let takes = |move_bytes_s| -> Result<usize, SimError> {
        Ok(recovery_s(&run(case, Mode::After, &Machine { move_bytes_s, ..fitted })?))
    };
    let middle = |one: f64, other: f64| (one * other).sqrt();
    let slowest = edge(MOVE_BYTES_S, |speed| Ok(takes(speed)? <= FITTED_RECOVERY_S), middle)?;
    let fastest = edge(MOVE_BYTES_S, |speed| Ok(takes(speed)? < FITTED_RECOVERY_S), middle)?;
    let move_bytes_s = middle(slowest, fastest);
    if takes(move_bytes_s)? != FITTED_RECOVERY_S {
        return Err(SimError::Unreachable("speed of relocations"));
    }
    Ok(Machine { move_bytes_s, ..fitted })
}

/// Where something begins to hold that does not below and does above.
fn edge(
    (mut below, mut above): (f64, f64),
    holds: impl Fn(f64) -> Result<bool, SimError>,
    middle: impl Fn(f64, f64) -> f64,
) -> Result<f64, SimError> {
    for _ in 0..HALVES {
        let between = middle(below, above);
        if holds(between)? {
            above = between;
        } else {
            below = between;
        }
    }
    Ok(above)
}

#[cfg(test)]
#[path = "tests/fit.rs"]
mod tests;
