// SPDX-License-Identifier: Apache-2.0
//! The location database against a guest, a sub host and a wire that are played: random faults,
//! page-outs, deliveries and broken connections. What the guest reads is what it wrote last.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::geometry::PAGE_BYTES;

const PAGES: u64 = 10;
const SUB: SubNo = SubNo(0);

/// Of what happens, the part that is chosen.
#[derive(Clone, Debug)]
enum Event {
    /// The guest reads, compares, writes.
    Touch(u64),
    /// A chunk is taken out.
    Leave(u64),
    /// The oldest frame to the sub host arrives.
    ToSub,
    /// The oldest frame to the main host arrives.
    ToMain,
    /// Of what is on its way the frames with these bits arrive late, the others never; both say
    /// everything again.
    Cut(u64),
    /// The oldest frame of those arrives.
    Late,
}

/// On its way: to the sub host, or back.
#[derive(Clone, Debug)]
enum Said {
    Out(u64, Version, u64),
    In(u64),
    Drop(u64, Version),
    Kept(u64, Version),
    Data(u64, Version, u64),
}

/// All of it.
struct World {
    words: Vec<u32>,
    subs: Vec<u16>,
    /// The guest's memory: what is in a page; none: a hole.
    memory: BTreeMap<u64, u64>,
    /// Copies that are leaving.
    copies: BTreeMap<u64, u64>,
    /// What the sub host has.
    store: BTreeMap<u64, (Version, u64)>,
    to_sub: VecDeque<Said>,
    to_main: VecDeque<Said>,
    /// Of connections that have ended.
    late: VecDeque<Said>,
    /// What the guest wrote last.
    wrote: BTreeMap<u64, u64>,
    /// Pages that it waits for.
    waits: BTreeSet<u64>,
    clock: u64,
}

impl World {
    fn new() -> Self {
        Self {
            words: vec![0; 10],
            subs: vec![0; 3],
            memory: BTreeMap::new(),
            copies: BTreeMap::new(),
            store: BTreeMap::new(),
            to_sub: VecDeque::new(),
            to_main: VecDeque::new(),
            late: VecDeque::new(),
            wrote: BTreeMap::new(),
            waits: BTreeSet::new(),
            clock: 0,
        }
    }

