// SPDX-License-Identifier: Apache-2.0
//! Events that the CPU counts of a thread: perf_event_open(2). Several are a group: they count at the same time, or none
//! of them does, so that one can be divided by another.
//!
//! A group follows its thread from CPU to CPU. Counters that others want, too, the kernel gives to each for a part of
//! the time; how much that was comes with the values.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// PERF_TYPE_* of <linux/perf_event.h>
const HARDWARE: u32 = 0;
const SOFTWARE: u32 = 1;
const RAW: u32 = 4;
/// PERF_FORMAT_GROUP, with PERF_FORMAT_TOTAL_TIME_ENABLED and PERF_FORMAT_TOTAL_TIME_RUNNING
const FORMAT: u64 = 1 << 3 | 1 << 1 | 1;
/// Bits of perf_event_attr, from `disabled` on
const DISABLED: u64 = 1;
const EXCLUDE_HOST: u64 = 1 << 19;
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;
/// PERF_EVENT_IOC_ENABLE
const ENABLE: libc::c_ulong = 0x2400;
/// Numbers before the values: how many values, and the two times.
const BEFORE: usize = 3;
/// Events of a group at most; no CPU has as many counters.
const EVENTS_MAX: usize = 16;

/// As much of `struct perf_event_attr` as its first version had, which every kernel takes
/// (PERF_ATTR_SIZE_VER0).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    breakpoint_address: u64,
}

const ATTRIBUTES_BYTES: u32 = 64;
const _: () = assert!(size_of::<Attributes>() == ATTRIBUTES_BYTES as usize);

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PerfEvent {
    /// One that the kernel knows on every CPU that has it: PERF_COUNT_HW_*.
    Hardware(u64),
    /// One that the kernel counts itself: PERF_COUNT_SW_*.
    Software(u64),
    /// By the numbers of this CPU's manual: event select in bits 0-7, unit mask in bits 8-15.
    Raw(u64),
}

/// When it is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PerfScope {
    /// While the thread runs, whatever it runs.
    All,
    /// While it runs a guest's instructions, as a vCPU's thread does.
    Guest,
}

/// What a group has counted since it was opened.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PerfCounts {
    /// Of each event, in their order.
    pub values: Vec<u64>,
    /// For so long the thread was on a CPU, nanoseconds.
    pub enabled_ns: u64,
    /// For so long of that the group had counters, nanoseconds: 0 if there are too few for it.
    pub running_ns: u64,
}

/// Events of a thread; they end with this.
#[derive(Debug)]
pub struct PerfGroup {
    leader: File,
    /// Open for as long as they are to count.
    _others: Vec<OwnedFd>,
    events: usize,
}

