// SPDX-License-Identifier: Apache-2.0
//! What sits in a memory block and who holds it, from procfs. Needs root and a
//! kernel with `PROC_PAGE_MONITOR`; the files' format is in that kernel's
//! `Documentation/admin-guide/mm/pagemap.rst`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mint_types::{BlockPages, HolderKind, PageHolder, PageKind, PagesOfKind};

use crate::tree::{Tree, names};

const PAGE_BYTES: u64 = 4096;
const PAGE_KIB: u64 = PAGE_BYTES / 1024;
/// Of all the files read here: one native-endian word a page.
const ENTRY_BYTES: usize = 8;
/// Entries that are read at a time.
const ENTRIES_AT_A_TIME: u64 = 32 * 1024;
/// For looking at programs, and as much for cgroups: a large program has millions of
/// entries, and who asked for the block waits.
const LOOK_WITHIN: Duration = Duration::from_secs(2);
/// Holders that are listed; the others are counted.
const HOLDERS_MAX: usize = 8;

/// Bits of `/proc/kpageflags`.
mod kpf {
    pub const LRU: u64 = 1 << 5;
    pub const SLAB: u64 = 1 << 7;
    pub const BUDDY: u64 = 1 << 10;
    pub const MMAP: u64 = 1 << 11;
    pub const ANON: u64 = 1 << 12;
    pub const HUGE: u64 = 1 << 17;
    pub const HWPOISON: u64 = 1 << 19;
    pub const NOPAGE: u64 = 1 << 20;
    pub const OFFLINE: u64 = 1 << 23;
    pub const PGTABLE: u64 = 1 << 26;
    pub const RESERVED: u64 = 1 << 32;
}

/// Bits of `/proc/PID/pagemap`.
mod pagemap {
    pub const PRESENT: u64 = 1 << 63;
    pub const PFN: u64 = (1 << 55) - 1;
}

/// What the page is used for; none if it is free or not there. Types of the kernel's
/// own come first: other bits of such pages may mean something else.
fn kind_of(flags: u64) -> Option<PageKind> {
    let is = |bits: u64| flags & bits != 0;
    Some(match () {
        () if is(kpf::NOPAGE) => return None,
        () if is(kpf::HWPOISON) => PageKind::Poisoned,
        () if is(kpf::OFFLINE) => PageKind::Offline,
        () if is(kpf::BUDDY) => return None,
        () if is(kpf::HUGE) => PageKind::HugePages,
        () if is(kpf::PGTABLE) => PageKind::PageTables,
        () if is(kpf::SLAB) => PageKind::Slab,
        () if is(kpf::ANON) => PageKind::Programs,
        () if is(kpf::LRU) && is(kpf::MMAP) => PageKind::Programs,
        () if is(kpf::LRU) => PageKind::Files,
        () if is(kpf::RESERVED) => PageKind::Reserved,
        () => PageKind::Kernel,
    })
}

/// `count` entries from entry `first` on; fewer at the file's end.
fn entries(file: &File, first: u64, count: u64) -> io::Result<Vec<u64>> {
    let bytes = usize::try_from(count).map_err(io::Error::other)? * ENTRY_BYTES;
    let mut raw = vec![0; bytes];
    let mut got = 0;
    while got < bytes {
        let at = first * ENTRY_BYTES as u64 + got as u64;
        match file.read_at(&mut raw[got..], at)? {
            0 => break,
            n => got += n,
        }
    }
    let words = raw[..got].chunks_exact(ENTRY_BYTES);
    Ok(words.map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes"))).collect())
}

type Holder = (HolderKind, String, Option<u32>);

/// Pages of one block that are in the way, and who was found to hold them.
struct Census<'a> {
    tree: &'a Tree,
    first_pfn: u64,
    /// Of each page: whether it is in the way.
    wanted: Vec<bool>,
    /// Of each page: whether a program maps it.
    mapped: Vec<bool>,
    pages: BTreeMap<Holder, u64>,
}

/// Less of the kernel's own may be free pages that wait on a CPU's list to be used again.
const WAITING_KIB: u64 = 512;

/// What of the block at `phys` its kernel cannot move, most first. None if it does not tell.
pub(crate) fn immovable(tree: &Tree, phys: Range<u64>) -> Option<Vec<PagesOfKind>> {
    let file = File::open(tree.path("proc/kpageflags")).ok()?;
    let first = phys.start / PAGE_BYTES;
    let flags = entries(&file, first, (phys.end / PAGE_BYTES).checked_sub(first)?).ok()?;
    let mut kinds = kinds_of(&flags);
    kinds.retain(|part| part.kind.is_in_the_way(false));
    kinds.retain(|part| part.kind != PageKind::Kernel || part.kib > WAITING_KIB);
    Some(kinds)
}

