// SPDX-License-Identifier: Apache-2.0
//! The pager with real files of memory servers, a guest and wires that are played: whatever
//! happens in whatever order, the guest reads what it wrote, and never has more than its budget.

#[path = "leaving.rs"]
mod leaving;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;

use mint_split::{Fifo, Geometry, PAGE_BYTES, PageRun};
use mint_store::Kept;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::outbox::put;

const CHUNK: u64 = 4;
const PAGES: u64 = 64;
const BUDGET: Budget = Budget { pages: 20, leaving_pages: 8 };
const SUBS: [SubNo; 2] = [SubNo(0), SubNo(1)];

/// The guest's memory: what is in the first eight bytes of a page.
#[derive(Default)]
struct Fake {
    memory: BTreeMap<u64, u64>,
    copies: BTreeMap<u64, u64>,
    pinned: BTreeSet<u64>,
    /// After so many changes the pager dies: before it makes the last, or after.
    dies_in: Option<(u64, bool)>,
    /// It came with more than it may have.
    may_exceed: bool,
    /// Pages that were filled since the guest has looked.
    filled: BTreeSet<u64>,
}

impl Fake {
    /// Makes a change, unless the pager dies.
    fn change<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> io::Result<T> {
        match self.dies_in.as_mut() {
            Some((0, is_made)) => {
                if *is_made {
                    work(self);
                }
                self.dies_in = None;
                Err(io::Error::other("died"))
            }
            Some((left, _)) => {
                *left -= 1;
                Ok(work(self))
            }
            None => Ok(work(self)),
        }
    }
}

fn ranges<T>(pages: &BTreeMap<u64, T>) -> Vec<Range<u64>> {
    pages.keys().map(|&page| page..page + 1).collect()
}

/// Pages of these chunks, the last of each first: none comes along with another.
fn backwards(chunks: Range<u64>) -> impl Iterator<Item = u64> {
    chunks.flat_map(|chunk| (chunk * CHUNK..(chunk + 1) * CHUNK).rev())
}

fn page_of(value: u64) -> [u8; PAGE] {
    let mut bytes = [0; PAGE];
    bytes[..8].copy_from_slice(&value.to_le_bytes());
    bytes
}

fn value_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

impl Memory for Rc<RefCell<Fake>> {
    fn here(&self) -> io::Result<Vec<Range<u64>>> {
        Ok(ranges(&self.borrow().memory))
    }

    fn copies(&self) -> io::Result<Vec<Range<u64>>> {
        Ok(ranges(&self.borrow().copies))
    }

    fn is_here(&self, page: PageNo) -> io::Result<bool> {
        Ok(self.borrow().memory.contains_key(&page.0))
    }

    fn page(&self, page: PageNo, bytes: &mut [u8; PAGE]) -> io::Result<()> {
        *bytes = page_of(self.borrow().memory.get(&page.0).copied().unwrap_or(0));
        Ok(())
    }

    fn take_out(&mut self, pages: &[PageNo]) -> io::Result<Vec<PageNo>> {
        let mut gone = Vec::new();
        for page in pages {
            let is_hole = !self.borrow().memory.contains_key(&page.0);
            if is_hole || self.borrow().pinned.contains(&page.0) {
                continue;
            }
            self.borrow_mut().change(|fake| {
                let value = fake.memory.remove(&page.0).expect("it is no hole");
                assert_eq!(fake.copies.insert(page.0, value), None, "a page has one copy");
            })?;
            gone.push(*page);
        }
        Ok(gone)
    }

    fn copy(&self, page: PageNo, bytes: &mut [u8; PAGE]) -> io::Result<()> {
        *bytes = page_of(self.borrow().copies[&page.0]);
        Ok(())
    }

    fn drop_copy(&mut self, page: PageNo) -> io::Result<()> {
        self.borrow_mut().change(|fake| {
            assert!(fake.copies.remove(&page.0).is_some(), "there is a copy");
        })
    }

