// SPDX-License-Identifier: Apache-2.0
//! Start and end of the daemon.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use mint_api::Client;
use mint_serve::{ListenError, listen};
use rustix::fs::{FlockOperation, flock};
use sd_notify::NotifyState;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{debug, info, warn};

use crate::app::App;
use crate::facts::HostFiles;
use crate::journal::Journal;
use crate::libvirt::Libvirt;
use crate::{import, routes, settle};

/// Calls of libvirt that may hang at the same time; more of them wait.
const CALLS_MAX: usize = 16;
/// E.g. too many open files: the next try needs a moment.
const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Where things are.
#[derive(Clone, Debug)]
pub struct Options {
    /// Socket for mintd.
    pub socket: PathBuf,
    /// Socket of this node's mintd.
    pub mintd: PathBuf,
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
    /// The lock file.
    #[error("cannot use {}", path.display())]
    Lock {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Another daemon runs on this node.
    #[error("another mint-guestd runs on this node: it holds {}", path.display())]
    Running {
        /// Its lock file.
        path: PathBuf,
    },
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
    let app = App {
        hypervisor: Arc::new(Libvirt::new(&options.libvirt)),
        mintd: Client::unix(&options.mintd),
        host: HostFiles::below(Path::new("/")),
        journal: Journal::below(&options.state),
        moving: Mutex::default(),
        gate: Arc::default(),
    };
    runtime.block_on(async {
        let mut ends = signal(SignalKind::terminate()).map_err(RunError::Runtime)?;
        let mut breaks = signal(SignalKind::interrupt()).map_err(RunError::Runtime)?;
        let listener = listen(&options.socket)?;
        let app = Arc::new(app);
        tokio::spawn(serve(listener, app.clone()));
        import::tidy(&app.host);
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

/// Serves mintd for ever.
pub(crate) async fn serve(listener: UnixListener, app: Arc<App>) {
    let router = routes::router(app);
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "no connection accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades();
            if let Err(error) = connection.await {
                debug!(%error, "connection ended");
            }
        });
    }
}

/// Takes the lock of this node's daemon; the kernel gives it back when we die.
fn lock(path: &Path) -> Result<File, RunError> {
    let failed = |source: io::Error| RunError::Lock { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).open(path).map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(error) if io::Error::from(error).kind() == io::ErrorKind::WouldBlock => {
            Err(RunError::Running { path: path.to_owned() })
        }
        Err(error) => Err(failed(error.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_daemon_runs_on_a_node() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/guestd.lock");
        let held = lock(&path).unwrap();
        assert!(matches!(lock(&path), Err(RunError::Running { .. })));
        drop(held);
        lock(&path).unwrap();
    }
}
