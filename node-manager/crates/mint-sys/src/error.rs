// SPDX-License-Identifier: Apache-2.0
//! Errors of calls to the kernel.

use std::io;

use mint_types::ResourceKey;

use crate::device::MoveFailure;

/// A call to the kernel failed, or said what makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum SysError {
    /// `/dev/mint` cannot be opened.
    #[error("cannot open {path}{}", open_hint(.source))]
    Open {
        /// Its path.
        path: String,
        /// Why.
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
        /// Why.
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
        _ => return format!("errno {errno}"),
    };
    name.to_owned()
}
