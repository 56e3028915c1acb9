// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::host::{counted, even, guest, ran, snapshot};

fn close(is: f64, wanted: f64) {
    assert!((is - wanted).abs() < 1e-6 * wanted.abs().max(1.0), "{is}, not {wanted}");
}

#[test]
fn misses_wait_as_long_as_their_memory_is_far() {
    let host = even(2, 2, 1 << 30);
    let of = |regions: &[(u64, usize, f64)]| {
        Cost::of(&snapshot([guest("a", 0, counted(10.0), regions)]), &host)
    };
    let near = of(&[(64, 0, 3.0)]);
    close(near.work_cycles_s, 1e9);
    close(near.wait_cycles_s, 1e7 * LOCAL_CYCLES);
    // three of four of the heat is at twice the distance, whatever its bytes
    let split = of(&[(640, 0, 1.0), (64, 1, 3.0)]);
    close(split.wait_cycles_s, 1.75 * near.wait_cycles_s);
    close(split.gain(near), 0.75 / 2.75);
    close(near.gain(split), -0.375);
    close(Cost::default().gain(Cost::default()), 0.0);
}

#[test]
fn where_nobody_knows_what_is_used_all_of_it_is() {
    let host = even(2, 2, 1 << 30);
    let mut snapshot = snapshot([guest("a", 0, counted(10.0), &[(64, 0, 9.0), (192, 1, 0.0)])]);
    close(Cost::of(&snapshot, &host).wait_cycles_s, 1e9);
    snapshot.guests[0].regions[1].heat = None;
    close(Cost::of(&snapshot, &host).wait_cycles_s, 1.75e9);
}

#[test]
fn what_is_not_counted_is_guessed_from_run_time() {
    let host = even(1, 1, 1 << 30);
    let of = |part: f64| snapshot([guest("a", 0, ran(part), &[(64, 0, 1.0)])]);
    let half = Cost::of(&of(0.5), &host);
    close(half.work_cycles_s, 0.5e9);
    close(half.wait_cycles_s, 0.25e9);
    close(Cost::of(&of(1.0), &host).wait_cycles_s, 1e9);
    let idle = Cost::of(&of(0.0), &host);
    close(idle.work_cycles_s + idle.wait_cycles_s, 0.0);
    assert_eq!(weights(&of(0.5))[0].confidence, Confidence::Guessed);
}