    fn fill(&mut self, page: PageNo, bytes: Option<&[u8]>) -> io::Result<()> {
        self.borrow_mut().change(|fake| {
            let value = bytes.map_or(0, value_of);
            assert_eq!(fake.memory.insert(page.0, value), None, "only a hole is filled");
            fake.filled.insert(page.0);
        })
    }

    fn wake(&mut self, page: PageNo) -> io::Result<()> {
        assert!(self.borrow().memory.contains_key(&page.0));
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum Event {
    Touch(u64),
    ToSub(usize),
    ToMain(usize),
    Cut(usize),
    Connect(usize),
    Pin(u64),
    Unpin(u64),
    /// The guest has no use for a page; of one that is here the pager is told, or is not yet.
    GiveBack(u64, bool),
    /// The pager dies; its successor has the places and the memory.
    Restart,
    /// It dies amid what it does, before or after so many changes of the guest's memory.
    Die(u64, bool),
    /// What a memory server has is to go elsewhere, or it may have some again.
    Leave(usize, bool),
}

/// A memory server and the wire to it.
struct Server {
    kept: Kept,
    _folder: TempDir,
    to_sub: VecDeque<Frame>,
    to_main: VecDeque<Frame>,
    is_connected: bool,
}

struct World {
    geometry: Geometry,
    fake: Rc<RefCell<Fake>>,
    servers: Vec<Server>,
    wrote: BTreeMap<u64, u64>,
    waits: BTreeSet<u64>,
    /// Pages that each memory server may keep, and whether what it has is to go elsewhere.
    subs: [Sub; 2],
    clock: u64,
    /// Pages that came back from a memory server, and the most that were here at once.
    ins: u64,
    most: u64,
    /// The guest is between two main hosts: it stands still.
    is_held: bool,
    /// Pages that it has written to since somebody looked.
    dirty: BTreeSet<u64>,
}

type Played<'a> = Pager<'a, Rc<RefCell<Fake>>, Fifo>;

fn shared_memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

impl World {
    fn new(limits: [u64; 2]) -> Self {
        let geometry = Geometry::new(PAGES * PAGE_BYTES, CHUNK * PAGE_BYTES).unwrap();
        let servers = limits.map(|limit| {
            let folder = shared_memory();
            let kept = Kept::open(folder.path(), "guest", geometry, limit).unwrap();
            let (to_sub, to_main) = Default::default();
            Server { kept, _folder: folder, to_sub, to_main, is_connected: false }
        });
        Self {
            geometry,
            fake: Rc::default(),
            servers: servers.into_iter().collect(),
            wrote: BTreeMap::new(),
            waits: BTreeSet::new(),
            subs: limits.map(|limit_pages| Sub { limit_pages, leaves: false }),
            clock: 0,
            ins: 0,
            most: 0,
            is_held: false,
            dirty: BTreeSet::new(),
        }
    }

    fn pager<'a>(
        &self,
        words: &'a mut [u32],
        subs: &'a mut [u16],
    ) -> Result<Played<'a>, PagerError> {
        let places = Places::open(self.geometry, words, subs).unwrap();
        let fifo = Fifo::new(usize::try_from(self.geometry.chunks()).unwrap());
        Pager::new(places, self.fake.clone(), fifo, BUDGET, &self.subs)
    }

    fn say(&mut self, orders: Vec<Order>) {
        for order in orders {
            let server = &mut self.servers[usize::from(order.to.0)];
            let is_said = !self.is_held || matches!(order.frame, Frame::In(_) | Frame::List);
            if server.is_connected && is_said {
                put(&mut server.to_sub, order.frame);
            }
        }
    }

    /// Who waited for what is here now goes on.
    fn go_on(&mut self) {
        let here = |page: &u64| self.fake.borrow().memory.contains_key(page);
        let served: Vec<u64> = self.waits.iter().copied().filter(here).collect();
        for page in served {
            self.write(page);
        }
        let fake = self.fake.borrow();
        let resident = (fake.memory.len() + fake.copies.len()) as u64;
        assert!(
            self.is_held || fake.may_exceed || resident <= BUDGET.pages + CHUNK,
            "{resident} pages are here"
        );
        self.most = self.most.max(resident);
    }

