// SPDX-License-Identifier: Apache-2.0
//! Memory servers that are to have nothing of the guest any more.

use super::*;

#[test]
fn memory_server_that_leaves_has_nothing_any_more_without_anybody_who_touches_it() {
    let limits = [64, 64];
    let mut world = World::new(limits);
    let (mut words, mut subs) = (vec![0; 64], vec![0; 16]);
    let mut pager = world.pager(&mut words, &mut subs).unwrap();
    world.check(&mut pager).unwrap();
    for leaver in [0, 1, 0] {
        let kept = |world: &World, number: usize| world.servers[number].kept.list().unwrap().len();
        let before = kept(&world, 0) + kept(&world, 1);
        let orders = pager.change(world.leave(leaver), BUDGET).unwrap();
        world.say(orders);
        world.settle(&mut pager).unwrap();
        assert_eq!(kept(&world, leaver), 0);
        // what was on its way is within the budget
        assert!(kept(&world, 1 - leaver) + 8 >= before && before > 30, "{before}");
        world.check(&mut pager).unwrap();
    }
    // both cannot
    let both = limits.map(|limit_pages| Sub { limit_pages, leaves: true });
    assert!(matches!(pager.change(&both, BUDGET), Err(PagerError::Room { .. })));
}

#[test]
fn what_goes_elsewhere_is_asked_for_no_faster_than_it_may() {
    let limits = [64, 64];
    let mut world = World::new(limits);
    let (mut words, mut subs) = (vec![0; 64], vec![0; 16]);
    let mut pager = world.pager(&mut words, &mut subs).unwrap();
    world.check(&mut pager).unwrap();
    let kept = |world: &World, number: usize| world.servers[number].kept.list().unwrap().len();
    assert!(kept(&world, 0) > 0 && kept(&world, 1) > 4 * 4);
    pager.bound_drain(true);
    let mut orders = pager.change(world.leave(1), BUDGET).unwrap();
    let (before, mut asked, mut allowed, mut steps) = (pager.done().page_ins, 0, 0, 0);
    let room = usize::try_from(CHUNK).unwrap();
    while kept(&world, 1) > 0 {
        assert!(steps < 1000, "{} are left", kept(&world, 1));
        world.say(orders);
        world.settle(&mut pager).unwrap();
        asked = usize::try_from(pager.done().page_ins - before).unwrap();
        // a chunk comes whole: less than one more than that
        assert!(asked < allowed + room, "{asked} of {allowed}");
        orders = pager.may_drain(1).unwrap();
        (allowed, steps) = (allowed + 1, steps + 1);
    }
    assert!(asked + 2 * room > allowed, "{asked} of {allowed}: it waits for nothing else");
    // what was not used is not added up
    for _ in 0..100 {
        assert_eq!(pager.may_drain(1).unwrap(), []);
    }
    let before = pager.done().page_ins;
    let orders = pager.change(world.leave(0), BUDGET).unwrap();
    world.say(orders);
    world.settle(&mut pager).unwrap();
    assert!(pager.done().page_ins - before <= CHUNK);
    pager.bound_drain(false);
    let orders = pager.make_room_again().unwrap();
    world.say(orders);
    world.settle(&mut pager).unwrap();
    assert_eq!(kept(&world, 0), 0);
}

#[test]
fn guest_whose_main_host_has_room_for_all_of_it_comes_there() {
    with_all(|world, pager| {
        assert!(pager.places().counts().remote > 40);
        let bytes = mint_split::whole_bytes(PAGES * PAGE_BYTES, CHUNK * PAGE_BYTES);
        let leaving_pages = (bytes / PAGE_BYTES / 16).max(2 * CHUNK);
        let whole = Budget { pages: bytes / PAGE_BYTES, leaving_pages };
        world.subs = world.subs.map(|sub| Sub { leaves: true, ..sub });
        let orders = pager.change(&world.subs, whole).unwrap();
        world.fake.borrow_mut().may_exceed = true;
        world.say(orders);
        world.settle(pager).unwrap();
        let counts = pager.places().counts();
        assert_eq!((counts.local, counts.remote + counts.leaving + counts.coming), (PAGES, 0));
        assert!(world.servers.iter().all(|server| server.kept.list().unwrap().is_empty()));
        assert!(pager.servers().all(|view| view.chunks == 0));
    });
}
