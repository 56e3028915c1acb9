// SPDX-License-Identifier: Apache-2.0
use super::fit;
use crate::{CASES, FITTED_LOSS, FITTED_RECOVERY_S, Figures, Machine, SimError};

#[test]
fn the_fitted_case_is_what_the_paper_says() {
    let machine = fit(&CASES[0], &Machine::default()).unwrap();
    let is = Figures::of(&CASES[0], &machine).unwrap();
    assert!((is.loss - FITTED_LOSS).abs() < 0.005, "{is:?}");
    assert!(is.recovery_s.abs_diff(FITTED_RECOVERY_S) <= 1, "{is:?}");
    // from where the search begins does not matter
    let start = Machine { miss_cycles: 7.0, move_bytes_s: 1.0, ..machine };
    assert_eq!(fit(&CASES[0], &start), Ok(machine));
}

#[test]
fn where_far_memory_is_near_nothing_fits() {
    let near = Machine { far: 13, ..Machine::default() };
    assert_eq!(fit(&CASES[0], &near), Err(SimError::Unreachable("cycles of a miss")));
}
