// SPDX-License-Identifier: Apache-2.0
//! A guest that goes from main host to main host, or stays after all: memory servers, wires and the
//! guest are played as in the pager's own tests.

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

fn leaked(places: (Vec<u32>, Vec<u16>)) -> (&'static mut [u32], &'static mut [u16]) {
    (places.0.leak(), places.1.leak())
}

impl World {
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
        let words = (0..PAGES).map(|page| places.word_there(PageNo(page))).collect();
        let chunks = 0..self.geometry.chunks();
        let subs = chunks.map(|chunk| places.sub_there(ChunkNo(chunk)).0).collect();
        let fake = self.fake.borrow();
        let content = |page: u64| match places.place(PageNo(page))? {
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
            proptest::collection::vec(between(), 0..40),
            any::<bool>(),
            proptest::collection::vec(between(), 0..40),
        ), 1..5),
    ) {
        let mut world = World::new(limits);
        let (words, subs) = leaked((vec![0; 64], vec![0; 16]));
        let mut pager = world.pager(words, subs).unwrap();
        world.connect_all(&mut pager);
        for (events, before, moves, after) in lives {
            for event in events.iter().filter(|event| !matches!(event, Event::Restart | Event::Die(..))) {
                world.happens(&mut pager, event).unwrap();
            }
            // its vCPUs wait for nothing while they stand still
            let waits = std::mem::take(&mut world.waits);
            world.fake.borrow_mut().pinned.clear();
            pager.hold(true);
            world.is_held = true;
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
    }
}
