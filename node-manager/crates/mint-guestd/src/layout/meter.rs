// SPDX-License-Identifier: Apache-2.0
//! Times how CPUs read memory of NUMA nodes.

use std::hint::black_box;
use std::io;
use std::num::NonZero;
use std::time::{Duration, Instant};

use mint_layout::NumaId;
use mint_sys::BoundMemory;

use super::memory::Kernel;

/// Words of a cache line: each is read by its first one.
const LINE_WORDS: usize = 8;
const LINE_BYTES: u64 = 64;
/// Loads between two looks at the clock, each of which waits for the one before.
const LOADS: u32 = 50_000;
/// Of the time for a pair, the part for latency; the rest is for bandwidth.
const LATENCY_PART: f64 = 0.6;
/// Of a buffer a run reads one of so many parts in sequence, the parts in turn; the first ones untimed, as caches have
/// lines that were followed.
const PARTS: usize = 8;
const UNTIMED: usize = 2;
/// Runs at least, however long they take, and at most.
const RUNS: (usize, usize) = (3, 1000);

/// How a CPU reads memory.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Timed {
    /// From one load to the next that needs its result, nanoseconds.
    pub latency_ns: f64,
    /// In sequence, millions of bytes a second.
    pub read_mb_s: f64,
}

/// Who has memory of NUMA nodes and reads it; the kernel, or a fake of it in tests. All of it blocks.
pub(crate) trait Meter: Send + Sync {
    /// Has memory of a NUMA node.
    ///
    /// # Errors
    /// When there is no such NUMA node, or its memory does not come.
    fn buffer(&self, numa: NumaId, bytes: u64) -> io::Result<Box<dyn Buffer>>;
}

/// Memory of a NUMA node.
pub(crate) trait Buffer {
    /// Has a CPU read it for about that long.
    ///
    /// # Errors
    /// When there is no such CPU.
    fn read(&mut self, cpu: u32, time: Duration) -> io::Result<Timed>;
}

impl Meter for Kernel {
    fn buffer(&self, numa: NumaId, bytes: u64) -> io::Result<Box<dyn Buffer>> {
        let bytes = usize::try_from(bytes).ok().and_then(NonZero::new);
        let mut memory = BoundMemory::of(bytes.ok_or(io::ErrorKind::InvalidInput)?, numa.0)?;
        // not by its last words, should they be less than a line
        one_way_round(memory.words());
        Ok(Box::new(memory))
    }
}

impl Buffer for BoundMemory {
    fn read(&mut self, cpu: u32, time: Duration) -> io::Result<Timed> {
        let words: &[u64] = self.words();
        // a thread of its own: those of a pool stay where they may run
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                mint_sys::run_on(cpu)?;
                Ok(timed(words, time))
            });
            reader.join().unwrap_or_else(|_| Err(io::Error::other("whoever reads has panicked")))
        })
    }
}

/// Has the first word of each line name another line, so that all of them follow each other by chance, and the last
/// one names the first (Sattolo's algorithm): no prefetcher knows the next one, and none is there twice.
fn one_way_round(words: &mut [u64]) {
    let lines = words.len() / LINE_WORDS;
    for line in 0..lines {
        words[line * LINE_WORDS] = line as u64;
    }
    let mut lot = Lot(1);
    for line in (1..lines).rev() {
        let other = lot.below(line);
        words.swap(line * LINE_WORDS, other * LINE_WORDS);
    }
}

/// Numbers by chance, always the same (Steele and others, "SplitMix", OOPSLA 2014).
struct Lot(u64);

impl Lot {
    /// One below a bound that is not 0.
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let scaled = u128::from(mixed ^ (mixed >> 31)) * bound as u128;
        // below the bound
        usize::try_from(scaled >> 64).unwrap_or_default()
    }
}

fn timed(words: &[u64], time: Duration) -> Timed {
    let mut line = 0;
    let latencies = runs(time.mul_f64(LATENCY_PART), || {
        line = follow(words, line);
        f64::from(LOADS)
    });
    // as fast as nobody disturbed it
    let mut parts = words.chunks_exact(part_words(words.len())).cycle();
    parts.by_ref().take(UNTIMED).for_each(|part| _ = black_box(sum(part)));
    let bandwidths = runs(time.mul_f64(1.0 - LATENCY_PART), || {
        let part = parts.next().unwrap_or_default();
        black_box(sum(part));
        (part.len() / LINE_WORDS) as f64
    });
    let fastest_ns = bandwidths.into_iter().fold(f64::INFINITY, f64::min);
    Timed { latency_ns: median(latencies), read_mb_s: mb_s(fastest_ns) }
}

/// Of each part of a buffer: whole lines, and one at least.
fn part_words(words: usize) -> usize {
    (words / PARTS / LINE_WORDS).max(1) * LINE_WORDS
}

