// SPDX-License-Identifier: Apache-2.0
//! A guest that goes from main host to main host, or stays after all, with pages that go ahead of
//! it: memory servers, wires and the guest are played as in the pager's own tests.

use super::*;

/// What happens while the guest stands still.
#[derive(Clone, Debug)]
enum Between {
    /// A device of QEMU reads a page.
    Read(u64),
    /// Frames arrive, or connections end or begin.
    Other(Event),
}

fn between() -> impl Strategy<Value = Between> {
    let sub = 0..SUBS.len();
    let other = |event| Between::Other(event);
    prop_oneof![
        6 => (0..PAGES).prop_map(Between::Read),
        6 => sub.clone().prop_map(move |number| other(Event::ToSub(number))),
        6 => sub.clone().prop_map(move |number| other(Event::ToMain(number))),
        1 => sub.clone().prop_map(move |number| other(Event::Cut(number))),
    ]
}

/// What happens before that, to a guest that is about to go.
#[derive(Clone, Debug)]
enum Before {
    /// A chunk is to go ahead, or is not to any more.
    Away(u64, bool),
    /// It is sent, as it is.
    Send(u64),
    /// Somebody looks which pages were written to.
    Look,
    /// The guest's next host has lost what it had: all begins anew.
    Anew,
    /// As ever.
    Other(Event),
}

fn before() -> impl Strategy<Value = Before> {
    let chunks = 0..PAGES / CHUNK;
    prop_oneof![
        4 => (chunks.clone(), prop_oneof![4 => Just(true), 1 => Just(false)])
            .prop_map(|(chunk, is_away)| Before::Away(chunk, is_away)),
        8 => chunks.prop_map(Before::Send),
        2 => Just(Before::Look),
        1 => Just(Before::Anew),
        16 => event().prop_map(Before::Other),
    ]
}

fn leaked(places: (Vec<u32>, Vec<u16>)) -> (&'static mut [u32], &'static mut [u16]) {
    (places.0.leak(), places.1.leak())
}

impl World {
    /// Before it is held. Pages that have gone ahead are the guest's only if nobody has written to
    /// them since.
    fn happens_before(&mut self, pager: &mut Played<'_>, event: &Before) {
        match event {
            Before::Away(chunk, is_away) => {
                let mut orders = Vec::new();
                pager.set_away(ChunkNo(*chunk), *is_away, &mut orders);
                self.say(orders);
            }
            Before::Send(chunk) => {
                // what it writes from here on is told by the next look
                self.look(pager);
                self.send_ahead(pager, *chunk);
            }
            Before::Look => self.look(pager),
            Before::Anew => {
                self.dirty.clear();
                pager.begin_ahead();
            }
            Before::Other(Event::Restart | Event::Die(..) | Event::Leave(..)) => {}
            Before::Other(event) => self.happens(pager, event).unwrap(),
        }
    }

    fn look(&mut self, pager: &mut Played<'_>) {
        for page in std::mem::take(&mut self.dirty) {
            pager.is_stale_ahead(PageNo(page));
        }
    }

    /// Also while the guest is held.
    fn send_ahead(&mut self, pager: &mut Played<'_>, chunk: u64) {
        let orders = pager.send_ahead(ChunkNo(chunk)).unwrap();
        let is_held = std::mem::take(&mut self.is_held);
        self.say(orders);
        self.is_held = is_held;
    }

    fn happens_between(&mut self, pager: &mut Played<'_>, event: &Between) {
        match event {
            Between::Read(page) if !self.fake.borrow().memory.contains_key(page) => {
                let mut orders = pager.fault(PageNo(*page)).unwrap();
                orders.extend(pager.make_room_again().unwrap());
                self.say(orders);
            }
            Between::Read(_) => {}
            Between::Other(event) => self.happens(pager, event).unwrap(),
        }
        for (page, value) in &self.fake.borrow().memory {
            assert_eq!(*value, self.wrote.get(page).copied().unwrap_or(0), "page {page}");
        }
    }

    /// Each connection begins anew.
    fn connect_all(&mut self, pager: &mut Played<'_>) {
        for number in 0..SUBS.len() {
            self.happens(pager, &Event::Connect(number)).unwrap();
        }
    }

