// SPDX-License-Identifier: Apache-2.0
//! What the pager does when something happens. It waits for nothing: what it has to say is an
//! [`Order`] for whoever has the connections.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use mint_split::{
    Answer, ChunkNo, Frame, PAGE, PageNo, Pages, Place, Places, ServerView, SubNo, Version, Victims,
};

use crate::memory::Memory;

mod ahead;
mod chunks;
mod drain;
mod fresh;
mod held;
mod leave;
mod out;
mod prefetch;
mod room;
mod send_ahead;
mod streak;

use ahead::Ahead;
pub(crate) use ahead::choose;
use drain::Drain;
use out::frames;
pub use room::{Budget, PagerError, Sub};
use room::{SubState, room};
use streak::Streak;

/// What is to be said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    /// To whom. If there is no connection, nothing is lost: [`Pager::connected`] says it again.
    pub to: SubNo,
    /// What.
    pub frame: Frame,
}

/// The guest cannot run on as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Who should have them.
    pub at: SubNo,
    /// Pages that are nowhere any more.
    pub lost: Vec<PageNo>,
}

/// The pager of one guest.
pub struct Pager<'a, M, V> {
    places: Places<'a>,
    memory: M,
    victims: V,
    budget: Budget,
    subs: Vec<SubState>,
    /// Pages that somebody waits for and that there is no room for yet.
    waiting: VecDeque<PageNo>,
    /// Faults that follow each other.
    streak: Streak,
    /// Pages that are coming because somebody waits for them.
    wanted: BTreeSet<PageNo>,
    /// What comes to go elsewhere.
    drain: Drain,
    /// The guest is between two main hosts.
    is_held: bool,
    /// Of a guest that goes: what goes ahead of it.
    ahead: Option<Ahead>,
    done: Done,
}

/// What a pager has done since it began.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Done {
    /// How often somebody waited for a page.
    pub faults: u64,
    /// Pages that came from memory servers.
    pub page_ins: u64,
    /// Pages that were taken out.
    pub page_outs: u64,
    /// Chunks that were asked for before anybody waited for them.
    pub prefetches: u64,
}

impl<'a, M: Memory, V: Victims> Pager<'a, M, V> {
    /// For a guest whose pages are where these places say, which may be of a pager before.
    ///
    /// # Errors
    /// When there is not room for all of its memory.
    pub fn new(
        places: Places<'a>,
        memory: M,
        victims: V,
        budget: Budget,
        subs: &[Sub],
    ) -> Result<Self, PagerError> {
        let geometry = places.geometry();
        room(geometry, budget, subs)?;
        let subs = subs.iter().map(|sub| SubState::new(sub, geometry.chunk_pages())).collect();
        let (waiting, wanted, done) = (VecDeque::new(), BTreeSet::new(), Done::default());
        let mut pager = Self {
            places,
            memory,
            victims,
            budget,
            subs,
            waiting,
            streak: Streak::default(),
            wanted,
            drain: Drain::default(),
            is_held: false,
            ahead: None,
            done,
        };
        pager.settle()?;
        for chunk in (0..geometry.chunks()).map(ChunkNo) {
            if pager.places.local_in(chunk) > 0 {
                pager.victims.came(chunk);
            }
            if let Some(sub) = pager.places.sub_with(chunk) {
                pager.uses(sub);
            }
        }
        Ok(pager)
    }

    /// What was written down follows what is there: the pager before may have died between one
    /// and the other, and the guest may have had pages before there was one.
    fn settle(&mut self) -> Result<(), PagerError> {
        let (here, copies) = (self.memory.here()?, self.memory.copies()?);
        let is_in = |ranges: &[Range<u64>], page: PageNo| {
            let after = ranges.partition_point(|range| range.end <= page.0);
            ranges.get(after).is_some_and(|range| range.contains(&page.0))
        };
        let mut lost = Vec::new();
        for page in (0..self.places.geometry().pages()).map(PageNo) {
            let place = self.places.place(page);
            let has_copy = is_in(&copies, page);
            if is_in(&here, page) {
                self.places.found(page);
            } else if place == Some(Place::Local) {
                // the guest has given it back
                self.places.given_back(page);
            }
            match self.places.place(page) {
                Some(Place::Leaving { .. }) if !has_copy => lost.push(page),
                Some(Place::Leaving { .. }) => {}
                _ if has_copy => self.memory.drop_copy(page)?,
                _ => {}
            }
        }
        if lost.is_empty() { Ok(()) } else { Err(PagerError::Copies(lost)) }
    }

