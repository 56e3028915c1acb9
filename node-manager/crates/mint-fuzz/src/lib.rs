// SPDX-License-Identifier: Apache-2.0
//! Damages valid input, again and again, and looks what a reader makes of it.
//!
//! Random bytes end at the first magic number. So every try starts from good input
//! and is changed in a few places, by the kinds of damage that find faults in readers:
//! bits, bytes, interesting numbers in binary and as text, pieces cut out, doubled,
//! moved, or taken from other inputs. What a reader answers is counted by a word that
//! the target gives: a target says which words there must have been, so that one whose
//! tries all end at the front door fails.
//!
//! It needs no special compiler. `MINT_FUZZ_S` says for how many seconds a target runs,
//! `MINT_FUZZ_SEED` where to begin: a failure prints the seed that shows it at once.

mod json;
mod numbers;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use crate::numbers::NUMBERS;

/// Seconds of a target where nobody says otherwise.
const SECONDS: f64 = 4.0;
/// So many tries there are on any machine, however slow: what a target must reach it
/// reaches in them.
const TRIES_MIN: u64 = 5000;
/// Input does not grow beyond that.
const BYTES_MAX: usize = 1 << 20;

/// What came of a target's tries.
#[derive(Debug, Default)]
pub struct Tally {
    /// How many there were.
    pub tries: u64,
    /// How often the reader answered so.
    pub answers: BTreeMap<String, u64>,
}

impl Tally {
    /// Fails unless the reader answered each of these at least once.
    ///
    /// # Panics
    /// When one is missing: the target does not reach what it is for.
    pub fn must_have(&self, words: &[&str]) {
        for &word in words {
            let seen = self.answers.get(word).copied().unwrap_or(0);
            assert!(seen > 0, "no try was answered `{word}`: {self:?}");
        }
    }
}

fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")),
        Err(_) => default,
    }
}

/// Feeds a reader with damaged `seeds`, and with the seeds themselves. `read` says in a
/// word what it made of its input, and panics where the reader does what it may not.
///
/// # Panics
/// When `read` does; the seed to repeat it is printed.
pub fn fuzz(target: &str, seeds: &[Vec<u8>], read: impl Fn(&[u8]) -> String) -> Tally {
    fuzz_by(target, seeds, damaged, read)
}

/// The same with damage to the values of JSON: what comes of it is JSON always, and a
/// reader gets to its fields.
///
/// # Panics
/// When `read` does, or a seed is no JSON; the seed to repeat it is printed.
pub fn fuzz_json(target: &str, seeds: &[Vec<u8>], read: impl Fn(&[u8]) -> String) -> Tally {
    fuzz_by(target, seeds, json::damaged, read)
}

fn fuzz_by(
    target: &str,
    seeds: &[Vec<u8>],
    damaged: impl Fn(&[Vec<u8>], u64) -> Vec<u8>,
    read: impl Fn(&[u8]) -> String,
) -> Tally {
    let first: u64 = setting("MINT_FUZZ_SEED", 1);
    let limit = Duration::from_secs_f64(setting("MINT_FUZZ_S", SECONDS));
    let mut tally = Tally::default();
    let mut attempt = |seed: Option<u64>, input: &[u8]| {
        let answer = catch_unwind(AssertUnwindSafe(|| read(input))).unwrap_or_else(|panic| {
            match seed {
                Some(seed) => eprintln!("{target}: repeat it with MINT_FUZZ_SEED={seed}"),
                None => eprintln!("{target}: good input fails"),
            }
            resume_unwind(panic)
        });
        tally.tries += 1;
        *tally.answers.entry(answer).or_default() += 1;
    };
    for seed in seeds {
        attempt(None, seed);
    }
    let began = Instant::now();
    let mut seed = first;
    let at_least = if std::env::var_os("MINT_FUZZ_SEED").is_some() { 1 } else { TRIES_MIN };
    while seed - first < at_least || began.elapsed() < limit {
        attempt(Some(seed), &damaged(seeds, seed));
        seed += 1;
    }
    println!("{target}: {} tries, {:?}", tally.tries, tally.answers);
    tally
}

/// One of the seeds, changed in one to eight places: the same for the same number.
fn damaged(seeds: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = seeds[random.usize(..seeds.len())].clone();
    // few changes go deeper than many
    for _ in 0..1usize << random.usize(..4) {
        change(&mut bytes, seeds, &mut random);
    }
    bytes.truncate(BYTES_MAX);
    bytes
}

/// A place in so many bytes: often near the front, where headers are.
fn place(length: usize, random: &mut fastrand::Rng) -> usize {
    let within = if random.bool() { length.min(128) } else { length };
    random.usize(..within.max(1))
}

fn change(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut fastrand::Rng) {
    if bytes.is_empty() {
        bytes.push(random.u8(..));
        return;
    }
    let at = place(bytes.len(), random);
    let end = at + random.usize(..=(bytes.len() - at).min(256));
    let number = NUMBERS[random.usize(..NUMBERS.len())];
    match random.u8(..9) {
        0 => bytes[at] ^= 1 << random.u8(..8),
        1 => bytes[at] = random.u8(..),
        2 => {
            let width = [1, 2, 4, 8][random.usize(..4)];
            let all = if random.bool() {
                number.to_le_bytes()
            } else {
                number.rotate_left(64 - 8 * width).to_be_bytes()
            };
            let width = usize::try_from(width).expect("at most 8");
            write_over(bytes, at, &all[..width]);
        }
        // numbers as text: cpio's are 8 hexadecimal digits
        3 => write_over(bytes, at, format!("{:08X}", number & 0xffff_ffff).as_bytes()),
        4 => write_over(bytes, at, number.to_string().as_bytes()),
        5 => drop(bytes.drain(at..end)),
        6 => bytes.truncate(at),
        7 => {
            let piece = bytes[at..end].to_vec();
            let to = place(bytes.len(), random);
            bytes.splice(to..to, piece);
        }
        _ => {
            let other = &seeds[random.usize(..seeds.len())];
            let from = place(other.len(), random);
            let piece = other.get(from..).unwrap_or_default().iter().copied();
            bytes.splice(at..end, piece.take(random.usize(..512)));
        }
    }
}

fn write_over(bytes: &mut [u8], at: usize, new: &[u8]) {
    for (old, &new) in bytes[at..].iter_mut().zip(new) {
        *old = new;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_number_does_the_same_damage_and_others_do_other() {
        let seeds = [b"some valid input".to_vec(), b"and another one".to_vec()];
        assert_eq!(damaged(&seeds, 7), damaged(&seeds, 7));
        let all: std::collections::BTreeSet<_> = (0..1000).map(|n| damaged(&seeds, n)).collect();
        assert!(all.len() > 800, "{}", all.len());
        // most of it is still there to lead a reader in
        let kept =
            all.iter().filter(|bytes| bytes.starts_with(b"some") || bytes.starts_with(b"and"));
        assert!(kept.count() > 200);
    }

    /// A reader with a fault three conditions deep is found out within the time of a test.
    #[test]
    fn fault_behind_a_header_is_found() {
        let seeds = [b"MAGIC\x00\x00\x00\x10data of the thing".to_vec()];
        let read = |bytes: &[u8]| {
            if !bytes.starts_with(b"MAGIC") || bytes.len() < 9 {
                return "refused".to_owned();
            }
            let length = u32::from_be_bytes([bytes[5], bytes[6], bytes[7], bytes[8]]);
            assert!(length != 0xffff_ffff, "overflow");
            "taken".to_owned()
        };
        let found = catch_unwind(|| fuzz("self-test", &seeds, read));
        assert!(found.is_err());
    }
}
