// SPDX-License-Identifier: Apache-2.0
//! This node's kernel as it counts what vCPUs do: perf events in guest mode.

use std::io;

use mint_guests::counters::{Counters, Group, OpenError, Totals};
use mint_guests::cpu_events::Event;
use mint_sys::{PerfCounts, PerfEvent, PerfGroup, PerfScope};
use rustix::io::Errno;

/// This node's kernel.
pub(super) struct Perf;

struct Events(PerfGroup);

impl Counters for Perf {
    fn open(&self, thread: u32, events: &[Event]) -> Result<Box<dyn Group>, OpenError> {
        let events: Vec<PerfEvent> = events.iter().map(|&event| perf_event(event)).collect();
        match PerfGroup::open(thread, &events, PerfScope::Guest) {
            Ok(group) => Ok(Box::new(Events(group))),
            Err(error) => Err(why(error)),
        }
    }
}

impl Group for Events {
    fn read(&self) -> io::Result<Totals> {
        let PerfCounts { values, enabled_ns, running_ns } = self.0.read()?;
        Ok(Totals { values, enabled_ns, running_ns })
    }
}

fn perf_event(event: Event) -> PerfEvent {
    match event {
        Event::Hardware(number) => PerfEvent::Hardware(number),
        Event::Raw(number) => PerfEvent::Raw(number),
    }
}

fn why(error: io::Error) -> OpenError {
    match Errno::from_io_error(&error) {
        Some(Errno::SRCH) => OpenError::Ended,
        // no PMU, no such event, more events than counters, a kernel without perf
        Some(Errno::NODEV | Errno::NOENT | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
            OpenError::Cannot(error)
        }
        _ => OpenError::Failed(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_errors_are_told_apart() {
        let of = |errno: Errno| why(errno.into());
        assert!(matches!(of(Errno::SRCH), OpenError::Ended));
        for errno in [Errno::NODEV, Errno::NOENT, Errno::OPNOTSUPP, Errno::INVAL] {
            assert!(matches!(of(errno), OpenError::Cannot(_)), "{errno}");
        }
        for errno in [Errno::ACCESS, Errno::PERM, Errno::MFILE] {
            assert!(matches!(of(errno), OpenError::Failed(_)), "{errno}");
        }
    }

    #[test]
    fn events_keep_their_numbers() {
        let [hardware, raw] = [Event::Hardware(3), Event::Raw(0x4044)].map(perf_event);
        assert_eq!((hardware, raw), (PerfEvent::Hardware(3), PerfEvent::Raw(0x4044)));
    }

    /// A host may keep counters for root, or have no perf at all.
    #[test]
    fn thread_that_is_not_there_has_ended() {
        match Perf.open(0x7fff_fffe, &[Event::Hardware(1)]).err().unwrap() {
            OpenError::Ended => {}
            OpenError::Failed(why) => assert_eq!(why.kind(), io::ErrorKind::PermissionDenied),
            OpenError::Cannot(why) => assert_eq!(Errno::from_io_error(&why), Some(Errno::NOSYS)),
        }
    }
}