    fn write(&mut self, page: u64) {
        self.waits.remove(&page);
        self.clock += 1;
        let found = self.fake.borrow_mut().memory.insert(page, self.clock);
        assert_eq!(found, Some(self.wrote.get(&page).copied().unwrap_or(0)), "page {page}");
        self.wrote.insert(page, self.clock);
        self.dirty.insert(page);
    }

    fn cut(&mut self, pager: &mut Played<'_>, number: usize) {
        let server = &mut self.servers[number];
        server.to_sub.clear();
        server.to_main.clear();
        server.is_connected = false;
        pager.disconnected(SUBS[number]);
    }

    /// Everything but a restart. Fails when the pager has died.
    fn happens(&mut self, pager: &mut Played<'_>, event: &Event) -> Result<(), PagerError> {
        match *event {
            Event::Touch(page) => {
                if self.fake.borrow().memory.contains_key(&page) {
                    self.write(page);
                } else {
                    self.waits.insert(page);
                    let mut orders = pager.fault(PageNo(page))?;
                    orders.extend(pager.make_room_again()?);
                    self.say(orders);
                }
            }
            Event::ToSub(number) => {
                let server = &mut self.servers[number];
                if let Some(frame) = server.to_sub.pop_front() {
                    let answers = mint_store::answers(&mut server.kept, frame).unwrap();
                    server.to_main.extend(answers);
                }
            }
            Event::ToMain(number) => {
                if let Some(frame) = self.servers[number].to_main.pop_front() {
                    self.ins += u64::from(matches!(frame, Frame::Data(_)));
                    let (orders, fault) = pager.heard(SUBS[number], frame)?;
                    assert_eq!(fault, None);
                    self.say(orders);
                }
            }
            Event::Cut(number) => self.cut(pager, number),
            Event::Connect(number) => {
                self.cut(pager, number);
                self.servers[number].is_connected = true;
                let orders = pager.connected(SUBS[number]);
                self.say(orders);
            }
            Event::Pin(page) if self.fake.borrow().memory.contains_key(&page) => {
                // a device never has many
                let mut fake = self.fake.borrow_mut();
                if fake.pinned.len() < 3 {
                    fake.pinned.insert(page);
                }
            }
            Event::Pin(_) | Event::Restart => {}
            Event::GiveBack(page, is_told) => {
                let is_here = self.fake.borrow().memory.contains_key(&page);
                if self.fake.borrow().pinned.contains(&page) {
                    return Ok(());
                }
                self.fake.borrow_mut().memory.remove(&page);
                self.wrote.remove(&page);
                if is_told || !is_here {
                    // a pager that dies before it has written that down gives the old page back,
                    // as good as any for who had no use for it
                    let dies_in = self.fake.borrow_mut().dies_in.take();
                    let orders = pager.given_back(page..page + 1)?;
                    self.fake.borrow_mut().dies_in = dies_in;
                    self.say(orders);
                }
            }
            Event::Leave(number, leaves) => {
                let before = self.subs;
                self.subs[number].leaves = leaves;
                match pager.change(&self.subs, BUDGET) {
                    Ok(orders) => self.say(orders),
                    // the others have no room
                    Err(PagerError::Room { .. }) => self.subs = before,
                    Err(error) => return Err(error),
                }
            }
            Event::Unpin(page) => _ = self.fake.borrow_mut().pinned.remove(&page),
            Event::Die(after, is_made) => self.fake.borrow_mut().dies_in = Some((after, is_made)),
        }
        self.go_on();
        // a page that came and has gone at once: who was woken for it waits again
        let filled = std::mem::take(&mut self.fake.borrow_mut().filled);
        for page in filled.intersection(&self.waits.clone()) {
            let mut orders = pager.fault(PageNo(*page))?;
            orders.extend(pager.make_room_again()?);
            self.say(orders);
        }
        Ok(())
    }

    /// That memory server is to have nothing any more, and the others may keep what they may.
    fn leave(&mut self, leaver: usize) -> &[Sub] {
        for (number, sub) in self.subs.iter_mut().enumerate() {
            sub.leaves = number == leaver;
        }
        &self.subs
    }

