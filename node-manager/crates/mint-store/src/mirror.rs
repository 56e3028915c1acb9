// SPDX-License-Identifier: Apache-2.0
//! A second memory server with the same pages: what is kept here is told the main host only once
//! it is there, too. It is told what it lacks; where it is, is known after it has listed what it
//! has.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use mint_split::{CHUNK_PAGES_MAX, Frame, Mirror, MirrorView, PageNo, PageRun, Version};

use crate::kept::Kept;

/// A mirror that does not answer for so long is not waited for: the guest goes on with one copy.
const WAITS: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 30 });
/// Pages that are told at once.
const AT_ONCE: usize = 2048;

/// What is known of a mirror.
#[derive(Debug)]
pub(crate) struct Mirroring {
    /// Which.
    pub to: Mirror,
    /// Pages that may be there in another version than here.
    behind: BTreeSet<u64>,
    /// Of those that are not here any more: up to which version they are to go there, too.
    dropped: BTreeMap<u64, Version>,
    /// Told, and not heard of.
    on_way: BTreeSet<u64>,
    /// What the main host is to hear of, once it is there.
    owed: BTreeMap<u64, Version>,
    /// It is known what is there.
    is_synced: bool,
    /// Since when it is not; none: it is, or is not waited for any more.
    silent_since: Option<Instant>,
}

type Versions = Vec<(PageNo, Version)>;

impl Mirroring {
    /// Nothing is known of it.
    pub fn new(to: Mirror) -> Self {
        Self {
            to,
            behind: BTreeSet::new(),
            dropped: BTreeMap::new(),
            on_way: BTreeSet::new(),
            owed: BTreeMap::new(),
            is_synced: false,
            silent_since: Some(Instant::now()),
        }
    }

    /// For who asks; it may lack all of so many pages while nothing is known. What the main host was
    /// not told of it has still, and what is not here any more nobody lacks.
    pub fn view(&self, kept_pages: u64) -> MirrorView {
        let is_safe = |page: &&u64| self.owed.contains_key(page) || self.dropped.contains_key(page);
        let behind = self.behind.union(&self.on_way).filter(|page| !is_safe(page)).count() as u64;
        let behind_pages = if self.is_synced { behind } else { behind.max(kept_pages) };
        MirrorView { is_connected: self.is_synced, behind_pages }
    }

    /// Pages have been kept here; gives those that the main host can hear of now.
    pub fn kept(&mut self, pages: Versions) -> Versions {
        self.behind.extend(pages.iter().map(|(page, _)| page.0));
        for (page, _) in &pages {
            self.dropped.remove(&page.0);
        }
        if !self.is_synced && self.silent_since.is_none() {
            return pages;
        }
        self.owed.extend(pages.into_iter().map(|(page, version)| (page.0, version)));
        Vec::new()
    }

    /// Pages are not wanted any more, up to these versions.
    pub fn dropped(&mut self, pages: &[(PageNo, Version)]) {
        for &(page, version) in pages {
            self.behind.insert(page.0);
            let up_to = self.dropped.entry(page.0).or_insert(version);
            *up_to = version.max(*up_to);
            if self.owed.get(&page.0).is_some_and(|owed| *owed <= version) {
                self.owed.remove(&page.0);
            }
        }
    }

    /// There is a connection, and the mirror has said what it has; gives what the main host can
    /// hear of.
    ///
    /// # Errors
    /// When it cannot be read what is here.
    pub fn synced(&mut self, kept: &Kept, has: &BTreeMap<u64, Version>) -> io::Result<Versions> {
        let here: BTreeMap<u64, Version> =
            kept.list()?.into_iter().map(|(page, version)| (page.0, version)).collect();
        self.on_way.clear();
        self.behind.clear();
        self.dropped.clear();
        for (&page, &version) in &here {
            if has.get(&page) != Some(&version) {
                self.behind.insert(page);
            }
        }
        for (&page, &version) in has {
            // a later one than here would stay
            if here.get(&page).is_none_or(|here| *here < version) {
                self.behind.insert(page);
                self.dropped.insert(page, version);
            }
        }
        self.is_synced = true;
        self.silent_since = None;
        let (owed, is_behind) = (std::mem::take(&mut self.owed), &self.behind);
        let (wait, there): (BTreeMap<_, _>, BTreeMap<_, _>) =
            owed.into_iter().partition(|(page, _)| is_behind.contains(page));
        self.owed = wait;
        Ok(versions(there))
    }

    /// The connection has ended.
    pub fn lost(&mut self) {
        if std::mem::take(&mut self.is_synced) {
            self.silent_since = Some(Instant::now());
        }
    }

    /// Gives what the main host hears of although it is not there: the mirror is silent for too
    /// long, or has said that it will not.
    pub fn waits_no_more(&mut self, has_refused: bool) -> Versions {
        let is_over = self.silent_since.is_some_and(|since| has_refused || since.elapsed() > WAITS);
        if !is_over {
            return Vec::new();
        }
        self.silent_since = None;
        self.all_owed()
    }

    /// The mirror before this one was to have these; the main host waits.
    pub fn owes(&mut self, pages: Versions) {
        self.owed.extend(pages.into_iter().map(|(page, version)| (page.0, version)));
    }

    /// Whether the mirror knows all.
    pub fn has_nothing_to_tell(&self) -> bool {
        self.behind.is_empty()
    }

    /// What the main host hears of when there is no mirror any more.
    pub fn all_owed(&mut self) -> Versions {
        versions(std::mem::take(&mut self.owed))
    }

    /// What the mirror is told next, and how many answers it gives to that.
    ///
    /// # Errors
    /// When it cannot be read what is here.
    pub fn next(&mut self, kept: &Kept) -> io::Result<(Vec<Frame>, usize)> {
        let (mut frames, mut answers) = (Vec::new(), 0);
        for run in runs(self.behind.iter().copied().take(AT_ONCE)) {
            let drops: Versions = run
                .pages()
                .filter_map(|page| Some((page, self.dropped.remove(&page.0)?)))
                .collect();
            if !drops.is_empty() {
                frames.push(Frame::Drop(drops));
            }
            for pages in kept.give(run)?.into_iter().flatten() {
                self.on_way.extend(pages.each().map(|(page, ..)| page.0));
                frames.push(Frame::Out(pages));
                answers += 1;
            }
            for page in run.pages() {
                self.behind.remove(&page.0);
            }
        }
        Ok((frames, answers))
    }

    /// The mirror has pages; gives what the main host can hear of.
    pub fn heard(&mut self, pages: &[(PageNo, Version)]) -> Versions {
        let mut told = Vec::new();
        for &(page, version) in pages {
            self.on_way.remove(&page.0);
            if self.owed.get(&page.0).is_some_and(|owed| *owed <= version) {
                told.extend(self.owed.remove(&page.0).map(|owed| (page, owed)));
            }
        }
        told
    }
}

fn versions(pages: BTreeMap<u64, Version>) -> Versions {
    pages.into_iter().map(|(page, version)| (PageNo(page), version)).collect()
}

/// Pages that follow each other within what a frame brings.
fn runs(pages: impl Iterator<Item = u64>) -> Vec<PageRun> {
    let mut runs: Vec<PageRun> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some(run)
                if run.first.0 + u64::from(run.count) == page && page % CHUNK_PAGES_MAX != 0 =>
            {
                run.count += 1;
            }
            _ => runs.push(PageRun { first: PageNo(page), count: 1 }),
        }
    }
    runs
}

#[cfg(test)]
#[path = "tests/mirror.rs"]
mod tests;
