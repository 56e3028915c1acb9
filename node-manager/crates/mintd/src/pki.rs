// SPDX-License-Identifier: Apache-2.0
//! Who is who among the nodes. Every node has a key of its own, and signs for itself
//! only: a certificate that it renews before it ends. Nobody holds a key that makes
//! nodes up; a node is believed because one that is believed already introduced it.
//!
//! ```text
//!   starter ── bundle: its key, all known nodes ──> new node
//!      └────── introduction: its certificate ─────> every other node
//! ```
//! Whoever starts a node chooses its kernel and its initrd, and so may choose its key;
//! it does not keep it. The ledger, which only kernels write, bounds what may be said:
//! an introduction is for a start of a node that just is, or is about to be, and never
//! for one that runs with a key that is known (docs/threat-model.md).

mod authority;
mod certificate;
mod error;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use mint_api::Introduction;
use mint_image::{Bundle, BundleError, BundleFile};
use mint_node::Machine;
use mint_node::config::Network;
use mint_types::{MachineId, NodeId, NodeName, PeerId};
use rcgen::KeyPair;
use rustls::{ClientConfig, ServerConfig, ServerConnection};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tracing::{info, warn};

use self::certificate::{Known, Own, certificate, public_key};
use self::error::{NotBelieved, failed, file_error};
use crate::caller::Caller;
use crate::facts::NodeFacts;
use crate::identity::write_private;
use crate::ssh::SshKeys;

pub(crate) use self::authority::{Authority, is_one_certificate};
pub(crate) use self::certificate::SKEW;
pub(crate) use self::error::PkiError;

/// So old a certificate is made anew.
pub(crate) const RENEW: Duration = Duration::from_secs(60 * 24 * 3600);
/// Nodes that are remembered; no machine has more.
const KNOWN_MAX: usize = 1024;

const KEY: &str = "node.key";
const KNOWN: &str = "known.json";
const MACHINE: &str = "machine-id";

/// What is kept between two daemons of a boot of the machine.
#[derive(Serialize, Deserialize)]
struct KnownFile {
    boot_id: u64,
    known: Vec<Introduction>,
}

struct State {
    known: BTreeMap<PeerId, Known>,
    /// Nodes of linked machines, as their links tell.
    linked: BTreeMap<PeerId, Known>,
    own: Own,
}

impl State {
    /// Everybody that TLS is to believe.
    fn all(&self) -> impl Iterator<Item = &Known> {
        self.known.values().chain(self.linked.values())
    }
}

type Clock = Box<dyn Fn() -> SystemTime + Send + Sync>;

/// Our node's key, and the nodes that we believe.
pub(crate) struct Pki {
    here: PeerId,
    key: KeyPair,
    folder: PathBuf,
    /// The folder ends with this node.
    volatile: bool,
    boot_id: u64,
    network: Network,
    ssh: Option<SshKeys>,
    authority: Option<Authority>,
    ledger: Arc<dyn Machine>,
    clock: Clock,
    state: Mutex<State>,
    /// Counts nodes that we introduce.
    introduced: watch::Sender<u64>,
}

/// What [`Pki::open`] needs.
pub(crate) struct Place<'a> {
    pub bundle: &'a Path,
    pub state: &'a Path,
    /// The state's folder ends with this node.
    pub volatile: bool,
    pub ledger: Arc<dyn Machine>,
    pub network: &'a Network,
    pub ssh: Option<SshKeys>,
    pub clock: Clock,
}

