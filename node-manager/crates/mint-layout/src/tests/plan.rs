// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::host::{MIB, counted, even, guest, snapshot};
use crate::topology::DomainNo;

#[test]
fn neighbours_that_go_the_same_way_are_one() {
    let host = even(3, 1, 1 << 30);
    let regions = [(1, 0, 1.0), (2, 0, 1.0), (4, 1, 1.0), (8, 0, 1.0), (16, 0, 1.0)];
    let snapshot = snapshot([guest("a", 0, counted(1.0), &regions)]);
    let mut after = Layout::of(&snapshot);
    after.regions[0] = [1, 1, 1, 1, 2].map(NumaNo).into();
    let all = relocations(&snapshot, &host, &after);
    let told: Vec<_> =
        all.iter().map(|one| (one.offset / MIB, one.bytes / MIB, one.to.0)).collect();
    assert_eq!(told, [(0, 3, 1), (7, 8, 1), (15, 16, 2)]);
    after.vcpus[0] = vec![DomainNo(2)];
    let pins = pins(&snapshot, &host, &after);
    assert_eq!(pins, [Pins { guest: GuestId("a".into()), cpus: vec!["2".parse().unwrap()] }]);
}

/// What makes room goes first; where two want to change places, one of them does.
#[test]
fn each_finds_the_room_that_those_before_it_left() {
    let host = even(2, 1, 100 * MIB);
    let snapshot = snapshot([
        guest("a", 0, counted(1.0), &[(60, 1, 1.0)]),
        guest("b", 1, counted(1.0), &[(90, 0, 1.0), (20, 1, 1.0)]),
    ]);
    let mut after = Layout::of(&snapshot);
    after.regions[1][1] = NumaNo(0);
    after.regions[0][0] = NumaNo(0);
    after.regions[1][0] = NumaNo(1);
    let names = |all: Vec<Relocation>| -> Vec<(String, u64)> {
        all.into_iter().map(|one| (one.guest.0, one.bytes / MIB)).collect()
    };
    // none of them fits at first: a's goes piece by piece
    let all = names(relocations(&snapshot, &host, &after));
    assert_eq!(all, [("a".into(), 60), ("b".into(), 90), ("b".into(), 20)]);
    after.regions[0][0] = NumaNo(1);
    let host = even(2, 1, 115 * MIB);
    let all = names(relocations(&snapshot, &host, &after));
    assert_eq!(all, [("b".into(), 20), ("b".into(), 90)]);
}

#[test]
fn region_of_which_a_part_goes_is_cut() {
    let host = even(2, 1, 1 << 30);
    let snapshot = snapshot([guest("a", 0, counted(1.0), &[(8, 0, 4.0), (8, 0, 1.0)])]);
    let relocation = |offset: u64, bytes: u64, to: u32| {
        let (guest, from, to) = (GuestId("a".into()), NumaId(0), NumaId(to));
        Relocation { guest, offset: offset * MIB, bytes: bytes * MIB, from, to }
    };
    let relocations = vec![relocation(2, 2, 1), relocation(8, 8, 1), relocation(0, 8, 9)];
    let plan = Plan { relocations, ..Plan::nothing("a") };
    let after = plan.done(&snapshot, &host);
    let told = after.guests[0].regions.iter();
    let told: Vec<_> = told
        .map(|one| (one.offset / MIB, one.bytes / MIB, one.numa.0, one.heat.unwrap()))
        .collect();
    assert_eq!(told, [(0, 2, 0, 1.0), (2, 2, 1, 1.0), (4, 4, 0, 2.0), (8, 8, 1, 1.0)]);
}