/// How much there is of each kind, most first.
fn kinds_of(flags: &[u64]) -> Vec<PagesOfKind> {
    let mut counts: BTreeMap<PageKind, u64> = BTreeMap::new();
    for kind in flags.iter().copied().filter_map(kind_of) {
        *counts.entry(kind).or_default() += 1;
    }
    let part = |(kind, pages)| PagesOfKind { kind, kib: pages * PAGE_KIB };
    let mut kinds: Vec<PagesOfKind> = counts.into_iter().map(part).collect();
    kinds.sort_by_key(|part| Reverse(part.kib));
    kinds
}

/// What is in the block at `phys`; `timed_out`: see [`BlockPages`]. None if the
/// kernel does not tell, or there is nothing any more.
pub(crate) fn read(tree: &Tree, phys: Range<u64>, timed_out: bool) -> Option<BlockPages> {
    read_within(tree, phys, timed_out, LOOK_WITHIN)
}

fn read_within(
    tree: &Tree,
    phys: Range<u64>,
    timed_out: bool,
    within: Duration,
) -> Option<BlockPages> {
    let (first_pfn, end_pfn) = (phys.start / PAGE_BYTES, phys.end / PAGE_BYTES);
    let file = File::open(tree.path("proc/kpageflags")).ok()?;
    // first of all: the block is in use again, and fills
    let flags = entries(&file, first_pfn, end_pfn.checked_sub(first_pfn)?).ok()?;

    let kinds = kinds_of(&flags);
    if kinds.is_empty() {
        return None;
    }

    let is_wanted = |&flags: &u64| kind_of(flags).is_some_and(|kind| kind.is_in_the_way(timed_out));
    let wanted: Vec<bool> = flags.iter().map(is_wanted).collect();
    let mut census = Census {
        tree,
        first_pfn,
        mapped: vec![false; wanted.len()],
        wanted,
        pages: BTreeMap::new(),
    };
    // what no program maps no program can be asked for
    let any_mapped =
        flags.iter().zip(&census.wanted).any(|(flags, wanted)| *wanted && flags & kpf::MMAP != 0);
    let programs = !any_mapped || census.look_at_programs(Instant::now() + within);
    let cgroups = census.look_at_cgroups(Instant::now() + within);
    Some(census.report(timed_out, kinds, programs && cgroups))
}

