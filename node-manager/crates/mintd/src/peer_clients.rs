// SPDX-License-Identifier: Apache-2.0
//! Other nodes' daemons, over mutual TLS on `mint0`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mint_api::{
    ClaimRequest, Client, ClientError, ErrorBody, ErrorCode, Hello, Introduced, Introductions,
    Link, Moved, Releasable, ReleasableRequest, ReleaseRequest, StoppedAt, Versions,
};
use mint_node::config::Network;
use mint_node::{Machine, PeerError, Peers, Stopped};
use mint_types::{Gift, NodeId, PeerId, Refusal, ResourceKey};
use rustls::ClientConfig;
use serde::Serialize;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tracing::{debug, warn};

use crate::links::address;
use crate::pki::Pki;

/// For a kernel to accept a connection, and for a packet of it to be sent again.
const LISTENS_WITHIN: Duration = Duration::from_millis(1300);
/// For a peer that was silent before, was not heard yet, or whose daemon nobody waits for.
pub(crate) const HELLO_AGAIN: Duration = Duration::from_millis(300);

/// A peer's daemon, in one boot of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    pub boots: u32,
    pub answers: bool,
}

/// For a peer to say, or to be told, who is who.
const LEARN_WITHIN: Duration = Duration::from_secs(3);
const LEARN_AGAIN: Duration = Duration::from_secs(1);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Clients of all peers. Without keys (network off) no peer can be reached.
pub(crate) struct PeerClients {
    pub tls: Option<Arc<Pki>>,
    /// Versions of the interface that we speak.
    pub versions: Versions,
    pub network: Network,
    /// For one request that moves a resource.
    pub move_timeout: Duration,
    pub runtime: Handle,
    /// Those asked before: an operation asks a peer several times on one connection.
    pub clients: Mutex<BTreeMap<PeerId, (Arc<ClientConfig>, Client)>>,
    /// Peers that speak no version that we do.
    pub apart: Mutex<BTreeMap<PeerId, Versions>>,
    /// When others were last asked whether they know a node.
    pub learned: Mutex<Option<Instant>>,
    /// What each peer's daemon did when it was last waited for.
    pub known: Mutex<BTreeMap<NodeId, Known>>,
    /// When a peer last answered a request that moves a resource.
    pub heard: Mutex<BTreeMap<NodeId, Instant>>,
}

impl PeerClients {
    /// Where a node's daemon listens.
    fn address(&self, node: NodeId) -> SocketAddr {
        SocketAddr::from((self.network.address(node), self.network.port))
    }

    /// The daemon of a node.
    pub fn client(&self, node: NodeId) -> Result<Client, ErrorBody> {
        let Some(pki) = &self.tls else {
            return Err(ErrorBody::new(
                ErrorCode::PeerUnreachable,
                format_args!("node {node} cannot be reached: this mintd serves no mint0"),
            ));
        };
        let id = PeerId { node, ..pki.here() };
        if let Some(&theirs) = lock(&self.apart).get(&id) {
            let (there, here) = (format!("node {node}"), format!("node {}", pki.here().node));
            return Err(apart(&there, theirs, &here, self.versions));
        }
        let keys = pki.client(node).ok_or_else(|| {
            let text = format!("node {node} cannot be reached: no node has introduced it here");
            let hint = "its starter does that; ask again, or restart mintd there";
            ErrorBody::new(ErrorCode::PeerUnreachable, text).hint(hint)
        })?;
        Ok(self.keep(id, self.address(node), keys))
    }

    /// The daemon of a linked machine's node.
    pub fn linked(&self, link: &Link, node: NodeId) -> Result<Client, ErrorBody> {
        let id = PeerId { machine: link.view.machine, node };
        let keys = self.tls.as_ref().and_then(|pki| pki.client_of(id)).ok_or_else(|| {
            let text = format!(
                "node {node} of machine {} cannot be reached: that machine has not introduced it",
                link.view.name
            );
            ErrorBody::new(ErrorCode::PeerUnreachable, text)
                .hint("mintctl machine show tells which of its nodes run, and whether it answers")
        })?;
        Ok(self.keep(id, SocketAddr::from((address(link, node), link.port)), keys))
    }

    /// A client that stays, as long as nobody's keys change.
    fn keep(
        &self,
        id: PeerId,
        address: SocketAddr,
        (config, name): (Arc<ClientConfig>, String),
    ) -> Client {
        let mut clients = lock(&self.clients);
        let fresh = clients.get(&id).filter(|(used, _)| Arc::ptr_eq(used, &config));
        if let Some((_, client)) = fresh {
            return client.clone();
        }
        // it has another key than it had, or we have another certificate
        let client = Client::tls(address, name, config.clone());
        let client = client.speaking(self.versions).keeping();
        clients.insert(id, (config, client.clone()));
        client
    }