impl Pki {
    /// The key from the bundle; on node 0 without one from `state`, made if needed.
    pub fn open(place: Place<'_>) -> Result<Self, PkiError> {
        let in_bundle = place.bundle.join("pki");
        let folder = place.state.join("pki");
        fs::create_dir_all(&folder).map_err(file_error(&folder))?;
        let info = place.ledger.info().map_err(|error| PkiError::File {
            path: folder.clone(),
            source: io::Error::other(error),
        })?;
        let facts = NodeFacts::read(place.bundle).map_err(file_error(place.bundle))?;
        let told = facts.and_then(|facts| facts.machine).filter(|_| in_bundle.join(KEY).exists());
        let (machine, key_path) = match told {
            Some(machine) => (machine, in_bundle.join(KEY)),
            None if info.node == NodeId::ZERO => {
                // the machine's first kernel makes them, and its next ones have them
                let started = place.ledger.node(info.node).ok().flatten();
                let again = started.is_some_and(|node| node.boots > 1);
                if again && !folder.join(KEY).exists() {
                    return Err(PkiError::Forgotten { state: folder, bundle: in_bundle });
                }
                own_keys(&folder)?
            }
            None => return Err(PkiError::NoBundle { path: in_bundle }),
        };
        let text = fs::read_to_string(&key_path).map_err(file_error(&key_path))?;
        let key = KeyPair::from_pem(&text).map_err(failed("read this node's key"))?;
        let here = PeerId { machine, node: info.node };
        let own = Own::make(here, &key, std::iter::empty(), (place.clock)())?;
        let authority = Authority::open(here, place.bundle, place.state, (place.clock)())?;
        let pki = Self {
            here,
            key,
            folder,
            volatile: place.volatile,
            boot_id: info.boot_id,
            network: place.network.clone(),
            ssh: place.ssh,
            authority,
            ledger: place.ledger,
            clock: place.clock,
            state: Mutex::new(State { known: BTreeMap::new(), linked: BTreeMap::new(), own }),
            introduced: watch::Sender::new(0),
        };
        // what an earlier daemon of ours knew, then what our starter did: it is newer
        for path in [pki.folder.join(KNOWN), in_bundle.join(KNOWN)] {
            let Ok(text) = fs::read(&path) else { continue };
            match serde_json::from_slice::<KnownFile>(&text) {
                Ok(file) if file.boot_id == pki.boot_id => {
                    file.known.into_iter().for_each(|known| pki.trust_file(known));
                }
                Ok(_) => {}
                Err(error) => warn!(path = %path.display(), %error, "known nodes are forgotten"),
            }
        }
        pki.refresh(&mut pki.lock())?;
        Ok(pki)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This node.
    pub fn here(&self) -> PeerId {
        self.here
    }

    /// The machine's authority for libvirt and QEMU; none where our starter had none.
    pub fn authority(&self) -> Option<&Authority> {
        self.authority.as_ref()
    }

    /// The time by our clock.
    pub fn now(&self) -> SystemTime {
        (self.clock)()
    }

    /// Told whenever this node has introduced one.
    pub fn introductions(&self) -> watch::Receiver<u64> {
        self.introduced.subscribe()
    }

    /// From a file of ours: it was believed when it was written.
    fn trust_file(&self, introduction: Introduction) {
        if introduction.id() == self.here {
            return;
        }
        match Known::read(introduction) {
            Ok(known) => _ = self.lock().known.insert(known.introduction.id(), known),
            Err(error) => warn!(%error, "a known node is forgotten"),
        }
    }

    /// Makes TLS anew after a change, and keeps what is known for the next daemon.
    fn refresh(&self, state: &mut State) -> Result<(), PkiError> {
        state.own = Own::make(self.here, &self.key, state.all(), (self.clock)())?;
        let known = state.known.values().map(|known| known.introduction.clone()).collect();
        let text = serde_json::to_vec(&KnownFile { boot_id: self.boot_id, known });
        let path = self.folder.join(KNOWN);
        write_private(&path, &text.expect("introductions are plain data"))
            .map_err(file_error(&path))
    }

    /// Our certificate is renewed when it is old, or the clock was set.
    fn current(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        let now = (self.clock)();
        let good = match now.duration_since(state.own.made) {
            Ok(age) => age < RENEW,
            Err(early) => early.duration() < SKEW / 2,
        };
        if !good {
            match Own::make(self.here, &self.key, state.all(), now) {
                Ok(own) => {
                    info!("this node's certificate is renewed");
                    state.own = own;
                }
                Err(error) => warn!(%error, "this node's certificate is not renewed"),
            }
        }
        state
    }

    /// TLS for peers that connect.
    pub fn server(&self) -> Arc<ServerConfig> {
        self.current().own.server.clone()
    }

    /// TLS to a peer, and its name there; nothing if nobody has introduced it.
    pub fn client(&self, node: NodeId) -> Option<(Arc<ClientConfig>, String)> {
        self.client_of(PeerId { node, ..self.here })
    }

    /// The same, also to a node of a linked machine.
    pub fn client_of(&self, id: PeerId) -> Option<(Arc<ClientConfig>, String)> {
        let config = self.current().own.clients.get(&id).cloned()?;
        Some((config, id.to_string()))
    }

    /// Whose certificate the other end of a connection showed.
    pub fn caller(&self, connection: &ServerConnection) -> Option<Caller> {
        let key = public_key(connection.peer_certificates()?.first()?).ok()?;
        let state = self.lock();
        let id = state.all().find(|known| known.key == key)?.introduction.id();
        Some(if id.machine == self.here.machine {
            Caller::Peer { node: id.node }
        } else {
            Caller::Linked { machine: id.machine, node: id.node }
        })
    }

    /// All nodes that we believe, and ourselves.
    pub fn known(&self) -> Vec<Introduction> {
        let state = self.current();
        let ourselves = self.introduce_ourselves(&state);
        let others = state.known.values().map(|known| known.introduction.clone());
        std::iter::once(ourselves).chain(others).collect()
    }

    fn needs_key(&self) -> bool {
        self.here.node == NodeId::ZERO && self.volatile
    }

    /// Whether a node that is started gets a key: all but a node 0 that has its own on a
    /// disk. A new one for that one would make the old one worth nothing, and whether its
    /// initrd brings it is not known.
    fn gets_key(&self, node: NodeId) -> bool {
        let id = PeerId { node, ..self.here };
        let told = || self.lock().known.get(&id).is_some_and(|known| known.introduction.needs_key);
        node != NodeId::ZERO || told()
    }

    fn boots(&self, node: NodeId) -> Result<u32, mint_sys::SysError> {
        Ok(self.ledger.node(node)?.map_or(0, |status| status.boots))
    }

    /// A peer that we believe introduces a node. True if that was news.
    ///
    /// # Errors
    /// When it is not believed: what we knew before stays.
    pub fn meet(&self, introduction: Introduction) -> Result<bool, NotBelieved> {
        let id = introduction.id();
        if id.machine != self.here.machine {
            return Err(NotBelieved::OtherMachine(id.machine));
        }
        if id == self.here {
            return Err(NotBelieved::Ourselves);
        }
        let new = Known::read(introduction)?;
        let status = self.ledger.node(id.node).map_err(NotBelieved::Ledger)?;
        let boots = status.as_ref().map_or(0, |status| status.boots);
        let lives = status.is_some_and(|status| status.state.is_live());
        let said = new.introduction.start;
        let mut state = self.lock();
        let same_key = |known: &&Known| known.key == new.key;
        if let Some(other) = state.known.values().find(same_key) {
            return match other.introduction.id() == id {
                true => Ok(false),
                false => Err(NotBelieved::KeyOfAnother(other.introduction.node)),
            };
        }
        if said != boots && (lives || Some(said) != boots.checked_add(1)) {
            return Err(NotBelieved::Start { said, boots });
        }
        match state.known.get(&id) {
            Some(old) if lives && old.introduction.start == boots => return Err(NotBelieved::Runs),
            None if state.known.len() >= KNOWN_MAX => return Err(NotBelieved::Full),
            _ => {}
        }
        let old = state.known.insert(id, new);
        if let Err(error) = self.refresh(&mut state) {
            // TLS does not take it: all stays as it was
            match old {
                Some(old) => state.known.insert(id, old),
                None => state.known.remove(&id),
            };
            return Err(NotBelieved::Certificate(error.into()));
        }
        info!(node = %id.node, start = said, "introduced");
        Ok(true)
    }

    /// When the ledger has no such node any more: who comes next under its id is another one.
    pub fn forget_if_gone(&self, node: NodeId) {
        if !self.ledger.is_gone(node).unwrap_or(false) {
            return;
        }
        let mut state = self.lock();
        if state.known.remove(&PeerId { node, ..self.here }).is_some() {
            if let Err(error) = self.refresh(&mut state) {
                warn!(%node, %error, "not forgotten");
            }
        }
    }

    /// Nodes of linked machines, all that there are from now on; those that cannot be read, or
    /// whose key another one has, are left out. Gives whether that changes something.
    ///
    /// # Errors
    /// When TLS does not take them: all stays as it was.
    pub fn believe_linked(&self, told: Vec<Introduction>) -> Result<bool, PkiError> {
        let mut state = self.lock();
        let mut linked: BTreeMap<PeerId, Known> = BTreeMap::new();
        for introduction in told.into_iter().take(KNOWN_MAX) {
            let id = introduction.id();
            match Known::read(introduction) {
                Ok(new) => {
                    let is_taken = id.machine == self.here.machine
                        || state
                            .known
                            .values()
                            .chain(linked.values())
                            .any(|old| old.key == new.key);
                    match is_taken {
                        true => warn!(%id, "it has another node's key, and is not believed"),
                        false => _ = linked.insert(id, new),
                    }
                }
                Err(error) => warn!(%id, %error, "a node of a linked machine is not believed"),
            }
        }
        let keys = |all: &BTreeMap<PeerId, Known>| {
            all.iter().map(|(&id, known)| (id, known.key.clone())).collect::<Vec<_>>()
        };
        if keys(&linked) == keys(&state.linked) {
            return Ok(false);
        }
        let old = std::mem::replace(&mut state.linked, linked);
        match Own::make(self.here, &self.key, state.all(), (self.clock)()) {
            Ok(own) => {
                state.own = own;
                Ok(true)
            }
            Err(error) => {
                state.linked = old;
                Err(error)
            }
        }
    }

    /// How others know this node.
    pub fn ourselves(&self) -> Introduction {
        let state = self.current();
        self.introduce_ourselves(&state)
    }

    fn introduce_ourselves(&self, state: &State) -> Introduction {
        Introduction {
            machine: self.here.machine,
            node: self.here.node,
            start: self.boots(self.here.node).unwrap_or(0),
            certificate: state.own.certificate.clone(),
            needs_key: self.needs_key(),
        }
    }

    /// A key for a node that we are about to start. It is known from now on.
    fn make_node(&self, node: NodeId) -> Result<String, PkiError> {
        let id = PeerId { node, ..self.here };
        let key = KeyPair::generate().map_err(failed("make a key"))?;
        let certificate = certificate(id, &key, (self.clock)())?;
        let boots = self.boots(node).map_err(|error| PkiError::File {
            path: "/dev/mint".into(),
            source: io::Error::other(error),
        })?;
        let introduction = Introduction {
            machine: id.machine,
            node,
            start: boots.saturating_add(1),
            certificate: certificate.pem(),
            needs_key: node == NodeId::ZERO,
        };
        let tls = |error: NotBelieved| PkiError::Tls { of: id.to_string(), source: error.into() };
        let known = Known::read(introduction).map_err(tls)?;
        let mut state = self.lock();
        state.known.insert(id, known);
        self.refresh(&mut state)?;
        Ok(key.serialize_pem())
    }
}

/// Node 0's own: the machine's id, and where its key is. Both are made once.
fn own_keys(folder: &Path) -> Result<(MachineId, PathBuf), PkiError> {
    let path = folder.join(MACHINE);
    let read = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok());
    let machine = match read {
        Some(machine) => machine,
        None => {
            let mut bytes = [0; 16];
            let random = rustls::crypto::ring::default_provider().secure_random;
            random.fill(&mut bytes).map_err(|_| PkiError::Random)?;
            let machine = MachineId::from_random(bytes).ok_or(PkiError::Random)?;
            write_private(&path, format!("{machine}\n").as_bytes()).map_err(file_error(&path))?;
            machine
        }
    };
    let path = folder.join(KEY);
    // power may have gone while it was written
    let good = fs::read_to_string(&path).is_ok_and(|text| KeyPair::from_pem(&text).is_ok());
    if !good {
        let key = KeyPair::generate().map_err(failed("make a key"))?;
        write_private(&path, key.serialize_pem().as_bytes()).map_err(file_error(&path))?;
    }
    // of versions that had one authority for all
    for old in ["ca.key", "ca.pem", "node.pem"] {
        _ = fs::remove_file(folder.join(old));
    }
    Ok((machine, path))
}

