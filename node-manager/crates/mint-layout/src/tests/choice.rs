// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::host::{MIB, even, filled, guest, ran, snapshot};
use crate::{GuestId, Limits, PolicyError, Profile, Range, Ring, Signal, Snapshot, land};

#[test]
fn policies_have_the_names_that_people_write() {
    for name in LayoutPolicy::ALL {
        assert_eq!(policy(name).name(), name.to_string());
    }
}

/// What each lacks where nothing counts misses, as on a node without a PMU, and where nothing is known.
#[test]
fn policy_says_what_it_lacks_and_does_not_guess() {
    let host = even(2, 2, 512 * MIB);
    let lacks = |name: LayoutPolicy, snapshot: &Snapshot| match policy(name).plan(
        snapshot,
        &host,
        &Limits::default(),
    ) {
        Ok(_) => Vec::new(),
        Err(PolicyError::Lacks { policy, lacks }) => {
            assert_eq!(policy, name.name());
            lacks
        }
        Err(error) => panic!("{error}"),
    };
    let mut all = snapshot([guest("a", 0, ran(0.5), &[(64, 0, 1.0)])]);
    all.guests[0].regions[0].heat = None;
    let (misses, fills, heat) = (Signal::Misses, Signal::Fills, Signal::Heat);
    let without_pmu = LayoutPolicy::ALL.map(|name| lacks(name, &all));
    let wanted =
        [vec![], vec![misses], vec![misses, fills], vec![misses, fills, heat], vec![misses, fills]];
    assert_eq!(without_pmu, wanted);
    all.guests[0].vcpus[0].samples = Ring::default();
    for name in LayoutPolicy::ALL {
        assert_eq!(lacks(name, &all).first(), Some(&Signal::RunTime), "{name}");
    }
}

#[test]
fn host_without_guests_has_no_plan() {
    let host = even(2, 2, 512 * MIB);
    for name in LayoutPolicy::ALL {
        let plan = policy(name).plan(&Snapshot::default(), &host, &Limits::default());
        assert!(plan.unwrap().is_empty(), "{name}");
    }
}

/// All of a guest's memory gets a place, whoever finds it.
#[test]
fn guest_that_comes_gets_a_place_by_each_policy() {
    let host = even(2, 2, 512 * MIB);
    let others = snapshot([guest("a", 0, filled(30.0, &[1.0, 0.0]), &[(300, 0, 1.0)])]);
    let ranges = [(0, Some(3.0)), (256 * MIB, Some(1.0))];
    let ranges = ranges.map(|(offset, heat)| Range { offset, bytes: 200 * MIB, heat }).into();
    let vcpus = vec![filled(40.0, &[0.0, 0.0, 1.0]); 2];
    let web = Profile { id: GuestId("web".into()), vcpus, ranges };
    for name in LayoutPolicy::ALL {
        let mut policy = policy(name);
        let landing = land(policy.as_mut(), &host, &others, &web, &[], &Limits::default());
        let landing = landing.unwrap();
        let bytes: u64 = landing.binds.iter().map(|bind| bind.bytes).sum();
        assert_eq!((bytes, landing.pins.len()), (web.bytes(), 2), "{name}");
    }
}
