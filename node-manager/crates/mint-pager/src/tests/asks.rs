// SPDX-License-Identifier: Apache-2.0
//! What a pager asks for, and because of whom: as in its other tests.

use super::*;

#[test]
fn what_is_read_one_chunk_after_the_other_comes_before_it_is_asked_for() {
    with_all(|world, pager| {
        let before = (pager.done().faults, pager.done().prefetches);
        for page in 0..PAGES {
            world.happens(pager, &Event::Touch(page)).unwrap();
            world.settle(pager).unwrap();
        }
        // one chunk at a time is what there is room for here
        let (faults, prefetches) =
            (pager.done().faults - before.0, pager.done().prefetches - before.1);
        assert!(
            prefetches >= 4 && faults + prefetches <= PAGES / CHUNK + 1,
            "{faults}, {prefetches}"
        );
        // and not to and fro
        for page in [0, 60, 8, 40, 20] {
            world.happens(pager, &Event::Touch(page)).unwrap();
            world.settle(pager).unwrap();
        }
        assert_eq!(pager.done().prefetches - before.1, prefetches);
    });
}

/// Remembers what came unasked.
pub(super) struct Unasked(pub(super) Rc<RefCell<Vec<PageNo>>>);

impl Victims for Unasked {
    fn came(&mut self, _chunk: ChunkNo) {}

    fn came_unasked(&mut self, page: PageNo) {
        self.0.borrow_mut().push(page);
    }

    fn next(&mut self) -> Option<ChunkNo> {
        None
    }
}

#[test]
fn chunks_get_another_size_only_while_no_page_is_elsewhere() {
    let geometry = Geometry::new(PAGES * PAGE_BYTES, CHUNK * PAGE_BYTES).unwrap();
    let (same, other) = (CHUNK * PAGE_BYTES, 2 * CHUNK * PAGE_BYTES);
    for elsewhere in [0, 3] {
        let (mut words, mut subs) = (vec![0; 64], vec![0; 16]);
        words[..elsewhere].fill(3 | 1 << 3);
        let places = Places::open(geometry, &mut words, &mut subs).unwrap();
        let (fake, unasked): (Rc<RefCell<Fake>>, _) = (Rc::default(), Unasked(Rc::default()));
        let sub = Sub { limit_pages: 64, leaves: false };
        let pager = Pager::new(places, fake, unasked, BUDGET, &[sub]).unwrap();
        assert!(!pager.is_of_other_chunks(same).unwrap());
        match pager.is_of_other_chunks(other) {
            Ok(is_so) => assert!(is_so && elsewhere == 0),
            Err(PagerError::Chunks(pages)) => assert_eq!((pages, elsewhere), (3, 3)),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn page_that_somebody_waits_for_is_asked_for_and_the_rest_of_its_chunk_is_not() {
    let geometry = Geometry::new(PAGES * PAGE_BYTES, CHUNK * PAGE_BYTES).unwrap();
    let (mut words, mut subs) = (vec![0; 64], vec![0; 16]);
    words[..4].fill(3 | 1 << 3);
    let places = Places::open(geometry, &mut words, &mut subs).unwrap();
    let (fake, unasked) = (Rc::default(), Rc::<RefCell<Vec<PageNo>>>::default());
    let sub = Sub { limit_pages: 64, leaves: false };
    let fake: Rc<RefCell<Fake>> = fake;
    let mut pager = Pager::new(places, fake, Unasked(unasked.clone()), BUDGET, &[sub]).unwrap();
    assert_eq!(pager.fault(PageNo(1)).unwrap().len(), 3);
    assert_eq!(pager.fault(PageNo(3)).unwrap(), []);
    for page in [1, 0, 2, 3].map(PageNo) {
        let mut pages = Pages::from(page);
        pages.push(Version(1), &page_of(7));
        pager.heard(SubNo(0), Frame::Data(pages)).unwrap();
    }
    assert_eq!(*unasked.borrow(), [PageNo(0), PageNo(2)]);
}
