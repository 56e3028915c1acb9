// SPDX-License-Identifier: Apache-2.0
//! The daemon on a fake machine, asked over a real Unix socket: everything but
//! the kernel.

mod ends;
mod guests;
mod lifecycle;
mod links;
mod machine;
mod model;
mod moves;
mod node0;
mod operations;
mod peers;
mod ready;
mod rights;
mod streams;
mod takeover;
mod views;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mint_api::{AddRequest, Client, ClientError, ErrorBody, NodeResult, Versions, WaitFor};
use mint_image::kernel_image;
use mint_node::Config;
use mint_node::fake::FakeMachine;
use mint_types::{NodeId, NodeSpec};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::UnixListener;

use crate::app::App;
use crate::caller::Caller;
use crate::run::Parts;
use crate::server;

/// A daemon with its own root folder.
pub(crate) struct Daemon {
    folder: tempfile::TempDir,
    pub fake: Arc<FakeMachine>,
    pub app: Arc<App>,
    pub client: Client,
    /// What another node's daemon asks with.
    pub peer: Client,
}

/// As on mint0, without TLS: who comes here is node 2's daemon.
async fn serve_peer(listener: UnixListener, router: axum::Router) {
    let caller = Caller::Peer { node: NodeId::new(2).unwrap() };
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(server::serve(stream, router.clone(), caller.clone()));
    }
}

/// A daemon's parts, with a folder for its root.
pub(crate) fn parts(folder: &Path, fake: &Arc<FakeMachine>) -> Parts {
    let mut config = Config::default();
    config.node.kernel = folder.join("bzImage");
    config.node.initrd = folder.join("initrd");
    // no mint0 here: waiting for a node means waiting for its kernel
    config.network.enabled = false;
    config.ssh.manage = false;
    std::fs::write(&config.node.kernel, kernel_image::pretend_kernel()).unwrap();
    std::fs::write(&config.node.initrd, mint_image::cpio::Archive::new().finish()).unwrap();
    Parts {
        machine: fake.clone(),
        host: fake.clone(),
        config: Arc::new(config),
        root: folder.to_owned(),
        bundle: folder.join("bundle"),
        area: None,
        versions: Versions::OURS,
    }
}

impl Daemon {
    /// Several may share a machine: each has a folder of its own.
    pub async fn start(fake: impl Into<Arc<FakeMachine>>) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), fake.into()).await
    }

    /// After another one that lived there, maybe.
    pub async fn start_in(folder: tempfile::TempDir, fake: Arc<FakeMachine>) -> Self {
        let parts = parts(folder.path(), &fake);
        Self::start_parts(folder, fake, parts).await
    }

    pub async fn start_parts(
        folder: tempfile::TempDir,
        fake: Arc<FakeMachine>,
        parts: Parts,
    ) -> Self {
        let started = parts.start().await.unwrap();
        let socket = folder.path().join("mintd.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        tokio::spawn(server::serve_unix(listener, started.router.clone()));
        let far = folder.path().join("peer.sock");
        tokio::spawn(serve_peer(UnixListener::bind(&far).unwrap(), started.router));
        let (client, peer) = (Client::unix(socket), Client::unix(far));
        Self { folder, fake, app: started.app, client, peer }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn operate<T: DeserializeOwned>(
        &self,
        path: &str,
        request: &Value,
    ) -> Result<T, ErrorBody> {
        self.client.operate(path, request, |_| {}).await.map_err(body)
    }

    /// What Prometheus gets.
    pub async fn scrape(&self) -> String {
        let mut reader = self.client.bytes("/metrics").await.unwrap();
        let mut text = Vec::new();
        while let Some(data) = reader.next().await.unwrap() {
            text.extend_from_slice(&data);
        }
        String::from_utf8(text).unwrap()
    }

    pub async fn add(&self, request: AddRequest) -> Result<NodeResult, ErrorBody> {
        self.operate("/v1/nodes", &serde_json::to_value(request).unwrap()).await
    }
}

pub(crate) fn body(error: ClientError) -> ErrorBody {
    match error {
        ClientError::Refused(body) => *body,
        other => panic!("{other}"),
    }
}

pub(crate) fn web() -> AddRequest {
    let mut spec = NodeSpec::named("web".parse().unwrap());
    spec.cpus = Some("3-4".parse().unwrap());
    spec.memory = vec!["1G@numa1".parse().unwrap()];
    spec.devices = vec!["0000:03:00.0".parse().unwrap()];
    AddRequest { spec, dry_run: false, wait: WaitFor::Mintd, wait_s: None }
}

pub(crate) fn test(work: impl AsyncFnOnce()) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(work());
}

/// Longer than any of these takes, however slow the machine.
pub(crate) const STUCK: Duration = Duration::from_secs(120);

pub(crate) async fn until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + STUCK;
    while !condition() {
        assert!(Instant::now() < deadline, "did not come true within {} s", STUCK.as_secs());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
