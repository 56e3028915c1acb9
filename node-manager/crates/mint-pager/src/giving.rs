// SPDX-License-Identifier: Apache-2.0
//! What a guest that goes has here, for its next host: all pages, those that changed meanwhile,
//! round after round, and at the switch-over the last ones and the location database.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::FileExt;
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
use crate::qemu::Qemu;
use crate::shared::Shared;
use crate::step::step;

const LOOK: Duration = Duration::from_millis(100);
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
    /// Pages of which the copy is the page, or was then.
    leaving: Vec<u64>,
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
    shared: &'a Shared,
    stop: &'a Stop,
    bandwidth_bytes_s: Option<u64>,
    /// What the next host has of it: one bit a page, right or not.
    sent: Vec<bool>,
    /// A migration has begun since, so its failure is one of this.
    has_begun: bool,
}

impl<'a> Giving<'a> {
    /// Nothing has been given.
    pub fn new(shared: &'a Shared, stop: &'a Stop, bandwidth_bytes_s: Option<u64>) -> Self {
        Self { shared, stop, bandwidth_bytes_s, sent: Vec::new(), has_begun: false }
    }

    /// The guest.
    pub fn guest(&self) -> &'a SplitGuest {
        &self.shared.home.guest
    }

    /// Tells who asks how far it is.
    fn tell(&self, change: impl FnOnce(&mut DepartureView)) {
        let departure = &self.shared.departure;
        let mut told = departure.lock().unwrap_or_else(PoisonError::into_inner);
        change(told.get_or_insert_with(DepartureView::default));
    }

    fn geometry(&self) -> Geometry {
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

    /// Whether the guest's migration has failed, while nobody takes it.
    pub fn has_failed(&self) -> bool {
        self.has_begun && self.qemu().switch() == Switch::Failed
    }

    /// The guest goes on here, as before.
    pub fn stays(&self) {
        *self.shared.departure.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if self.shared.lock().pager.is_held() {
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
        self.sent = vec![false; usize::try_from(pages).map_err(io::Error::other)?];
        if self.qemu().switch() != Switch::Stopped {
            self.qemu().leave_memory_out(true)?;
            let home = &self.shared.home;
            let base = self.shared.lock().pager.memory().base;
            home.faults.watch(base, home.guest.memory_bytes, Watch::HolesAndWrites)?;
            // what is written from here on is told later
            self.written()?;
            self.send_all(to, 0..pages, false)?;
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
            self.tell(|told| (told.rounds, told.rest_pages) = (round + 1, rest));
            for pages in written {
                self.send_all(to, pages, false)?;
            }
            self.drop_gone(to, false)?;
            round += 1;
            stale = if rest / 3 >= last / 4 { stale + 1 } else { 0 };
            last = rest;
            let here = self.shared.lock().pager.places().counts().local;
            let is_little = rest <= REST_PAGES.max(here / REST_PART);
            if !is_ready && (is_little || round >= ROUNDS_MAX || stale >= STALE_MAX) {
                info!(round, rest, "little is left of the guest here");
                if takes_ages {
                    self.send_ages(to)?;
                }
                step("pager-ready");
                say(to, &Frame::Ready)?;
                is_ready = true;
            }
            if is_ready {
                thread::sleep(LOOK);
            }
        }
        self.finish(to)?;
        Ok(Given::All)
    }

    /// Its vCPUs and disks stand still.
    fn finish(&mut self, to: &TcpStream) -> io::Result<()> {
        step("pager-final");
        let began = Instant::now();
        let Last { words, subs, leaving } = self.last();
        match self.written() {
            Ok(written) => {
                for pages in written {
                    self.send_all(to, pages, true)?;
                }
            }
            // its QEMU has gone: what it wrote last is not known
            Err(error) if self.qemu().has_ended() => {
                debug!(%error, "all of it is sent again");
                self.sent.fill(false);
            }
            Err(error) => return Err(error),
        }
        let unsent = {
            let locked = self.shared.lock();
            let places = locked.pager.places();
            let is_local = |page: &u64| places.place(PageNo(*page)) == Some(Place::Local);
            let all = 0..places.geometry().pages();
            all.filter(|page| is_local(page) && !self.sent[index(*page)]).collect::<Vec<u64>>()
        };
        for pages in ranges(unsent).chain(ranges(leaving)) {
            self.send_all(to, pages, true)?;
        }
        self.drop_gone(to, true)?;
        for (words, first) in words.chunks(WORDS_MAX).zip((0..).step_by(WORDS_MAX)) {
            say(to, &Frame::Words(PageNo(first), words.to_vec()))?;
        }
        for (subs, first) in subs.chunks(WORDS_MAX).zip((0..).step_by(WORDS_MAX)) {
            say(to, &Frame::Subs(first, subs.to_vec()))?;
        }
        step("pager-finished");
        say(to, &Frame::Final)?;
        info!(ms = began.elapsed().as_millis(), "the guest's next host was sent all of it");
        Ok(())
    }

    /// Nothing goes or comes any more but what is asked for: the location database.
    fn last(&self) -> Last {
        let mut locked = self.shared.lock();
        locked.pager.hold(true);
        let places = locked.pager.places();
        let geometry = places.geometry();
        let words = (0..geometry.pages()).map(|page| places.word_there(PageNo(page))).collect();
        let subs = (0..geometry.chunks()).map(|chunk| places.sub_there(ChunkNo(chunk))).collect();
        let leaves =
            |page: &u64| matches!(places.place(PageNo(*page)), Some(Place::Leaving { .. }));
        Last { words, subs, leaving: (0..geometry.pages()).filter(leaves).collect() }
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

    /// Those of these pages that are here, chunk by chunk; at last also copies of what is leaving.
    fn send_all(
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
                    self.sent[index(page.0)] = true;
                }
                self.tell(|told| told.sent_pages += run.entries.len() as u64);
                say(to, &Frame::Copy(run))?;
                step("pager-gives");
                if let Some(rate) = self.bandwidth_bytes_s.filter(|_| !is_last) {
                    let ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
                    thread::sleep(Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)));
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
        let mut bytes = [0; PAGE];
        let mut runs: Vec<Pages> = Vec::new();
        for page in pages.map(PageNo) {
            match places.place(page) {
                Some(Place::Local) => memory.ram.read_exact_at(&mut bytes, page.0 * PAGE_BYTES)?,
                Some(Place::Leaving { .. }) if is_last => memory.copy(page, &mut bytes)?,
                _ => continue,
            }
            let goes_on = |run: &&mut Pages| run.first.0 + run.entries.len() as u64 == page.0;
            match runs.last_mut().filter(goes_on) {
                Some(run) => run.push(Version(0), &bytes),
                None => {
                    let mut run = Pages::from(page);
                    run.push(Version(0), &bytes);
                    runs.push(run);
                }
            }
        }
        Ok(runs)
    }

    /// What was sent and is not here any more takes no room there.
    fn drop_gone(&mut self, to: &TcpStream, is_last: bool) -> io::Result<()> {
        let pages = self.geometry().pages();
        let mut gone = Vec::new();
        for first in (0..pages).step_by(index(LOOKED_AT)) {
            let locked = self.shared.lock();
            for page in first..pages.min(first + LOOKED_AT) {
                let sent = &mut self.sent[index(page)];
                let is_here = match locked.pager.places().place(PageNo(page)) {
                    Some(Place::Local) => true,
                    Some(Place::Leaving { .. }) => is_last,
                    _ => false,
                };
                if *sent && !is_here {
                    *sent = false;
                    gone.push((PageNo(page), Version(0)));
                }
            }
        }
        for some in gone.chunks(DROPPED) {
            say(to, &Frame::Drop(some.to_vec()))?;
        }
        if !gone.is_empty() {
            debug!(pages = gone.len(), "were sent, and are elsewhere by now");
        }
        Ok(())
    }
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
