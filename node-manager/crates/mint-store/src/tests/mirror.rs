// SPDX-License-Identifier: Apache-2.0
//! A mirror that is played: whatever is told in whatever order and breaks whenever, what the main
//! host hears of is there, and in the end it has what is here.

use mint_split::{Geometry, PAGE, PAGE_BYTES, Pages};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::serve::answers;

const PAGES: u64 = 24;

#[derive(Clone, Debug)]
enum Event {
    Out(u64, u64),
    Drop(u64),
    /// The mirror is told what is next.
    Tell,
    /// It hears some of that, and answers.
    Hears(usize),
    /// Its answers are heard.
    Answers(usize),
    Cut,
    Connect,
}

struct World {
    _folders: [TempDir; 2],
    here: Kept,
    there: Kept,
    mirror: Mirroring,
    to_mirror: Vec<Frame>,
    from_mirror: Vec<Versions>,
    is_connected: bool,
    versions: BTreeMap<u64, u32>,
    /// What the main host has heard of.
    told: BTreeMap<u64, Version>,
}

fn kept() -> (TempDir, Kept) {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let geometry = Geometry::new(PAGES * PAGE_BYTES, CHUNK_PAGES_MAX * PAGE_BYTES).unwrap();
    let kept = Kept::open(folder.path(), "guest", geometry, PAGES).unwrap();
    (folder, kept)
}

impl World {
    fn new() -> Self {
        let ((one, here), (other, there)) = (kept(), kept());
        let to = Mirror { address: "127.0.0.1:1".parse().unwrap(), secret: [0; 16] };
        Self {
            _folders: [one, other],
            here,
            there,
            mirror: Mirroring::new(to),
            to_mirror: Vec::new(),
            from_mirror: Vec::new(),
            is_connected: false,
            versions: BTreeMap::new(),
            told: BTreeMap::new(),
        }
    }

    fn tell(&mut self, pages: Versions) {
        for (page, version) in pages {
            let there: BTreeMap<u64, Version> =
                self.there.list().unwrap().into_iter().map(|(page, at)| (page.0, at)).collect();
            assert!(there.get(&page.0) >= Some(&version), "page {} {version}", page.0);
            self.told.insert(page.0, version);
        }
    }

    fn happens(&mut self, event: &Event) {
        match *event {
            Event::Out(first, count) => {
                let mut pages = Pages::from(PageNo(first));
                for page in first..(first + count).min(PAGES) {
                    let version = self.versions.entry(page).or_default();
                    *version += 1;
                    let byte = u8::try_from(*version % 3).unwrap();
                    pages.push(Version(*version), &[byte; PAGE]);
                }
                let said = answers(&mut self.here, Frame::Out(pages)).unwrap();
                for frame in said {
                    let Frame::Kept(pages) = frame else { panic!("{frame:?}") };
                    let told = self.mirror.kept(pages);
                    assert!(told.is_empty(), "it is waited for");
                }
            }
            Event::Drop(page) => {
                let version = self.versions.get(&page).copied().unwrap_or(1);
                let drops = vec![(PageNo(page), Version(version))];
                answers(&mut self.here, Frame::Drop(drops.clone())).unwrap();
                self.mirror.dropped(&drops);
                self.told.remove(&page);
            }
            Event::Tell if self.is_connected && self.to_mirror.is_empty() => {
                self.to_mirror = self.mirror.next(&self.here).unwrap().0;
            }
            Event::Tell => {}
            Event::Hears(count) => {
                let count = count.min(self.to_mirror.len());
                for frame in self.to_mirror.drain(..count) {
                    for said in answers(&mut self.there, frame).unwrap() {
                        let Frame::Kept(pages) = said else { panic!("{said:?}") };
                        self.from_mirror.push(pages);
                    }
                }
            }
            Event::Answers(count) => {
                let count = count.min(self.from_mirror.len());
                for pages in self.from_mirror.drain(..count).collect::<Vec<_>>() {
                    let told = self.mirror.heard(&pages);
                    self.tell(told);
                }
            }
            Event::Cut => {
                self.to_mirror.clear();
                self.from_mirror.clear();
                self.is_connected = false;
                self.mirror.lost();
            }
            Event::Connect => {
                self.happens(&Event::Cut);
                let has = self.there.list().unwrap();
                let has = has.into_iter().map(|(page, version)| (page.0, version)).collect();
                let told = self.mirror.synced(&self.here, &has).unwrap();
                self.is_connected = true;
                self.tell(told);
            }
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..PAGES, 1..6_u64).prop_map(|(first, count)| Event::Out(first, count)),
        3 => (0..PAGES).prop_map(Event::Drop),
        4 => Just(Event::Tell),
        4 => (1..4_usize).prop_map(Event::Hears),
        4 => (1..4_usize).prop_map(Event::Answers),
        1 => Just(Event::Cut),
        2 => Just(Event::Connect),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn what_the_main_host_hears_of_is_at_the_mirror(
        events in proptest::collection::vec(event(), 1..150),
    ) {
        let mut world = World::new();
        for event in &events {
            world.happens(event);
        }
        world.happens(&Event::Connect);
        while !world.mirror.has_nothing_to_tell() {
            for event in [Event::Tell, Event::Hears(99), Event::Answers(99)] {
                world.happens(&event);
            }
        }
        let here = world.here.list().unwrap();
        prop_assert_eq!(&here, &world.there.list().unwrap());
        let told: Versions = versions(world.told.clone());
        // what was kept before it was known is told, too, and nothing else
        prop_assert_eq!(told, here);
        prop_assert_eq!(world.mirror.view(9), MirrorView { is_connected: true, behind_pages: 0 });
        for run in runs(0..PAGES) {
            prop_assert_eq!(world.here.give(run).unwrap(), world.there.give(run).unwrap());
        }
    }
}

#[test]
fn mirror_that_refuses_or_is_silent_for_long_is_not_waited_for() {
    let mut world = World::new();
    world.happens(&Event::Out(3, 2));
    assert!(world.mirror.waits_no_more(false).is_empty(), "not yet");
    let both = vec![(PageNo(3), Version(1)), (PageNo(4), Version(1))];
    assert_eq!(world.mirror.waits_no_more(true), both);
    // nor is it from then on
    let more = vec![(PageNo(9), Version(1))];
    assert_eq!(world.mirror.kept(more.clone()), more);
    assert_eq!(world.mirror.view(2), MirrorView { is_connected: false, behind_pages: 3 });
    world.happens(&Event::Connect);
    assert_eq!(world.mirror.view(2), MirrorView { is_connected: true, behind_pages: 2 });
    // then it is again, and what is not told yet the main host has still
    world.happens(&Event::Out(3, 1));
    world.happens(&Event::Drop(4));
    assert_eq!(world.mirror.view(1), MirrorView { is_connected: true, behind_pages: 0 });
    world.happens(&Event::Cut);
    assert!(world.mirror.waits_no_more(false).is_empty());
}