    /// Asks the others who that node is, all at once; not more often than every second.
    /// Nobody waits for them: one that has no daemon says nothing for long.
    fn learn(&self, node: NodeId) {
        let Some(pki) = &self.tls else { return };
        {
            let mut learned = lock(&self.learned);
            if learned.is_some_and(|when| when.elapsed() < LEARN_AGAIN) {
                return;
            }
            *learned = Some(Instant::now());
        }
        let others = pki.known().into_iter().map(|known| known.node);
        for other in others.filter(|&other| other != node && other != pki.here().node) {
            let (Ok(client), pki) = (self.client(other), pki.clone()) else { continue };
            tokio::spawn(async move {
                let asked = client.get::<Introductions>("/v1/local/introductions");
                let Ok(Ok(Introductions { known })) = timeout(LEARN_WITHIN, asked).await else {
                    return;
                };
                for known in known.into_iter().filter(|known| known.node == node) {
                    if let Err(error) = pki.meet(known) {
                        warn!(%node, by = %other, "introduction not believed: {error}");
                    }
                }
            });
        }
    }

    /// Tells the others of the nodes that we introduce, for ever.
    pub async fn introduce(self: Arc<Self>, machine: Arc<dyn Machine>) {
        let Some(pki) = self.tls.clone() else { return };
        let mut introductions = pki.introductions();
        while introductions.changed().await.is_ok() {
            let known = Introductions { known: pki.known() };
            let nodes = machine.nodes().unwrap_or_default();
            for peer in nodes.into_iter().filter(|node| node.state.is_live()) {
                let Ok(client) = self.client(peer.id) else { continue };
                let (id, known) = (peer.id, known.clone());
                if id == pki.here().node {
                    continue;
                }
                tokio::spawn(async move {
                    let told = client.post::<Introduced>("/v1/local/introductions", &known);
                    match timeout(LEARN_WITHIN, told).await {
                        Ok(Ok(answer)) => answer.refused.iter().for_each(|why| {
                            warn!(peer = %id, "introduction not believed there: {why}");
                        }),
                        // it will ask when it meets the node
                        _ => debug!(peer = %id, "not told of a node"),
                    }
                });
            }
        }
    }

    /// Asks who is there.
    pub async fn hello(&self, node: NodeId, within: Duration) -> Option<Hello> {
        let pki = self.tls.as_ref()?;
        let id = PeerId { node, ..pki.here() };
        // it may have been updated since
        lock(&self.apart).remove(&id);
        let asked = async { self.client(node).ok()?.get::<Hello>("/v1/hello").await.ok() };
        let Some(hello) = timeout(within, asked).await.ok().flatten() else {
            self.learn(node);
            return None;
        };
        let theirs = Versions { oldest: hello.api_oldest, newest: hello.api_version };
        if self.versions.meet(theirs).is_none() {
            warn!(%node, %theirs, ours = %self.versions, "its mintd speaks no version that we do");
            lock(&self.apart).insert(id, theirs);
            return None;
        }
        (hello.node == node).then_some(hello)
    }

    /// Whether a peer was found to speak no version that we do.
    pub fn is_apart(&self, node: NodeId) -> bool {
        let here = self.tls.as_ref().map(|pki| pki.here());
        here.is_some_and(|here| lock(&self.apart).contains_key(&PeerId { node, ..here }))
    }

    /// Does the daemon of a running node answer?
    ///
    /// One that answered before may stall for seconds, so it is waited for up to
    /// `within`. One that was silent, or was not heard in this boot yet, may have no
    /// daemon, and is asked briefly: for one that is starting `nodes::meet` waits.
    /// One that has just moved a resource is not asked.
    pub async fn answers(&self, node: NodeId, boots: u32, within: Duration) -> bool {
        if self.heard().get(&node).is_some_and(|when| when.elapsed() < HELLO_AGAIN) {
            return true;
        }
        let heard = self.known_in(node, boots) == Some(true);
        let within = if heard { within } else { within.min(HELLO_AGAIN) };
        let answers = self.hello(node, within).await.is_some();
        if answers || (heard && within > HELLO_AGAIN) {
            self.note(node, boots, answers);
        }
        answers
    }

    /// A node's daemon was waited for in this boot, and answered or not.
    pub fn note(&self, node: NodeId, boots: u32, answers: bool) {
        self.known().insert(node, Known { boots, answers });
    }

    /// Whether it answered in this boot; nothing if it was not waited for.
    fn known_in(&self, node: NodeId, boots: u32) -> Option<bool> {
        self.known().get(&node).filter(|known| known.boots == boots).map(|known| known.answers)
    }

