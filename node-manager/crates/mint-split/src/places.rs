// SPDX-License-Identifier: Apache-2.0
//! Where each page of a guest is: the location database of the main host (4-1, 4-5).
//!
//! A page is at one place. Its *version* counts how often it was taken out: a copy with an
//! older one is stale, wherever it turns up. All pages of a chunk that are not here are at one
//! sub host, or on their way there or back.
//!
//! The numbers lie in memory that is lent: a file outlives the process that writes them.

use std::fmt;

use crate::geometry::{ChunkNo, Geometry, PageNo, PageRun};

/// A sub host, by its number in the guest's list of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SubNo(pub u16);

/// How often a page was taken out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Version(pub u32);

impl Version {
    /// The largest: a page that has it stays.
    pub const MAX: Self = Self((1 << 29) - 1);

    fn next(self) -> Option<Self> {
        (self < Self::MAX).then_some(Self(self.0 + 1))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}", self.0)
    }
}

/// Where a page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Nowhere: nobody has touched it.
    Virgin,
    /// In the guest's memory.
    Local,
    /// Out of it, and not yet for sure at the sub host: the copy here is the page.
    Leaving {
        /// Where it goes.
        to: SubNo,
        /// Of the copy.
        version: Version,
    },
    /// At a sub host.
    Remote {
        /// Which.
        at: SubNo,
        /// Of the copy there.
        version: Version,
    },
    /// Asked for, and still at the sub host.
    Coming {
        /// Which.
        from: SubNo,
        /// Of the copy there.
        version: Version,
    },
}

/// What to do for who waits for a page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It is here by now: let them look again.
    Wake,
    /// Give zeros; then it is here ([`Places::filled`]).
    Zero,
    /// Put back the copy that is leaving; then it is here ([`Places::filled`]), and the sub host
    /// is to drop what it has of this version.
    PutBack {
        /// Who may have the copy.
        to: SubNo,
        /// Of it.
        version: Version,
    },
    /// Ask for these: the page first, then the rest of its chunk.
    Fetch {
        /// Who has them.
        from: SubNo,
        /// The page alone, and then what is there of its chunk besides.
        runs: Vec<PageRun>,
    },
    /// It has been asked for.
    Wait,
}

/// How many pages are where.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Nobody has touched them.
    pub virgin: u64,
    /// In the guest's memory.
    pub local: u64,
    /// Copies wait for a sub host.
    pub leaving: u64,
    /// At sub hosts.
    pub remote: u64,
    /// Asked for.
    pub coming: u64,
}

impl Counts {
    /// Pages that sub hosts have, or get, or give back.
    #[must_use]
    pub fn elsewhere(&self) -> u64 {
        self.leaving + self.remote + self.coming
    }

    /// Pages that take memory of the main host, or are about to.
    #[must_use]
    pub fn resident(&self) -> u64 {
        self.local + self.leaving + self.coming
    }
}

/// The memory that is lent holds something else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlacesError {
    /// Of another size.
    #[error("room for {pages} pages and {chunks} chunks is not that of the guest's memory")]
    Size {
        /// Room for pages.
        pages: usize,
        /// Room for chunks.
        chunks: usize,
    },
    /// A page's word says nothing.
    #[error("{page} has the word {word:#x}, which is no place")]
    Word {
        /// Which.
        page: PageNo,
        /// What is there.
        word: u32,
    },
}

/// The location database of one guest.
#[derive(Debug)]
pub struct Places<'a> {
    geometry: Geometry,
    /// For each page its state and version.
    words: &'a mut [u32],
    /// For each chunk its sub host.
    subs: &'a mut [u16],
    counts: Counts,
}

const STATE_BITS: u32 = 3;
const STATE_MASK: u32 = (1 << STATE_BITS) - 1;

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum State {
    Virgin = 0,
    Local = 1,
    Leaving = 2,
    Remote = 3,
    Coming = 4,
}

impl State {
    fn of(word: u32) -> Option<Self> {
        Some(match word & STATE_MASK {
            0 => Self::Virgin,
            1 => Self::Local,
            2 => Self::Leaving,
            3 => Self::Remote,
            4 => Self::Coming,
            _ => return None,
        })
    }

