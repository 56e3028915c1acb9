// SPDX-License-Identifier: Apache-2.0
//! Start and end of the daemon.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use mint_api::Client;
use mint_serve::{ListenError, LockError, listen, lock, serve};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use crate::app::App;
use crate::facts::HostFiles;
use crate::held::Held;
use crate::journal::Journal;
use crate::layout;
use crate::layout::known::Layouts;
use crate::libvirt::Libvirt;
use crate::{given_up, hosts, import, leases, memory, moves, routes, settle, tend};

/// Calls of libvirt that may hang at the same time; more of them wait.
const CALLS_MAX: usize = 16;

/// Where things are.
#[derive(Clone, Debug)]
pub struct Options {
    /// Socket for mintd.
    pub socket: PathBuf,
    /// Socket of this node's mintd.
    pub mintd: PathBuf,
    /// Socket of this node's memory server.
    pub store: PathBuf,
    /// URI of this node's libvirt.
    pub libvirt: String,
    /// Folder for what must outlive this daemon and this boot.
    pub state: PathBuf,
}

/// The daemon cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The runtime.
    #[error("cannot start tasks")]
    Runtime(#[source] io::Error),
    /// The lock.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// When the daemon cannot start.
pub fn run(options: &Options) -> Result<(), RunError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(CALLS_MAX)
        .enable_all()
        .build()
        .map_err(RunError::Runtime)?;
    let _lock = lock(&options.socket.with_extension("lock"))?;
    let host = HostFiles::below(Path::new("/"));
    let app = App {
        hypervisor: Arc::new(Libvirt::new(&options.libvirt)),
        mintd: Client::unix(&options.mintd),
        store: Client::unix(&options.store),
        journal: Journal::below(&options.state),
        moving: Mutex::default(),
        ending: Held::default(),
        gate: Arc::default(),
        layouts: Layouts::of_node(&host),
        host,
    };
    runtime.block_on(async {
        let mut ends = signal(SignalKind::terminate()).map_err(RunError::Runtime)?;
        let mut breaks = signal(SignalKind::interrupt()).map_err(RunError::Runtime)?;
        let listener = listen(&options.socket)?;
        let app = Arc::new(app);
        tokio::spawn(serve(listener, routes::router(app.clone())));
        import::tidy(&app.host);
        moves::make_folder(&app.host);
        tokio::spawn(leases::watch(app.clone()));
        tokio::spawn(memory::watch(app.clone()));
        tokio::spawn(given_up::watch(app.clone()));
        tokio::spawn(hosts::watch(app.clone()));
        tokio::spawn(tend::watch(app.clone()));
        tokio::spawn(layout::watch(app.clone()));
        tokio::spawn(settle::watch(app));
        info!(socket = %options.socket.display(), "mint-guestd {}", env!("CARGO_PKG_VERSION"));
        if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
            warn!(%error, "the service manager does not know that mint-guestd is ready");
        }
        tokio::select! {
            _ = ends.recv() => {}
            _ = breaks.recv() => {}
        }
        info!("ending");
        if let Err(error) = std::fs::remove_file(&options.socket) {
            warn!(%error, "socket is left behind");
        }
        Ok::<(), RunError>(())
    })?;
    // a call of libvirt may hang
    runtime.shutdown_background();
    Ok(())
}
