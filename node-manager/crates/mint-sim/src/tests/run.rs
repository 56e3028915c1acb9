// SPDX-License-Identifier: Apache-2.0
use mint_layout::RING;

use super::{Mode, run};
use crate::{CASES, Case, Figures, Machine, csv, fit};

fn fitted() -> Machine {
    fit(&CASES[0], &Machine::default()).unwrap()
}

/// Those in which the guest that comes hardly misses.
fn quiet() -> impl Iterator<Item = Case> {
    CASES.into_iter().filter(|case| case.incoming.name == "cubic_calc")
}

#[test]
fn the_same_case_is_the_same_each_time() {
    for case in CASES {
        let machine = Machine::default();
        assert_eq!(csv(&case, &machine), csv(&case, &machine), "{}", case.name);
    }
    let bounds = || crate::bounds(&CASES[0], &Machine::default());
    assert_eq!(bounds(), bounds());
}

#[test]
fn a_guest_that_hardly_misses_loses_nothing_and_nothing_is_moved_for_it() {
    let machine = fitted();
    assert_eq!(quiet().count(), 3);
    for case in quiet() {
        let is = Figures::of(&case, &machine).unwrap();
        assert!(is.loss <= 0.02, "{}: {}", case.name, is.loss);
        assert_eq!((is.moves_after, is.moves_before), (0, 0), "{}", case.name);
        assert_eq!((is.evicted_bytes, is.recovery_s), (0, 0), "{}", case.name);
    }
}

#[test]
fn a_guest_that_is_arranged_before_has_its_throughput_in_the_first_second() {
    let machine = fitted();
    for case in CASES {
        let before = run(&case, Mode::Before, &machine).unwrap();
        let guest = case.residents.len();
        assert!(before.first(guest) >= 0.98 * before.last(guest), "{}", case.name);
        let none = run(&case, Mode::None, &machine).unwrap();
        assert!(before.first(guest) >= none.first(guest), "{}", case.name);
    }
    // those for which there is a whole place
    for case in [CASES[0], CASES[2]] {
        let first = run(&case, Mode::Before, &machine).unwrap().first(case.residents.len());
        assert!(first >= 0.98, "{}: {first}", case.name);
    }
}

#[test]
fn after_is_as_none_until_the_ring_is_full() {
    let machine = fitted();
    for case in CASES {
        let none = run(&case, Mode::None, &machine).unwrap().throughputs;
        let after = run(&case, Mode::After, &machine).unwrap().throughputs;
        assert_eq!(none[..RING], after[..RING], "{}", case.name);
    }
    let is = run(&CASES[0], Mode::After, &machine).unwrap();
    let each: Vec<f64> = is.incoming().collect();
    assert!(each.is_sorted(), "{each:?}");
    assert!(each[RING + 5] > each[RING - 1] && each[RING + 5] < 0.98, "{each:?}");
}

/// DINO's case: the guest comes beside the resident that misses, and is then on the other NUMA node.
#[test]
fn dino_has_the_guest_leave_the_resident_that_misses() {
    let case = CASES[2];
    let machine = fitted();
    let none = run(&case, Mode::None, &machine).unwrap();
    assert!(none.last(0) < 0.9 && none.last(2) < 0.9, "{:?}", none.throughputs[0]);
    let before = run(&case, Mode::Before, &machine).unwrap();
    assert!(before.last(0) > 0.98 && before.last(2) > 0.98, "{:?}", before.throughputs[0]);
    assert!(before.last(1) < none.last(1), "the other one has it beside it");
}

#[test]
fn memory_that_goes_too_slowly_is_not_taken_to_have_gone() {
    let slow = Machine { move_bytes_s: 1e6, ..Machine::default() };
    let is = Figures::of(&CASES[0], &slow).unwrap();
    assert_eq!(is.recovery_s, super::SECONDS);
    assert!(is.left_after < 0.02, "{is:?}");
}

#[test]
fn a_file_has_each_second_of_each_mode_and_guest() {
    let rows = csv(&CASES[0], &Machine::default()).unwrap();
    let mut lines = rows.lines();
    assert_eq!(lines.next(), Some("second,mode,guest,simulated_relative_throughput"));
    assert_eq!(lines.clone().count(), 3 * super::SECONDS * 3);
    assert_eq!(lines.next(), Some("0,none,vm1,1.0000"));
    assert!(lines.all(|line| line.split(',').count() == 4));
}
