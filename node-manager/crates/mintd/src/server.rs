// SPDX-License-Identifier: Apache-2.0
//! The two places where the interface is served.

use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use crate::caller::Caller;
use crate::pki::Pki;

/// For a peer's TLS handshake.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

/// Serves one connection.
pub(crate) async fn serve(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    caller: Caller,
) {
    let service = TowerToHyperService::new(router.layer(Extension(caller)));
    let connection = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(io), service)
        .with_upgrades();
    if let Err(error) = connection.await {
        debug!(%error, "connection ended");
    }
}

/// Serves users of this node for ever.
pub(crate) async fn serve_unix(listener: UnixListener, router: Router) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => match stream.peer_cred() {
                Ok(user) => {
                    let caller = Caller::User { uid: user.uid(), pid: user.pid() };
                    tokio::spawn(serve(stream, router.clone(), caller));
                }
                Err(error) => debug!(%error, "gone already"),
            },
            Err(error) => accept_failed(&error).await,
        }
    }
}

/// Serves peers for ever.
pub(crate) async fn serve_tls(listener: TcpListener, pki: Arc<Pki>, router: Router) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                accept_failed(&error).await;
                continue;
            }
        };
        let (pki, router) = (pki.clone(), router.clone());
        tokio::spawn(async move {
            if let Err(error) = mint_api::tcp::prepare(&stream) {
                debug!(%error, "peer is gone already");
                return;
            }
            let acceptor = TlsAcceptor::from(pki.server());
            match tokio::time::timeout(HANDSHAKE_WITHIN, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => match pki.caller(stream.get_ref().1) {
                    Some(caller) => serve(stream, router, caller).await,
                    None => debug!("peer with a certificate that names no node"),
                },
                Ok(Err(error)) => debug!(%error, "peer turned away"),
                Err(_) => debug!("peer did not finish its handshake"),
            }
        });
    }
}

/// E.g. too many open files: the next try needs a moment.
async fn accept_failed(error: &std::io::Error) {
    warn!(%error, "no connection accepted");
    tokio::time::sleep(Duration::from_millis(100)).await;
}
