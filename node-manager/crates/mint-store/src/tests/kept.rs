// SPDX-License-Identifier: Apache-2.0
//! Pages of a guest in files.

use std::os::unix::fs::MetadataExt;

use super::*;

const CHUNK: u64 = 4 * PAGE_BYTES;

fn geometry() -> Geometry {
    Geometry::new(16 * PAGE_BYTES, CHUNK).unwrap()
}

fn open(folder: &Path, limit_pages: u64) -> Kept {
    Kept::open(folder, "guest", geometry(), limit_pages).unwrap()
}

/// Pages with these bytes, from the first on.
fn pages(first: u64, version: u32, bytes: &[u8]) -> Pages {
    let mut pages = Pages::from(PageNo(first));
    for &byte in bytes {
        pages.push(Version(version), &[byte; PAGE]);
    }
    pages
}

/// Of each page of a run its version and first byte; none: it is not kept.
fn given(kept: &Kept, first: u64, count: u32) -> Vec<Option<(u32, u8)>> {
    let run = PageRun { first: PageNo(first), count };
    let mut all = Vec::new();
    for part in kept.give(run).unwrap() {
        match part {
            Ok(pages) => all.extend(
                pages
                    .each()
                    .map(|(_, version, bytes)| Some((version.0, bytes.map_or(0, |b| b[0])))),
            ),
            Err(missing) => all.extend(missing.pages().map(|_| None)),
        }
    }
    all
}

#[test]
fn pages_are_given_as_they_were_kept_also_by_the_next_process() {
    let folder = tempfile::tempdir().unwrap();
    let mut kept = open(folder.path(), 16);
    kept.keep(&pages(4, 1, &[7, 0, 9])).unwrap();
    let want = [Some((1, 7)), Some((1, 0)), Some((1, 9)), None];
    assert_eq!(given(&kept, 4, 4), want);
    // zeros take no room
    assert_eq!(kept.bytes(), 2 * PAGE_BYTES);
    let again = open(folder.path(), 16);
    assert_eq!((given(&again, 4, 4), again.bytes()), (want.to_vec(), 2 * PAGE_BYTES));
    let listed = [4, 5, 6].map(|page| (PageNo(page), Version(1)));
    assert_eq!(again.list().unwrap(), listed);
}

#[test]
fn older_version_replaces_nothing_and_a_newer_one_all() {
    let folder = tempfile::tempdir().unwrap();
    let mut kept = open(folder.path(), 16);
    kept.keep(&pages(0, 3, &[1, 2])).unwrap();
    kept.keep(&pages(0, 2, &[8, 8, 8])).unwrap();
    assert_eq!(given(&kept, 0, 3), [Some((3, 1)), Some((3, 2)), Some((2, 8))]);
    kept.keep(&pages(0, 4, &[0, 5])).unwrap();
    assert_eq!(given(&kept, 0, 3), [Some((4, 0)), Some((4, 5)), Some((2, 8))]);
    assert_eq!(kept.bytes(), 2 * PAGE_BYTES);
}

#[test]
fn page_is_dropped_unless_it_is_here_in_a_later_version() {
    let folder = tempfile::tempdir().unwrap();
    let mut kept = open(folder.path(), 16);
    kept.keep(&pages(0, 2, &[1, 2, 0])).unwrap();
    let drops = [(0, 1), (1, 2), (2, 9), (3, 9)];
    kept.drop_pages(&drops.map(|(page, version)| (PageNo(page), Version(version)))).unwrap();
    assert_eq!(given(&kept, 0, 4), [Some((2, 1)), None, None, None]);
    assert_eq!(kept.bytes(), PAGE_BYTES);
    // and its memory is free
    let blocks = std::fs::metadata(folder.path().join("guest.pages")).unwrap().blocks();
    assert_eq!(blocks * 512, PAGE_BYTES);
}

#[test]
fn no_more_is_kept_than_the_guest_may() {
    let folder = tempfile::tempdir().unwrap();
    let mut kept = open(folder.path(), 2);
    kept.keep(&pages(0, 1, &[1, 2, 0, 0])).unwrap();
    let full = kept.keep(&pages(4, 1, &[3]));
    assert!(matches!(full, Err(KeepError::Full { limit_pages: 2 })), "{full:?}");
    assert_eq!(given(&kept, 4, 1), [None]);
    // in the place of others there is room
    kept.keep(&pages(0, 2, &[5, 0, 6])).unwrap();
    assert_eq!(given(&kept, 0, 4), [Some((2, 5)), Some((2, 0)), Some((2, 6)), Some((1, 0))]);
    assert_eq!(kept.bytes(), 2 * PAGE_BYTES);
}

#[test]
fn files_go_with_the_guest() {
    let folder = tempfile::tempdir().unwrap();
    open(folder.path(), 1);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    Kept::delete(folder.path(), "guest").unwrap();
    Kept::delete(folder.path(), "guest").unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