    fn settle(&mut self, pager: &mut Played<'_>) -> Result<(), PagerError> {
        while self
            .servers
            .iter()
            .any(|server| !server.to_sub.is_empty() || !server.to_main.is_empty())
        {
            for number in 0..SUBS.len() {
                self.happens(pager, &Event::ToSub(number))?;
                self.happens(pager, &Event::ToMain(number))?;
            }
        }
        Ok(())
    }

    /// With whole wires all that was waited for comes, and is what it should be.
    fn check(&mut self, pager: &mut Played<'_>) -> Result<(), PagerError> {
        self.fake.borrow_mut().pinned.clear();
        for number in 0..SUBS.len() {
            self.happens(pager, &Event::Connect(number))?;
        }
        self.settle(pager)?;
        assert!(self.waits.is_empty(), "{:?} never came", self.waits);
        for page in (0..PAGES).chain(0..PAGES) {
            self.happens(pager, &Event::Touch(page))?;
            self.settle(pager)?;
            assert!(
                self.waits.is_empty(),
                "page {page} never came: {:?}",
                pager.places().place(PageNo(page))
            );
        }
        let counts = pager.places().counts();
        assert_eq!((counts.leaving, counts.coming, counts.virgin), (0, 0, 0));
        assert!(counts.local <= BUDGET.pages);
        let at_servers: u64 =
            self.servers.iter().map(|server| server.kept.list().unwrap().len() as u64).sum();
        assert_eq!(at_servers, counts.remote, "each page is at one place");
        assert!(self.fake.borrow().copies.is_empty());
        for ((sub, server), view) in self.subs.iter().zip(&self.servers).zip(pager.servers()) {
            let has = server.kept.list().unwrap();
            assert!(!sub.leaves || (has.is_empty() && view.chunks == 0), "{has:?} did not go");
        }
        Ok(())
    }
}

fn event() -> impl Strategy<Value = Event> {
    let sub = 0..SUBS.len();
    prop_oneof![
        12 => (0..PAGES).prop_map(Event::Touch),
        8 => sub.clone().prop_map(Event::ToSub),
        8 => sub.clone().prop_map(Event::ToMain),
        1 => sub.clone().prop_map(Event::Cut),
        2 => sub.clone().prop_map(Event::Connect),
        1 => (sub, any::<bool>()).prop_map(|(number, leaves)| Event::Leave(number, leaves)),
        1 => (0..PAGES).prop_map(Event::Pin),
        1 => (0..PAGES).prop_map(Event::Unpin),
        1 => (0..PAGES, any::<bool>()).prop_map(|(page, is_told)| Event::GiveBack(page, is_told)),
        1 => Just(Event::Restart),
        1 => (0..20u64, any::<bool>()).prop_map(|(after, is_made)| Event::Die(after, is_made)),
    ]
}