impl Bundle for Pki {
    fn files(&self, node: NodeId, name: &NodeName) -> Result<Vec<BundleFile>, BundleError> {
        if !self.gets_key(node) {
            return Ok(Vec::new());
        }
        let key = self.make_node(node).map_err(|error| BundleError {
            what: "a key",
            node,
            source: error.into(),
        })?;
        let mut facts = NodeFacts::new(&self.network, node, name);
        facts.machine = Some(self.here.machine);
        let known = KnownFile { boot_id: self.boot_id, known: self.known() };
        let known = serde_json::to_vec(&known).expect("introductions are plain data");
        let mut files = vec![
            facts.file(),
            (format!("pki/{KEY}"), key.into_bytes()),
            (format!("pki/{KNOWN}"), known),
        ];
        if let Some(authority) = &self.authority {
            let its = authority.files().into_iter();
            files.extend(its.map(|(name, data)| (name.to_owned(), data)));
        }
        if let Some(ssh) = &self.ssh {
            files.extend(ssh.bundle_files(node).map_err(|source| BundleError {
                what: "ssh keys",
                node,
                source: source.into(),
            })?);
        }
        self.introduced.send_modify(|count| *count += 1);
        Ok(files.into_iter().map(|(name, data)| BundleFile { name, data }).collect())
    }
}

/// Bundles of a daemon without keys: its nodes are on their own.
pub(crate) struct NoKeys(pub Network);

impl Bundle for NoKeys {
    fn files(&self, node: NodeId, name: &NodeName) -> Result<Vec<BundleFile>, BundleError> {
        if node == NodeId::ZERO {
            return Ok(Vec::new());
        }
        let (file, data) = NodeFacts::new(&self.0, node, name).file();
        Ok(vec![BundleFile { name: file, data }])
    }
}

#[cfg(test)]
mod tests;
