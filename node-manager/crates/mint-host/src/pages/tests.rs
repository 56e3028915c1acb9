// SPDX-License-Identifier: Apache-2.0
//! Made-up procfs files, as a kernel would write them.

use super::*;

use std::path::Path;

/// Where the block of these tests begins: page 16.
const PHYS: u64 = 16 * PAGE_BYTES;

/// Writes entries from entry `first` on.
fn put(path: &Path, first: u64, words: &[u64]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = File::options().create(true).truncate(false).write(true).open(path).unwrap();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    file.write_all_at(&bytes, first * ENTRY_BYTES as u64).unwrap();
}

/// A process of that name with these pages from address 0x10000 on.
fn process(root: &Path, pid: u32, comm: &str, pfns: &[u64]) {
    let folder = root.join(format!("proc/{pid}"));
    let present: Vec<u64> = pfns.iter().map(|pfn| pagemap::PRESENT | pfn).collect();
    put(&folder.join("pagemap"), 0x10, &present);
    std::os::unix::fs::symlink("/usr/bin/program", folder.join("exe")).unwrap();
    fs::write(folder.join("comm"), format!("{comm}\n")).unwrap();
    fs::write(folder.join("statm"), format!("{} 1 0 0 0 0 0\n", pfns.len())).unwrap();
    let end = 0x10000 + pfns.len() * 0x1000;
    let maps = format!(
        "00010000-{end:08x} rw-p 00000000 00:00 0 \n\
         7f0000000000-7fff00000000 ---p 00000000 00:00 0 \n\
         ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n"
    );
    fs::write(folder.join("maps"), maps).unwrap();
}

fn guest(root: &Path, pid: u32, name: &str, pfns: &[u64], cgroup: &str) {
    process(root, pid, "qemu-system-x86", pfns);
    let folder = root.join(format!("proc/{pid}"));
    fs::create_dir_all(folder.join("task/9")).unwrap();
    fs::write(folder.join("task/9/comm"), "CPU 0/KVM\n").unwrap();
    fs::write(folder.join("cmdline"), format!("qemu\0-name\0guest={name},debug-threads=on\0"))
        .unwrap();
    fs::write(folder.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
}

fn look(host: &Tree, pages: u64, timed_out: bool) -> Option<BlockPages> {
    read(host, PHYS..PHYS + pages * PAGE_BYTES, timed_out)
}

fn kinds(pages: &BlockPages) -> Vec<(PageKind, u64)> {
    pages.kinds.iter().map(|part| (part.kind, part.kib)).collect()
}

fn holders(pages: &BlockPages) -> Vec<(String, u64)> {
    pages.holders.iter().map(|holder| (holder.to_string(), holder.kib)).collect()
}

#[test]
fn every_page_has_one_kind_or_is_free() {
    let cases = [
        (0, Some(PageKind::Kernel)),
        (kpf::BUDDY, None),
        (kpf::NOPAGE, None),
        (kpf::SLAB, Some(PageKind::Slab)),
        (kpf::PGTABLE | kpf::MMAP, Some(PageKind::PageTables)),
        (kpf::ANON | kpf::MMAP | kpf::LRU, Some(PageKind::Programs)),
        // taken off its list while it is moved, or kept by a pipe alone
        (kpf::ANON, Some(PageKind::Programs)),
        (kpf::LRU | kpf::MMAP, Some(PageKind::Programs)),
        (kpf::LRU, Some(PageKind::Files)),
        // a buffer that a driver lets a program map
        (kpf::MMAP, Some(PageKind::Kernel)),
        (kpf::HUGE | kpf::ANON | kpf::MMAP, Some(PageKind::HugePages)),
        (kpf::RESERVED, Some(PageKind::Reserved)),
        (kpf::OFFLINE, Some(PageKind::Offline)),
        (kpf::HWPOISON | kpf::LRU, Some(PageKind::Poisoned)),
    ];
    for (flags, kind) in cases {
        assert_eq!(kind_of(flags), kind, "{flags:#x}");
    }
}

#[test]
fn kernel_that_does_not_tell_is_no_fault() {
    let folder = tempfile::tempdir().unwrap();
    let host = Tree::new(folder.path());
    assert_eq!(look(&host, 4, true), None);
    // a block that nobody uses any more
    put(&folder.path().join("proc/kpageflags"), 16, &[kpf::BUDDY; 4]);
    assert_eq!(look(&host, 4, true), None);
    // or that the file does not reach
    assert_eq!(read(&host, PHYS * 4..PHYS * 5, true), None);
}

#[test]
fn programs_and_guests_that_map_pages_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let user = kpf::ANON | kpf::MMAP | kpf::LRU;
    let flags = [user, user, user, user, user, kpf::BUDDY, 0, kpf::BUDDY];
    put(&root.join("proc/kpageflags"), 16, &flags);
    // pages before and after the block, a free one, and one twice
    process(root, 70, "hold", &[15, 16, 17, 18, 21, 24, 16]);
    guest(root, 8, "web", &[19, 20], "/");
    process(root, 9, "elsewhere", &[3, 4]);
    let host = Tree::new(root);
    let pages = look(&host, 8, true).unwrap();
    assert_eq!(kinds(&pages), [(PageKind::Programs, 20), (PageKind::Kernel, 4)]);
    assert_eq!(
        holders(&pages),
        [("program hold (process 70)".into(), 12), ("guest web (process 8)".into(), 8)]
    );
    assert!(pages.complete && pages.timed_out);
}

