// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::host::{counted, even, filled, guest, snapshot};

fn close(is: f64, wanted: f64) {
    assert!((is - wanted).abs() < 1e-6 * wanted.abs().max(1.0), "{is}, not {wanted}");
}

/// L, 5.4: 30.8 % for the one that came.
#[test]
fn vcpus_that_share_a_cache_wait_for_each_others_misses() {
    let host = even(2, 2, 1 << 30);
    let at = |domain| {
        let other = guest("b", domain, counted(40.0), &[(64, domain, 1.0)]);
        snapshot([guest("a", 0, counted(40.0), &[(64, 0, 1.0)]), other])
    };
    let (beside, apart) = (Model::Caches.cost(&at(0), &host), Model::Caches.cost(&at(1), &host));
    close(beside.wait_cycles_s, 1.5 * apart.wait_cycles_s);
    close(beside.gain(apart), 4.0 / 14.0);
    close(apart.wait_cycles_s, Model::Distances.cost(&at(1), &host).wait_cycles_s);
    close(Model::Distances.cost(&at(0), &host).wait_cycles_s, apart.wait_cycles_s);
}

#[test]
fn vcpus_of_a_guest_are_in_each_others_way_too() {
    let host = even(2, 2, 1 << 30);
    let mut two = snapshot([guest("a", 0, counted(40.0), &[(64, 0, 1.0)])]);
    let own = two.guests[0].vcpus[0].clone();
    let one = Model::Caches.cost(&two, &host).wait_cycles_s;
    close(one, 4e9);
    two.guests[0].vcpus.push(own);
    close(Model::Caches.cost(&two, &host).wait_cycles_s, 3.0 * one);
}

#[test]
fn memory_behind_a_narrow_link_is_waited_for_as_if_it_were_far() {
    let all = snapshot([guest("a", 0, counted(40.0), &[(64, 1, 1.0)])]);
    let host = even(2, 2, 1 << 30);
    close(Model::Bandwidths.cost(&all, &host).wait_cycles_s, 8e9);
    let host = host.with_bandwidths(vec![vec![9000, 3000], vec![3000, 9000]]).unwrap();
    close(Model::Bandwidths.cost(&all, &host).wait_cycles_s, 12e9);
    close(Model::Distances.cost(&all, &host).wait_cycles_s, 8e9);
}

#[test]
fn memory_that_many_ask_answers_later() {
    let host = even(2, 4, 1 << 30);
    let of = |second: usize| {
        let all = ["a", "b", "c"].map(|name| guest(name, 0, counted(50.0), &[(64, 0, 1.0)]));
        let mut all = snapshot(all);
        all.guests[2].regions[0].numa = crate::NumaNo(second);
        Model::Controllers.cost(&all, &host).wait_cycles_s
    };
    // each waits 5e9 cycles; the node answers half as late again, or by a third, and the other by a sixth at 2
    close(of(0), 15e9 * 1.5);
    close(of(1), 10e9 * (1.0 + 1.0 / 3.0) + 10e9 * (1.0 + 1.0 / 6.0));
}

#[test]
fn lines_that_came_are_waited_for_wherever_memory_is() {
    let host = even(2, 2, 1 << 30);
    let of = |domain| {
        let all = snapshot([guest("a", domain, filled(40.0, &[0.25, 0.75]), &[(64, 0, 1.0)])]);
        Model::Fills.cost(&all, &host)
    };
    close(of(0).wait_cycles_s, 4e9 * 1.75);
    close(of(1).wait_cycles_s, 4e9 * 1.25);
    close(of(1).work_cycles_s, 1e9);
}
