// SPDX-License-Identifier: Apache-2.0
//! Pages that a guest's next main host has no room for go to memory servers ahead of it (S-memV,
//! 4-1), and are here as well: the guest runs on, and nothing is taken out or fetched for its move.
//! What it writes to meanwhile goes again, in a later version. Those that are there as they were
//! last are *remote* at the next main host.

use std::ops::Range;

use mint_split::{ChunkNo, Frame, PageNo, Place, SubNo, Version, Victims};

use super::ahead::{Ahead, Candidate, There};
use super::out::frames;
use super::room::PagerError;
use super::{Order, Pager};
use crate::memory::Memory;

impl<M: Memory, V: Victims> Pager<'_, M, V> {
    /// Memory servers have no page ahead of the guest, as far as is known: chunks that are to go
    /// ahead go again.
    pub(crate) fn begin_ahead(&mut self) {
        let geometry = self.places.geometry();
        let new = || Ahead::new(geometry.pages(), geometry.chunks());
        self.ahead.get_or_insert_with(new).forget_pages();
    }

    /// Nothing goes ahead of the guest any more: it stays. Gives whether something did; memory
    /// servers drop it when each connection begins anew.
    pub(crate) fn end_ahead(&mut self) -> bool {
        let all = (0..self.places.geometry().chunks()).map(ChunkNo);
        let away: Vec<ChunkNo> = all.filter(|&chunk| self.is_away(chunk)).collect();
        let did = self.ahead.take().is_some();
        for chunk in away {
            self.may_be_free(chunk, self.places.sub_there(chunk));
        }
        did
    }

    /// Whether a chunk goes ahead.
    pub(crate) fn is_away(&self, chunk: ChunkNo) -> bool {
        self.ahead.as_ref().is_some_and(|ahead| ahead.is_away(chunk))
    }

    /// Whether a page that is here was sent ahead, as it is.
    pub(crate) fn was_sent_ahead(&self, page: PageNo) -> bool {
        self.there(page) != There::No
    }

    /// Whether a page that is here is at a memory server, as it is: the next main host does not get
    /// it.
    pub(crate) fn is_ahead(&self, page: PageNo) -> bool {
        self.there(page) == There::Kept
            && self.is_away(self.places.geometry().chunk_of(page))
            && self.places.place(page) == Some(Place::Local)
    }

    fn there(&self, page: PageNo) -> There {
        self.ahead.as_ref().map_or(There::No, |ahead| ahead.get(page))
    }

    /// Pages that were sent ahead, and that memory servers have not answered.
    pub(crate) fn said_ahead(&self) -> u64 {
        self.ahead.as_ref().map_or(0, |ahead| ahead.said)
    }

    /// Pages that are at memory servers ahead of the guest.
    pub(crate) fn kept_ahead(&self) -> u64 {
        self.ahead.as_ref().map_or(0, |ahead| ahead.kept)
    }

    /// What is here of these chunks, as far as it can go ahead.
    pub(crate) fn candidates(&self, chunks: Range<u64>) -> Vec<Candidate> {
        let all = chunks.map(ChunkNo).filter_map(|chunk| {
            let pages = self.places.local_in(chunk);
            let is_there = self.places.sub_with(chunk);
            if pages == 0 || is_there.is_some_and(|sub| self.leaves(sub)) {
                return None;
            }
            let (rank, is_away) = (self.victims.rank(chunk), self.is_away(chunk));
            Some(Candidate { chunk, pages, rank, is_away })
        });
        all.collect()
    }

    /// A chunk is to go ahead, if a memory server has room for it, or is not to any more.
    pub(crate) fn set_away(&mut self, chunk: ChunkNo, is_away: bool, orders: &mut Vec<Order>) {
        if is_away == self.is_away(chunk) {
            return;
        }
        let is_there = self.places.sub_with(chunk);
        let to = match is_away {
            true => is_there.or_else(|| self.roomiest()),
            false => Some(self.places.sub_there(chunk)),
        };
        let (Some(to), Some(ahead)) = (to, &mut self.ahead) else { return };
        ahead.set_away(chunk, is_away);
        if is_away {
            self.places.assign(chunk, to);
            if is_there.is_none() {
                self.uses(to);
            }
            return;
        }
        let pages = self.places.geometry().pages_of(chunk).map(PageNo);
        let dropped: Vec<(PageNo, Version)> =
            pages.filter_map(|page| self.not_there(page)).collect();
        orders.push(Order { to, frame: Frame::Drop(dropped) });
        self.may_be_free(chunk, to);
    }

    /// What memory servers may have of a page that is nowhere else than here is not the page: gives
    /// what is to be dropped.
    fn not_there(&mut self, page: PageNo) -> Option<(PageNo, Version)> {
        if let Some(ahead) = &mut self.ahead {
            ahead.set(page, There::No);
        }
        match self.places.place(page)? {
            Place::Virgin | Place::Local => Some((page, self.places.version(page)?)),
            Place::Leaving { .. } | Place::Remote { .. } | Place::Coming { .. } => None,
        }
    }

    /// Sends what is here of a chunk, and is not there, ahead of the guest, if there is a connection.
    ///
    /// # Errors
    /// When the guest's memory cannot be read.
    pub(crate) fn send_ahead(&mut self, chunk: ChunkNo) -> Result<Vec<Order>, PagerError> {
        let to = self.places.sub_there(chunk);
        if !self.is_away(chunk) || !self.sub(to).is_some_and(|sub| sub.is_connected) {
            return Ok(Vec::new());
        }
        let mut pages = Vec::new();
        for page in self.places.geometry().pages_of(chunk).map(PageNo) {
            if self.there(page) != There::No {
                continue;
            }
            // written down before it is said: no other copy has this version
            let Some(version) = self.places.ahead(page) else { continue };
            if let Some(ahead) = &mut self.ahead {
                ahead.set(page, There::Said);
            }
            pages.push((page, version));
        }
        let read = |first, bytes: &mut _| self.memory.pages(first, bytes);
        let frames = frames(self.places.geometry(), &pages, read)?;
        Ok(frames.into_iter().map(|frame| Order { to, frame }).collect())
    }

    /// A page was written to, or has left: what memory servers have is not it any more.
    pub(crate) fn is_stale_ahead(&mut self, page: PageNo) {
        if let Some(ahead) = &mut self.ahead {
            ahead.set(page, There::No);
        }
    }

    /// What the guest has given back, and nobody has told yet, is not what memory servers have.
    ///
    /// # Errors
    /// When the guest's memory cannot be looked at.
    pub(crate) fn look_for_holes(&mut self) -> Result<(), PagerError> {
        let mut next = 0;
        let end = self.places.geometry().pages();
        for here in self.memory.here()?.into_iter().chain(std::iter::once(end..end)) {
            (next..here.start).for_each(|page| self.is_stale_ahead(PageNo(page)));
            next = here.end;
        }
        Ok(())
    }

    /// The guest has given a page back that may have been sent ahead.
    pub(super) fn given_back_ahead(&mut self, page: PageNo, orders: &mut Vec<Order>) {
        if self.there(page) == There::No {
            return;
        }
        let to = self.places.sub_there(self.places.geometry().chunk_of(page));
        let dropped = self.not_there(page).into_iter().collect();
        orders.push(Order { to, frame: Frame::Drop(dropped) });
    }

    /// A memory server has a page in this version. Gives whether it was sent there ahead, and is the
    /// page still.
    pub(super) fn has_ahead(&mut self, page: PageNo, at: SubNo, version: Version) -> bool {
        let is_it = self.there(page) != There::No
            && self.places.place(page) == Some(Place::Local)
            && self.places.version(page) == Some(version)
            && self.places.sub_there(self.places.geometry().chunk_of(page)) == at;
        if let Some(ahead) = self.ahead.as_mut().filter(|_| is_it) {
            ahead.set(page, There::Kept);
        }
        is_it
    }

    /// What was sent ahead to a memory server is there or not: it is about to list what it has.
    pub(super) fn doubt_ahead(&mut self, at: SubNo) {
        self.change_ahead(at, There::Kept, There::Said);
    }

    /// It has listed all.
    pub(super) fn listed_ahead(&mut self, at: SubNo) {
        self.change_ahead(at, There::Said, There::No);
    }

    fn change_ahead(&mut self, at: SubNo, from: There, to: There) {
        let Some(ahead) = &mut self.ahead else { return };
        let geometry = self.places.geometry();
        for chunk in (0..geometry.chunks()).map(ChunkNo) {
            if !ahead.is_away(chunk) || self.places.sub_there(chunk) != at {
                continue;
            }
            for page in geometry.pages_of(chunk).map(PageNo) {
                if ahead.get(page) == from {
                    ahead.set(page, to);
                }
            }
        }
    }

    /// Of these pages, those that are to be at memory servers as they are, and are not.
    pub(crate) fn late_ahead(&self, pages: Range<u64>) -> u64 {
        pages.map(PageNo).filter(|&page| self.is_wanted_ahead(page, There::Kept)).count() as u64
    }

    /// Of these pages, the chunks of which some are to be sent ahead, and were not as they are.
    pub(crate) fn lacks_ahead(&self, pages: Range<u64>) -> Vec<ChunkNo> {
        let pages = pages.map(PageNo);
        let lacks = pages.filter(|&page| {
            self.there(page) == There::No && self.is_wanted_ahead(page, There::Said)
        });
        let mut chunks: Vec<ChunkNo> =
            lacks.map(|page| self.places.geometry().chunk_of(page)).collect();
        chunks.dedup();
        chunks
    }

    /// Whether a page is to be at a memory server as it is, and is not so far.
    fn is_wanted_ahead(&self, page: PageNo, so_far: There) -> bool {
        self.there(page) != so_far
            && self.is_away(self.places.geometry().chunk_of(page))
            && self.places.place(page) == Some(Place::Local)
    }

    /// Whether there is a connection to each memory server that chunks go ahead to.
    pub(crate) fn reaches_ahead(&self) -> bool {
        let all = (0..self.places.geometry().chunks()).map(ChunkNo);
        let mut away = all.filter(|&chunk| self.is_away(chunk));
        away.all(|chunk| {
            let sub = usize::from(self.places.sub_there(chunk).0);
            self.subs.get(sub).is_some_and(|sub| sub.is_connected)
        })
    }
}