    /// What the next main host has, as its pager's words and the memory that it gets.
    fn next_host(&self, pager: &Played<'_>) -> ((Vec<u32>, Vec<u16>), BTreeMap<u64, u64>) {
        let places = pager.places();
        let word = |page| match pager.is_ahead(page) {
            true => places.word_ahead(page),
            false => places.word_there(page),
        };
        let words = (0..PAGES).map(|page| word(PageNo(page))).collect();
        let chunks = 0..self.geometry.chunks();
        let subs = chunks.map(|chunk| places.sub_there(ChunkNo(chunk)).0).collect();
        let fake = self.fake.borrow();
        let content = |page: u64| match places.place(PageNo(page))? {
            Place::Local if pager.is_ahead(PageNo(page)) => None,
            Place::Local => Some((page, *fake.memory.get(&page)?)),
            Place::Leaving { .. } => Some((page, fake.copies[&page])),
            _ => None,
        };
        ((words, subs), (0..PAGES).filter_map(content).collect())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn guest_that_moves_or_stays_after_all_reads_what_it_wrote(
        limits in prop_oneof![Just([30, 34]), Just([64, 64])],
        lives in proptest::collection::vec((
            proptest::collection::vec(event(), 1..150),
            proptest::collection::vec(before(), 0..200),
            proptest::collection::vec(between(), 0..40),
            any::<bool>(),
            proptest::collection::vec(between(), 0..40),
        ), 1..5),
    ) {
        play_lives(limits, lives);
    }
}

type Life = (Vec<Event>, Vec<Before>, Vec<Between>, bool, Vec<Between>);

/// Gives how many pages went ahead, in all moves.
fn play_lives(limits: [u64; 2], lives: Vec<Life>) -> u64 {
    let mut ahead = 0;
    let mut world = World::new(limits);
    let (words, subs) = leaked((vec![0; 64], vec![0; 16]));
    let mut pager = world.pager(words, subs).unwrap();
    world.connect_all(&mut pager);
    for (events, goes, before, moves, after) in lives {
        for event in events.iter().filter(|event| !matches!(event, Event::Restart | Event::Die(..)))
        {
            world.happens(&mut pager, event).unwrap();
        }
        world.dirty.clear();
        pager.begin_ahead();
        for event in &goes {
            world.happens_before(&mut pager, event);
        }
        // its vCPUs wait for nothing while they stand still
        let waits = std::mem::take(&mut world.waits);
        world.fake.borrow_mut().pinned.clear();
        pager.hold(true);
        world.is_held = true;
        world.look(&mut pager);
        // what is late goes ahead still, some of it
        for chunk in pager.lacks_ahead(0..PAGES / 2) {
            world.send_ahead(&mut pager, chunk.0);
        }
        for number in 0..SUBS.len() {
            world.happens(&mut pager, &Event::ToSub(number)).unwrap();
            world.happens(&mut pager, &Event::ToMain(number)).unwrap();
        }
        pager.look_for_holes().unwrap();
        ahead += pager.kept_ahead();
        let (places, memory) = world.next_host(&pager);
        for event in &before {
            world.happens_between(&mut pager, event);
        }
        if moves {
            let (words, subs) = leaked(places);
            world.fake = Rc::new(RefCell::new(Fake { memory, ..Fake::default() }));
            pager = world.pager(words, subs).unwrap();
            pager.hold(true);
            for (number, &sub) in SUBS.iter().enumerate() {
                world.cut(&mut pager, number);
                world.servers[number].is_connected = true;
                let orders = pager.looks(sub).unwrap();
                world.say(orders);
            }
            for event in &after {
                world.happens_between(&mut pager, event);
            }
        }
        pager.end_ahead();
        pager.hold(false);
        world.is_held = false;
        // more may be here than the guest may have, until some has gone
        world.fake.borrow_mut().may_exceed = true;
        world.connect_all(&mut pager);
        world.settle(&mut pager).unwrap();
        world.fake.borrow_mut().may_exceed = false;
        for page in waits {
            world.happens(&mut pager, &Event::Touch(page)).unwrap();
        }
    }
    world.check(&mut pager).unwrap();
    ahead
}

#[test]
fn what_goes_ahead_is_at_memory_servers_only_once_the_guest_has_moved() {
    // what is late of the first half goes ahead still
    let wires = [Event::ToSub(0), Event::ToSub(1), Event::ToMain(0), Event::ToMain(1)];
    // memory servers have listed what they have before that
    let touch = [&wires[..], &backwards(8..11).map(Event::Touch).collect::<Vec<Event>>()].concat();
    let moves = |before: Vec<Before>| {
        let (between, after) = (Vec::new(), Vec::new());
        play_lives([64, 64], vec![(touch.clone(), before, between, true, after)])
    };
    let mut goes: Vec<Before> = (8..11).map(|chunk| Before::Away(chunk, true)).collect();
    goes.extend((8..11).map(Before::Send));
    // their answers, but for those of the last few
    let arrive = |times| std::iter::repeat_n(&wires, times).flatten().cloned().map(Before::Other);
    goes.extend(arrive(6));
    assert_eq!(moves(goes.clone()), 12);
    // what is written to after that is not, until it goes again
    let mut writes = goes.clone();
    writes.push(Before::Other(Event::Touch(33)));
    assert_eq!(moves(writes.clone()), 11);
    writes.extend([Before::Look, Before::Send(8)]);
    writes.extend(arrive(2));
    assert_eq!(moves(writes), 12);
    // nor is what comes back, or begins anew
    let mut back = goes.clone();
    back.push(Before::Away(10, false));
    assert_eq!(moves(back), 8);
    goes.extend([Before::Anew, Before::Send(9)]);
    goes.extend(arrive(2));
    assert_eq!(moves(goes), 4);
}

/// With three chunks that are here and have gone ahead, from page 32 on.
fn with_ahead(work: impl FnOnce(&mut World, &mut Played<'_>)) {
    let mut world = World::new([64, 64]);
    let (words, subs) = leaked((vec![0; 64], vec![0; 16]));
    let mut pager = world.pager(words, subs).unwrap();
    world.connect_all(&mut pager);
    world.settle(&mut pager).unwrap();
    for page in backwards(8..11) {
        world.happens(&mut pager, &Event::Touch(page)).unwrap();
    }
    pager.begin_ahead();
    for chunk in 8..11 {
        world.happens_before(&mut pager, &Before::Away(chunk, true));
        world.happens_before(&mut pager, &Before::Send(chunk));
    }
    world.settle(&mut pager).unwrap();
    assert_eq!((pager.kept_ahead(), pager.late_ahead(0..PAGES)), (12, 0));
    work(&mut world, &mut pager);
}

#[test]
fn page_that_could_not_leave_goes_ahead_again() {
    with_ahead(|world, pager| {
        world.fake.borrow_mut().pinned.insert(33);
        // its chunk came first, and leaves
        world.happens(pager, &Event::Touch(0)).unwrap();
        world.settle(pager).unwrap();
        assert!(world.fake.borrow().memory.contains_key(&33));
        assert!(matches!(pager.places().place(PageNo(32)), Some(Place::Remote { .. })));
        assert!(!pager.is_ahead(PageNo(33)));
        assert_eq!(pager.lacks_ahead(0..PAGES), [ChunkNo(8)]);
    });
}

#[test]
fn page_that_was_given_back_and_not_told_is_not_ahead() {
    with_ahead(|world, pager| {
        world.happens(pager, &Event::GiveBack(34, false)).unwrap();
        assert!(pager.is_ahead(PageNo(34)));
        pager.look_for_holes().unwrap();
        assert!(!pager.is_ahead(PageNo(34)) && pager.is_ahead(PageNo(35)));
    });
}

#[test]
fn what_a_memory_server_has_not_any_more_or_never_got_goes_ahead_again() {
    with_ahead(|world, pager| {
        let at = usize::from(pager.places().sub_there(ChunkNo(8)).0);
        let version = pager.places().version(PageNo(32)).unwrap();
        world.servers[at].kept.drop_pages(&[(PageNo(32), version)]).unwrap();
        world.happens(pager, &Event::Connect(at)).unwrap();
        world.settle(pager).unwrap();
        assert_eq!((pager.late_ahead(0..PAGES), pager.said_ahead()), (1, 0));
        world.happens_before(pager, &Before::Send(8));
        world.settle(pager).unwrap();
        assert_eq!(pager.kept_ahead(), 12);
        // what is on its way when the connection ends
        world.happens(pager, &Event::Touch(40)).unwrap();
        world.happens_before(pager, &Before::Send(10));
        let at = usize::from(pager.places().sub_there(ChunkNo(10)).0);
        assert_eq!(pager.said_ahead(), 1);
        world.happens(pager, &Event::Connect(at)).unwrap();
        world.settle(pager).unwrap();
        assert_eq!((pager.kept_ahead(), pager.said_ahead()), (11, 0));
        assert_eq!(pager.lacks_ahead(0..PAGES), [ChunkNo(10)]);
    });
}

#[test]
fn guest_that_stays_after_all_has_nothing_ahead() {
    with_ahead(|world, pager| {
        let kept = |world: &World| -> usize {
            world.servers.iter().map(|server| server.kept.list().unwrap().len()).sum()
        };
        assert_eq!(kept(world), 12);
        world.happens_before(pager, &Before::Away(9, false));
        world.settle(pager).unwrap();
        assert_eq!(kept(world), 8);
        assert!(pager.end_ahead());
        assert!(pager.servers().all(|view| view.chunks == 0));
        world.connect_all(pager);
        world.settle(pager).unwrap();
        assert_eq!(kept(world), 0);
        assert!(!pager.end_ahead());
    });
}
