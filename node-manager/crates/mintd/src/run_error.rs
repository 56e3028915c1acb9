// SPDX-License-Identifier: Apache-2.0
//! Why the daemon cannot run.

use std::io;
use std::path::{Path, PathBuf};

use ipnet::Ipv4Net;
use mint_node::config::ConfigError;
use mint_node::specs::SpecError;
use mint_ops::JournalError;
use mint_serve::ListenError;
use mint_sys::SysError;

/// The daemon cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Its settings are no good.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The kernel's device.
    #[error(transparent)]
    Kernel(#[from] SysError),
    /// A file or socket.
    #[error("cannot use {}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The socket for users cannot be taken.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Another daemon runs on this node.
    #[error("another mintd runs on this node: it holds {}", path.display())]
    Running {
        /// Its lock file.
        path: PathBuf,
    },
    /// The nodes do not fit in.
    #[error(
        "network.subnet of mint.toml is no good: {subnet} has no room for {nodes} nodes, whose \
         addresses begin at the tenth"
    )]
    Subnet {
        /// What it says.
        subnet: Ipv4Net,
        /// How many nodes there can be.
        nodes: u32,
    },
    /// The runtime.
    #[error("cannot start tasks")]
    Runtime(#[source] io::Error),
    /// The journal cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The store of descriptions.
    #[error(transparent)]
    Spec(#[from] SpecError),
}

impl RunError {
    /// 2 for settings that are no good, else 1.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Subnet { .. } => 2,
            _ => 1,
        }
    }
}

pub(crate) fn file_error(path: &Path) -> impl FnOnce(io::Error) -> RunError + use<> {
    let path = path.to_owned();
    move |source| RunError::File { path, source }
}
