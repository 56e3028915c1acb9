// SPDX-License-Identifier: Apache-2.0
//! What this node's vCPUs did, second by second (L, 4.1).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use mint_guests::counters::{Counters, Counting, News, by_numa};
use mint_guests::cpu_events::Counts;
use mint_guests::numa;
use mint_guests::running::Records;
use mint_guests::vcpus::{VcpuThread, threads};
use mint_layout::{NumaId, Ring, Sample};
use mint_types::CpuSet;
use tracing::{info, warn};

/// Of all guests.
pub(super) struct Samples(Mutex<State>);

struct State {
    records: Records,
    /// What the CPU's counters say of their threads.
    counting: Counting,
    /// By UUID and number of the vCPU.
    vcpus: BTreeMap<(String, u32), Measured>,
}

#[derive(Default)]
struct Measured {
    ring: Ring,
    /// Its thread when it was looked at last, for how long that had run, and when that was. None: it has come with
    /// samples of another host, and was not looked at here.
    last: Option<(u32, u64, Instant)>,
}

impl Samples {
    /// Of no guest yet.
    pub fn new(counters: Arc<dyn Counters>) -> Self {
        let (records, counting) = (Records::default(), Counting::new(counters));
        Self(Mutex::new(State { records, counting, vcpus: BTreeMap::new() }))
    }

    /// Looks at all guests that run.
    pub fn take(&self, root: &Path) {
        self.take_at(root, Instant::now());
    }

    pub(super) fn take_at(&self, root: &Path, now: Instant) {
        let mut state = self.lock();
        let running = state.records.look(root).into_iter();
        let found: Vec<(String, VcpuThread)> = running
            .flat_map(|guest| {
                let each = threads(root, guest.qemu).into_iter();
                each.map(move |thread| (guest.uuid.clone(), thread))
            })
            .collect();
        let tids: BTreeSet<u32> = found.iter().map(|(_, thread)| thread.tid).collect();
        let counted = state.counting.look(root, &tids);
        if let Some(news) = state.counting.news() {
            tell(news);
        }
        let has_fills = counted.values().any(|counts| counts.fills.is_some());
        let numas = if has_fills { numa::cpus(root) } else { Vec::new() };
        let mut next = BTreeMap::new();
        for (uuid, thread) in found {
            let key = (uuid, thread.vcpu);
            let mut measured = state.vcpus.remove(&key).unwrap_or_default();
            let last = measured.last.filter(|last| last.0 == thread.tid);
            if let Some((_, before_ms, then)) = last {
                let small = |ms: u128| u32::try_from(ms).unwrap_or(u32::MAX);
                let span_ms = small(now.saturating_duration_since(then).as_millis());
                let run_ms = small(u128::from(thread.run_ms.saturating_sub(before_ms)));
                let counts = counted.get(&thread.tid);
                measured.ring.push(sample(span_ms, run_ms, counts, thread.cpu, &numas));
            }
            measured.last = Some((thread.tid, thread.run_ms, now));
            next.insert(key, measured);
        }
        // of one that is about to come
        let adopted = std::mem::take(&mut state.vcpus).into_iter();
        next.extend(adopted.filter(|(_, measured)| measured.last.is_none()));
        state.vcpus = next;
    }

    /// What was measured of each vCPU of a guest.
    pub fn of(&self, uuid: &str, vcpus: &[VcpuThread]) -> Vec<Ring> {
        let state = self.lock();
        let of = |vcpu: u32| state.vcpus.get(&(uuid.to_owned(), vcpu));
        let each = vcpus.iter().map(|one| of(one.vcpu).map(|measured| measured.ring.clone()));
        each.map(Option::unwrap_or_default).collect()
    }

    /// A guest comes with what its last host has measured.
    pub fn adopt(&self, uuid: &str, rings: &[Ring]) {
        let mut state = self.lock();
        for (vcpu, ring) in (0_u32..).zip(rings) {
            let measured = state.vcpus.entry((uuid.to_owned(), vcpu)).or_default();
            measured.ring = ring.clone();
        }
    }

    /// It does not come.
    pub fn forget(&self, uuid: &str) {
        let is_its = |key: &(String, u32)| key.0 == uuid;
        self.lock().vcpus.retain(|key, measured| !is_its(key) || measured.last.is_some());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is near is so to the CPU on which it runs now: one that comes to another NUMA node within the second has a sample
/// that is half wrong, and few of its ten are.
fn sample(
    span_ms: u32,
    run_ms: u32,
    counts: Option<&Counts>,
    cpu: u32,
    numas: &[(NumaId, CpuSet)],
) -> Sample {
    Sample {
        span_ms,
        run_ms,
        instructions: counts.map(|counts| counts.instructions),
        misses: counts.map(|counts| counts.misses),
        fills: counts.and_then(|counts| by_numa(counts.fills?, cpu, numas)),
    }
}

fn tell(news: News) {
    match news {
        News::Counted(sources) => {
            let fills = sources.fills.as_deref().unwrap_or("none");
            let (instructions, misses) = (&sources.instructions, &sources.misses);
            info!(%instructions, %misses, %fills, "what vCPUs do is counted");
        }
        News::Unknown(Some(cpu)) => {
            warn!(%cpu, "nothing is known that this CPU counts of a guest: vCPUs are measured by their run time alone");
        }
        News::Unknown(None) => {
            warn!("/proc/cpuinfo names no CPU: vCPUs are measured by their run time alone");
        }
        News::Not(error) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            let cause = cause.unwrap_or_default();
            warn!(%error, %cause, "vCPUs are measured by their run time alone until this daemon starts again");
        }
    }
}

#[cfg(test)]
#[path = "../tests/layout_samples.rs"]
mod tests;
