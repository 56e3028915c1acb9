// SPDX-License-Identifier: Apache-2.0
//! Errors of calls to the kernel.

use std::fmt;
use std::io;

use mint_types::{Kind, NodeId, RefusalCode, ResourceKey};

/// A call to the kernel failed, or said what makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum SysError {
    /// `/dev/mint` cannot be opened.
    #[error("cannot open {path}{}", open_hint(.source))]
    Open {
        /// Its path.
        path: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// A call on `/dev/mint`.
    #[error("{call} failed for {subject}")]
    Call {
        /// Name of the call.
        call: &'static str,
        /// Node or resource.
        subject: String,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The kernel refused to move a resource.
    #[error("{call} of {key} failed: {failure}")]
    Move {
        /// `claim` or `release`.
        call: &'static str,
        /// Which resource.
        key: ResourceKey,
        /// Why, and who owns it now.
        failure: MoveFailure,
    },
    /// The kernel's answer is outside of what its interface allows.
    #[error("the kernel answered {call} with {field} = {value}, which this mintd does not know")]
    Answer {
        /// Name of the call.
        call: &'static str,
        /// Which field.
        field: &'static str,
        /// What it held.
        value: u64,
    },
    /// The kernel speaks another version of the interface.
    #[error("the kernel's /dev/mint has version {kernel}, this program knows {ours}")]
    Version {
        /// The kernel's.
        kernel: u32,
        /// This program's.
        ours: u32,
    },
}

fn open_hint(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            " (this kernel runs without Mint: boot one with CONFIG_MINT=y and mint=on)"
        }
        Some(libc::EACCES | libc::EPERM) => " (only root may)",
        _ => "",
    }
}

impl SysError {
    /// The errno behind the error, if there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Open { source, .. } | Self::Call { source, .. } => source.raw_os_error(),
            Self::Move { failure, .. } => Some(failure.errno),
            Self::Answer { .. } | Self::Version { .. } => None,
        }
    }
}

/// `EBUSY` for 16: the name that man pages use.
pub fn errno_name(errno: i32) -> String {
    let name = match errno {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EIO => "EIO",
        libc::ENXIO => "ENXIO",
        libc::EAGAIN => "EAGAIN",
        libc::E2BIG => "E2BIG",
        libc::ENOEXEC => "ENOEXEC",
        libc::ENOMEM => "ENOMEM",
        libc::EACCES => "EACCES",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::ENODEV => "ENODEV",
        libc::EINVAL => "EINVAL",
        libc::ENOSPC => "ENOSPC",
        libc::ENOTTY => "ENOTTY",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::ENODATA => "ENODATA",
        libc::ESTALE => "ESTALE",
        libc::EMSGSIZE => "EMSGSIZE",
        libc::EBADMSG => "EBADMSG",
        _ => return format!("errno {errno}"),
    };
    name.to_owned()
}

/// `MINT_REFUSE_UNMOVABLE`.
const REASON_UNMOVABLE: u32 = 5;
/// `MINT_REFUSE_TIMEOUT`.
pub(crate) const REASON_TIMEOUT: u32 = 10;

/// Why the kernel did not move a resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MoveFailure {
    /// What the call returned.
    pub errno: i32,
    /// The kernel's reason, `enum mint_refusal`.
    pub reason: u32,
    /// Who owns the resource now.
    pub owner: Option<NodeId>,
}

impl MoveFailure {
    /// What it means, in words.
    pub fn describe(&self) -> &'static str {
        match self.reason {
            1 => "there is no such resource",
            2 => "another node owns it",
            3 => "it is free where an owned one is wanted, or is being moved",
            4 => "it is the last or the boot core of a running node",
            REASON_UNMOVABLE => "the memory holds pages that cannot be migrated",
            6 => "a driver is bound to it",
            7 => "it is a bridge or part of the platform",
            8 => "it needs a legacy interrupt line (no MSI)",
            9 => "its owner runs: only that node's kernel can give it up",
            REASON_TIMEOUT => "it took too long",
            11 => "the dead node's core is not in the park loop",
            12 => "the function would not be quiet",
            13 => "virtual functions of it are with other nodes",
            14 => "an IOMMU is on between it and memory, and only node 0 can set that up",
            15 => "its interrupts are remapped, and only node 0 can set that up",
            16 => "the machine has cores with APIC ids over 254, which its interrupts cannot name",
            _ => "the kernel gave no reason",
        }
    }

    /// Whether its time was over before it was done.
    pub fn timed_out(&self) -> bool {
        self.reason == REASON_TIMEOUT
    }

    /// The refusal's stable code.
    pub fn code(&self, kind: Kind) -> RefusalCode {
        match (kind, self.reason) {
            (Kind::Cpu, 1) => RefusalCode::CpuAbsent,
            (Kind::Memory, 1) => RefusalCode::MemoryAbsent,
            (Kind::Device, 1) => RefusalCode::DeviceAbsent,
            (Kind::Cpu, 2) => RefusalCode::CpuOwned,
            (Kind::Device, 2) => RefusalCode::DeviceOwned,
            (Kind::Memory, REASON_UNMOVABLE | REASON_TIMEOUT) => RefusalCode::MemoryBusy,
            (_, 4) => RefusalCode::CpuLast,
            (_, 6) => RefusalCode::DeviceBusy,
            (_, 7) => RefusalCode::DeviceBridge,
            (_, 8) => RefusalCode::DeviceNoMsi,
            (_, 9) => RefusalCode::NodeRunning,
            (_, 13) => RefusalCode::DeviceLent,
            (_, 14..=16) => RefusalCode::DeviceIommu,
            _ => RefusalCode::KernelRefused,
        }
    }
}

impl fmt::Display for MoveFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.describe(), errno_name(self.errno))?;
        match self.owner {
            Some(owner) => write!(f, "; node {owner} owns it now"),
            None => f.write_str("; nobody owns it now"),
        }
    }
}
