// SPDX-License-Identifier: Apache-2.0
//! The guest's QEMU: whether it is there, and what its monitor says. That has one client at a
//! time, so the pager's threads share one connection.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::debug;

use crate::monitor::{Monitor, Switch};

/// A QEMU.
#[derive(Debug)]
pub struct Qemu {
    /// Readable when it has ended.
    pub(crate) process: OwnedFd,
    monitor: Option<PathBuf>,
    open: Mutex<Option<Monitor>>,
}

impl Qemu {
    /// A process, and where it has a monitor for us.
    #[must_use]
    pub fn new(process: OwnedFd, monitor: Option<PathBuf>) -> Self {
        Self { process, monitor, open: Mutex::default() }
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        let mut ready = [PollFd::new(&self.process, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut ready, Some(&at_once)).is_ok() && !ready[0].revents().is_empty()
    }

    fn ask<T>(&self, what: impl FnOnce(&mut Monitor) -> io::Result<T>) -> io::Result<T> {
        let none = || io::Error::other("QEMU has no monitor for us");
        let path = self.monitor.as_deref().ok_or_else(none)?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = match &mut *open {
            Some(monitor) => what(monitor),
            None => Monitor::open(path).and_then(|monitor| what(open.insert(monitor))),
        };
        if asked.is_err() {
            // an answer may come still, for whoever asks next
            *open = None;
        }
        asked
    }

    /// Others may talk to its monitor.
    pub(crate) fn close(&self) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// See [`Monitor::leave_memory_out`].
    ///
    /// # Errors
    /// When it does not, as while a migration is on.
    pub(crate) fn leave_memory_out(&self, is_left_out: bool) -> io::Result<()> {
        self.ask(|monitor| monitor.leave_memory_out(is_left_out))
    }

    /// Whether the guest runs. One that does not say so does not.
    pub(crate) fn runs(&self) -> bool {
        let runs = self.ask(Monitor::runs);
        runs.inspect_err(|error| debug!(%error, "QEMU does not say whether the guest runs"))
            .unwrap_or(false)
    }

    /// How far it is with a migration. One that has ended, by itself or by libvirt, changes nothing
    /// any more.
    pub(crate) fn switch(&self) -> Switch {
        if self.has_ended() {
            return Switch::Stopped;
        }
        let asked = self.ask(Monitor::switch);
        asked
            .inspect_err(|error| debug!(%error, "QEMU does not say how far it is"))
            .unwrap_or(Switch::Unknown)
    }

    /// Whether the guest is there, and a migration has stopped it.
    pub(crate) fn stands_still(&self) -> bool {
        !self.has_ended() && self.switch() == Switch::Stopped
    }
}
