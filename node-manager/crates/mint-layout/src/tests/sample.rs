// SPDX-License-Identifier: Apache-2.0
use super::*;

fn sample(instructions: u64, misses: u64) -> Sample {
    let (instructions, misses) = (Some(instructions), Some(misses));
    Sample { span_ms: 500, run_ms: 250, instructions, misses, fills: None }
}

fn close(is: Option<f64>, wanted: f64) {
    assert!(is.is_some_and(|is| (is - wanted).abs() < 1e-9), "{is:?}, not {wanted}");
}

#[test]
fn last_ten_count() {
    let ring: Ring = (0..25).map(|at| sample(at, 0)).collect::<Vec<_>>().into();
    let kept: Vec<u64> = ring.iter().filter_map(|sample| sample.instructions).collect();
    assert_eq!(kept, (15..25).collect::<Vec<u64>>());
    assert_eq!(Vec::<Sample>::from(ring.clone()).len(), ring.len());
}

#[test]
fn rates_are_medians() {
    let ring: Ring = vec![sample(1000, 10), sample(2000, 80), sample(1000, 500)].into();
    close(ring.misses_per_kilo(), 40.0);
    close(ring.misses_per_s(), 160.0);
    close(ring.instructions_per_s(), 2000.0);
    close(ring.busy(), 0.5);
    let even: Ring = vec![sample(1000, 10), sample(1000, 20)].into();
    close(even.misses_per_kilo(), 15.0);
}

#[test]
fn what_nothing_counts_is_none() {
    let ran = Sample { span_ms: 1000, run_ms: 900, ..Sample::default() };
    let ring: Ring = vec![ran].into();
    assert_eq!((ring.misses_per_kilo(), ring.instructions_per_s()), (None, None));
    assert_eq!((ring.misses_per_s(), ring.fills_per_s()), (None, None));
    close(ring.busy(), 0.9);
    let idle: Ring = vec![sample(0, 0), Sample::default()].into();
    assert_eq!(idle.misses_per_kilo(), None, "no instruction, no rate");
    close(idle.instructions_per_s(), 0.0);
    assert_eq!(Ring::default().busy(), None);
    assert!(Ring::default().is_empty());
}

#[test]
fn fills_are_means_of_what_was_told() {
    let told =
        |fills: &[u64], span_ms| Sample { span_ms, fills: Some(fills.into()), ..sample(1, 0) };
    let ring: Ring = vec![told(&[10, 30], 1000), sample(1, 0), told(&[30, 0, 4], 3000)].into();
    assert_eq!(ring.fills_per_s(), Some(vec![10.0, 7.5, 1.0]));
}
