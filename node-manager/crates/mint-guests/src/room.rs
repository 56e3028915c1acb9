// SPDX-License-Identifier: Apache-2.0
//! Whether guests still fit into their host once it has lost memory. Pure.

use crate::arrival::OVERHEAD_BYTES;

/// What a running guest has of its host's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Memory that it has at most.
    pub memory_bytes: u64,
    /// What its process has now: a guest gets memory as it touches it.
    pub resident_bytes: u64,
}

impl Held {
    /// What it takes in the end.
    pub fn needed_bytes(&self) -> u64 {
        self.memory_bytes.saturating_add(OVERHEAD_BYTES).max(self.resident_bytes)
    }
}

/// What guests lack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortage {
    bytes: u64,
}

impl Shortage {
    /// Of a host with these guests that loses so much memory; `free_bytes` is what a new process
    /// could have now.
    pub fn of(guests: &[Held], free_bytes: u64, lost_bytes: u64) -> Self {
        // no memory is lost to a guest: nobody has to go for what is short already
        if lost_bytes == 0 {
            return Self { bytes: 0 };
        }
        let sum = |bytes: fn(&Held) -> u64| {
            guests.iter().map(bytes).fold(0_u64, |sum, bytes| sum.saturating_add(bytes))
        };
        let has = free_bytes.saturating_add(sum(|guest| guest.resident_bytes));
        let wants = lost_bytes.saturating_add(sum(Held::needed_bytes));
        Self { bytes: wants.saturating_sub(has) }
    }

    /// How much; 0 when all guests fit.
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// What is left of it when that guest goes.
    #[must_use]
    pub fn without(self, guest: &Held) -> Self {
        Self { bytes: self.bytes.saturating_sub(guest.needed_bytes()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn held(memory_mib: u64, resident_mib: u64) -> Held {
        Held { memory_bytes: memory_mib * MIB, resident_bytes: resident_mib * MIB }
    }

    fn short_mib(guests: &[Held], free_mib: u64, lost_mib: u64) -> u64 {
        Shortage::of(guests, free_mib * MIB, lost_mib * MIB).bytes() / MIB
    }

    #[test]
    fn memory_that_a_guest_has_not_touched_yet_is_its_own() {
        // 400 MiB and its overhead to come, 1000 are free
        assert_eq!(short_mib(&[held(400, 0)], 1000, 536), 0);
        assert_eq!(short_mib(&[held(400, 0)], 1000, 537), 1);
        // all of it is there: it is not counted twice
        assert_eq!(short_mib(&[held(400, 464)], 536, 536), 0);
        assert_eq!(short_mib(&[held(400, 464)], 536, 600), 64);
        // a process larger than was thought
        assert_eq!(short_mib(&[held(400, 600)], 100, 100), 0);
    }

    #[test]
    fn guest_that_goes_takes_its_need_with_it() {
        let (large, small) = (held(512, 300), held(128, 10));
        let short = Shortage::of(&[large, small], 500 * MIB, 600 * MIB);
        // 600 and 576 and 192 are wanted, 500 and 310 are there
        assert_eq!(short.bytes(), 558 * MIB);
        assert_eq!(short.without(&large).bytes(), 0);
        assert_eq!(short.without(&small).bytes(), 366 * MIB);
    }

    #[test]
    fn what_the_host_itself_lacks_is_left_when_all_have_gone() {
        let guest = held(128, 0);
        assert_eq!(Shortage::of(&[guest], 100 * MIB, 256 * MIB).without(&guest).bytes(), 156 * MIB);
    }

    #[test]
    fn nobody_is_short_where_no_memory_goes() {
        assert_eq!(short_mib(&[held(2000, 10)], 5, 0), 0);
    }
}
