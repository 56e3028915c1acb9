// SPDX-License-Identifier: Apache-2.0
use std::time::Duration;

use super::*;
use crate::tests::layout::{Counted, cpus_are, numa, runs};

fn busy(samples: &Samples, root: &Path) -> Vec<Option<f64>> {
    let threads = threads(root, 70);
    samples.of("uuid-web", &threads).iter().map(Ring::busy).collect()
}

#[test]
fn time_that_vcpus_run_is_measured_between_looks() {
    let root = tempfile::tempdir().unwrap();
    let (samples, began) = (Samples::new(Arc::new(Counted::default())), Instant::now());
    let look = |at_s: u64, run_ms: u64| {
        runs(root.path(), "web", 70, 0, run_ms);
        samples.take_at(root.path(), began + Duration::from_secs(at_s));
        busy(&samples, root.path())
    };
    assert_eq!(look(0, 500), [None], "since when?");
    assert_eq!(look(2, 1500), [Some(0.5)]);
    // a guest that began anew has another thread
    std::fs::rename(root.path().join("proc/70/task/71"), root.path().join("proc/70/task/75"))
        .unwrap();
    samples.take_at(root.path(), began + Duration::from_secs(3));
    assert_eq!(busy(&samples, root.path()), [Some(0.5)]);
    std::fs::remove_file(root.path().join("run/libvirt/qemu/web.xml")).unwrap();
    samples.take_at(root.path(), began + Duration::from_secs(4));
    assert_eq!(busy(&samples, root.path()), [None], "it has ended");
}

/// L, 4.2: a guest that comes needs no time to be known.
#[test]
fn samples_of_the_last_host_go_on() {
    let root = tempfile::tempdir().unwrap();
    let (samples, began) = (Samples::new(Arc::new(Counted::default())), Instant::now());
    let ring: Ring = vec![Sample { span_ms: 1000, run_ms: 900, ..Sample::default() }; 10].into();
    samples.adopt("uuid-web", &[ring]);
    samples.take_at(root.path(), began);
    runs(root.path(), "web", 70, 0, 0);
    samples.take_at(root.path(), began + Duration::from_secs(1));
    assert_eq!(busy(&samples, root.path()), [Some(0.9)]);
    // of one that runs nothing is forgotten
    samples.forget("uuid-web");
    assert_eq!(busy(&samples, root.path()), [Some(0.9)]);
    samples.adopt("uuid-other", &[Ring::default()]);
    samples.forget("uuid-other");
    assert_eq!(samples.lock().vcpus.len(), 1);
}

/// Thread 71 is the vCPU's, on CPU `cpu`; gives what each look has said of it.
fn looks(root: &Path, kind: (&str, u32, u32), cpu: u32, did: &[&[u64]]) -> Vec<Sample> {
    let (counted, began) = (Counted::default(), Instant::now());
    let samples = Samples::new(Arc::new(counted.clone()));
    cpus_are(root, kind.0, kind.1, kind.2);
    for (at_s, values) in (0_u32..).zip(did) {
        runs(root, "web", 70, cpu, u64::from(at_s) * 900);
        counted.did(71, values, u64::from(at_s) * 900_000_000);
        samples.take_at(root, began + Duration::from_secs(1) * at_s);
    }
    let rings = samples.of("uuid-web", &threads(root, 70));
    rings[0].iter().cloned().collect()
}

const ZEN1: (&str, u32, u32) = ("AuthenticAMD", 0x17, 1);
const SERVER: (&str, u32, u32) = ("GenuineIntel", 6, 0x8f);

fn sample_of(instructions: u64, misses: u64, fills: Option<&[u64]>) -> Sample {
    let (instructions, misses) = (Some(instructions), Some(misses));
    let fills = fills.map(<[u64]>::to_vec);
    Sample { span_ms: 1000, run_ms: 900, instructions, misses, fills }
}

#[test]
fn what_counters_say_is_in_each_sample() {
    let root = tempfile::tempdir().unwrap();
    numa(root.path(), [64, 64]);
    let did: [&[u64]; 3] = [&[0, 0, 0], &[5000, 10, 2], &[6000, 10, 32]];
    let told = [sample_of(5000, 12, Some(&[10, 2])), sample_of(1000, 30, Some(&[0, 30]))];
    assert_eq!(looks(root.path(), ZEN1, 0, &did), told);
    // near is numa1 now
    let told = [sample_of(5000, 12, Some(&[2, 10])), sample_of(1000, 30, Some(&[30, 0]))];
    assert_eq!(looks(root.path(), ZEN1, 1, &did), told);
    let did: [&[u64]; 2] = [&[0, 0, 0, 0], &[5000, 10, 2, 40]];
    assert_eq!(looks(root.path(), SERVER, 0, &did), [sample_of(5000, 40, Some(&[10, 2]))]);
}

#[test]
fn what_a_cpu_does_not_count_is_none() {
    let root = tempfile::tempdir().unwrap();
    let did: [&[u64]; 2] = [&[0, 0, 0], &[5000, 10, 2]];
    // nobody knows where far memory is
    assert_eq!(looks(root.path(), ZEN1, 0, &did), [sample_of(5000, 12, None)]);
    let ran = Sample { span_ms: 1000, run_ms: 900, ..Sample::default() };
    assert_eq!(looks(root.path(), ("Other", 1, 1), 0, &did), [ran]);
}

/// Its thread is another one: what its last has counted is none of it.
#[test]
fn guest_that_begins_anew_is_counted_anew() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    let (counted, began) = (Counted::default(), Instant::now());
    let samples = Samples::new(Arc::new(counted.clone()));
    cpus_are(root, ZEN1.0, ZEN1.1, ZEN1.2);
    let look = |at_s: u64| samples.take_at(root, began + Duration::from_secs(at_s));
    runs(root, "web", 70, 0, 0);
    counted.did(71, &[0, 0, 0], 0);
    look(0);
    counted.did(71, &[900, 0, 0], 100);
    look(1);
    std::fs::rename(root.join("proc/70/task/71"), root.join("proc/70/task/75")).unwrap();
    counted.did(75, &[0, 0, 0], 0);
    look(2);
    counted.did(75, &[30, 0, 0], 10);
    look(3);
    let rings = samples.of("uuid-web", &threads(root, 70));
    let told: Vec<_> = rings[0].iter().map(|sample| sample.instructions).collect();
    assert_eq!(told, [Some(900), Some(30)]);
}
