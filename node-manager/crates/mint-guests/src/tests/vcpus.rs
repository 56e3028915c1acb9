// SPDX-License-Identifier: Apache-2.0
use super::*;

fn tree() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = folder.path().join("proc/70").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let stat = |cpu: u32| {
        let rest = (13..39).map(|at| if at == 36 { cpu } else { 900 + at }.to_string());
        format!(
            "7 (CPU 1) (x) S 1 2 3 4 5 6 7 8 9 10 150 50 {}\n",
            rest.collect::<Vec<_>>().join(" ")
        )
    };
    for (tid, name, cpu) in [(70, "qemu-system-x86", 0), (73, "CPU 1/KVM", 5), (72, "CPU 0/KVM", 4)]
    {
        put(&format!("task/{tid}/comm"), &format!("{name}\n"));
        put(&format!("task/{tid}/stat"), &stat(cpu));
        put(
            &format!("task/{tid}/status"),
            "Name:\tx\nCpus_allowed_list:\t4-5\nMems_allowed_list:\t0-1\n",
        );
    }
    // one that has just ended
    put("task/74/comm", "CPU 2/KVM\n");
    put(
        "maps",
        "7f0000000000-7f0000200000 rw-s 00000000 00:01 12 /memfd:memory-backend-memfd (deleted)\n\
         7f0010000000-7f001a000000 rw-s 00100000 00:01 11 /memfd:memory-backend-memfd (deleted)\n\
         7f0020000000-7f0060000000 r--s 00000000 00:01 13 /memfd:other\n\
         7f0070000000-7f00f0000000 rw-p 00000000 00:00 0 \n\
         7f00f0000000-7f00f8000000 r-xp 00000000 00:00 0 \n\
         7f0100000000-7f0200000000 rw-s 00000000 00:02 14 /dev/shm/device\n",
    );
    folder
}

#[test]
fn vcpus_are_told_in_their_order() {
    let tree = tree();
    let found = threads(tree.path(), 70);
    let told: Vec<_> = found.iter().map(|one| (one.vcpu, one.tid, one.cpu, one.run_ms)).collect();
    assert_eq!(told, [(0, 72, 4, 2000), (1, 73, 5, 2000)]);
    assert_eq!(found[0].allowed.to_string(), "4-5");
    assert_eq!(threads(tree.path(), 71), []);
}

#[test]
fn ram_is_the_largest_file_or_else_the_largest_memory() {
    let tree = tree();
    let found = ram(tree.path(), 70).unwrap();
    let (address, bytes, offset) = (0x7f00_1000_0000, 160 << 20, 1 << 20);
    assert_eq!(found, RamMapping { address, bytes, offset, is_file: true });
    assert_eq!(found.path(70), "/proc/70/map_files/7f0010000000-7f001a000000");
    let maps = tree.path().join("proc/70/maps");
    let text = std::fs::read_to_string(&maps).unwrap().replace("rw-s", "r--s");
    std::fs::write(&maps, text).unwrap();
    let found = ram(tree.path(), 70).unwrap();
    let (address, bytes, offset) = (0x7f00_7000_0000, 2 << 30, 0);
    assert_eq!(found, RamMapping { address, bytes, offset, is_file: false });
    assert_eq!(ram(tree.path(), 71), None);
}
