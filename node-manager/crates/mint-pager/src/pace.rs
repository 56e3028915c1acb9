// SPDX-License-Identifier: Apache-2.0
//! What a memory server that leaves has is asked for no faster than somebody said.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use mint_split::PAGE_BYTES;

use crate::shared::{Shared, say_all};

/// Between pages that may be asked for.
const STEP: Duration = Duration::from_millis(50);

/// How fast: bytes a second; none: as fast as it goes.
pub(crate) type Rate = Option<u64>;

/// Pages at a rate: what is left of a page counts for the next ones.
struct Pace {
    bytes_s: u64,
    /// Bytes, times nanoseconds a second.
    rest: u128,
}

impl Pace {
    fn pages(&mut self, elapsed: Duration) -> u64 {
        const PAGE: u128 = PAGE_BYTES as u128 * 1_000_000_000;
        self.rest = self.rest.saturating_add(u128::from(self.bytes_s) * elapsed.as_nanos());
        let pages = self.rest / PAGE;
        self.rest %= PAGE;
        u64::try_from(pages).unwrap_or(u64::MAX)
    }
}

/// A thread that lets the pager ask, at the rate that it is told last.
///
/// # Errors
/// When there is none.
pub(crate) fn pace(shared: &Arc<Shared>) -> io::Result<Sender<Rate>> {
    let (tell, told) = channel();
    let shared = shared.clone();
    thread::Builder::new().name("pace".into()).spawn(move || keep_pace(&shared, &told))?;
    Ok(tell)
}

fn keep_pace(shared: &Shared, told: &Receiver<Rate>) {
    let mut rate: Rate = None;
    loop {
        let Some(bytes_s) = rate else {
            let Ok(next) = told.recv() else { return };
            rate = next;
            continue;
        };
        let (mut pace, mut last) = (Pace { bytes_s, rest: 0 }, Instant::now());
        loop {
            match told.recv_timeout(STEP) {
                Ok(next) if next == rate => {}
                Ok(next) => {
                    rate = next;
                    break;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = Instant::now();
            let pages = pace.pages(now - last);
            last = now;
            if pages == 0 {
                continue;
            }
            let mut locked = shared.lock();
            match locked.pager.may_drain(pages) {
                Ok(orders) => say_all(&locked.ways, locked.pager.is_held(), orders),
                Err(error) => {
                    drop(locked);
                    shared.end(error);
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_is_lost_between_steps_and_none_won() {
        for bytes_s in [1 << 10, 4096 * 7 + 13, 30 << 20] {
            let (mut pace, mut pages, mut ns) = (Pace { bytes_s, rest: 0 }, 0, 0);
            for step in 1..2000_u64 {
                let elapsed = step * 7919 % 100_000_000;
                pages += pace.pages(Duration::from_nanos(elapsed));
                ns += u128::from(elapsed);
            }
            let exact = u128::from(bytes_s) * ns / u128::from(PAGE_BYTES) / 1_000_000_000;
            assert_eq!(u128::from(pages), exact, "{bytes_s}");
        }
    }
}
