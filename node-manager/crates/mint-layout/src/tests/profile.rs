// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::host::{MIB, counted};

fn profile() -> Profile {
    let range = |offset, bytes| Range { offset, bytes, heat: Some(1.0) };
    let ranges = vec![range(0, MIB), range(4 * MIB, MIB)];
    Profile { id: GuestId("web".into()), vcpus: vec![counted(1.0)], ranges }
}

#[test]
fn what_no_guest_has_is_refused() {
    let refused = |change: &dyn Fn(&mut Profile)| {
        let mut profile = profile();
        assert_eq!(profile.check(), Ok(()));
        change(&mut profile);
        profile.check().unwrap_err()
    };
    assert_eq!(refused(&|one| one.vcpus.clear()), ProfileError::Vcpus(0));
    assert_eq!(refused(&|one| one.vcpus = vec![Ring::default(); 1025]), ProfileError::Vcpus(1025));
    assert_eq!(refused(&|one| one.ranges = vec![one.ranges[0]; 1025]), ProfileError::Ranges(1025));
    let range = |offset, bytes| ProfileError::Range { offset, bytes };
    assert_eq!(refused(&|one| one.ranges[1].offset = 0), range(0, MIB));
    assert_eq!(refused(&|one| one.ranges[0].bytes = 8 * MIB), range(4 * MIB, MIB));
    assert_eq!(refused(&|one| one.ranges[1].bytes = 0), range(4 * MIB, 0));
    assert_eq!(refused(&|one| one.ranges[1].bytes = 100), range(4 * MIB, 100));
    assert_eq!(refused(&|one| one.ranges[1].offset += 1), range(4 * MIB + 1, MIB));
    let far = u64::MAX - MIB + 1;
    assert_eq!(refused(&|one| one.ranges[1].offset = far), range(far, MIB));
    assert_eq!(refused(&|one| one.ranges[1].bytes = 1 << 52), range(4 * MIB, 1 << 52));
    for heat in [-1.0, f64::INFINITY] {
        assert_eq!(refused(&|one| one.ranges[0].heat = Some(heat)), ProfileError::Heat(heat));
    }
    let nan = refused(&|one| one.ranges[0].heat = Some(f64::NAN));
    assert!(matches!(nan, ProfileError::Heat(heat) if heat.is_nan()));
}