impl PerfGroup {
    /// Begins to count.
    ///
    /// # Arguments
    /// * `thread` - of any process, if this one has CAP_PERFMON.
    /// * `events` - one at least.
    ///
    /// # Errors
    /// ESRCH: there is no such thread. ENOENT, ENODEV, EOPNOTSUPP: this machine cannot count such an event. EINVAL:
    /// there are more of them than counters. EACCES, EPERM: not for this process. EMFILE: it has too many files.
    pub fn open(thread: u32, events: &[PerfEvent], scope: PerfScope) -> io::Result<Self> {
        let thread = libc::pid_t::try_from(thread).map_err(io::Error::other)?;
        // 0 would be the caller
        if thread == 0 || events.len() > EVENTS_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (&first, others) = events.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let leader = open(thread, first, scope, None)?;
        let open_other = |&event: &PerfEvent| open(thread, event, scope, Some(leader.as_raw_fd()));
        let others = others.iter().map(open_other).collect::<io::Result<Vec<OwnedFd>>>()?;
        // SAFETY: the file is open, and this request has no argument.
        if unsafe { libc::ioctl(leader.as_raw_fd(), ENABLE, 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { leader: leader.into(), _others: others, events: events.len() })
    }

    /// What it has counted. Of a thread that has ended, what it did until then.
    ///
    /// # Errors
    /// When the kernel says something else than what it was asked for.
    pub fn read(&self) -> io::Result<PerfCounts> {
        let mut bytes = [0_u8; (BEFORE + EVENTS_MAX) * 8];
        let read = (&self.leader).read(&mut bytes)?;
        let numbers = bytes.get(..read).unwrap_or_default().chunks_exact(8);
        let mut numbers = numbers.filter_map(|one| one.try_into().ok().map(u64::from_ne_bytes));
        let said = (numbers.next(), numbers.next(), numbers.next());
        let values: Vec<u64> = numbers.collect();
        match said {
            (Some(_), Some(enabled_ns), Some(running_ns)) if values.len() == self.events => {
                Ok(PerfCounts { values, enabled_ns, running_ns })
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// One event, alone or in a leader's group, which begins to count with that.
fn open(
    thread: libc::pid_t,
    event: PerfEvent,
    scope: PerfScope,
    leader: Option<RawFd>,
) -> io::Result<OwnedFd> {
    let (kind, config) = match event {
        PerfEvent::Hardware(number) => (HARDWARE, number),
        PerfEvent::Software(number) => (SOFTWARE, number),
        PerfEvent::Raw(number) => (RAW, number),
    };
    let excluded = if scope == PerfScope::Guest { EXCLUDE_HOST } else { 0 };
    let attributes = Attributes {
        kind,
        size: ATTRIBUTES_BYTES,
        config,
        read_format: FORMAT,
        flags: excluded | if leader.is_none() { DISABLED } else { 0 },
        ..Attributes::default()
    };
    let any_cpu: libc::c_int = -1;
    // SAFETY: the structure is as long as it says, and outlives the call; the rest are numbers.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            thread,
            any_cpu,
            leader.unwrap_or(-1),
            CLOSE_ON_EXEC,
        )
    };
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just returned by the kernel and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PERF_COUNT_SW_*
    const TASK_CLOCK: PerfEvent = PerfEvent::Software(1);
    const PAGE_FAULTS: PerfEvent = PerfEvent::Software(2);
    const PAGE: usize = 4096;
    const PAGES: usize = 64;

    fn me() -> u32 {
        // SAFETY: gettid(2) touches no memory of ours.
        u32::try_from(unsafe { libc::gettid() }).unwrap()
    }

    /// Whether tests may count what their own threads do: a host may keep that for root.
    fn can() -> bool {
        let opened = PerfGroup::open(me(), &[TASK_CLOCK], PerfScope::All);
        !opened.is_err_and(|error| {
            [libc::EACCES, libc::EPERM, libc::ENOSYS].map(Some).contains(&error.raw_os_error())
        })
    }

    fn errno(result: io::Result<PerfGroup>) -> i32 {
        result.unwrap_err().raw_os_error().unwrap()
    }

    #[test]
    fn events_of_a_group_count_what_their_thread_does() {
        if !can() {
            return;
        }
        let group = PerfGroup::open(me(), &[TASK_CLOCK, PAGE_FAULTS], PerfScope::All).unwrap();
        let before = group.read().unwrap();
        let memory = map(PAGES * PAGE);
        for page in 0..PAGES {
            // SAFETY: within what was just mapped.
            unsafe { memory.wrapping_add(page * PAGE).write_volatile(1) };
        }
        let after = group.read().unwrap();
        let [clock_ns, faults] = [0, 1].map(|at| after.values[at] - before.values[at]);
        assert!((PAGES as u64..PAGES as u64 + 50).contains(&faults), "{faults}");
        assert!(clock_ns > 1000, "{clock_ns}");
        assert!(after.enabled_ns > before.enabled_ns, "{after:?}");
        assert_eq!(after.enabled_ns, after.running_ns, "no counters are short");
        // SAFETY: mapped above, and not used any more.
        let unmapped = unsafe { libc::munmap(memory.cast(), PAGES * PAGE) };
        assert_eq!(unmapped, 0);
    }

    fn map(bytes: usize) -> *mut u8 {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses an address where nothing is.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        // SAFETY: just mapped; small pages, each of which faults.
        let told = unsafe { libc::madvise(memory, bytes, libc::MADV_NOHUGEPAGE) };
        assert!(told == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL));
        memory.cast()
    }

    #[test]
    fn thread_that_ended_has_done_what_it_did() {
        if !can() {
            return;
        }
        let (said, told) = std::sync::mpsc::channel();
        let (go, gone) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            said.send(me()).unwrap();
            gone.recv().unwrap();
        });
        let group = PerfGroup::open(told.recv().unwrap(), &[TASK_CLOCK], PerfScope::All).unwrap();
        go.send(()).unwrap();
        thread.join().unwrap();
        let done = group.read().unwrap();
        assert!(done.values[0] > 0, "{done:?}");
        assert_eq!(group.read().unwrap(), done);
    }

    #[test]
    fn what_cannot_be_counted_is_an_error() {
        if !can() {
            return;
        }
        let open = |thread, events: &[PerfEvent]| PerfGroup::open(thread, events, PerfScope::All);
        // beyond what any thread can be called
        assert_eq!(errno(open(0x7fff_fffe, &[TASK_CLOCK])), libc::ESRCH);
        assert!(open(u32::MAX, &[TASK_CLOCK]).is_err());
        assert!(open(0, &[TASK_CLOCK]).is_err(), "nobody means the caller");
        assert!(open(me(), &[]).is_err());
        // beyond the kernel's own numbers
        let none = errno(open(me(), &[TASK_CLOCK, PerfEvent::Software(999)]));
        assert!([libc::ENOENT, libc::EINVAL].contains(&none), "{none}");
        assert!(open(me(), &[PerfEvent::Hardware(999)]).is_err());
    }

    /// Where there is a PMU, what a thread of no vCPU does is not counted; a machine without one says so.
    #[test]
    fn guests_instructions_are_no_thread_of_ours() {
        if !can() {
            return;
        }
        let instructions = PerfEvent::Hardware(1);
        match PerfGroup::open(me(), &[instructions], PerfScope::Guest) {
            Ok(group) => assert_eq!(group.read().unwrap().values, [0]),
            Err(error) => {
                let errno = error.raw_os_error().unwrap();
                assert!([libc::ENOENT, libc::EOPNOTSUPP, libc::ENODEV].contains(&errno), "{errno}");
            }
        }
    }
}