impl Census<'_> {
    /// Small programs first: one large one must not hide them all. False when the
    /// time was over before the end.
    fn look_at_programs(&mut self, until: Instant) -> bool {
        let mut programs: Vec<(u64, String)> = Vec::new();
        for pid in self.tree.processes() {
            let statm = self.tree.read(&format!("proc/{pid}/statm"));
            let mut fields = statm.split_whitespace().map(|field| field.parse().unwrap_or(0));
            // kernel threads have no memory of their own
            if let (Some(size), Some(1..)) = (fields.next(), fields.next()) {
                programs.push((size, pid));
            }
        }
        programs.sort_unstable();
        programs.iter().all(|(_, pid)| {
            let (found, complete) = self.pages_of(pid, until);
            if !found.is_empty() {
                for &index in &found {
                    self.mapped[index] = true;
                }
                *self.pages.entry(self.name(pid)).or_default() += found.len() as u64;
            }
            complete
        })
    }

    /// Which of the wanted pages the process maps, and whether it was looked at to
    /// its end. One that ends meanwhile has no more.
    fn pages_of(&self, pid: &str, until: Instant) -> (BTreeSet<usize>, bool) {
        let mut found = BTreeSet::new();
        let Ok(file) = File::open(self.tree.path(format!("proc/{pid}/pagemap"))) else {
            return (found, true);
        };
        for range in mapped_ranges(&self.tree.read(&format!("proc/{pid}/maps"))) {
            let mut page = range.start / PAGE_BYTES;
            let end = range.end / PAGE_BYTES;
            while page < end {
                if Instant::now() >= until {
                    return (found, false);
                }
                let count = ENTRIES_AT_A_TIME.min(end - page);
                let Ok(entries) = entries(&file, page, count) else { break };
                found.extend(entries.into_iter().filter_map(|entry| self.index_of(entry)));
                page += count;
            }
        }
        (found, true)
    }

    /// Which of the wanted pages an entry of a pagemap is.
    fn index_of(&self, entry: u64) -> Option<usize> {
        if entry & pagemap::PRESENT == 0 {
            return None;
        }
        let index = (entry & pagemap::PFN).checked_sub(self.first_pfn)?;
        let index = usize::try_from(index).ok()?;
        self.wanted.get(index).copied().unwrap_or(false).then_some(index)
    }

    /// Of what no program was seen to map, the kernel may know for whom it is there.
    /// False when the time was over before the end.
    fn look_at_cgroups(&mut self, until: Instant) -> bool {
        let root = self.tree.path("sys/fs/cgroup");
        // the older interface has several trees, where one number may occur twice
        if !root.join("cgroup.controllers").exists() {
            return true;
        }
        let count = self.wanted.len() as u64;
        let Ok(inodes) = File::open(self.tree.path("proc/kpagecgroup"))
            .and_then(|file| entries(&file, self.first_pfn, count))
        else {
            return true;
        };
        let mut pages: BTreeMap<u64, u64> = BTreeMap::new();
        for (index, inode) in inodes.into_iter().enumerate() {
            if inode != 0 && self.wanted[index] && !self.mapped[index] {
                *pages.entry(inode).or_default() += 1;
            }
        }
        let mut found: Vec<(String, u64)> = Vec::new();
        // the root is everybody: its number names nobody
        let mut folders: Vec<PathBuf> = folders_in(root.clone());
        let mut complete = true;
        while let Some(folder) = folders.pop().filter(|_| !pages.is_empty()) {
            if Instant::now() >= until {
                complete = false;
                break;
            }
            let count = fs::metadata(&folder).ok().and_then(|found| pages.remove(&found.ino()));
            if let (Some(count), Ok(path)) = (count, folder.strip_prefix(&root)) {
                found.push((format!("/{}", path.display()), count));
            }
            folders.extend(folders_in(folder));
        }
        let guests = if found.is_empty() { Vec::new() } else { self.guests() };
        for (path, count) in found {
            let within = format!("{path}/");
            let mut inside =
                guests.iter().filter(|(cgroup, _)| *cgroup == path || cgroup.starts_with(&within));
            let holder = match (inside.next(), inside.next()) {
                (Some((_, pid)), None) => self.name(pid),
                _ => (HolderKind::Cgroup, path, None),
            };
            *self.pages.entry(holder).or_default() += count;
        }
        complete
    }

    /// Cgroup and process of every guest.
    fn guests(&self) -> Vec<(String, String)> {
        let of = |pid: String| {
            let text = self.tree.read(&format!("proc/{pid}/cgroup"));
            let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
            Some((path.to_owned(), pid))
        };
        self.tree.processes().into_iter().filter(|pid| self.is_guest(pid)).filter_map(of).collect()
    }

    fn is_guest(&self, pid: &str) -> bool {
        let threads = names(&self.tree.path(format!("proc/{pid}/task")));
        threads
            .iter()
            .any(|thread| self.tree.vcpu_of_thread(&format!("proc/{pid}/task/{thread}")).is_some())
    }

    fn name(&self, pid: &str) -> Holder {
        let number = pid.parse().ok();
        if self.is_guest(pid) {
            return (HolderKind::Guest, self.tree.guest_name(pid), number);
        }
        let name = self.tree.read(&format!("proc/{pid}/comm"));
        (HolderKind::Program, name.trim().to_owned(), number)
    }

    fn report(self, timed_out: bool, kinds: Vec<PagesOfKind>, complete: bool) -> BlockPages {
        let mut holders: Vec<PageHolder> = self
            .pages
            .into_iter()
            .map(|((what, name, pid), pages)| PageHolder { what, name, pid, kib: pages * PAGE_KIB })
            .collect();
        holders.sort_by_key(|holder| Reverse(holder.kib));
        let more = holders.len().saturating_sub(HOLDERS_MAX);
        holders.truncate(HOLDERS_MAX);
        let more_holders = u32::try_from(more).unwrap_or(u32::MAX);
        BlockPages { timed_out, kinds, holders, more_holders, complete }
    }
}

/// Address ranges of a process, by its `maps`; without those that nothing may touch.
fn mapped_ranges(maps: &str) -> Vec<Range<u64>> {
    let range = |line: &str| {
        let (addresses, rest) = line.split_once(' ')?;
        let (start, end) = addresses.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        (!rest.starts_with("---")).then_some(address(start)?..address(end)?)
    };
    maps.lines().filter_map(range).collect()
}

/// Folders in a folder; links are not followed.
fn folders_in(folder: PathBuf) -> Vec<PathBuf> {
    let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(is_folder).map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests;
