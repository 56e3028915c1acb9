// SPDX-License-Identifier: Apache-2.0
//! A daemon's Unix socket, which is root's from its first moment on, and who comes there.

use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use axum::Router;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::UnixListener;
use tracing::{debug, warn};

/// E.g. too many open files: the next try needs a moment.
const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// A socket cannot be taken.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {}", path.display())]
pub struct ListenError {
    /// The file or folder.
    path: PathBuf,
    /// What the system said.
    #[source]
    source: io::Error,
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> ListenError + use<> {
    let path = path.to_owned();
    move |source| ListenError { path, source }
}

/// Takes a socket, with its folder. The caller holds the daemon's lock: a socket that is
/// there is a leftover.
///
/// # Errors
/// When the folder or the socket cannot be made.
pub fn listen(socket: &Path) -> Result<UnixListener, ListenError> {
    if let Some(folder) = socket.parent() {
        std::fs::create_dir_all(folder).map_err(failed(folder))?;
    }
    if socket.exists() {
        std::fs::remove_file(socket).map_err(failed(socket))?;
    }
    // it gets its mode where nobody else can come, and then its name
    let mut private = socket.as_os_str().to_owned();
    private.push(format!(".{}", std::process::id()));
    let private = PathBuf::from(private);
    _ = std::fs::remove_dir_all(&private);
    std::fs::DirBuilder::new().mode(0o700).create(&private).map_err(failed(&private))?;
    let made = private.join("socket");
    let listener = UnixListener::bind(&made).map_err(failed(&made))?;
    std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o600))
        .and_then(|()| std::fs::rename(&made, socket))
        .and_then(|()| std::fs::remove_dir(&private))
        .map_err(failed(socket))?;
    Ok(listener)
}

/// Serves whoever comes to a daemon's socket, for ever.
pub async fn serve(listener: UnixListener, router: Router) {
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