    /// Whether somebody listens where a node's daemon would: its kernel says so at
    /// once, while a node without a daemon, or without mint0, says nothing at all.
    pub async fn listens(&self, node: NodeId) -> bool {
        if self.tls.is_none() {
            return false;
        }
        let address = self.address(node);
        matches!(timeout(LISTENS_WITHIN, TcpStream::connect(address)).await, Ok(Ok(_)))
    }

    /// How long to wait for a daemon that is to do something. A node that was silent
    /// in this boot may have none at all: it must not delay every stop.
    pub fn patience(&self, node: NodeId, boots: u32, within: Duration) -> Duration {
        let was_silent = self.known_in(node, boots) == Some(false);
        if was_silent { within.min(HELLO_AGAIN) } else { within }
    }

    /// A node of that id is made or removed: its boots are counted anew.
    pub fn forget(&self, node: NodeId) {
        self.known().remove(&node);
        self.heard().remove(&node);
        if let Some(pki) = &self.tls {
            lock(&self.apart).remove(&PeerId { node, ..pki.here() });
            pki.forget_if_gone(node);
        }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<NodeId, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heard(&self) -> MutexGuard<'_, BTreeMap<NodeId, Instant>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for an answer about that many resources.
    fn wait<T>(
        &self,
        node: NodeId,
        count: usize,
        request: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, PeerError> {
        let within = self.move_timeout.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
        let result = self.runtime.block_on(async { timeout(within, request).await });
        if matches!(result, Ok(Ok(_) | Err(ClientError::Refused(_)))) {
            self.heard().insert(node, Instant::now());
        }
        match result {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(ClientError::Refused(body))) => Err(said(node, *body)),
            Ok(Err(error)) => Err(PeerError::Unreachable { node, source: error.into() }),
            Err(elapsed) => Err(PeerError::Unreachable { node, source: elapsed.into() }),
        }
    }

    /// Asks for something to be done with that many resources.
    fn moved(
        &self,
        node: NodeId,
        count: usize,
        path: &str,
        request: &impl Serialize,
    ) -> Result<(), Stopped<PeerError>> {
        let reply = self
            .peer(node)
            .and_then(|client| self.wait::<Moved>(node, count, client.post(path, request)));
        match reply {
            Ok(Moved { stopped: None }) => Ok(()),
            Ok(Moved { stopped: Some(StoppedAt { at, error }) }) => {
                Err(Stopped { at: at.min(count.saturating_sub(1)), error: said(node, error) })
            }
            Err(error) => Err(Stopped { at: 0, error }),
        }
    }

    fn peer(&self, node: NodeId) -> Result<Client, PeerError> {
        self.client(node).map_err(|body| PeerError::Failed { node, message: body.message })
    }
}

/// Why a peer's daemon did not do it.
fn said(node: NodeId, body: ErrorBody) -> PeerError {
    match body.refusals.into_iter().next() {
        Some(refusal) => PeerError::Refused { node, refusal: Box::new(refusal) },
        None => PeerError::Failed { node, message: body.message },
    }
}

/// Two daemons have no version in common; each is named with its range.
pub(crate) fn apart(one: &str, its: Versions, other: &str, others: Versions) -> ErrorBody {
    let text = format!(
        "mintd of {one} speaks versions {its} of the interface, mintd of {other} {others}: none \
         in common"
    );
    let behind = if its.newest < others.newest { one } else { other };
    ErrorBody::new(ErrorCode::VersionMismatch, text)
        .hint(format_args!("update mintd in the image of {behind}, and restart it"))
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
    fn release(&self, node: NodeId, keys: &[ResourceKey]) -> Result<(), Stopped<PeerError>> {
        let request = ReleaseRequest { keys: keys.to_vec() };
        self.moved(node, keys.len(), "/v1/local/release", &request)
    }

    fn releasable(
        &self,
        node: NodeId,
        keys: &[ResourceKey],
    ) -> Result<Vec<Result<(), Refusal>>, PeerError> {
        let client = self.peer(node)?;
        let request = ReleasableRequest { keys: keys.to_vec() };
        let reply: Releasable =
            self.wait(node, 1, client.post("/v1/local/releasable", &request))?;
        if reply.refusals.len() != keys.len() {
            let message = format!("{} answers for {} questions", reply.refusals.len(), keys.len());
            return Err(PeerError::Failed { node, message });
        }
        Ok(reply.refusals.into_iter().map(|refusal| refusal.map_or(Ok(()), Err)).collect())
    }

    fn claim(&self, node: NodeId, gifts: &[Gift]) -> Result<(), Stopped<PeerError>> {
        let request = ClaimRequest { gifts: gifts.to_vec() };
        self.moved(node, gifts.len(), "/v1/local/claim", &request)
    }
}
