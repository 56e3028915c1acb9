// SPDX-License-Identifier: Apache-2.0
//! What this node's vCPUs did, second by second (L, 4.1).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use mint_guests::running::{Records, Running};
use mint_guests::vcpus::{VcpuThread, threads};
use mint_layout::{Ring, Sample};

/// Of all guests.
#[derive(Default)]
pub(super) struct Samples(Mutex<State>);

#[derive(Default)]
struct State {
    records: Records,
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
    /// Looks at all guests that run.
    pub fn take(&self, root: &Path) {
        self.take_at(root, Instant::now());
    }

    pub(super) fn take_at(&self, root: &Path, now: Instant) {
        let mut state = self.lock();
        let mut next = BTreeMap::new();
        for Running { uuid, qemu, .. } in state.records.look(root) {
            for VcpuThread { vcpu, tid, run_ms, .. } in threads(root, qemu) {
                let key = (uuid.clone(), vcpu);
                let mut measured = state.vcpus.remove(&key).unwrap_or_default();
                if let Some((_, before_ms, then)) = measured.last.filter(|last| last.0 == tid) {
                    let small = |ms: u128| u32::try_from(ms).unwrap_or(u32::MAX);
                    let span_ms = small(now.saturating_duration_since(then).as_millis());
                    let run_ms = small(u128::from(run_ms.saturating_sub(before_ms)));
                    measured.ring.push(Sample { span_ms, run_ms, ..Sample::default() });
                }
                measured.last = Some((tid, run_ms, now));
                next.insert(key, measured);
            }
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

#[cfg(test)]
#[path = "../tests/layout_samples.rs"]
mod tests;
