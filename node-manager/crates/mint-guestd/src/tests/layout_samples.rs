// SPDX-License-Identifier: Apache-2.0
use std::time::Duration;

use super::*;
use crate::tests::layout::runs;

fn busy(samples: &Samples, root: &Path) -> Vec<Option<f64>> {
    let threads = threads(root, 70);
    samples.of("uuid-web", &threads).iter().map(Ring::busy).collect()
}

#[test]
fn time_that_vcpus_run_is_measured_between_looks() {
    let root = tempfile::tempdir().unwrap();
    let (samples, began) = (Samples::default(), Instant::now());
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
    let (samples, began) = (Samples::default(), Instant::now());
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
