// SPDX-License-Identifier: Apache-2.0
//! What goes next, against what is known of each chunk, and against a guest that uses some pages
//! more than others.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::geometry::{Geometry, PAGE_BYTES};

const CHUNK: u64 = 4;
const CHUNKS: u64 = 12;
const PAGES: u64 = CHUNK * CHUNKS;

fn policy(policy: PagingPolicy, bytes: &mut [u8]) -> Policy<'_> {
    let geometry = Geometry::new(bytes.len() as u64 * PAGE_BYTES, CHUNK * PAGE_BYTES).unwrap();
    Policy::new(policy, Ages::open(geometry, bytes).unwrap())
}

#[derive(Clone, Debug)]
enum Event {
    Came(u64),
    Goes,
    Used(u64, u64),
    Looked,
    Period,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        4 => (0..CHUNKS).prop_map(Event::Came),
        4 => Just(Event::Goes),
        3 => (0..PAGES, any::<u64>()).prop_map(|(page, bits)| Event::Used(page, bits & bits >> 7)),
        2 => Just(Event::Looked),
        1 => Just(Event::Period),
    ];
    proptest::collection::vec(event, 1..200)
}

/// What is known of a chunk that is here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Known {
    /// Looks that were over when it came last.
    came: u64,
    /// Its turn among those of that time.
    turn: usize,
}

proptest! {
    #[test]
    fn each_chunk_that_came_goes_once_by_any_policy(events in events()) {
        for name in PagingPolicy::ALL {
            let mut bytes = [0; 48];
            let mut policy = policy(name, &mut bytes);
            let mut here = std::collections::BTreeSet::new();
            for event in &events {
                match *event {
                    Event::Came(chunk) => {
                        policy.came(ChunkNo(chunk));
                        here.insert(chunk);
                    }
                    Event::Goes => match policy.next() {
                        Some(ChunkNo(chunk)) => prop_assert!(here.remove(&chunk), "{name}: {chunk}"),
                        None => prop_assert!(here.is_empty(), "{name}: {here:?}"),
                    },
                    Event::Used(page, bits) => policy.used(PageNo(page), &[bits]),
                    Event::Looked => policy.looked(),
                    Event::Period => drop(policy.period(0..PAGES)),
                }
            }
            let rest = std::iter::from_fn(|| policy.next()).map(|chunk| chunk.0);
            let rest: std::collections::BTreeSet<u64> = rest.collect();
            prop_assert_eq!(rest, here);
        }
    }

    /// One goes that was looked at since it came, the oldest of them; else the one that came first.
    #[test]
    fn by_aging_the_chunk_goes_that_was_used_longest_ago(events in events()) {
        let mut bytes = [0; 48];
        let mut policy = policy(PagingPolicy::Aging, &mut bytes);
        let mut ages = [0_u8; 48];
        let mut here: BTreeMap<u64, Known> = BTreeMap::new();
        let mut looks = 0;
        for (turn, event) in events.into_iter().enumerate() {
            match event {
                Event::Came(chunk) => {
                    policy.came(ChunkNo(chunk));
                    here.insert(chunk, Known { came: looks, turn });
                }
                Event::Used(page, bits) => {
                    policy.used(PageNo(page), &[bits]);
                    for bit in (0..64).filter(|bit| bits >> bit & 1 == 1 && page + bit < PAGES) {
                        ages[usize::try_from(page + bit).unwrap()] |= 0x80;
                    }
                }
                Event::Looked => {
                    policy.looked();
                    looks += 1;
                }
                Event::Period => {
                    let used = policy.period(0..PAGES);
                    prop_assert_eq!(used, ages.iter().filter(|&&age| age != 0).count() as u64);
                    ages.iter_mut().for_each(|age| *age >>= 1);
                }
                Event::Goes => {
                    let goes = policy.next().map(|chunk| chunk.0);
                    let age = |chunk: u64| {
                        let first = usize::try_from(chunk * CHUNK).unwrap();
                        ages[first..first + 4].iter().copied().max().unwrap()
                    };
                    let is_known = |known: &Known| looks >= known.came + 2;
                    let oldest = here.iter().filter(|(_, known)| is_known(known))
                        .map(|(chunk, _)| age(*chunk)).min();
                    match (goes, oldest) {
                        (None, _) => prop_assert!(here.is_empty()),
                        (Some(chunk), Some(oldest)) => {
                            prop_assert!(is_known(&here[&chunk]));
                            prop_assert_eq!(age(chunk), oldest);
                        }
                        (Some(chunk), None) => {
                            let first = here.values().map(|known| known.turn).min();
                            prop_assert_eq!(Some(here[&chunk].turn), first);
                        }
                    }
                    if let Some(chunk) = goes {
                        here.remove(&chunk);
                    }
                }
            }
        }
    }
}

