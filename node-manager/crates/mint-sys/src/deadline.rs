// SPDX-License-Identifier: Apache-2.0
//! A time limit for a call that its kernel ends early only for a signal.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::{Duration, Instant};

/// Between signals once the time is over: the first may come just before the call.
const AGAIN_NS: i64 = 100_000_000;

/// Interrupts the thread that made it, once its time is over and until it is dropped.
pub(crate) struct Deadline {
    timer: libc::timer_t,
    at: Instant,
    /// The signal goes to one thread: it is of no use to another.
    _thread: PhantomData<*const ()>,
}

extern "C" fn wake(_signal: libc::c_int) {}

impl Deadline {
    /// In `limit` from now; a limit of zero is over at once.
    ///
    /// # Errors
    /// When the kernel has no timer for us.
    pub fn new(limit: Duration) -> io::Result<Self> {
        let signal = libc::SIGRTMIN();
        let zeroed = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: all zeroes is a valid sigaction: no flags (no SA_RESTART, or the call
        // would go on), an empty mask.
        let mut action = unsafe { zeroed.assume_init() };
        action.sa_sigaction = wake as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: `action` is whole, and its handler does nothing: it may run at any time.
        let result = unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
        done(result)?;

        let zeroed = MaybeUninit::<libc::sigevent>::zeroed();
        // SAFETY: all zeroes is a valid sigevent.
        let mut event = unsafe { zeroed.assume_init() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal;
        // SAFETY: it has no preconditions.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut timer: libc::timer_t = ptr::null_mut();
        // SAFETY: both are whole and live through the call.
        let result =
            unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer) };
        done(result)?;
        let deadline = Self { timer, at: Instant::now() + limit, _thread: PhantomData };

        // zero would switch it off
        let first = limit.max(Duration::from_nanos(1));
        let times = libc::itimerspec {
            it_value: libc::timespec {
                tv_sec: i64::try_from(first.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(first.subsec_nanos()),
            },
            it_interval: libc::timespec { tv_sec: 0, tv_nsec: AGAIN_NS },
        };
        // SAFETY: the timer was just made, `times` lives through the call.
        let result =
            unsafe { libc::timer_settime(deadline.timer, 0, &raw const times, ptr::null_mut()) };
        done(result)?;
        Ok(deadline)
    }

    /// Whether the time is over.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.at
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        // SAFETY: the timer was made by new() and is deleted only here.
        unsafe { libc::timer_delete(self.timer) };
    }
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadline_ends_a_call_that_would_wait_for_ever() {
        for limit in [Duration::ZERO, Duration::from_millis(50)] {
            let deadline = Deadline::new(limit).unwrap();
            loop {
                // SAFETY: no descriptors are looked at.
                let result = unsafe { libc::poll(ptr::null_mut(), 0, -1) };
                assert_eq!(result, -1);
                assert_eq!(io::Error::last_os_error().kind(), io::ErrorKind::Interrupted);
                if deadline.is_over() {
                    break;
                }
            }
        }
    }
}
