// SPDX-License-Identifier: Apache-2.0
//! Which events tell on which CPU what a layout wants to know of a guest: instructions, misses of the last-level cache,
//! and cache lines by the distance of their memory.
//!
//! Event numbers are facts of the makers' manuals, as Linux has them in tools/perf/pmu-events/arch/x86 (`amdzen1` to
//! `amdzen6`; `skylakex`, `cascadelakex`, `icelakex`, `sapphirerapids`, `emeraldrapids` and `graniterapids`, by
//! `mapfile.csv`).
//!
//! AMD, Zen (families 17h, 19h and 1Ah): of the events that Linux has on all CPUs only instructions are of use. Its
//! cache-misses are those of the L2, and it has none for the L3 or a NUMA node (arch/x86/events/amd/core.c). The L3's
//! own counters belong to no thread. But the core tells where the lines come from that its data cache is filled with:
//! those from memory have missed the L3. PMCx043 is of demand (Zen 1 and 2: Processor Programming Reference, family
//! 17h; not in `amdzen1`, in `amdzen2`), PMCx044 of prefetches of the core, too (since Zen 3). What the L2's prefetcher
//! brings is in neither. Bit 3 of the unit mask is memory of the core's own NUMA node, bit 6 another one's.
//!
//! Intel: cache-misses is an architectural event, of the last-level cache (SDM, volume 3, architectural performance
//! events: 2EH, unit mask 41H). Servers since Skylake know where retired loads that missed it came from (D3H). Older
//! ones have that with errata.

use std::fmt;
use std::path::Path;

/// PERF_COUNT_HW_INSTRUCTIONS and PERF_COUNT_HW_CACHE_MISSES of <linux/perf_event.h>
const INSTRUCTIONS: Event = Event::Hardware(1);
const CACHE_MISSES: Event = Event::Hardware(3);
const NEAR: u64 = 0x0800;
const FAR: u64 = 0x4000;
/// Intel's servers with D3H, unit masks 1 and 2: their models.
const INTEL_BY_SOURCE: [u64; 7] = [0x55, 0x6a, 0x6c, 0x8f, 0xcf, 0xad, 0xae];

/// Something that a CPU counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// By Linux's number, which is one for all CPUs.
    Hardware(u64),
    /// By the CPU's own: event select in bits 0-7, unit mask in bits 8-15.
    Raw(u64),
}

/// A kind of CPU, as /proc/cpuinfo has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cpu {
    vendor: String,
    family: u64,
    model: u64,
}

impl Cpu {
    /// Of this host; `root` is `/`, or a folder with a copy of the files in tests.
    pub fn read(root: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(root.join("proc/cpuinfo")).ok()?;
        let of = |name: &str| {
            let mut pairs = text.lines().filter_map(|line| line.split_once(':'));
            pairs.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim())
        };
        let number = |name: &str| of(name)?.parse().ok();
        let vendor = of("vendor_id")?.to_owned();
        Some(Self { vendor, family: number("cpu family")?, model: number("model")? })
    }
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vendor, family, model } = self;
        match vendor.as_str() {
            "AuthenticAMD" => write!(f, "AMD family {family:X}h"),
            "GenuineIntel" => write!(f, "Intel family {family} model {model}"),
            other => write!(f, "{other} family {family} model {model}"),
        }
    }
}

/// Cache lines that came from memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fills {
    /// From the NUMA node of the CPU.
    pub near: u64,
    /// From all others.
    pub far: u64,
}

/// What events counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Instructions.
    pub instructions: u64,
    /// Misses of the last-level cache.
    pub misses: u64,
    /// None: this CPU does not tell.
    pub fills: Option<Fills>,
}

/// The events for a kind of CPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventSet {
    cpu: Cpu,
    misses: Event,
    by_source: Option<BySource>,
    misses_are: &'static str,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct BySource {
    near: Event,
    far: Event,
    /// Both together are the misses.
    are_misses: bool,
}

/// From what an operator is told that it was counted, of each signal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sources {
    /// Of instructions.
    pub instructions: String,
    /// Of misses.
    pub misses: String,
    /// Of fills; none of a CPU that does not tell.
    pub fills: Option<String>,
}

impl EventSet {
    /// What is counted on a CPU. None: nobody has said here what counts there.
    pub fn of(cpu: &Cpu) -> Option<Self> {
        let amd = |select: u64, misses_are| {
            let event = |mask: u64| Event::Raw(mask | select);
            let by_source = BySource { near: event(NEAR), far: event(FAR), are_misses: true };
            (event(NEAR | FAR), Some(by_source), misses_are)
        };
        let (misses, by_source, misses_are) = match (cpu.vendor.as_str(), cpu.family) {
            ("AuthenticAMD", 0x17) => amd(0x43, "lines from memory, on demand"),
            ("AuthenticAMD", 0x19 | 0x1a) => {
                amd(0x44, "lines from memory, without those that the L2 prefetches")
            }
            ("GenuineIntel", family) => {
                let (near, far) = (Event::Raw(0x01d3), Event::Raw(0x02d3));
                let by_source = BySource { near, far, are_misses: false };
                let has_it = family == 6 && INTEL_BY_SOURCE.contains(&cpu.model);
                (CACHE_MISSES, has_it.then_some(by_source), "LLC misses, with those of prefetches")
            }
            _ => return None,
        };
        Some(Self { cpu: cpu.clone(), misses, by_source, misses_are })
    }

    /// The same without fills, if it has these: fewer counters do.
    pub fn without_fills(&self) -> Option<Self> {
        self.by_source.is_some().then(|| Self { by_source: None, ..self.clone() })
    }

    /// To be counted together.
    pub fn events(&self) -> Vec<Event> {
        let mut events = vec![INSTRUCTIONS];
        if let Some(BySource { near, far, .. }) = self.by_source {
            events.extend([near, far]);
        }
        if !self.has_misses_by_source() {
            events.push(self.misses);
        }
        events
    }

    /// What they say, in the order of [`EventSet::events`]. None: these are not all of them.
    pub fn counts(&self, values: &[u64]) -> Option<Counts> {
        let mut values = values.iter().copied();
        let mut next = || values.next();
        let instructions = next()?;
        let fills = match self.by_source {
            Some(_) => Some(Fills { near: next()?, far: next()? }),
            None => None,
        };
        let misses = match fills.filter(|_| self.has_misses_by_source()) {
            Some(Fills { near, far }) => near.saturating_add(far),
            None => next()?,
        };
        next().is_none().then_some(Counts { instructions, misses, fills })
    }

    fn has_misses_by_source(&self) -> bool {
        self.by_source.as_ref().is_some_and(|by_source| by_source.are_misses)
    }

    /// From what each signal is counted.
    pub fn sources(&self) -> Sources {
        let Self { cpu, misses_are, by_source, .. } = self;
        let fills = by_source.as_ref().map(|by_source| match by_source.are_misses {
            true => format!("perf: {misses_are} ({cpu})"),
            false => format!("perf: loads that missed the LLC, by their memory ({cpu})"),
        });
        Sources {
            instructions: format!("perf: instructions ({cpu})"),
            misses: format!("perf: {misses_are} ({cpu})"),
            fills,
        }
    }
}

#[cfg(test)]
#[path = "tests/cpu_events.rs"]
mod tests;
