// SPDX-License-Identifier: Apache-2.0
//! Other nodes' daemons, over mutual TLS on `mint0`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mint_api::{
    ClaimRequest, Client, ClientError, ErrorBody, ErrorCode, Hello, Releasable, ReleasableRequest,
    ReleaseRequest, Released,
};
use mint_node::{PeerError, Peers};
use mint_types::{NodeId, Refusal, ResourceKey};
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::time::timeout;

/// For a kernel to accept a connection, and for a packet of it to be sent again.
const LISTENS_WITHIN: Duration = Duration::from_millis(1300);
/// For a peer that was silent before, or whose daemon nobody waits for.
pub(crate) const HELLO_AGAIN: Duration = Duration::from_millis(300);

/// Clients of all peers. Without keys (network off) no peer can be reached.
pub(crate) struct PeerClients {
    pub tls: Option<Arc<ClientConfig>>,
    pub port: u16,
    /// For one request that moves a resource.
    pub move_timeout: Duration,
    pub runtime: Handle,
    /// Those asked before: an operation asks a peer several times on one connection.
    pub clients: Mutex<BTreeMap<NodeId, Client>>,
    /// Peers that did not answer `answers`, with the boot in which they did not.
    pub silent: Mutex<BTreeMap<NodeId, u32>>,
    /// When a peer last answered a request that moves a resource.
    pub heard: Mutex<BTreeMap<NodeId, Instant>>,
}

impl PeerClients {
    /// The daemon of a node.
    pub fn client(&self, node: NodeId) -> Result<Client, ErrorBody> {
        match &self.tls {
            Some(config) => {
                let make = || {
                    let address = SocketAddr::from((node.address(), self.port));
                    Client::tls(address, config.clone()).keeping()
                };
                let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(clients.entry(node).or_insert_with(make).clone())
            }
            None => Err(ErrorBody::new(
                ErrorCode::PeerUnreachable,
                format_args!("node {node} cannot be reached: this mintd serves no mint0"),
            )),
        }
    }

    /// Asks who is there.
    pub async fn hello(&self, node: NodeId, within: Duration) -> Option<Hello> {
        let client = self.client(node).ok()?;
        let hello: Hello = timeout(within, client.get("/v1/hello")).await.ok()?.ok()?;
        (hello.node == node).then_some(hello)
    }

    /// Does the daemon of a running node answer?
    ///
    /// One that runs may stall for seconds, so the first question of a boot
    /// waits up to `within`; for later ones see [`Self::patience`]. One that has
    /// just moved a resource is not asked.
    pub async fn answers(&self, node: NodeId, boots: u32, within: Duration) -> bool {
        if self.heard().get(&node).is_some_and(|when| when.elapsed() < HELLO_AGAIN) {
            return true;
        }
        let within = self.patience(node, boots, within);
        let answers = self.hello(node, within).await.is_some();
        if answers {
            self.silent().remove(&node);
        } else if within > HELLO_AGAIN {
            self.silent().insert(node, boots);
        }
        answers
    }

    /// Whether somebody listens where a node's daemon would: its kernel says so at
    /// once, while a node without a daemon, or without mint0, says nothing at all.
    pub async fn listens(&self, node: NodeId) -> bool {
        if self.tls.is_none() {
            return false;
        }
        let address = SocketAddr::from((node.address(), self.port));
        matches!(timeout(LISTENS_WITHIN, TcpStream::connect(address)).await, Ok(Ok(_)))
    }

    /// How long to wait for a daemon. A node that was silent in this boot may
    /// have none at all: it must not delay every list and every stop.
    pub fn patience(&self, node: NodeId, boots: u32, within: Duration) -> Duration {
        let was_silent = self.silent().get(&node) == Some(&boots);
        if was_silent { within.min(HELLO_AGAIN) } else { within }
    }

    /// A node of that id is made or removed: its boots are counted anew.
    pub fn forget(&self, node: NodeId) {
        self.silent().remove(&node);
        self.heard().remove(&node);
    }

    fn silent(&self) -> MutexGuard<'_, BTreeMap<NodeId, u32>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heard(&self) -> MutexGuard<'_, BTreeMap<NodeId, Instant>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<T>(
        &self,
        node: NodeId,
        request: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, PeerError> {
        let result = self.runtime.block_on(async { timeout(self.move_timeout, request).await });
        if matches!(result, Ok(Ok(_) | Err(ClientError::Refused(_)))) {
            self.heard().insert(node, Instant::now());
        }
        match result {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(ClientError::Refused(body))) => match body.refusals.into_iter().next() {
                Some(refusal) => Err(PeerError::Refused { node, refusal: Box::new(refusal) }),
                None => Err(PeerError::Failed { node, message: body.message }),
            },
            Ok(Err(error)) => Err(PeerError::Unreachable { node, source: error.into() }),
            Err(elapsed) => Err(PeerError::Unreachable { node, source: elapsed.into() }),
        }
    }

    fn peer(&self, node: NodeId) -> Result<Client, PeerError> {
        self.client(node).map_err(|body| PeerError::Failed { node, message: body.message })
    }
}

/// What a peer's daemon said, or that it could not be reached.
pub(crate) fn peer_error(error: ClientError) -> ErrorBody {
    match error {
        ClientError::Refused(body) => *body,
        other => ErrorBody::from_error(ErrorCode::PeerUnreachable, &other),
    }
}

/// Called by the state driver's thread, never by a task: they block.
impl Peers for PeerClients {
    fn release(&self, node: NodeId, key: ResourceKey) -> Result<Option<String>, PeerError> {
        let client = self.peer(node)?;
        let request = ReleaseRequest { key };
        let reply: Released = self.wait(node, client.post("/v1/local/release", &request))?;
        Ok(reply.driver)
    }

    fn releasable(
        &self,
        node: NodeId,
        keys: &[ResourceKey],
    ) -> Result<Vec<Result<(), Refusal>>, PeerError> {
        let client = self.peer(node)?;
        let request = ReleasableRequest { keys: keys.to_vec() };
        let reply: Releasable = self.wait(node, client.post("/v1/local/releasable", &request))?;
        if reply.refusals.len() != keys.len() {
            let message = format!("{} answers for {} questions", reply.refusals.len(), keys.len());
            return Err(PeerError::Failed { node, message });
        }
        Ok(reply.refusals.into_iter().map(|refusal| refusal.map_or(Ok(()), Err)).collect())
    }

    fn claim(&self, node: NodeId, key: ResourceKey, driver: Option<&str>) -> Result<(), PeerError> {
        let client = self.peer(node)?;
        let request = ClaimRequest { key, driver: driver.map(str::to_owned) };
        self.wait::<Released>(node, client.post("/v1/local/claim", &request)).map(drop)
    }
}
