// SPDX-License-Identifier: Apache-2.0
//! A guest whose next host has less room than it takes here (S-memV, 3-1, 4-1): what that host has no
//! room for goes to memory servers while the guest runs on with all of it, and what is worth least
//! is chosen anew in each round (4-4).

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use mint_split::ChunkNo;
use tracing::{debug, warn};

use crate::giving::{Giving, parts};
use crate::pager::{Order, PagerError, choose};
use crate::shared::say_all;
use crate::step::step;

/// Pages that memory servers have not answered, at most.
const WINDOW_PAGES: u64 = 1024;
/// For that to be fewer.
const ANSWER: Duration = Duration::from_millis(1);
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// While the guest stands still, memory servers may answer nothing for so long: then its next host
/// gets what they have not.
const LATE_WITHIN: Duration = Duration::from_secs(10);

fn failed(error: PagerError) -> io::Error {
    match error {
        PagerError::Memory(error) => error,
        error => io::Error::other(error),
    }
}

impl Giving<'_> {
    /// Nothing is ahead of the guest.
    pub(crate) fn begin_ahead(&self) {
        if self.next.is_some() {
            self.shared.speaks();
            self.shared.lock().pager.begin_ahead();
        }
    }

    /// Chooses what goes ahead: as much as the next host has no room for, but for what it may get
    /// late ([`Giving::may_be_late`]).
    pub(crate) fn choose(&self) {
        let Some(next) = self.next else { return };
        let stays = next.pages.saturating_sub(next.leaving_pages + self.may_be_late());
        let geometry = self.geometry();
        let chunk = geometry.chunk_pages();
        let chunks = |pages: std::ops::Range<u64>| pages.start / chunk..pages.end.div_ceil(chunk);
        let all: Vec<_> = parts(0..geometry.pages())
            .flat_map(|pages| self.shared.lock().pager.candidates(chunks(pages)))
            .collect();
        let here = self.shared.lock().pager.places().counts().local;
        let news = choose(all, here.saturating_sub(stays));
        if news.is_empty() {
            return;
        }
        debug!(chunks = news.len(), "go ahead of the guest from now on, or do not any more");
        let mut locked = self.shared.lock();
        let mut orders = Vec::new();
        // what comes back makes room first
        for is_away in [false, true] {
            for &(chunk, _) in news.iter().filter(|(_, now)| *now == is_away) {
                locked.pager.set_away(chunk, is_away, &mut orders);
            }
        }
        say_all(&locked.ways, false, orders);
    }

    /// The guest stands still: what it has given back is zeros at the next host.
    ///
    /// # Errors
    /// When the guest's memory cannot be looked at.
    pub(crate) fn look_for_holes(&self) -> io::Result<()> {
        if self.next.is_none() {
            return Ok(());
        }
        self.shared.lock().pager.look_for_holes().map_err(failed)
    }

    /// Pages that the next host may get beyond what it is to have: what was written to just before
    /// the guest stood still.
    fn may_be_late(&self) -> u64 {
        self.next.map_or(0, |next| next.leaving_pages / 2)
    }

    /// Sends a chunk ahead, once memory servers have answered enough of what they were sent; gives
    /// how many pages went.
    ///
    /// # Errors
    /// When the guest's memory cannot be read.
    pub(crate) fn send_ahead(&self, chunk: ChunkNo) -> io::Result<u64> {
        let window = WINDOW_PAGES.max(4 * self.geometry().chunk_pages());
        let since = Instant::now();
        while self.shared.lock().pager.said_ahead() >= window {
            if since.elapsed() > ANSWERS_WITHIN || self.stop.is_asked() {
                // its turn comes again
                return Ok(0);
            }
            thread::sleep(ANSWER);
        }
        let mut locked = self.shared.lock();
        let before = locked.pager.said_ahead();
        let orders: Vec<Order> = locked.pager.send_ahead(chunk).map_err(failed)?;
        let sent = locked.pager.said_ahead() - before;
        // also while the guest is held: who asked for it has not got all of it
        say_all(&locked.ways, false, orders);
        drop(locked);
        if sent > 0 {
            self.tell(|told| told.sent_pages += sent);
            step("pager-ahead");
        }
        Ok(sent)
    }

    /// Pages that are to be at memory servers, and are not.
    pub(crate) fn late(&self) -> u64 {
        if self.next.is_none() {
            return 0;
        }
        let count = |pages: std::ops::Range<u64>| {
            let pager = &self.shared.lock().pager;
            pager.late_ahead(pages)
        };
        parts(0..self.geometry().pages()).map(count).sum()
    }

    /// Whether the guest may stand still for what is left: little was written, or it does not get
    /// less, and so many pages that go ahead are late.
    pub(crate) fn may_be_ready(&self, is_little: bool, is_enough: bool, late: u64) -> bool {
        let is_late = late > self.may_be_late();
        (is_little && !is_late)
            || (is_enough && (!is_late || self.shared.lock().pager.reaches_ahead()))
    }

    /// The guest stands still: what is late goes ahead still if it is much; else the next host gets
    /// it.
    ///
    /// # Errors
    /// When the guest's memory cannot be read.
    pub(crate) fn wait_for_servers(&self) -> io::Result<()> {
        let (mut least, mut since) = (u64::MAX, Instant::now());
        loop {
            let late = self.late();
            if late <= self.may_be_late() || self.stop.is_asked() {
                return Ok(());
            }
            if late < least {
                (least, since) = (late, Instant::now());
            }
            if since.elapsed() > LATE_WITHIN {
                warn!(late, "pages do not go to memory servers: the guest's next host gets them");
                return Ok(());
            }
            for pages in parts(0..self.geometry().pages()) {
                let chunks = self.shared.lock().pager.lacks_ahead(pages);
                for chunk in chunks {
                    self.send_ahead(chunk)?;
                }
            }
            thread::sleep(ANSWER);
        }
    }
}
