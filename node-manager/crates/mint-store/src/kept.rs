// SPDX-License-Identifier: Apache-2.0
//! What is kept of one guest: a file as long as its memory, with holes where nothing is kept, and
//! beside it the version of each page (the page array of 4-2).
//!
//! Both lie in a tmpfs, so they outlive this process, and are gone with the node. A page's bytes
//! are written before its version: who dies in between has not said that it has the page.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use mint_split::{Entry, Geometry, PAGE, PAGE_BYTES, PageNo, PageRun, Pages, Version};
use rustix::fs::{FallocateFlags, fallocate};

const WORD: usize = 4;
const ZERO_FLAG: u32 = 1 << 31;
/// So many versions are looked at at once.
const LOOKED_AT: usize = 64 << 10;

/// A page could not be kept.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The guest has had all that it may.
    #[error("the guest may keep {limit_pages} pages here")]
    Full {
        /// So many.
        limit_pages: u64,
    },
    /// The host has no memory left, or the files are broken.
    #[error("the files of the guest's pages")]
    Io(#[from] io::Error),
}

/// Of one guest.
#[derive(Debug)]
pub struct Kept {
    geometry: Geometry,
    pages: File,
    versions: File,
    limit_pages: u64,
    /// Pages with bytes; those of zeros take no memory.
    full_pages: u64,
}

/// A page that is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Word(u32);

impl Word {
    fn new(version: Version, is_zero: bool) -> Self {
        Self(version.0 | if is_zero { ZERO_FLAG } else { 0 })
    }

    /// None: nothing is kept.
    fn version(self) -> Option<Version> {
        (self.0 != 0).then_some(Version(self.0 & !ZERO_FLAG))
    }

    fn is_full(self) -> bool {
        self.0 != 0 && self.0 & ZERO_FLAG == 0
    }
}

impl Kept {
    /// The files of a guest, with what they hold; new ones where there are none.
    ///
    /// # Errors
    /// When they cannot be opened or read.
    pub fn open(
        folder: &Path,
        name: &str,
        geometry: Geometry,
        limit_pages: u64,
    ) -> io::Result<Self> {
        let open = |kind: &str, bytes: u64| {
            let mut how = OpenOptions::new();
            how.read(true).write(true).create(true).truncate(false).mode(0o600);
            let file = how.open(folder.join(format!("{name}.{kind}")))?;
            file.set_len(bytes)?;
            Ok::<_, io::Error>(file)
        };
        let pages = open("pages", geometry.pages() * PAGE_BYTES)?;
        let versions = open("versions", geometry.pages() * WORD as u64)?;
        let mut kept = Self { geometry, pages, versions, limit_pages, full_pages: 0 };
        let mut full = 0;
        kept.each_word(|_, word| full += u64::from(word.is_full()))?;
        kept.full_pages = full;
        Ok(kept)
    }

