// SPDX-License-Identifier: Apache-2.0
//! What a guest that goes has here, for its next host: all pages that are to be there, those that
//! changed meanwhile, round after round, and at the switch-over the last ones and the location
//! database. What the next host has no room for goes to memory servers in the same rounds (S-memV,
//! 3-1): `going_ahead.rs`.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use mint_split::{
    AGES_MAX, ChunkNo, DepartureView, Frame, Geometry, PAGE, PAGE_BYTES, PageNo, Pages, Place,
    SplitGuest, SubNo, Version, WORDS_MAX, say,
};
use mint_sys::{Watch, Written};
use tracing::{debug, info};

use crate::memory::Memory;
use crate::monitor::Switch;
use crate::pager::Budget;
use crate::qemu::Qemu;
use crate::shared::Shared;
use crate::step::step;
use crate::stream::rest_for;

const LOOK: Duration = Duration::from_millis(100);
/// Between questions whether the guest stands still, once it may: it waits for the answer then.
const LAST_LOOK: Duration = Duration::from_millis(20);
/// For memory servers to answer.
const SERVERS: Duration = Duration::from_millis(10);
/// So little is left that the guest may stand still for it: a part of what it has here, and
/// pages at least.
const REST_PART: u64 = 64;
const REST_PAGES: u64 = 256;
/// After so many rounds it goes with whatever is left, or after so many of which each left little
/// less than the one before.
const ROUNDS_MAX: u32 = 30;
const STALE_MAX: u32 = 5;
/// Pages that are looked at under the pager's lock.
const LOOKED_AT: u64 = 64 << 10;
/// Pages that are dropped by one frame.
const DROPPED: usize = 4096;

/// Where everything was when the guest stood still.
struct Last {
    words: Vec<u32>,
    subs: Vec<SubNo>,
    /// Pages that the next host is to have, and has not as they are.
    rest: Vec<u64>,
}

/// What the next host has of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sent {
    No,
    /// As it was once.
    Stale,
    /// As it is.
    Right,
}

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Given {
    /// All was sent.
    All,
    /// Not all was.
    Not,
    /// The guest's migration has failed.
    Failed,
}

/// It is to end.
#[derive(Default)]
pub(crate) struct Stop {
    is_asked: AtomicBool,
    stream: Mutex<Option<TcpStream>>,
}

impl Stop {
    /// Whether it was asked for.
    pub fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed)
    }

    /// Asks for it.
    pub fn ask(&self) {
        self.is_asked.store(true, Ordering::Relaxed);
        if let Some(stream) = self.stream(None) {
            // it may have ended by itself
            _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// What is broken when it is asked for; gives the one before.
    pub fn stream(&self, stream: Option<TcpStream>) -> Option<TcpStream> {
        let mut its = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut its, stream)
    }
}

/// A guest that goes.
pub(crate) struct Giving<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) stop: &'a Stop,
    bandwidth_bytes_s: Option<u64>,
    /// What its next host may have there; none: all that is here.
    pub(crate) next: Option<Budget>,
    /// Of each page.
    sent: Vec<Sent>,
    /// A migration has begun since, so its failure is one of this.
    has_begun: bool,
}

impl<'a> Giving<'a> {
    /// Nothing has been given.
    pub fn new(
        shared: &'a Shared,
        stop: &'a Stop,
        bandwidth_bytes_s: Option<u64>,
        next: Option<Budget>,
    ) -> Self {
        Self { shared, stop, bandwidth_bytes_s, next, sent: Vec::new(), has_begun: false }
    }

