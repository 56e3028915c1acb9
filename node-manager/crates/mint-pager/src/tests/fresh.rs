// SPDX-License-Identifier: Apache-2.0
//! Pages that a guest uses for the first time: as in the pager's other tests.

use super::asks::Unasked;
use super::*;

/// With an empty guest; gives what came unasked so far.
fn with_none(work: impl FnOnce(&mut Pager<'_, Rc<RefCell<Fake>>, Unasked>, &dyn Fn() -> Vec<u64>)) {
    let geometry = Geometry::new(PAGES * PAGE_BYTES, CHUNK * PAGE_BYTES).unwrap();
    let (mut words, mut subs) = (vec![0; 64], vec![0; 16]);
    let places = Places::open(geometry, &mut words, &mut subs).unwrap();
    let unasked = Rc::<RefCell<Vec<PageNo>>>::default();
    let sub = Sub { limit_pages: 64, leaves: false };
    let victims = Unasked(unasked.clone());
    let mut pager = Pager::new(places, Rc::default(), victims, BUDGET, &[sub]).unwrap();
    work(&mut pager, &|| unasked.borrow().iter().map(|page| page.0).collect());
}

/// The pages that are here.
fn here(pager: &Pager<'_, Rc<RefCell<Fake>>, Unasked>) -> Vec<u64> {
    pager.memory().borrow().memory.keys().copied().collect()
}

#[test]
fn more_and_more_zeros_come_at_once_where_a_guest_uses_one_page_after_the_other() {
    with_none(|pager, unasked| {
        for (page, last) in [(0, 0), (1, 1), (2, 3), (4, 7), (8, 10), (11, 12)] {
            assert_eq!(pager.fault(PageNo(page)).unwrap(), []);
            let all: Vec<u64> = (0..=last).collect();
            assert_eq!(here(pager), all, "after a fault of {page}");
            assert_eq!(pager.places().counts().resident(), last + 1);
        }
        assert_eq!(unasked(), [3, 5, 6, 7, 9, 10, 12]);
        // nothing is left of the room for what nobody waits for
        for page in 13..20 {
            pager.fault(PageNo(page)).unwrap();
            assert_eq!(here(pager).len() as u64, page + 1);
        }
    });
}

#[test]
fn zeros_come_alone_where_a_guest_uses_pages_anywhere_or_moves() {
    with_none(|pager, unasked| {
        // none is behind another, and one is before one that is here
        for page in [40, 10, 30, 50, 9] {
            pager.fault(PageNo(page)).unwrap();
        }
        assert_eq!((here(pager), unasked()), (vec![9, 10, 30, 40, 50], vec![]));
        pager.begin_ahead();
        pager.fault(PageNo(11)).unwrap();
        pager.end_ahead();
        pager.hold(true);
        pager.fault(PageNo(12)).unwrap();
        pager.hold(false);
        assert_eq!((here(pager), unasked()), (vec![9, 10, 11, 12, 30, 40, 50], vec![]));
        // and not over what is there
        pager.fault(PageNo(28)).unwrap();
        pager.fault(PageNo(29)).unwrap();
        assert_eq!((here(pager).len(), unasked()), (9, vec![]));
        pager.fault(PageNo(13)).unwrap();
        assert_eq!((here(pager).len(), unasked()), (11, vec![14]));
    });
}
