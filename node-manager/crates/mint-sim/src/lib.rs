// SPDX-License-Identifier: Apache-2.0
//! The experiments of "Resource layout optimization for live migration" (called L here; section numbers are that
//! paper's), simulated in steps of a second.
//!
//! The policies, their models and the way in which a guest gets a place before it comes are those of `mint-layout`,
//! which nodes run. Simulated are the host, what guests do, and time. Nothing here looks at a clock: the same case
//! gives the same figures each time.
//!
//! A [`Case`] says who runs on a host and who comes. [`run`] has it come in one of three [`Mode`]s, and says what each
//! guest gets done each second. [`Figures`] are what L tells of its runs. [`fit`] finds the two constants of a
//! [`Machine`] that nothing tells, from case 1-1 alone; the other cases are predicted.

mod bounds;
mod case;
mod csv;
mod error;
mod figures;
mod fit;
mod guest;
mod machine;
mod relocate;
mod report;
mod run;
mod throughput;

pub use bounds::{Bounds, bounds};
pub use case::{CASES, Case, Paper, Situation};
pub use csv::csv;
pub use error::SimError;
pub use figures::Figures;
pub use fit::{FITTED_LOSS, FITTED_RECOVERY_S, fit};
pub use guest::{Behaviour, CUBIC_CALC, MALLOC_ACCESS};
pub use machine::Machine;
pub use relocate::so_far;
pub use report::report;
pub use run::{Mode, Run, SECONDS, run};
pub use throughput::throughputs;