    /// The guest.
    pub fn guest(&self) -> &'a SplitGuest {
        &self.shared.home.guest
    }

    /// Tells who asks how far it is.
    pub(crate) fn tell(&self, change: impl FnOnce(&mut DepartureView)) {
        let departure = &self.shared.departure;
        let mut told = departure.lock().unwrap_or_else(PoisonError::into_inner);
        change(told.get_or_insert_with(DepartureView::default));
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.shared.lock().pager.places().geometry()
    }

    fn qemu(&self) -> &'a Qemu {
        &self.shared.home.qemu
    }

    /// After a pager that died: the guest's next host may have all of it. If it runs here it has
    /// not, and pages go and come as ever.
    pub fn go_on_if_it_runs(&self) {
        while self.shared.lock().pager.is_held() && !self.stop.is_asked() {
            match self.qemu().switch() {
                Switch::Stopped => return,
                Switch::NotYet | Switch::Failed => self.shared.goes_on(),
                Switch::Unknown => thread::sleep(LOOK),
            }
        }
    }

    /// Whether the guest's migration has failed, while nobody takes it: QEMU says so, or it runs
    /// here again after it has stood still.
    pub fn has_failed(&self) -> bool {
        match self.qemu().switch() {
            Switch::Failed => self.has_begun,
            Switch::NotYet => self.shared.lock().pager.is_held(),
            Switch::Stopped | Switch::Unknown => false,
        }
    }

    /// The guest goes on here, as before.
    pub fn stays(&self) {
        *self.shared.departure.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let (went_ahead, is_held) = {
            let mut locked = self.shared.lock();
            (locked.pager.end_ahead(), locked.pager.is_held())
        };
        if went_ahead || is_held {
            // memory servers list what they have, and drop what went ahead
            self.shared.goes_on();
        }
        // else it would be missing in what libvirt saves
        while let Err(error) = self.qemu().leave_memory_out(false) {
            if self.qemu().has_ended() {
                break;
            }
            debug!(%error, "QEMU leaves its memory out still");
            thread::sleep(LOOK);
        }
        self.qemu().close();
    }

    /// Gives all of it to who has connected, and who may understand when pages were used.
    ///
    /// # Errors
    /// When that does not take it, or the guest's memory cannot be read.
    pub fn give(&mut self, to: &TcpStream, takes_ages: bool) -> io::Result<Given> {
        let pages = self.geometry().pages();
        self.sent = vec![Sent::No; usize::try_from(pages).map_err(io::Error::other)?];
        self.begin_ahead();
        // also if the guest stands still already, for a pager before this one
        self.choose();
        if self.qemu().switch() != Switch::Stopped {
            self.qemu().leave_memory_out(true)?;
            let home = &self.shared.home;
            let base = self.shared.lock().pager.memory().base;
            home.faults.watch(base, home.guest.memory_bytes, Watch::HolesAndWrites)?;
            // what is written from here on is told later
            self.written()?;
            self.send_rest(to)?;
        }
        let (mut round, mut stale, mut last, mut is_ready) = (0_u32, 0_u32, u64::MAX, false);
        loop {
            match self.qemu().switch() {
                Switch::Stopped => break,
                Switch::Failed if is_ready && self.has_begun => return Ok(Given::Failed),
                Switch::Failed | Switch::Unknown => {}
                // one that has failed before this one is forgotten once this one has begun
                Switch::NotYet => self.has_begun = true,
            }
            if self.stop.is_asked() {
                return Ok(Given::Not);
            }
            let written = self.written()?;
            let rest: u64 = written.iter().map(|pages| pages.end - pages.start).sum();
            self.changed(written);
            if !is_ready {
                self.choose();
            }
            let ahead = self.shared.lock().pager.kept_ahead();
            self.tell(|told| {
                (told.rounds, told.rest_pages, told.ahead_pages) = (round + 1, rest, ahead);
            });
            self.send_rest(to)?;
            let late = self.late();
            // else it waits for memory servers alone
            if rest > 0 || late == 0 {
                round += 1;
                stale = if rest / 3 >= last / 4 { stale + 1 } else { 0 };
                last = rest;
            }
            let here = self.shared.lock().pager.places().counts().local;
            let is_little = rest <= REST_PAGES.max(here / REST_PART);
            let is_enough = round >= ROUNDS_MAX || stale >= STALE_MAX;
            if !is_ready && self.may_be_ready(is_little, is_enough, late) {
                info!(round, rest, late, "little is left of the guest here");
                if takes_ages {
                    self.send_ages(to)?;
                }
                step("pager-ready");
                say(to, &Frame::Ready)?;
                is_ready = true;
            }
            if is_ready || (rest == 0 && late > 0) {
                thread::sleep(if is_ready { LAST_LOOK } else { SERVERS });
            }
        }
        self.finish(to)?;
        Ok(Given::All)
    }

    /// Its vCPUs and disks stand still.
    fn finish(&mut self, to: &TcpStream) -> io::Result<()> {
        step("pager-final");
        let began = Instant::now();
        self.tell(|told| told.finals += 1);
        self.shared.lock().pager.hold(true);
        match self.written() {
            Ok(written) => self.changed(written),
            // its QEMU has gone: what it wrote last is not known
            Err(error) if self.qemu().has_ended() => {
                debug!(%error, "all of it is sent again");
                self.changed(std::iter::once(0..self.geometry().pages()));
            }
            Err(error) => return Err(error),
        }
        self.wait_for_servers()?;
        self.look_for_holes()?;
        let Last { words, subs, rest } = self.last();
        for pages in ranges(rest) {
            self.send(to, pages, true)?;
        }
        for (words, first) in words.chunks(WORDS_MAX).zip((0..).step_by(WORDS_MAX)) {
            say(to, &Frame::Words(PageNo(first), words.to_vec()))?;
        }
        for (subs, first) in subs.chunks(WORDS_MAX).zip((0..).step_by(WORDS_MAX)) {
            say(to, &Frame::Subs(first, subs.to_vec()))?;
        }
        step("pager-finished");
        say(to, &Frame::Final)?;
        let ms = began.elapsed().as_millis();
        let (done, ahead) = {
            let pager = &self.shared.lock().pager;
            (pager.done(), pager.kept_ahead())
        };
        self.tell(|told| told.ahead_pages = ahead);
        let (page_ins, page_outs) = (done.page_ins, done.page_outs);
        info!(ms, page_ins, page_outs, ahead, "the guest's next host was sent all of it");
        Ok(())
    }

    /// Nothing goes or comes any more but what is asked for: the location database. What arrives
    /// after this is where it was, too.
    fn last(&mut self) -> Last {
        let locked = self.shared.lock();
        let (pager, places) = (&locked.pager, locked.pager.places());
        let geometry = places.geometry();
        let word = |page| match pager.is_ahead(page) {
            true => places.word_ahead(page),
            false => places.word_there(page),
        };
        let words = (0..geometry.pages()).map(|page| word(PageNo(page))).collect();
        let subs = (0..geometry.chunks()).map(|chunk| places.sub_there(ChunkNo(chunk))).collect();
        let mut rest = Vec::new();
        for page in 0..geometry.pages() {
            let sent = &mut self.sent[index(page)];
            match places.place(PageNo(page)) {
                Some(Place::Local) if !pager.is_ahead(PageNo(page)) && *sent != Sent::Right => {
                    rest.push(page);
                }
                // the copy here is the page, whatever was sent before it left
                Some(Place::Leaving { .. }) => {
                    *sent = Sent::No;
                    rest.push(page);
                }
                _ => {}
            }
        }
        Last { words, subs, rest }
    }

    /// Pages were written to: what others have of them is not right any more.
    fn changed(&mut self, written: impl IntoIterator<Item = std::ops::Range<u64>>) {
        for pages in written.into_iter().flat_map(parts) {
            let mut locked = self.shared.lock();
            for page in pages {
                let sent = &mut self.sent[index(page)];
                if *sent == Sent::Right {
                    *sent = Sent::Stale;
                }
                locked.pager.is_stale_ahead(PageNo(page));
            }
        }
    }

    /// Sends what others are to have and have not, chunk by chunk; what the next host has and is not
    /// to have takes no room there.
    fn send_rest(&mut self, to: &TcpStream) -> io::Result<()> {
        let mut dropped = 0;
        for pages in parts(0..self.geometry().pages()) {
            let (gone, chunks) = self.look(pages);
            for some in gone.chunks(DROPPED) {
                say(to, &Frame::Drop(some.to_vec()))?;
            }
            dropped += gone.len();
            for chunk in chunks {
                if self.shared.lock().pager.is_away(chunk) {
                    let sent = self.send_ahead(chunk)?;
                    rest_for(sent * PAGE_BYTES, self.bandwidth_bytes_s);
                } else {
                    self.send(to, self.geometry().pages_of(chunk), false)?;
                }
            }
        }
        if dropped > 0 {
            debug!(pages = dropped, "were sent, and are elsewhere by now");
        }
        Ok(())
    }

    /// Of these pages those that the next host has and is not to have, and chunks of which others
    /// are to have something and have not.
    fn look(&mut self, pages: std::ops::Range<u64>) -> (Vec<(PageNo, Version)>, Vec<ChunkNo>) {
        let locked = self.shared.lock();
        let (pager, geometry) = (&locked.pager, locked.pager.places().geometry());
        let (mut gone, mut chunks) = (Vec::new(), Vec::new());
        for page in pages {
            let (sent, number) = (&mut self.sent[index(page)], PageNo(page));
            let chunk = geometry.chunk_of(number);
            let is_here = pager.places().place(number) == Some(Place::Local);
            let is_away = pager.is_away(chunk);
            if *sent != Sent::No && (!is_here || is_away) {
                *sent = Sent::No;
                gone.push((number, Version(0)));
            }
            let is_there =
                if is_away { pager.was_sent_ahead(number) } else { *sent == Sent::Right };
            if is_here && !is_there && chunks.last() != Some(&chunk) {
                chunks.push(chunk);
            }
        }
        (gone, chunks)
    }

    /// When pages were used: the next host goes on with that. What is used from here on it sees.
    fn send_ages(&self, to: &TcpStream) -> io::Result<()> {
        for first in (0..self.geometry().pages()).step_by(AGES_MAX).map(PageNo) {
            let told = self.shared.lock().pager.victims().ages().told(first, AGES_MAX).to_vec();
            say(to, &Frame::Ages(first, told))?;
        }
        Ok(())
    }

    /// Pages that were written to since this was asked last, or came back.
    fn written(&self) -> io::Result<Vec<std::ops::Range<u64>>> {
        if self.qemu().has_ended() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let guest = self.guest();
        let base = self.shared.lock().pager.memory().base;
        let pages = |range: std::ops::Range<u64>| {
            let page = |address: u64| address.saturating_sub(base) / PAGE_BYTES;
            page(range.start)..page(range.end)
        };
        let found = Written::of(guest.qemu)?.since(base, base + guest.memory_bytes)?;
        Ok(found.into_iter().map(pages).collect())
    }

    /// Those of these pages that are here, and that the next host has not as they are, chunk by
    /// chunk; at last also copies of what is leaving.
    fn send(
        &mut self,
        to: &TcpStream,
        pages: std::ops::Range<u64>,
        is_last: bool,
    ) -> io::Result<()> {
        let chunk_pages = self.geometry().chunk_pages();
        let mut at = pages.start;
        while at < pages.end {
            let end = (at / chunk_pages + 1).saturating_mul(chunk_pages).min(pages.end);
            for run in self.read(at..end, is_last)? {
                let bytes = run.bytes.len() as u64;
                for (page, ..) in run.each() {
                    self.sent[index(page.0)] = Sent::Right;
                }
                self.tell(|told| told.sent_pages += run.entries.len() as u64);
                say(to, &Frame::Copy(run))?;
                step("pager-gives");
                if !is_last {
                    rest_for(bytes, self.bandwidth_bytes_s);
                }
            }
            at = end;
        }
        Ok(())
    }

    /// Of a chunk, as runs. Under the pager's lock: what is here stays as long.
    fn read(&self, pages: std::ops::Range<u64>, is_last: bool) -> io::Result<Vec<Pages>> {
        let locked = self.shared.lock();
        let (places, memory) = (locked.pager.places(), locked.pager.memory());
        let is_local = |page: u64| places.place(PageNo(page)) == Some(Place::Local);
        let goes = |page: &u64| {
            let is_here = match places.place(PageNo(*page)) {
                Some(Place::Local) => true,
                Some(Place::Leaving { .. }) => is_last,
                _ => false,
            };
            is_here && self.sent[index(*page)] != Sent::Right
        };
        let mut runs: Vec<Pages> = Vec::new();
        for range in ranges(pages.filter(goes).collect()) {
            let mut bytes = vec![[0; PAGE]; index(range.end - range.start)];
            if range.clone().all(is_local) {
                memory.pages(PageNo(range.start), &mut bytes)?;
            } else {
                range.clone().zip(&mut bytes).try_for_each(|(page, bytes)| {
                    match is_local(page) {
                        true => memory.page(PageNo(page), bytes),
                        false => memory.copy(PageNo(page), bytes),
                    }
                })?;
            }
            let mut run = Pages::from(PageNo(range.start));
            bytes.iter().for_each(|bytes| run.push(Version(0), bytes));
            runs.push(run);
        }
        Ok(runs)
    }
}

/// These pages, as many at a time as are looked at under the pager's lock: whole chunks, if they
/// begin with one.
pub(crate) fn parts(pages: std::ops::Range<u64>) -> impl Iterator<Item = std::ops::Range<u64>> {
    let end = pages.end;
    pages.step_by(index(LOOKED_AT)).map(move |first| first..end.min(first + LOOKED_AT))
}

/// Numbers, in their order, as ranges.
fn ranges(numbers: Vec<u64>) -> impl Iterator<Item = std::ops::Range<u64>> {
    let mut rest = numbers.into_iter().peekable();
    std::iter::from_fn(move || {
        let first = rest.next()?;
        let mut end = first + 1;
        while rest.next_if_eq(&end).is_some() {
            end += 1;
        }
        Some(first..end)
    })
}

fn index(page: u64) -> usize {
    usize::try_from(page).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[path = "tests/giving.rs"]
mod tests;