    fn word(self, version: Version) -> u32 {
        version.0 << STATE_BITS | self as u32
    }
}

impl<'a> Places<'a> {
    /// What lies in this memory: `words` has one for each page, `subs` one for each chunk. All
    /// zeros are a guest that nobody has touched.
    ///
    /// # Errors
    /// When the memory is of another size, or holds something else.
    pub fn open(
        geometry: Geometry,
        words: &'a mut [u32],
        subs: &'a mut [u16],
    ) -> Result<Self, PlacesError> {
        let fits = words.len() as u64 == geometry.pages() && subs.len() as u64 == geometry.chunks();
        if !fits {
            return Err(PlacesError::Size { pages: words.len(), chunks: subs.len() });
        }
        let mut counts = Counts::default();
        for (page, &word) in (0..).map(PageNo).zip(words.iter()) {
            let state = State::of(word).ok_or(PlacesError::Word { page, word })?;
            *counts.of(state) += 1;
        }
        Ok(Self { geometry, words, subs, counts })
    }

    /// How the guest's memory is divided.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// How many pages are where.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Where a page is; none if the guest has no such page.
    #[must_use]
    pub fn place(&self, page: PageNo) -> Option<Place> {
        let (state, version) = self.get(page)?;
        let sub = self.sub_of(page);
        Some(match state {
            State::Virgin => Place::Virgin,
            State::Local => Place::Local,
            State::Leaving => Place::Leaving { to: sub, version },
            State::Remote => Place::Remote { at: sub, version },
            State::Coming => Place::Coming { from: sub, version },
        })
    }

    /// Somebody waits for a page; none if the guest has no such page. What is to be fetched is
    /// coming from then on.
    pub fn fault(&mut self, page: PageNo) -> Option<Answer> {
        let (state, version) = self.get(page)?;
        Some(match state {
            State::Local => Answer::Wake,
            State::Virgin => Answer::Zero,
            State::Leaving => Answer::PutBack { to: self.sub_of(page), version },
            State::Coming => Answer::Wait,
            State::Remote => {
                self.set(page, State::Coming, version);
                let mut runs = vec![PageRun { first: page, count: 1 }];
                runs.extend(self.fetch(self.geometry.chunk_of(page)));
                Answer::Fetch { from: self.sub_of(page), runs }
            }
        })
    }

    /// The guest's memory has the page: zeros, or the copy that was leaving. Gives whether that
    /// is news.
    pub fn filled(&mut self, page: PageNo) -> bool {
        match self.get(page) {
            Some((State::Virgin | State::Leaving, version)) => {
                self.set(page, State::Local, version);
                true
            }
            _ => false,
        }
    }

    /// A sub host has sent a page. Gives whether it is the one that was asked for: any other
    /// is to be thrown away.
    #[must_use]
    pub fn is_wanted(&self, page: PageNo, from: SubNo, version: Version) -> bool {
        self.place(page) == Some(Place::Coming { from, version })
    }

    /// The guest's memory has a page that was wanted; the sub host may drop it.
    pub fn arrived(&mut self, page: PageNo) -> bool {
        match self.get(page) {
            Some((State::Coming, version)) => {
                self.set(page, State::Local, version);
                true
            }
            _ => false,
        }
    }

    /// What was asked for does not come: the connection to a sub host has ended. Gives the
    /// pages; each is to be asked for again as if somebody waited for it, since somebody may.
    pub fn not_coming(&mut self, from: SubNo) -> Vec<PageNo> {
        let pages = self.pages_in(State::Coming, from);
        for &page in &pages {
            if let Some((_, version)) = self.get(page) {
                self.set(page, State::Remote, version);
            }
        }
        pages
    }

    /// Begin to take out what is here of a chunk: each page that can go is leaving with a new
    /// version. A chunk that has pages elsewhere goes to where they are, whatever `to` says.
    pub fn leave(&mut self, chunk: ChunkNo, to: SubNo) -> Vec<(PageNo, Version)> {
        if self.sub_with(chunk).is_none() {
            self.set_sub(chunk, to);
        }
        let mut gone = Vec::new();
        for page in self.geometry.pages_of(chunk).map(PageNo) {
            let Some((State::Local, version)) = self.get(page) else { continue };
            let Some(next) = version.next() else { continue };
            self.set(page, State::Leaving, next);
            gone.push((page, next));
        }
        gone
    }

