// SPDX-License-Identifier: Apache-2.0
use super::*;
use mint_layout::NumaId;
use std::collections::BTreeMap;

/// NUMA nodes 1 and 4 of a CPU each, and 6 of memory alone; 4 has no memory.
fn host() -> Vec<HostNuma> {
    let node = |id, cpus: &str, has_memory, distances: [u32; 3]| HostNuma {
        id: NumaId(id),
        caches: if cpus.is_empty() { vec![] } else { vec![cpus.parse().unwrap()] },
        distances: distances.into(),
        free_bytes: 0,
        has_memory,
    };
    vec![
        node(1, "2", true, [10, 20, 20]),
        node(4, "5", false, [20, 10, 20]),
        node(6, "", true, [20, 20, 10]),
    ]
}

fn topology() -> Topology {
    mint_guests::numa::topology(&host(), &BTreeMap::new()).unwrap()
}

fn measured() -> NumaMeasured {
    let pair = |cpus_of, memory_of, latency_ns, read_mb_s| NumaPair {
        cpus_of,
        memory_of,
        cpu: 2,
        buffer_bytes: 64 << 20,
        may_be_cached: false,
        latency_ns,
        read_mb_s,
    };
    NumaMeasured {
        at_s: 7,
        cpu_model: "EPYC".into(),
        numas: vec![1, 4, 6],
        pairs: vec![
            pair(1, 1, 80.0, 9000),
            pair(1, 6, 200.0, 4000),
            pair(4, 1, 120.0, 6000),
            pair(4, 6, 130.0, 5000),
        ],
    }
}

#[test]
fn what_was_measured_fits_its_own_host_alone() {
    let host = host();
    assert_eq!(fits(&measured(), &host, "EPYC"), Ok(()));
    let other = fits(&measured(), &host, "Xeon");
    assert_eq!(other, Err(Misfit::Cpu("EPYC".into(), "Xeon".into())));
    let fewer = fits(&measured(), &host[..2], "EPYC");
    assert_eq!(fewer, Err(Misfit::Numas(vec![1, 4, 6], vec![1, 4])));
    let mut part = measured();
    part.pairs.remove(2);
    assert_eq!(fits(&part, &host, "EPYC"), Err(Misfit::Pair(4, 1)));
    // CPUs came to it since then
    let mut more = host;
    more[2].caches = vec!["7".parse().unwrap()];
    assert_eq!(fits(&measured(), &more, "EPYC"), Err(Misfit::Pair(6, 1)));
}

#[test]
fn topology_has_what_was_measured_and_elsewhere_what_the_kernel_says() {
    let far = applied(&measured(), topology()).unwrap();
    let distances: Vec<_> = far.nodes().iter().map(|node| node.distances.clone()).collect();
    // of one without memory of its own nobody knows what near is
    assert_eq!(distances, [vec![10, 20, 25], vec![20, 10, 20], vec![20, 20, 10]]);
    let mb_s = |from, to| far.bandwidth_mb_s(NumaNo(from), NumaNo(to));
    let found = [mb_s(0, 0), mb_s(0, 2), mb_s(1, 0), mb_s(0, 1), mb_s(2, 0)].map(whole);
    assert_eq!(found, [9000, 4000, 6000, 10_000, 10_000]);
    let mut bad = measured();
    bad.pairs[1].latency_ns = -1.0;
    assert_eq!(applied(&bad, topology()), Err(TopologyError::Latencies(NumaId(1))));
    bad = measured();
    bad.pairs[3].read_mb_s = 0;
    assert!(matches!(applied(&bad, topology()), Err(TopologyError::Bandwidths(NumaId(4), _))));
}

#[test]
fn file_that_is_of_no_use_is_told_once_until_there_is_a_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let (path, told, host) = (folder.path().join("numa.json"), Told::default(), host());
    let look = || with_measured(&path, &told, (&host, "EPYC"), topology());
    assert_eq!(look(), (topology(), None));
    assert!(!told.0.load(Ordering::Relaxed), "there is none, and that is no fault");
    for text in
        ["{", &serde_json::to_string(&NumaMeasured { numas: vec![], ..measured() }).unwrap()]
    {
        std::fs::write(&path, text).unwrap();
        assert_eq!(look(), (topology(), None));
        assert!(told.0.load(Ordering::Relaxed), "{text}");
        told.forget();
    }
    std::fs::write(&path, serde_json::to_vec(&measured()).unwrap()).unwrap();
    let (far, found) = look();
    assert_eq!(found, Some(measured()));
    assert_eq!(far.nodes()[0].distances, [10, 20, 25]);
    assert!(!told.0.load(Ordering::Relaxed));
}

#[test]
fn cpu_is_called_by_its_name_or_by_its_kind() {
    let folder = tempfile::tempdir().unwrap();
    let of = |text: &str| {
        std::fs::create_dir_all(folder.path().join("proc")).unwrap();
        std::fs::write(folder.path().join("proc/cpuinfo"), text).unwrap();
        cpu_model(folder.path())
    };
    let kind = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n";
    assert_eq!(of(kind), "AMD family 19h");
    assert_eq!(
        of(&format!("{kind}model name\t: AMD EPYC: 9354\nmodel name\t: x\n")),
        "AMD EPYC: 9354"
    );
    assert_eq!(of(""), "");
}
