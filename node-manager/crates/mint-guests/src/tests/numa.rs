// SPDX-License-Identifier: Apache-2.0
use super::*;

/// NUMA nodes 1 and 4; the second has no memory. CPUs 2 and 3 share a cache, 4 has one alone, and 6 is offline.
fn tree() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = folder.path().join("sys/devices/system").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    put("cpu/online", "2-5\n");
    put("node/online", "1,4\n");
    put("node/node1/cpulist", "2-4,6\n");
    put("node/node4/cpulist", "5\n");
    put("node/node1/distance", "10 21\n");
    put("node/node4/distance", "21 10\n");
    put(
        "node/node1/meminfo",
        "Node 1 MemTotal:       4096 kB\nNode 1 MemFree:        1000 kB\nNode 1 Active(file):     300 kB\n\
         Node 1 Inactive(file):   208 kB\nNode 1 Inactive(anon):    90 kB\n",
    );
    put("node/node4/meminfo", "Node 4 MemTotal:       0 kB\nNode 4 MemFree:        0 kB\n");
    put("cpu/cpu2/cache/index0/size", "32K\n");
    put("cpu/cpu2/cache/index3/size", "16384K\n");
    for (cpu, shared) in [(2, "2-3"), (3, "2-3"), (4, "4,9")] {
        put(&format!("cpu/cpu{cpu}/cache/index0/level"), "1\n");
        put(&format!("cpu/cpu{cpu}/cache/index0/shared_cpu_list"), "0-9\n");
        put(&format!("cpu/cpu{cpu}/cache/index3/level"), "3\n");
        put(&format!("cpu/cpu{cpu}/cache/index3/shared_cpu_list"), &format!("{shared}\n"));
    }
    folder
}

#[test]
fn nodes_are_told_with_their_caches_and_what_is_free() {
    let tree = tree();
    let host = read(tree.path());
    let caches: Vec<String> = host[0].caches.iter().map(ToString::to_string).collect();
    assert_eq!((host[0].id, host[1].id), (NumaId(1), NumaId(4)));
    assert_eq!(caches, ["2-3", "4"]);
    assert_eq!(host[0].free_bytes, 1144 << 10);
    // nothing says who shares a cache
    assert_eq!(host[1].caches, ["5".parse().unwrap()]);
    assert_eq!((host[1].distances.as_slice(), host[1].free_bytes), (&[21, 10][..], 0));
    assert_eq!((host[0].has_memory, host[1].has_memory), (true, false));
    assert_eq!((host[0].last_cpu(), host[1].last_cpu()), (Some(4), Some(5)));
}

#[test]
fn last_level_cache_is_as_large_as_the_kernel_says() {
    let tree = tree();
    assert_eq!(cache_bytes(tree.path(), 2), Some(16 << 20));
    // it says nothing of the size, and of the cache
    assert_eq!((cache_bytes(tree.path(), 3), cache_bytes(tree.path(), 5)), (None, None));
}

#[test]
fn topology_has_what_guests_have_already() {
    let tree = tree();
    let host = read(tree.path());
    let host = topology(&host, &BTreeMap::from([(NumaId(1), 1 << 20)])).unwrap();
    assert_eq!(host.nodes()[0].memory_bytes, (1144 << 10) + (1 << 20));
    assert_eq!(host.domains().len(), 3);
}

#[test]
fn files_that_make_no_sense_are_an_error_and_none_are_no_nodes() {
    let tree = tree();
    std::fs::write(tree.path().join("sys/devices/system/node/node4/distance"), "21\n").unwrap();
    let error = topology(&read(tree.path()), &BTreeMap::new()).unwrap_err();
    assert!(matches!(error, TopologyError::Distances(NumaId(4), _)));
    assert_eq!(read(Path::new("/nowhere")), []);
}
