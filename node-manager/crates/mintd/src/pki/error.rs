// SPDX-License-Identifier: Apache-2.0
//! Why keys cannot be had, and why an introduction is not believed.

use std::io;
use std::path::{Path, PathBuf};

use mint_types::{MachineId, NodeId};

/// Keys cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PkiError {
    /// A file.
    #[error("cannot use {}", path.display())]
    File {
        /// What could not be read or written.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A key or certificate cannot be made or read.
    #[error("cannot {action}")]
    Certificate {
        /// What was tried.
        action: &'static str,
        #[source]
        source: rcgen::Error,
    },
    /// TLS does not take them.
    #[error("TLS does not take the certificate of {of}")]
    Tls {
        /// The node that it is of, as certificates name it.
        of: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The random numbers of this system are none.
    #[error("this system has no random numbers")]
    Random,
    /// A node 0 that a peer started, whose keys went with its memory.
    #[error(
        "no keys in {} or {}: node 0 was started again by another node, its key went with its \
         memory, and no node would believe a new one; it serves its own users only: restart the \
         machine, and put [state] dir of mint.toml on a disk, or boot Mint's initrd, which \
         brings the key that the starter made",
        state.display(), bundle.display()
    )]
    Forgotten {
        /// Where its own would be.
        state: PathBuf,
        /// Where its starter's would be.
        bundle: PathBuf,
    },
    /// A node other than 0 without a bundle.
    #[error(
        "no keys in {} (this node was not started by a mintd): it serves its own users only",
        path.display()
    )]
    NoBundle {
        /// Where they should be.
        path: PathBuf,
    },
}

/// An introduction that is not believed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotBelieved {
    #[error("it is of another machine, {0}")]
    OtherMachine(MachineId),
    #[error("it is of this node itself")]
    Ourselves,
    #[error("its certificate cannot be read")]
    Certificate(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("its key is that of {0}")]
    KeyOfAnother(NodeId),
    #[error("it is for start {said}, and the ledger has {boots}")]
    Start { said: u32, boots: u32 },
    #[error("the node runs, with another key")]
    Runs,
    #[error("the ledger cannot be read")]
    Ledger(#[source] mint_sys::SysError),
    #[error("too many nodes are known")]
    Full,
}

pub(super) fn file_error(path: &Path) -> impl FnOnce(io::Error) -> PkiError + use<> {
    let path = path.to_owned();
    move |source| PkiError::File { path, source }
}

pub(super) fn failed(action: &'static str) -> impl FnOnce(rcgen::Error) -> PkiError {
    move |source| PkiError::Certificate { action, source }
}