/// What lines that come each so many nanoseconds are, millions of bytes a second.
fn mb_s(line_ns: f64) -> f64 {
    LINE_BYTES as f64 * 1000.0 / line_ns
}

/// Runs it until the time is over. Gives how long each of what a run says it did took, nanoseconds.
fn runs(time: Duration, mut run: impl FnMut() -> f64) -> Vec<f64> {
    let (began, mut each) = (Instant::now(), Vec::new());
    while each.len() < RUNS.0 || (each.len() < RUNS.1 && began.elapsed() < time) {
        let begins = Instant::now();
        let did = run();
        let took_ns = begins.elapsed().as_secs_f64() * 1e9;
        // a clock may be coarse
        each.push(took_ns.max(1.0) / did.max(1.0));
    }
    each
}

/// The middle of them; of an even number the upper one. 0 of none.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// From line to line, each load waiting for the one before. Gives where it came.
fn follow(words: &[u64], from: u64) -> u64 {
    let mut line = from;
    for _ in 0..LOADS {
        let at = usize::try_from(line).unwrap_or_default().wrapping_mul(LINE_WORDS);
        line = words.get(at).copied().unwrap_or_default();
    }
    black_box(line)
}

/// Reads each line once, in sequence.
fn sum(words: &[u64]) -> u64 {
    words.chunks_exact(LINE_WORDS).fold(0, |sum, line| sum.wrapping_add(line[0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_follow_each_other_one_way_round_and_not_in_sequence() {
        for lines in [1, 2, 3, 1000] {
            let mut words = vec![7; lines * LINE_WORDS + 5];
            one_way_round(&mut words);
            let (mut seen, mut line, mut next) = (vec![false; lines], 0, 0);
            for _ in 0..lines {
                assert!(!std::mem::replace(&mut seen[line], true), "line {line} of {lines} twice");
                let to = usize::try_from(words[line * LINE_WORDS]).unwrap();
                next += usize::from(to == line + 1);
                line = to;
            }
            assert_eq!(line, 0, "the last one names the first");
            assert!(next <= 2 + lines / 100, "{next} of {lines} are in sequence");
            let rest = words.iter().enumerate().filter(|(at, _)| at % LINE_WORDS > 0);
            assert!(rest.into_iter().all(|(_, word)| *word == 7));
        }
        one_way_round(&mut [1; 7]);
    }

    #[test]
    fn followed_lines_are_those_that_are_named() {
        let mut words = vec![0; 3 * LINE_WORDS];
        words[0] = 2;
        words[2 * LINE_WORDS] = 1;
        // 0, 2, 1, 0, ...
        assert_eq!(follow(&words, 0), [0, 2, 1][LOADS as usize % 3]);
        assert_eq!(sum(&words), 3);
    }

    #[test]
    fn middle_and_fastest_are_told() {
        assert!((median(vec![9.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(vec![4.0, 1.0]) - 4.0).abs() < 1e-9 && median(vec![]).abs() < 1e-9);
        assert!((mb_s(6.4) - 10_000.0).abs() < 1e-9);
        assert_eq!([0, 100, 1 << 20].map(part_words), [8, 8, 1 << 17]);
        let mut ran = 0;
        let each = runs(Duration::ZERO, || {
            ran += 1;
            1e9
        });
        assert!((each.len(), ran) == (RUNS.0, 3) && each.iter().all(|ns| *ns > 0.0 && *ns < 1.0));
    }

    #[test]
    fn short_and_long_memory_is_timed() {
        for words in [0, 7, 8, 1 << 17] {
            let mut words = vec![0; words];
            one_way_round(&mut words);
            let one = timed(&words, Duration::ZERO);
            assert!(one.latency_ns > 0.0 && one.read_mb_s > 0.0, "{one:?}");
            assert!(one.latency_ns.is_finite() && one.read_mb_s.is_finite(), "{one:?}");
        }
    }

    #[test]
    fn memory_is_timed_on_this_host() {
        let one = match Kernel.buffer(NumaId(0), 2 << 20) {
            Ok(mut buffer) => buffer.read(last_cpu(), Duration::from_millis(5)).unwrap(),
            // a container's kernel may bind no memory
            Err(error) if matches!(error.raw_os_error(), Some(1 | 38)) => return,
            Err(error) => panic!("{error}"),
        };
        assert!(one.latency_ns > 0.0 && one.read_mb_s > 0.0, "{one:?}");
        assert!(one.latency_ns.is_finite() && one.read_mb_s.is_finite(), "{one:?}");
        assert!(Kernel.buffer(NumaId(900), 2 << 20).is_err());
        assert!(Kernel.buffer(NumaId(0), 0).is_err());
    }

    /// That this process may run on.
    fn last_cpu() -> u32 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.unwrap().trim().parse::<mint_types::CpuSet>().unwrap().iter().max().unwrap()
    }
}
