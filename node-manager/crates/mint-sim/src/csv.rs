// SPDX-License-Identifier: Apache-2.0
//! What L's figures 5 to 12 show, as rows.

use std::fmt::Write;

use crate::case::Case;
use crate::error::SimError;
use crate::machine::Machine;
use crate::run::{Mode, run};

/// Of each second from when the guest has come, each mode and each guest: what it got done, 1 being what it would where
/// it waits least. The guest that came is `vm3`.
///
/// # Errors
/// As [`run`].
pub fn csv(case: &Case, machine: &Machine) -> Result<String, SimError> {
    let mut rows = String::from("second,mode,guest,simulated_relative_throughput\n");
    for mode in Mode::ALL {
        for (second, each) in run(case, mode, machine)?.throughputs.iter().enumerate() {
            for (at, throughput) in each.iter().enumerate() {
                // a string takes all that is written to it
                let _ = writeln!(rows, "{second},{mode},vm{},{throughput:.4}", at + 1);
            }
        }
    }
    Ok(rows)
}