    /// A sub host has a page for sure. Gives whether its copy here can go.
    pub fn kept(&mut self, page: PageNo, by: SubNo, version: Version) -> bool {
        if self.place(page) != Some(Place::Leaving { to: by, version }) {
            return false;
        }
        self.set(page, State::Remote, version);
        true
    }

    /// What is leaving for a sub host and not there for sure: to be sent (again).
    #[must_use]
    pub fn leaving_for(&self, to: SubNo) -> Vec<(PageNo, Version)> {
        let pages = self.pages_in(State::Leaving, to).into_iter();
        pages.filter_map(|page| self.get(page).map(|(_, version)| (page, version))).collect()
    }

    /// Of the copy of a page that was made last; none if the guest has no such page.
    #[must_use]
    pub fn version(&self, page: PageNo) -> Option<Version> {
        self.get(page).map(|(_, version)| version)
    }

    /// A sub host is about to get a copy of a page that is here, and stays: gives its version,
    /// which no other copy has. None if the page is not here, or its versions are used up.
    pub fn ahead(&mut self, page: PageNo) -> Option<Version> {
        let (State::Local, version) = self.get(page)? else { return None };
        let next = version.next()?;
        self.set(page, State::Local, next);
        Some(next)
    }

    /// Where copies of a chunk go that is here: to where its other pages are, or else to this sub
    /// host; gives which.
    pub fn assign(&mut self, chunk: ChunkNo, to: SubNo) -> SubNo {
        match self.sub_with(chunk) {
            Some(sub) => sub,
            None => {
                self.set_sub(chunk, to);
                to
            }
        }
    }

    /// Whether a sub host's copy of this version is the page, or may become it. It may drop any
    /// other.
    #[must_use]
    pub fn needs(&self, page: PageNo, at: SubNo, version: Version) -> bool {
        match self.place(page) {
            Some(
                Place::Remote { at: sub, version: has }
                | Place::Coming { from: sub, version: has }
                | Place::Leaving { to: sub, version: has },
            ) => sub == at && has == version,
            Some(Place::Virgin | Place::Local) | None => false,
        }
    }

    /// A page is in the guest's memory, whatever was written down.
    pub fn found(&mut self, page: PageNo) {
        if let Some((_, version)) = self.get(page) {
            self.set(page, State::Local, version);
        }
    }

    /// The guest has no use for a page, wherever it is: it is as if nobody had touched it.
    pub fn given_back(&mut self, page: PageNo) {
        if let Some((_, version)) = self.get(page) {
            self.set(page, State::Virgin, version);
        }
    }

    /// The sub host that has pages of a chunk, or gets some, or gives some back; none: it has none.
    #[must_use]
    pub fn sub_with(&self, chunk: ChunkNo) -> Option<SubNo> {
        let mut pages = self.geometry.pages_of(chunk).map(PageNo);
        let is_elsewhere = |page: &PageNo| {
            let state = self.get(*page).map(|(state, _)| state);
            matches!(state, Some(State::Leaving | State::Remote | State::Coming))
        };
        pages.find(is_elsewhere).map(|page| self.sub_of(page))
    }

    /// Pages of a chunk that are here.
    #[must_use]
    pub fn local_in(&self, chunk: ChunkNo) -> u64 {
        let pages = self.geometry.pages_of(chunk).map(PageNo);
        pages.filter(|&page| matches!(self.get(page), Some((State::Local, _)))).count() as u64
    }

    /// Whether pages of a chunk have been asked for.
    #[must_use]
    pub fn is_coming(&self, chunk: ChunkNo) -> bool {
        let mut pages = self.geometry.pages_of(chunk).map(PageNo);
        pages.any(|page| matches!(self.get(page), Some((State::Coming, _))))
    }