/// All of it, pager after pager; at the end everything is checked. Gives how many pagers there were.
fn play(limits: [u64; 2], events: &[Event]) -> (World, u64) {
    let mut world = World::new(limits);
    let (mut words, mut subs) = (vec![0; 64], vec![0; 16]);
    let (mut left, mut pagers) = (events.iter(), 0);
    loop {
        pagers += 1;
        let mut pager = match world.pager(&mut words, &mut subs) {
            Ok(pager) => pager,
            Err(PagerError::Memory(_)) => continue,
            Err(error) => panic!("{error}"),
        };
        for number in 0..SUBS.len() {
            world.cut(&mut pager, number);
        }
        // the kernel tells who waits once more
        let waits: Vec<Event> = world.waits.iter().copied().map(Event::Touch).collect();
        let told = waits.iter().try_for_each(|event| world.happens(&mut pager, event));
        let went_on = told.and_then(|()| {
            let mut before = left.by_ref().take_while(|event| !matches!(event, Event::Restart));
            before.try_for_each(|event| world.happens(&mut pager, event))
        });
        if went_on.is_ok() && left.len() == 0 && world.check(&mut pager).is_ok() {
            return (world, pagers);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn guest_reads_what_it_wrote_and_stays_within_its_budget(
        limits in prop_oneof![Just([30, 34]), Just([64, 64])],
        events in proptest::collection::vec(event(), 1..400),
    ) {
        let (world, pagers) = play(limits, &events);
        let restarts = events.iter().filter(|event| matches!(event, Event::Restart)).count() as u64;
        prop_assert!(pagers >= restarts);
        // the end alone touches each page twice: more than the budget has gone and come
        prop_assert!(world.ins > 0 && world.most >= BUDGET.pages - BUDGET.leaving_pages);
    }
}

#[path = "asks.rs"]
mod asks;
#[path = "fresh.rs"]
mod fresh;
#[path = "moves.rs"]
mod moves;

/// A pager with both memory servers, and a guest that has touched all of its memory.
fn with_all(work: impl FnOnce(&mut World, &mut Played<'_>)) {
    let limits = [30, 34];
    let mut world = World::new(limits);
    let (mut words, mut subs) = (vec![0; 64], vec![0; 16]);
    let mut pager = world.pager(&mut words, &mut subs).unwrap();
    world.check(&mut pager).unwrap();
    work(&mut world, &mut pager);
}

#[test]
fn pages_that_a_memory_server_has_lost_are_named() {
    with_all(|world, pager| {
        let lost = world.servers[1].kept.list().unwrap();
        for &(page, version) in &lost {
            world.servers[1].kept.drop_pages(&[(page, version)]).unwrap();
        }
        let lost: Vec<PageNo> = lost.into_iter().map(|(page, _)| page).collect();
        // asked for
        let orders = pager.fault(lost[0]).unwrap();
        assert_eq!(
            orders[0],
            Order { to: SUBS[1], frame: Frame::In(PageRun { first: lost[0], count: 1 }) }
        );
        let missing = Frame::Missing(PageRun { first: lost[0], count: 1 });
        let (_, fault) = pager.heard(SUBS[1], missing).unwrap();
        assert_eq!(fault, Some(Fault { at: SUBS[1], lost: vec![lost[0]] }));
        // and all of them, when it is back
        assert_eq!(pager.connected(SUBS[1]), [Order { to: SUBS[1], frame: Frame::List }]);
        let (_, fault) = pager.heard(SUBS[1], Frame::Listed(Vec::new())).unwrap();
        assert_eq!(fault, Some(Fault { at: SUBS[1], lost }));
    });
}

#[test]
fn frame_of_another_memory_server_changes_nothing() {
    with_all(|world, pager| {
        let remote = world.servers[1].kept.list().unwrap()[0].0;
        pager.fault(remote).unwrap();
        pager.make_room_again().unwrap();
        let mut pages = Pages::from(remote);
        pages.push(Version(1), &page_of(666));
        let before = pager.places().counts();
        let (orders, fault) = pager.heard(SUBS[0], Frame::Data(pages)).unwrap();
        assert_eq!((orders, fault, pager.places().counts()), (Vec::new(), None, before));
        assert!(!world.fake.borrow().memory.contains_key(&remote.0));
    });
}

#[test]
fn guest_that_is_larger_than_all_its_hosts_is_refused() {
    let geometry = Geometry::new(PAGES * PAGE_BYTES, CHUNK * PAGE_BYTES).unwrap();
    let (mut words, mut subs) = (vec![0; 64], vec![0; 16]);
    let mut refused = |budget, limit_pages| {
        let places = Places::open(geometry, &mut words, &mut subs).unwrap();
        let fake: Rc<RefCell<Fake>> = Rc::default();
        Pager::new(places, fake, Fifo::new(16), budget, &[Sub { limit_pages, leaves: false }])
            .err()
            .map(|error| error.to_string())
    };
    // two chunks stay: what else there is must have room
    assert_eq!(refused(BUDGET, 56), None);
    let text = "room for chunks of 60 pages in all, for a guest of 64 pages";
    assert_eq!(refused(BUDGET, 55).unwrap(), text);
    let small = Budget { pages: 15, leaving_pages: 4 };
    assert_eq!(
        refused(small, 60).unwrap(),
        "a budget of 15 pages is too small: want four chunks of 4 pages"
    );
}
