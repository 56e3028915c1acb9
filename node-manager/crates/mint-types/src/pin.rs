// SPDX-License-Identifier: Apache-2.0
//! CPUs of its host that a guest's threads may run on, and changes of them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::CpuSet;

/// A thread of a guest, or several of one kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestThread {
    /// The vCPU of that number.
    Vcpu(u32),
    /// All that are none of the others.
    Emulator,
    /// The one for disks of that number.
    Iothread(u32),
}

impl fmt::Display for GuestThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vcpu(number) => write!(f, "vCPU {number}"),
            Self::Emulator => f.write_str("emulator threads"),
            Self::Iothread(number) => write!(f, "iothread {number}"),
        }
    }
}

/// Other CPUs for a guest's thread, by its host's own numbers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PinChange {
    /// Which.
    pub thread: GuestThread,
    /// Whether it is of the guest's definition, from its next start on; else of the guest as it
    /// runs.
    pub is_defined: bool,
    /// CPUs that it had.
    pub was: CpuSet,
    /// CPUs that it gets.
    pub now: CpuSet,
}

impl PinChange {
    /// The way back.
    #[must_use]
    pub fn undo(self) -> Self {
        Self { was: self.now, now: self.was, ..self }
    }
}

impl fmt::Display for PinChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = if self.is_defined { " from its next start on" } else { "" };
        write!(f, "{}: CPU {} -> CPU {}{when}", self.thread, self.was, self.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_is_told_and_goes_back() {
        let set = |text: &str| text.parse::<CpuSet>().unwrap();
        let change = PinChange {
            thread: GuestThread::Vcpu(1),
            is_defined: true,
            was: set("3"),
            now: set("0-1"),
        };
        assert_eq!(change.to_string(), "vCPU 1: CPU 3 -> CPU 0-1 from its next start on");
        assert_eq!(change.clone().undo().now, change.was);
        assert_eq!(change.clone().undo().undo(), change);
    }
}