    /// What is at the sub host of a chunk, as runs; it is coming from now on.
    pub fn fetch(&mut self, chunk: ChunkNo) -> Vec<PageRun> {
        let mut runs: Vec<PageRun> = Vec::new();
        for page in self.geometry.pages_of(chunk).map(PageNo) {
            let Some((State::Remote, version)) = self.get(page) else { continue };
            self.set(page, State::Coming, version);
            match runs.last_mut() {
                Some(run) if run.first.0 + u64::from(run.count) == page.0 => run.count += 1,
                _ => runs.push(PageRun { first: page, count: 1 }),
            }
        }
        runs
    }

    /// What a page's word is at the guest's next main host, which has all that is here, copies of
    /// what is leaving among it, and nothing that is on its way here.
    #[must_use]
    pub fn word_there(&self, page: PageNo) -> u32 {
        let (state, version) = self.get(page).unwrap_or((State::Virgin, Version(0)));
        let there = match state {
            State::Leaving => State::Local,
            State::Coming => State::Remote,
            State::Virgin | State::Local | State::Remote => state,
        };
        there.word(version)
    }

    /// The same of a page that is here, and that a sub host has ([`Places::ahead`]): the next main
    /// host does not get it.
    #[must_use]
    pub fn word_ahead(&self, page: PageNo) -> u32 {
        match self.get(page) {
            Some((State::Local, version)) => State::Remote.word(version),
            _ => self.word_there(page),
        }
    }

    /// Who has what is elsewhere of a chunk; any number where nothing is.
    #[must_use]
    pub fn sub_there(&self, chunk: ChunkNo) -> SubNo {
        let at = usize::try_from(chunk.0).ok();
        SubNo(at.and_then(|at| self.subs.get(at)).copied().unwrap_or_default())
    }

    /// Takes a word over from the guest's last main host. Gives whether it is one that a host
    /// tells.
    pub fn take_word(&mut self, page: PageNo, word: u32) -> bool {
        let state = State::of(word);
        let Some(state @ (State::Virgin | State::Local | State::Remote)) = state else {
            return false;
        };
        if self.get(page).is_none() {
            return false;
        }
        self.set(page, state, Version(word >> STATE_BITS));
        true
    }

    /// The same of a chunk, with that many memory servers. A guest that never had one has chunks of
    /// the first.
    pub fn take_sub(&mut self, chunk: ChunkNo, sub: SubNo, servers: usize) -> bool {
        let is_known = usize::from(sub.0) < servers.max(1) && chunk.0 < self.geometry.chunks();
        if is_known {
            self.set_sub(chunk, sub);
        }
        is_known
    }

    fn pages_in(&self, state: State, sub: SubNo) -> Vec<PageNo> {
        let all = (0..self.geometry.pages()).map(PageNo);
        all.filter(|&page| {
            self.get(page).is_some_and(|(has, _)| has == state) && self.sub_of(page) == sub
        })
        .collect()
    }

    fn get(&self, page: PageNo) -> Option<(State, Version)> {
        let word = *self.words.get(usize::try_from(page.0).ok()?)?;
        Some((State::of(word)?, Version(word >> STATE_BITS)))
    }

    fn set(&mut self, page: PageNo, state: State, version: Version) {
        let Some((before, _)) = self.get(page) else { return };
        let Some(word) = usize::try_from(page.0).ok().and_then(|at| self.words.get_mut(at)) else {
            return;
        };
        *word = state.word(version);
        *self.counts.of(before) -= 1;
        *self.counts.of(state) += 1;
    }

    fn sub_of(&self, page: PageNo) -> SubNo {
        let chunk = usize::try_from(self.geometry.chunk_of(page).0).ok();
        SubNo(chunk.and_then(|chunk| self.subs.get(chunk)).copied().unwrap_or_default())
    }

    fn set_sub(&mut self, chunk: ChunkNo, to: SubNo) {
        if let Some(sub) = usize::try_from(chunk.0).ok().and_then(|at| self.subs.get_mut(at)) {
            *sub = to.0;
        }
    }
}

impl Counts {
    fn of(&mut self, state: State) -> &mut u64 {
        match state {
            State::Virgin => &mut self.virgin,
            State::Local => &mut self.local,
            State::Leaving => &mut self.leaving,
            State::Remote => &mut self.remote,
            State::Coming => &mut self.coming,
        }
    }
}

#[cfg(test)]
#[path = "tests/places.rs"]
mod tests;