#[test]
fn what_could_have_moved_has_no_holder_when_the_kernel_gave_up_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let user = kpf::ANON | kpf::MMAP | kpf::LRU;
    put(&root.join("proc/kpageflags"), 16, &[user, user, kpf::SLAB, kpf::MMAP]);
    process(root, 70, "busy", &[16, 17]);
    process(root, 71, "driver", &[19]);
    let pages = look(&Tree::new(root), 4, false).unwrap();
    assert_eq!(
        kinds(&pages),
        [(PageKind::Programs, 8), (PageKind::Slab, 4), (PageKind::Kernel, 4)]
    );
    assert_eq!(holders(&pages), [("program driver (process 71)".into(), 4)]);
}

#[test]
fn kernel_memory_is_its_cgroups_or_its_guests() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let top = root.join("sys/fs/cgroup");
    let [web, shared, db] = ["machine/web", "shared", "system/db"].map(|name| {
        let path = top.join(name);
        fs::create_dir_all(&path).unwrap();
        fs::metadata(path).unwrap().ino()
    });
    fs::write(top.join("cgroup.controllers"), "memory\n").unwrap();
    let root_ino = fs::metadata(&top).unwrap().ino();
    put(&root.join("proc/kpageflags"), 16, &[0, 0, 0, kpf::SLAB, kpf::PGTABLE, 0, 0]);
    put(&root.join("proc/kpagecgroup"), 16, &[web, web, web, shared, shared, db, root_ino]);
    guest(root, 8, "web", &[], "/machine/web/libvirt/emulator");
    // two guests in one: neither can be named
    guest(root, 10, "one", &[], "/shared/one");
    guest(root, 11, "two", &[], "/shared/two");
    let pages = look(&Tree::new(root), 7, false).unwrap();
    assert_eq!(
        holders(&pages),
        [
            ("guest web (process 8)".into(), 12),
            ("cgroup /shared".into(), 8),
            ("cgroup /system/db".into(), 4)
        ]
    );
    assert!(pages.complete);
}

#[test]
fn time_that_is_over_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    put(&root.join("proc/kpageflags"), 16, &[kpf::ANON | kpf::MMAP]);
    process(root, 70, "hold", &[16]);
    let range = PHYS..PHYS + PAGE_BYTES;
    let pages = read_within(&Tree::new(root), range, true, Duration::ZERO).unwrap();
    assert_eq!(kinds(&pages), [(PageKind::Programs, 4)]);
    assert!(pages.holders.is_empty() && !pages.complete);
}

#[test]
fn block_of_movable_and_waiting_pages_can_go() {
    let folder = tempfile::tempdir().unwrap();
    let host = Tree::new(folder.path());
    let block = |words: &[u64]| {
        put(&folder.path().join("proc/kpageflags"), PHYS / PAGE_BYTES, words);
        immovable(&host, PHYS..PHYS + words.len() as u64 * PAGE_BYTES)
    };
    let waiting = usize::try_from(WAITING_KIB / PAGE_KIB).unwrap();
    let mut words = vec![0; waiting];
    words.extend([kpf::BUDDY, kpf::ANON | kpf::MMAP | kpf::LRU, kpf::LRU]);
    assert_eq!(block(&words), Some(Vec::new()));
    words.push(0);
    let kernel = PagesOfKind { kind: PageKind::Kernel, kib: WAITING_KIB + PAGE_KIB };
    assert_eq!(block(&words), Some(vec![kernel]));
    let slab = PagesOfKind { kind: PageKind::Slab, kib: PAGE_KIB };
    assert_eq!(block(&[kpf::BUDDY, kpf::SLAB]), Some(vec![slab]));
}

#[test]
fn kernel_without_page_flags_tells_of_no_block() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(immovable(&Tree::new(folder.path()), PHYS..PHYS + PAGE_BYTES), None);
}