#[test]
fn by_the_clock_what_was_passed_has_to_be_used_again() {
    let mut bytes = [0; 16];
    let mut clock = policy(PagingPolicy::Clock, &mut bytes);
    (0..4).map(ChunkNo).for_each(|chunk| clock.came(chunk));
    clock.looked();
    clock.looked();
    // 3, 1, 4 and 2 pages of them: that with the fewest goes, the others are as if unused
    clock.used(PageNo(0), &[0b0011_1111_0001_0111]);
    assert_eq!(clock.next(), Some(ChunkNo(1)));
    clock.used(PageNo(0), &[1]);
    assert_eq!(clock.next(), Some(ChunkNo(2)));
    assert_eq!(clock.next(), Some(ChunkNo(3)));
    // what has come since goes last
    clock.came(ChunkNo(1));
    assert_eq!(clock.next(), Some(ChunkNo(0)));
    assert_eq!(clock.next(), Some(ChunkNo(1)));
    assert_eq!(clock.next(), None);
}

#[test]
fn policy_that_changes_knows_what_is_here_and_how_it_was_used() {
    let mut bytes = [0; 16];
    let mut policy = policy(PagingPolicy::Address, &mut bytes);
    (0..4).map(ChunkNo).for_each(|chunk| policy.came(chunk));
    policy.looked();
    policy.looked();
    policy.used(PageNo(0), &[1 << 4]);
    assert_eq!(policy.next(), Some(ChunkNo(3)));
    policy.change(PagingPolicy::Aging, (0..3).map(ChunkNo));
    assert_eq!(policy.policy(), PagingPolicy::Aging);
    policy.looked();
    policy.looked();
    let gone: Vec<u64> = std::iter::from_fn(|| policy.next()).map(|chunk| chunk.0).collect();
    assert_eq!(gone, [0, 2, 1]);
}

#[test]
fn what_has_just_come_stays_whoever_chooses() {
    for name in PagingPolicy::ALL {
        let mut bytes = [0; 64];
        let mut policy = policy(name, &mut bytes);
        (0..12).map(ChunkNo).for_each(|chunk| policy.came(chunk));
        policy.looked();
        policy.looked();
        // in turns, as a guest that works with the highest ones has them come
        for chunk in [15, 14, 13] {
            assert!(policy.next().is_some_and(|gone| gone.0 < 12), "{name:?}");
            policy.came(ChunkNo(chunk));
        }
        for _ in 0..9 {
            assert!(policy.next().is_some_and(|gone| gone.0 < 12), "{name:?}");
        }
        // unless all has
        assert!(policy.next().is_some_and(|gone| gone.0 > 12), "{name:?}");
    }
}

/// Page-ins of a guest of 256 chunks that uses 32 of them, not the lowest, twenty times as often as
/// the others, where its main host has room for 64.
fn page_ins(name: PagingPolicy) -> u64 {
    const ROOM: usize = 64;
    let mut bytes = [0; 1024];
    let mut policy = policy(name, &mut bytes);
    let mut here = std::collections::BTreeSet::new();
    let mut seed = 42_u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let (mut page_ins, mut used) = (0, std::collections::BTreeSet::new());
    for step in 1..40_000 {
        let is_hot = random(7) > 0;
        let chunk = if is_hot { 100 + 4 * random(32) } else { random(256) };
        if here.insert(chunk) {
            page_ins += 1;
            policy.came(ChunkNo(chunk));
            if here.len() > ROOM {
                here.remove(&policy.next().unwrap().0);
            }
        }
        used.insert(chunk);
        // a look for each 100 steps
        if step % 100 == 0 {
            for chunk in std::mem::take(&mut used) {
                policy.used(PageNo(chunk * CHUNK), &[1]);
            }
            if step % 400 == 0 {
                policy.period(0..1024);
            }
            policy.looked();
        }
    }
    page_ins
}

#[test]
fn those_that_know_what_is_used_fetch_less_than_those_that_do_not() {
    let [aging, clock, fifo, random, address] = PagingPolicy::ALL.map(page_ins);
    println!(
        "page-ins: aging {aging}, clock {clock}, fifo {fifo}, random {random}, address {address}"
    );
    let blind = fifo.min(random).min(address);
    assert!(aging * 10 < blind * 8, "aging {aging}, others {blind}");
    assert!(clock * 10 < blind * 8, "clock {clock}, others {blind}");
}

#[test]
fn page_that_came_unasked_is_used_once_it_was_seen_again() {
    let mut bytes = [0; 256];
    let mut policy = policy(PagingPolicy::Aging, &mut bytes);
    for page in [3, 70, 200] {
        policy.came_unasked(PageNo(page));
    }
    // its coming is seen, and whatever else was used
    policy.used(PageNo(0), &[0b11000, 0, 0, 0]);
    assert_eq!(policy.ages().told(PageNo(2), 4), [0, 0, 0x80, 0]);
    // that of another one later
    policy.used(PageNo(64), &[1 << 6 | 1 << 7]);
    assert_eq!(policy.ages().told(PageNo(69), 3), [0, 0, 0x80]);
    policy.used(PageNo(0), &[0b1000, 1 << 6, 0, 1 << 8]);
    let told = [3, 70, 200].map(|page| policy.ages().told(PageNo(page), 1)[0]);
    assert_eq!(told, [0x80, 0x80, 0]);
}