    /// Where everything is.
    #[must_use]
    pub fn places(&self) -> &Places<'a> {
        &self.places
    }

    /// What it has done.
    #[must_use]
    pub fn done(&self) -> Done {
        self.done
    }

    /// Each memory server.
    pub fn servers(&self) -> impl Iterator<Item = ServerView> {
        self.subs
            .iter()
            .map(|sub| ServerView { chunks: sub.used_chunks, is_connected: sub.is_connected })
    }

    /// What goes next, and why.
    #[must_use]
    pub fn victims(&self) -> &V {
        &self.victims
    }

    /// The same, to tell it what is used.
    pub fn victims_mut(&mut self) -> &mut V {
        &mut self.victims
    }

    /// The guest's memory.
    #[must_use]
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Somebody waits for a page.
    ///
    /// # Errors
    /// When the guest's memory cannot be changed.
    pub fn fault(&mut self, page: PageNo) -> Result<Vec<Order>, PagerError> {
        let mut orders = Vec::new();
        self.done.faults += 1;
        self.serve(page, &mut orders)?;
        Ok(orders)
    }

    /// Makes room for what comes, and lets in who waits for some: to be called after
    /// [`Pager::fault`], whose orders need not wait for it.
    ///
    /// # Errors
    /// When the guest's memory cannot be changed.
    pub fn make_room_again(&mut self) -> Result<Vec<Order>, PagerError> {
        let mut orders = Vec::new();
        self.balance(&mut orders)?;
        Ok(orders)
    }

    /// The guest has given pages back: they are zeros from now on, wherever they were.
    ///
    /// # Errors
    /// When the guest's memory cannot be changed.
    pub fn given_back(&mut self, pages: Range<u64>) -> Result<Vec<Order>, PagerError> {
        let mut orders = Vec::new();
        for page in pages.map(PageNo) {
            let place = self.places.place(page);
            self.given_back_ahead(page, &mut orders);
            self.wanted.remove(&page);
            self.places.given_back(page);
            let (sub, version) = match place {
                Some(Place::Leaving { to, version }) => {
                    self.memory.drop_copy(page)?;
                    (to, version)
                }
                Some(Place::Remote { at, version }) => (at, version),
                Some(Place::Coming { from, version }) => {
                    // somebody may wait for it
                    self.serve(page, &mut orders)?;
                    (from, version)
                }
                Some(Place::Virgin | Place::Local) | None => continue,
            };
            orders.push(Order { to: sub, frame: Frame::Drop(vec![(page, version)]) });
            self.may_be_free(self.places.geometry().chunk_of(page), sub);
            // nor is it missed in a list
            if let Some(unlisted) = self.sub(sub).and_then(|sub| sub.unlisted.as_mut()) {
                unlisted.remove(&page);
            }
        }
        self.balance(&mut orders)?;
        Ok(orders)
    }

    /// A memory server has said something.
    ///
    /// # Errors
    /// When the guest's memory cannot be changed.
    pub fn heard(
        &mut self,
        from: SubNo,
        frame: Frame,
    ) -> Result<(Vec<Order>, Option<Fault>), PagerError> {
        let mut orders = Vec::new();
        let mut fault = None;
        match frame {
            Frame::Data(pages) => self.came(from, &pages, &mut orders)?,
            Frame::Kept(pages) => {
                for (page, version) in pages {
                    let is_ahead = self.has_ahead(page, from, version);
                    // between two main hosts the copy here is the page: the next one gets it
                    if !is_ahead && !self.is_held && self.places.kept(page, from, version) {
                        self.memory.drop_copy(page)?;
                    }
                }
            }
            Frame::Missing(run) => {
                let lost: Vec<PageNo> = run
                    .pages()
                    .filter(|&page| matches!(self.places.place(page), Some(Place::Coming { from: sub, .. }) if sub == from))
                    .collect();
                fault = (!lost.is_empty()).then_some(Fault { at: from, lost });
            }
            Frame::Listed(pages) => fault = self.listed(from, &pages, &mut orders)?,
            // what a memory server does not say
            _ => {}
        }
        self.balance(&mut orders)?;
        Ok((orders, fault))
    }

    /// There is a connection to a memory server, which has said welcome. It is asked for what it
    /// has; when that is told, all that was said and not answered is said again.
    pub fn connected(&mut self, to: SubNo) -> Vec<Order> {
        let all = (0..self.places.geometry().pages()).map(PageNo);
        let should: BTreeSet<PageNo> = all
            .filter(|&page| match self.places.place(page) {
                Some(Place::Remote { at: sub, .. } | Place::Coming { from: sub, .. }) => sub == to,
                _ => false,
            })
            .collect();
        self.doubt_ahead(to);
        let Some(sub) = self.sub(to) else { return Vec::new() };
        sub.is_connected = true;
        sub.unlisted = Some(should);
        vec![Order { to, frame: Frame::List }]
    }

    /// The connection has ended.
    pub fn disconnected(&mut self, from: SubNo) {
        if let Some(sub) = self.sub(from) {
            sub.is_connected = false;
            sub.unlisted = None;
        }
    }

    fn sub(&mut self, sub: SubNo) -> Option<&mut SubState> {
        self.subs.get_mut(usize::from(sub.0))
    }

    fn uses(&mut self, sub: SubNo) {
        if let Some(sub) = self.sub(sub) {
            sub.used_chunks += 1;
        }
    }

    /// Pages of a chunk are here that were not.
    fn has_come(&mut self, chunk: ChunkNo, from: SubNo) {
        self.victims.came(chunk);
        self.may_be_free(chunk, from);
    }

    /// A memory server has a page less of a chunk, and may have nothing of it any more.
    fn may_be_free(&mut self, chunk: ChunkNo, from: SubNo) {
        if self.places.sub_with(chunk).is_none() && !self.is_away(chunk) {
            if let Some(sub) = self.sub(from) {
                sub.used_chunks = sub.used_chunks.saturating_sub(1);
            }
        }
    }

    /// Whether a chunk more may come.
    fn has_room(&self) -> bool {
        self.is_held || self.places.counts().resident() <= self.budget.pages
    }

    fn serve(&mut self, page: PageNo, orders: &mut Vec<Order>) -> Result<(), PagerError> {
        let mut place = self.places.place(page);
        // given back, and not told yet
        if place == Some(Place::Local) && !self.memory.is_here(page)? {
            self.given_back_ahead(page, orders);
            self.places.given_back(page);
            place = Some(Place::Virgin);
        }
        let comes = matches!(place, Some(Place::Virgin | Place::Remote { .. }));
        if comes && !self.has_room() {
            if !self.waiting.contains(&page) {
                self.waiting.push_back(page);
            }
            return Ok(());
        }
        match self.places.fault(page) {
            // no page of the guest: nobody can wait for it
            None => {}
            Some(Answer::Wait) => {
                // it comes for itself from now on
                let chunk = self.places.geometry().chunk_of(page);
                self.drain.chunks.remove(&chunk);
                self.follow_fault(chunk);
                self.wanted.insert(page);
            }
            Some(Answer::Wake) => self.memory.wake(page)?,
            Some(Answer::Zero) => self.fill_fresh(page)?,
            Some(Answer::PutBack { to, version }) => {
                let mut bytes = [0; PAGE];
                self.memory.copy(page, &mut bytes)?;
                self.memory.fill(page, Some(&bytes))?;
                self.places.filled(page);
                self.memory.drop_copy(page)?;
                self.has_come(self.places.geometry().chunk_of(page), to);
                orders.push(Order { to, frame: Frame::Drop(vec![(page, version)]) });
            }
            Some(Answer::Fetch { from, runs }) => {
                self.follow_fault(self.places.geometry().chunk_of(page));
                self.wanted.insert(page);
                orders
                    .extend(runs.into_iter().map(|run| Order { to: from, frame: Frame::In(run) }));
            }
        }
        Ok(())
    }

    fn came(
        &mut self,
        from: SubNo,
        pages: &Pages,
        orders: &mut Vec<Order>,
    ) -> Result<(), PagerError> {
        let mut here = Vec::new();
        let each: Vec<_> = pages.each().collect();
        let mut each = &each[..];
        for (run, bytes) in pages.runs() {
            let (its, others) = each.split_at(run.pages().count().min(each.len()));
            each = others;
            let wanted = |(page, version, _): &(PageNo, Version, _)| {
                self.places.is_wanted(*page, from, *version)
            };
            match bytes {
                Some(bytes) if its.iter().all(wanted) => self.memory.fill_all(run.first, bytes)?,
                _ => {
                    for (page, _, bytes) in its.iter().filter(|each| wanted(each)) {
                        self.memory.fill(*page, *bytes)?;
                    }
                }
            }
        }
        for (page, version, _) in pages.each() {
            if !self.places.is_wanted(page, from, version) {
                continue;
            }
            self.places.arrived(page);
            if !self.wanted.remove(&page) {
                self.victims.came_unasked(page);
            }
            self.done.page_ins += 1;
            here.push((page, version));
        }
        if !here.is_empty() {
            let chunk = self.places.geometry().chunk_of(pages.first);
            self.has_come(chunk, from);
            orders.push(Order { to: from, frame: Frame::Drop(here) });
            self.pass_on(chunk, orders)?;
        }
        Ok(())
    }

    /// Part of what a memory server has; the empty one is the last.
    fn listed(
        &mut self,
        from: SubNo,
        pages: &[(PageNo, Version)],
        orders: &mut Vec<Order>,
    ) -> Result<Option<Fault>, PagerError> {
        let mut unneeded = Vec::new();
        for &(page, version) in pages {
            if self.places.needs(page, from, version) {
                if let Some(unlisted) = self.sub(from).and_then(|sub| sub.unlisted.as_mut()) {
                    unlisted.remove(&page);
                }
            } else if !self.has_ahead(page, from, version) {
                unneeded.push((page, version));
            }
        }
        if !unneeded.is_empty() {
            orders.push(Order { to: from, frame: Frame::Drop(unneeded) });
        }
        if !pages.is_empty() {
            return Ok(None);
        }
        let Some(unlisted) = self.sub(from).and_then(|sub| sub.unlisted.take()) else {
            return Ok(None);
        };
        self.listed_ahead(from);
        if !unlisted.is_empty() {
            return Ok(Some(Fault { at: from, lost: unlisted.into_iter().collect() }));
        }
        let leaving = self.places.leaving_for(from);
        self.send(from, &leaving, orders)?;
        // who waits for one of them is not known: somebody may wait for each
        for page in self.places.not_coming(from) {
            self.waiting.push_back(page);
        }
        Ok(None)
    }

    /// Makes room, and lets in who waits for some.
    fn balance(&mut self, orders: &mut Vec<Order>) -> Result<(), PagerError> {
        self.make_room(orders)?;
        for _ in 0..self.waiting.len() {
            if !self.has_room() {
                break;
            }
            if let Some(page) = self.waiting.pop_front() {
                self.serve(page, orders)?;
            }
            self.make_room(orders)?;
        }
        self.prefetch(orders)?;
        self.go_on_draining(orders)
    }

    /// Whether a chunk more may be on its way to memory servers.
    fn may_leave(&self) -> bool {
        let chunk = self.places.geometry().chunk_pages();
        !self.is_held && self.places.counts().leaving + chunk <= self.budget.leaving_pages
    }

    /// Takes chunks out until what is left, and is leaving, is within the budget.
    fn make_room(&mut self, orders: &mut Vec<Order>) -> Result<(), PagerError> {
        let stays = self.budget.pages - self.budget.leaving_pages;
        // each is looked at once: those that cannot go now can later
        let mut looked_at = Vec::new();
        loop {
            let counts = self.places.counts();
            let is_enough = counts.local + counts.coming <= stays;
            if is_enough || !self.may_leave() {
                break;
            }
            let Some(chunk) = self.victims.next() else { break };
            if !self.take_out(chunk, orders)? {
                looked_at.push(chunk);
            }
        }
        for chunk in looked_at {
            if self.places.local_in(chunk) > 0 {
                self.victims.came(chunk);
            }
        }
        Ok(())
    }

    /// Takes out what is here of a chunk; gives whether something went.
    fn take_out(&mut self, chunk: ChunkNo, orders: &mut Vec<Order>) -> Result<bool, PagerError> {
        let mut pages = self.places.geometry().pages_of(chunk).map(PageNo);
        // it has just been asked for
        if pages.any(|page| matches!(self.places.place(page), Some(Place::Coming { .. }))) {
            return Ok(false);
        }
        let is_ahead = self.is_away(chunk).then(|| self.places.sub_there(chunk));
        let is_there = self.places.sub_with(chunk).or(is_ahead);
        // the rest of it comes first, if there is room for that
        if is_there.is_some_and(|sub| self.leaves(sub)) && self.has_room() {
            return Ok(false);
        }
        let Some(to) = is_there.or_else(|| self.roomiest()) else { return Ok(false) };
        // what the guest has given back does not go: without a copy it would be taken for lost
        for page in self.places.geometry().pages_of(chunk).map(PageNo) {
            if self.places.place(page) == Some(Place::Local) && !self.memory.is_here(page)? {
                self.given_back_ahead(page, orders);
                self.places.given_back(page);
            }
        }
        // written down before they go: a copy without a page that is leaving is nobody's
        let leaving = self.places.leave(chunk, to);
        let asked: Vec<PageNo> = leaving.iter().map(|&(page, _)| page).collect();
        // its version is another one now, also of what stays
        asked.iter().for_each(|&page| self.is_stale_ahead(page));
        let gone: BTreeSet<PageNo> = self.memory.take_out(&asked)?.into_iter().collect();
        for page in asked.iter().filter(|page| !gone.contains(page)) {
            if self.memory.is_here(*page)? {
                self.places.found(*page);
            } else {
                self.places.given_back(*page);
            }
        }
        let gone: Vec<(PageNo, Version)> =
            leaving.into_iter().filter(|(page, _)| gone.contains(page)).collect();
        self.done.page_outs += gone.len() as u64;
        if is_there.is_none() && !gone.is_empty() {
            self.uses(to);
        }
        self.send(to, &gone, orders)?;
        Ok(!gone.is_empty())
    }

    /// Where a chunk goes that is all here: one with a connection, and then the most room.
    fn roomiest(&self) -> Option<SubNo> {
        let room = |sub: &SubState| sub.room_chunks.saturating_sub(sub.used_chunks);
        let has_some = |state: &SubState| room(state) > 0 && !state.leaves;
        let subs = (0..).map(SubNo).zip(&self.subs).filter(|(_, state)| has_some(state));
        subs.max_by_key(|(sub, state)| (state.is_connected, room(state), Reverse(*sub)))
            .map(|(sub, _)| sub)
    }

    /// Says these pages, whose copies are there, one run of a chunk after the other.
    fn send(
        &self,
        to: SubNo,
        pages: &[(PageNo, Version)],
        orders: &mut Vec<Order>,
    ) -> Result<(), PagerError> {
        let read = |first, bytes: &mut _| self.memory.copied(first, bytes);
        let frames = frames(self.places.geometry(), pages, read)?;
        orders.extend(frames.into_iter().map(|frame| Order { to, frame }));
        Ok(())
    }
}

#[cfg(test)]
#[path = "tests/pager.rs"]
mod tests;