    /// Deletes the files of a guest.
    ///
    /// # Errors
    /// When one that is there stays.
    pub fn delete(folder: &Path, name: &str) -> io::Result<()> {
        for kind in ["pages", "versions"] {
            match std::fs::remove_file(folder.join(format!("{name}.{kind}"))) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// How the guest's memory is divided.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// It may keep so many pages from now on; what is there stays.
    pub fn set_limit(&mut self, limit_pages: u64) {
        self.limit_pages = limit_pages;
    }

    /// Bytes that are kept.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.full_pages * PAGE_BYTES
    }

    /// Keeps pages, which are of this guest; one that is there in a later version stays.
    ///
    /// # Errors
    /// When there is no room. Then some of them may be kept, as if nobody had said so.
    pub fn keep(&mut self, pages: &Pages) -> Result<(), KeepError> {
        let mut words = self.words(pages.first, pages.entries.len())?;
        let news: Vec<bool> = words
            .iter()
            .zip(&pages.entries)
            .map(|(word, entry)| word.version() < Some(entry.version))
            .collect();
        let mut full = self.full_pages;
        for ((word, entry), _) in
            words.iter().zip(&pages.entries).zip(&news).filter(|(_, new)| **new)
        {
            full = full + u64::from(!entry.is_zero) - u64::from(word.is_full());
        }
        if full > self.limit_pages {
            return Err(KeepError::Full { limit_pages: self.limit_pages });
        }
        let mut at = 0;
        for (run, bytes) in pages.runs() {
            let its = at..at + run.pages().count();
            at = its.end;
            match bytes {
                Some(bytes) if news[its.clone()].iter().all(|new| *new) => {
                    self.pages.write_all_at(bytes, run.first.0 * PAGE_BYTES)?;
                }
                Some(bytes) => {
                    let each = run.pages().zip(bytes.chunks_exact(PAGE)).zip(&news[its]);
                    for ((page, bytes), _) in each.filter(|(_, new)| **new) {
                        self.pages.write_all_at(bytes, page.0 * PAGE_BYTES)?;
                    }
                }
                None => {
                    let each = run.pages().zip(&words[its.clone()]).zip(&news[its]);
                    for ((page, _), _) in each.filter(|((_, word), new)| **new && word.is_full()) {
                        self.punch(page, 1)?;
                    }
                }
            }
        }
        for ((entry, word), _) in
            pages.entries.iter().zip(&mut words).zip(&news).filter(|(_, new)| **new)
        {
            *word = Word::new(entry.version, entry.is_zero);
        }
        self.set_words(pages.first, &words)?;
        self.full_pages = full;
        Ok(())
    }

    /// What is kept of a run of the guest's pages, in their order: pages that follow each other,
    /// or none where none is kept.
    ///
    /// # Errors
    /// When the files cannot be read.
    pub fn give(&self, run: PageRun) -> io::Result<Vec<Result<Pages, PageRun>>> {
        let mut parts: Vec<Result<Pages, PageRun>> = Vec::new();
        let words = self.words(run.first, usize::try_from(run.count).unwrap_or(usize::MAX))?;
        for (page, word) in run.pages().zip(words) {
            let Some(version) = word.version() else {
                match parts.last_mut() {
                    Some(Err(missing)) => missing.count += 1,
                    _ => parts.push(Err(PageRun { first: page, count: 1 })),
                }
                continue;
            };
            if !matches!(parts.last(), Some(Ok(_))) {
                parts.push(Ok(Pages::from(page)));
            }
            if let Some(Ok(pages)) = parts.last_mut() {
                pages.entries.push(Entry { version, is_zero: !word.is_full() });
            }
        }
        for pages in parts.iter_mut().flatten() {
            let full = pages.entries.iter().filter(|entry| !entry.is_zero).count();
            pages.bytes = vec![0; full * PAGE];
            let full = |(run, bytes): (PageRun, Option<&[u8]>)| bytes.map(|_| run);
            let runs: Vec<PageRun> = pages.runs().filter_map(full).collect();
            let mut at = 0;
            for run in runs {
                let end = at + run.pages().count() * PAGE;
                self.pages.read_exact_at(&mut pages.bytes[at..end], run.first.0 * PAGE_BYTES)?;
                at = end;
            }
        }
        Ok(parts)
    }

    /// Pages are not wanted any more, unless they are here in a later version than this.
    ///
    /// # Errors
    /// When the files cannot be written.
    pub fn drop_pages(&mut self, pages: &[(PageNo, Version)]) -> io::Result<()> {
        let follows = |(one, _): &(PageNo, Version), (other, _): &(PageNo, Version)| {
            one.0.checked_add(1) == Some(other.0)
        };
        for run in pages.chunk_by(follows).flat_map(|run| run.chunks(LOOKED_AT)) {
            let Some(&(first, _)) = run.first() else { continue };
            let mut words = self.words(first, run.len())?;
            let before = words.clone();
            for (word, (_, version)) in words.iter_mut().zip(run) {
                if word.version().is_some_and(|has| has <= *version) {
                    *word = Word(0);
                }
            }
            if words == before {
                continue;
            }
            self.set_words(first, &words)?;
            let gone = |at: &usize| before[*at].is_full() && !words[*at].is_full();
            let gone: Vec<usize> = (0..words.len()).filter(gone).collect();
            for some in gone.chunk_by(|one, other| one + 1 == *other) {
                self.punch(PageNo(first.0 + some[0] as u64), some.len() as u64)?;
                self.full_pages -= some.len() as u64;
            }
        }
        Ok(())
    }

    /// All that is kept.
    ///
    /// # Errors
    /// When the files cannot be read.
    pub fn list(&self) -> io::Result<Vec<(PageNo, Version)>> {
        let mut all = Vec::new();
        self.each_word(|page, word| all.extend(word.version().map(|version| (page, version))))?;
        Ok(all)
    }

    fn punch(&self, page: PageNo, count: u64) -> io::Result<()> {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.pages, how, page.0 * PAGE_BYTES, count * PAGE_BYTES)?)
    }

    fn words(&self, first: PageNo, count: usize) -> io::Result<Vec<Word>> {
        let mut bytes = vec![0; count.min(LOOKED_AT) * WORD];
        self.versions.read_exact_at(&mut bytes, first.0 * WORD as u64)?;
        Ok(words(&bytes).collect())
    }

    fn set_words(&self, first: PageNo, words: &[Word]) -> io::Result<()> {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.0.to_le_bytes()).collect();
        self.versions.write_all_at(&bytes, first.0 * WORD as u64)
    }

    fn each_word(&self, mut tell: impl FnMut(PageNo, Word)) -> io::Result<()> {
        let mut first = 0;
        while first < self.geometry.pages() {
            let left = usize::try_from(self.geometry.pages() - first).unwrap_or(LOOKED_AT);
            let found = self.words(PageNo(first), left.min(LOOKED_AT))?;
            for (page, word) in (first..).map(PageNo).zip(&found) {
                tell(page, *word);
            }
            first += found.len() as u64;
        }
        Ok(())
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = Word> {
    let each = bytes.chunks_exact(WORD);
    each.map(|word| Word(u32::from_le_bytes([word[0], word[1], word[2], word[3]])))
}

#[cfg(test)]
#[path = "tests/kept.rs"]
mod tests;