    /// The database, opened anew each time as after a restart.
    fn places<T>(&mut self, with: impl FnOnce(&mut Places<'_>) -> T) -> T {
        let geometry = Geometry::new(PAGES * PAGE_BYTES, 4 * PAGE_BYTES).unwrap();
        let mut places = Places::open(geometry, &mut self.words, &mut self.subs).unwrap();
        let done = with(&mut places);
        let counted = places.counts();
        let again = Places::open(geometry, &mut self.words, &mut self.subs).unwrap().counts();
        assert_eq!(counted, again, "the counts are those of the pages");
        done
    }

    fn write(&mut self, page: u64) {
        let found = self.memory.get(&page).copied();
        assert_eq!(found, Some(self.wrote.get(&page).copied().unwrap_or(0)), "page {page}");
        self.clock += 1;
        self.memory.insert(page, self.clock);
        self.wrote.insert(page, self.clock);
        self.waits.remove(&page);
    }

    fn fault(&mut self, page: u64) {
        match self.places(|places| places.fault(PageNo(page))).unwrap() {
            Answer::Wake => self.write(page),
            Answer::Zero => {
                self.memory.insert(page, 0);
                assert!(self.places(|places| places.filled(PageNo(page))));
                self.write(page);
            }
            Answer::PutBack { to, version } => {
                assert_eq!(to, SUB);
                let copy = self.copies.remove(&page).unwrap();
                self.memory.insert(page, copy);
                assert!(self.places(|places| places.filled(PageNo(page))));
                self.to_sub.push_back(Said::Drop(page, version));
                self.write(page);
            }
            Answer::Fetch { from, runs } => {
                assert_eq!((from, runs[0]), (SUB, PageRun { first: PageNo(page), count: 1 }));
                self.waits.insert(page);
                let pages = runs.into_iter().flat_map(PageRun::pages);
                self.to_sub.extend(pages.map(|page| Said::In(page.0)));
            }
            Answer::Wait => _ = self.waits.insert(page),
        }
    }

    fn send_out(&mut self, pages: Vec<(PageNo, Version)>) {
        for (page, version) in pages {
            let copy = self.copies[&page.0];
            self.to_sub.push_back(Said::Out(page.0, version, copy));
        }
    }

    fn at_sub(&mut self, said: Said) {
        match said {
            Said::Out(page, version, bytes) => {
                let stored = self.store.get(&page).map(|(version, _)| *version);
                if stored < Some(version) {
                    self.store.insert(page, (version, bytes));
                }
                self.to_main.push_back(Said::Kept(page, version));
            }
            Said::In(page) => {
                if let Some(&(version, bytes)) = self.store.get(&page) {
                    self.to_main.push_back(Said::Data(page, version, bytes));
                }
            }
            Said::Drop(page, version) => {
                if self.store.get(&page).is_some_and(|(has, _)| *has <= version) {
                    self.store.remove(&page);
                }
            }
            Said::Kept(..) | Said::Data(..) => unreachable!("said to the other side"),
        }
    }

    fn at_main(&mut self, said: Said) {
        match said {
            Said::Kept(page, version) => {
                if self.places(|places| places.kept(PageNo(page), SUB, version)) {
                    self.copies.remove(&page);
                }
            }
            Said::Data(page, version, bytes) => {
                if self.places(|places| places.is_wanted(PageNo(page), SUB, version)) {
                    assert_eq!(self.memory.insert(page, bytes), None, "a page is at one place");
                    assert!(self.places(|places| places.arrived(PageNo(page))));
                    self.to_sub.push_back(Said::Drop(page, version));
                    if self.waits.contains(&page) {
                        self.write(page);
                    }
                }
            }
            Said::Out(..) | Said::In(..) | Said::Drop(..) => unreachable!("said to the other side"),
        }
    }

    fn happens(&mut self, event: &Event) {
        match *event {
            Event::Touch(page) if self.memory.contains_key(&page) => self.write(page),
            Event::Touch(page) => self.fault(page),
            Event::Leave(chunk) => {
                let gone = self.places(|places| places.leave(ChunkNo(chunk), SUB));
                for (page, _) in &gone {
                    let bytes = self.memory.remove(&page.0).unwrap();
                    self.copies.insert(page.0, bytes);
                }
                self.send_out(gone);
            }
            Event::ToSub => {
                if let Some(said) = self.to_sub.pop_front() {
                    self.at_sub(said);
                }
            }
            Event::ToMain => {
                if let Some(said) = self.to_main.pop_front() {
                    self.at_main(said);
                }
            }
            Event::Late => _ = self.late(),
            Event::Cut(late) => {
                for way in [&mut self.to_sub, &mut self.to_main] {
                    let said = way.drain(..).enumerate();
                    let kept = said.filter(|(frame, _)| late >> (frame % 64) & 1 == 1);
                    self.late.extend(kept.map(|(_, said)| said));
                }
                // what the sub host has and nobody needs, as it lists it
                let listed: Vec<(u64, Version)> =
                    self.store.iter().map(|(&page, &(version, _))| (page, version)).collect();
                for (page, version) in listed {
                    if !self.places(|places| places.needs(PageNo(page), SUB, version)) {
                        self.to_sub.push_back(Said::Drop(page, version));
                    }
                }
                let leaving = self.places(|places| places.leaving_for(SUB));
                self.send_out(leaving);
                for page in self.places(|places| places.not_coming(SUB)) {
                    self.fault_again(page.0);
                }
            }
        }
    }

    fn late(&mut self) -> bool {
        match self.late.pop_front() {
            Some(said @ (Said::Out(..) | Said::In(..) | Said::Drop(..))) => self.at_sub(said),
            Some(said) => self.at_main(said),
            None => return false,
        }
        true
    }

    /// As if somebody waited for it: nobody may.
    fn fault_again(&mut self, page: u64) {
        let waits = self.waits.clone();
        self.fault(page);
        self.waits = waits;
    }

    fn settle(&mut self) {
        while !self.to_sub.is_empty() || !self.to_main.is_empty() {
            self.happens(&Event::ToSub);
            self.happens(&Event::ToMain);
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..PAGES).prop_map(Event::Touch),
        3 => (0..3u64).prop_map(Event::Leave),
        5 => Just(Event::ToSub),
        5 => Just(Event::ToMain),
        1 => any::<u64>().prop_map(Event::Cut),
        1 => Just(Event::Late),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn guest_reads_what_it_wrote_whatever_happens(events in proptest::collection::vec(event(), 1..200)) {
        let mut world = World::new();
        for event in &events {
            world.happens(event);
        }
        world.settle();
        prop_assert!(world.waits.is_empty(), "{:?} never came", world.waits);
        for page in 0..PAGES {
            if !world.memory.contains_key(&page) {
                world.happens(&Event::Touch(page));
                world.settle();
            }
            prop_assert_eq!(world.memory.get(&page).copied(), world.wrote.get(&page).copied());
        }
        // all is here now, and once the sub host has listed what came late nothing anywhere else
        while world.late() {}
        world.happens(&Event::Cut(0));
        world.settle();
        let counts = world.places(|places| places.counts());
        prop_assert_eq!((counts.local, counts.resident()), (PAGES, PAGES));
        prop_assert!(world.store.is_empty() && world.copies.is_empty(), "{:?}", world.store);
    }
}

fn small(words: &mut [u32; 8], subs: &mut [u16; 2], with: impl FnOnce(&mut Places<'_>)) {
    let geometry = Geometry::new(8 * PAGE_BYTES, 4 * PAGE_BYTES).unwrap();
    with(&mut Places::open(geometry, words, subs).unwrap());
}

#[test]
fn faulting_page_is_asked_for_first_and_the_rest_of_its_chunk_after_it() {
    small(&mut [0; 8], &mut [0; 2], |places| {
        for page in [0, 1, 3, 5] {
            assert_eq!(places.fault(PageNo(page)), Some(Answer::Zero));
            assert!(places.filled(PageNo(page)) && !places.filled(PageNo(page)));
        }
        let gone = places.leave(ChunkNo(0), SubNo(7));
        assert_eq!(gone, [0, 1, 3].map(|page| (PageNo(page), Version(1))));
        assert_eq!(
            places.counts(),
            Counts { virgin: 4, local: 1, leaving: 3, ..Counts::default() }
        );
        for (page, version) in gone {
            assert!(!places.kept(page, SubNo(6), version), "another one says so");
            assert!(!places.kept(page, SubNo(7), Version(2)), "a version that never was");
            assert!(places.kept(page, SubNo(7), version));
        }
        let run = |first, count| PageRun { first: PageNo(first), count };
        let runs = vec![run(3, 1), run(0, 2)];
        assert_eq!(places.fault(PageNo(3)), Some(Answer::Fetch { from: SubNo(7), runs }));
        assert_eq!(places.fault(PageNo(0)), Some(Answer::Wait));
        // pages of the chunk are elsewhere: what goes now goes there, too
        assert!(places.arrived(PageNo(3)));
        assert_eq!(places.leave(ChunkNo(0), SubNo(1)), [(PageNo(3), Version(2))]);
        assert_eq!(
            places.place(PageNo(3)),
            Some(Place::Leaving { to: SubNo(7), version: Version(2) })
        );
    });
}

#[test]
fn page_with_the_last_version_stays() {
    let mut words = [0; 8];
    words[2] = State::Local.word(Version::MAX);
    small(&mut words, &mut [0; 2], |places| {
        assert_eq!(places.leave(ChunkNo(0), SUB), []);
        assert_eq!(places.place(PageNo(2)), Some(Place::Local));
    });
}

#[test]
fn memory_that_is_no_database_is_refused() {
    let geometry = Geometry::new(8 * PAGE_BYTES, 4 * PAGE_BYTES).unwrap();
    let found = Places::open(geometry, &mut [0; 7], &mut [0; 2]).map(|_| ());
    assert_eq!(found, Err(PlacesError::Size { pages: 7, chunks: 2 }));
    let mut words = [0; 8];
    words[5] = 7;
    let found = Places::open(geometry, &mut words, &mut [0; 2]).map(|_| ());
    assert_eq!(found, Err(PlacesError::Word { page: PageNo(5), word: 7 }));
}
