// SPDX-License-Identifier: Apache-2.0
//! A bandwidth that is shared by all who send to one host. That host reads from each of them no faster
//! than its turn comes, and the connection slows down who sends: nobody has to be told, and what
//! one that has ended leaves is the others'.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What may come to this host.
pub(crate) struct Share {
    /// Bytes a second, of all together; none: any number.
    bytes_s: Option<u64>,
    /// When all that has come would have come at that rate.
    paid: Mutex<Option<Instant>>,
}

impl Share {
    /// Nothing has come.
    pub fn new(bytes_s: Option<u64>) -> Self {
        Self { bytes_s, paid: Mutex::default() }
    }

    /// So many bytes have come by now; gives how long who sent them is to wait.
    pub fn count(&self, bytes: u64, now: Instant) -> Duration {
        let Some(rate) = self.bytes_s else { return Duration::ZERO };
        let ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
        let takes = Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX));
        let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
        // what was not used before is nobody's
        let begin = paid.map_or(now, |paid| paid.max(now));
        let end = begin.checked_add(takes).unwrap_or(begin);
        *paid = Some(end);
        end - now
    }

    /// So many bytes have come: waits until more may come of who sent them.
    pub fn wait(&self, bytes: u64) {
        thread::sleep(self.count(bytes, Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_have_equal_parts_and_those_that_go_on_have_what_others_had() {
        let (share, began) = (Share::new(Some(1 << 20)), Instant::now());
        let at = |ms| began + Duration::from_millis(ms);
        let (chunk, sixteenth) = (64 << 10, Duration::from_micros(62_500));
        // each one's turn comes when all others have had theirs
        let mut next = [at(0); 4];
        let mut count = [0; 4];
        let turn = |next: &mut [Instant], count: &mut [u32], some: usize| {
            let first = (0..some).min_by_key(|&at| next[at]).unwrap();
            let now = next[first];
            next[first] = now + share.count(chunk, now);
            count[first] += 1;
            now
        };
        while turn(&mut next, &mut count, 4) < at(10_000) {}
        let all = count.iter().sum::<u32>();
        assert!((160..=164).contains(&all), "{count:?}");
        assert!(count.iter().all(|count| (40..=41).contains(count)), "{count:?}");
        // two of them have sent all
        let before = count;
        while turn(&mut next, &mut count, 2) < at(20_000) {}
        for at in [0, 1] {
            assert!((78..=81).contains(&(count[at] - before[at])), "{before:?} {count:?}");
        }
        // a pause saves nothing
        let wait = share.count(chunk, at(90_000));
        assert_eq!(wait, sixteenth);
        assert_eq!(share.count(chunk, at(90_000)), 2 * sixteenth);
        assert_eq!(Share::new(None).count(chunk, began), Duration::ZERO);
    }
}
