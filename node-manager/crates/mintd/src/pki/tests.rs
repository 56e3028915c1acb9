// SPDX-License-Identifier: Apache-2.0

use super::certificate::DAY;
use super::*;

use mint_node::fake::{FakeMachine, POOL0};
use mint_types::{NodeState, ResourceKey};

/// A clock that tests set.
#[derive(Clone)]
struct Hand(Arc<Mutex<SystemTime>>);

impl Hand {
    fn now() -> Self {
        Self(Arc::new(Mutex::new(SystemTime::now())))
    }
    fn set(&self, to: SystemTime) {
        *self.0.lock().unwrap() = to;
    }
    fn clock(&self) -> Clock {
        let hand = self.0.clone();
        Box::new(move || *hand.lock().unwrap())
    }
}

struct Site {
    folder: tempfile::TempDir,
    volatile: bool,
    fake: FakeMachine,
}

impl Site {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), volatile: false, fake: FakeMachine::new() }
    }

    fn open_at(&self, node: u32, hand: &Hand) -> Result<Pki, PkiError> {
        let state = self.folder.path().join(format!("state{node}"));
        fs::create_dir_all(&state).unwrap();
        Pki::open(Place {
            bundle: &self.bundle(node),
            state: &state,
            volatile: self.volatile,
            ledger: Arc::new(self.fake.also_from(node)),
            network: &Network::default(),
            ssh: None,
            clock: hand.clock(),
        })
    }

    fn open(&self, node: u32) -> Pki {
        self.open_at(node, &Hand::now()).unwrap()
    }

    fn bundle(&self, node: u32) -> PathBuf {
        self.folder.path().join(format!("bundle{node}"))
    }

    /// Its starter makes a node's bundle, and the node starts.
    fn start(&self, by: &Pki, node: u32) {
        let bundle = self.bundle(node);
        fs::create_dir_all(bundle.join("pki")).unwrap();
        let id = NodeId::new(node).unwrap();
        for file in by.files(id, &"web".parse().unwrap()).unwrap() {
            let path = bundle.join(file.name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file.data).unwrap();
        }
        let machine: &dyn Machine = &self.fake;
        if machine.node(id).unwrap().is_none() {
            machine.create(id, &format!("n{node}")).unwrap();
        }
        self.fake.set_state(id, NodeState::Stopped);
        let image = tempfile::tempfile().unwrap();
        machine.load(id, &image, None, "").unwrap();
        machine.start(id).unwrap();
    }
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// A handshake over a pipe in memory: whom the server took the client for.
fn handshake(
    server: &Pki,
    (config, name): (Arc<ClientConfig>, String),
) -> Result<Option<Caller>, String> {
    run(async {
        let (near, far) = tokio::io::duplex(1 << 16);
        let acceptor = tokio_rustls::TlsAcceptor::from(server.server());
        let connector = tokio_rustls::TlsConnector::from(config);
        let name = rustls::pki_types::ServerName::try_from(name).unwrap();
        let (accepted, connected) =
            tokio::join!(acceptor.accept(near), connector.connect(name, far));
        let accepted = accepted.map_err(|error| format!("server: {error}"))?;
        connected.map_err(|error| format!("client: {error}"))?;
        Ok(server.caller(accepted.get_ref().1))
    })
}

fn id(node: u32) -> NodeId {
    NodeId::new(node).unwrap()
}

fn peer(node: u32) -> Option<Caller> {
    Some(Caller::Peer { node: id(node) })
}

#[test]
fn nodes_that_were_introduced_know_each_other_by_their_keys() {
    let place = Site::new();
    let zero = place.open(0);
    place.start(&zero, 1);
    let one = place.open(1);
    place.start(&one, 2);
    let two = place.open(2);
    assert_eq!(handshake(&one, zero.client(id(1)).unwrap()), Ok(peer(0)));
    assert_eq!(handshake(&zero, one.client(id(0)).unwrap()), Ok(peer(1)));
    assert_eq!(handshake(&one, two.client(id(1)).unwrap()), Ok(peer(2)));
    // node 0 was not told of node 2, and node 2 knows node 0
    assert!(zero.client(id(2)).is_none());
    assert!(handshake(&zero, two.client(id(0)).unwrap()).is_err());
    for known in one.known() {
        _ = zero.meet(known);
    }
    assert_eq!(handshake(&zero, two.client(id(0)).unwrap()), Ok(peer(2)));
    assert_eq!(handshake(&two, zero.client(id(2)).unwrap()), Ok(peer(0)));
    // and still does after its daemon was restarted
    let zero = place.open(0);
    assert_eq!(handshake(&two, zero.client(id(2)).unwrap()), Ok(peer(0)));
}

#[test]
fn no_node_passes_for_another_one() {
    let place = Site::new();
    let zero = place.open(0);
    place.start(&zero, 1);
    place.start(&zero, 2);
    let one = place.open(1);
    let two = place.open(2);
    // who connects to node 1 is not content with node 2, whatever it is called
    let (config, _) = zero.client(id(1)).unwrap();
    let (_, name) = zero.client(id(2)).unwrap();
    assert!(handshake(&two, (config, name)).is_err());
    assert!(handshake(&two, zero.client(id(1)).unwrap()).is_err());
    // node 1 makes itself a certificate in the name of node 0, with the key that it has
    let known = zero.lock().known.clone();
    let forged = Own::make(zero.here, &one.key, known.values(), SystemTime::now()).unwrap();
    let name = PeerId { node: id(2), ..zero.here };
    let config = forged.clients[&name].clone();
    assert!(handshake(&two, (config, name.to_string())).is_err());
}

#[test]
fn another_machine_is_turned_away_by_both_sides() {
    let (ours, theirs) = (Site::new(), Site::new());
    let (zero, stranger) = (ours.open(0), theirs.open(0));
    ours.start(&zero, 1);
    theirs.start(&stranger, 1);
    let one = ours.open(1);
    assert_ne!(zero.here.machine, stranger.here.machine);
    let said = handshake(&one, stranger.client(id(1)).unwrap()).unwrap_err();
    assert!(said.contains("server"), "{said}");
    // it trusts our node, and is not trusted
    let mut known = stranger.lock().known.clone();
    known.insert(one.here, Known::read(one.known().remove(0)).unwrap());
    let own = Own::make(stranger.here, &stranger.key, known.values(), SystemTime::now()).unwrap();
    let config = own.clients[&one.here].clone();
    let said = handshake(&one, (config, one.here.to_string())).unwrap_err();
    assert!(said.contains("UnknownIssuer"), "{said}");
    let foreign = stranger.known().remove(0);
    assert!(matches!(zero.meet(foreign), Err(NotBelieved::OtherMachine(_))));
}

#[test]
fn certificates_end_and_renew_themselves() {
    let place = Site::new();
    let zero = place.open(0);
    place.start(&zero, 1);
    let hand = Hand::now();
    let one = place.open_at(1, &hand).unwrap();
    let today = SystemTime::now();
    // one that was made 91 days ago counts no more, 89 days ago still does
    for (days, good) in [(91, false), (89, true)] {
        let own =
            Own::make(one.here, &one.key, one.lock().known.values(), today - DAY * days).unwrap();
        let config = own.clients[&zero.here].clone();
        let said = handshake(&zero, (config, zero.here.to_string()));
        assert_eq!(said.is_ok(), good, "{said:?}");
    }
    // nor one that a clock made which goes two days fast; half a day is no matter
    for (ahead, good) in [(DAY * 2, false), (DAY / 2, true)] {
        let own = Own::make(one.here, &one.key, one.lock().known.values(), today + ahead).unwrap();
        let config = own.clients[&zero.here].clone();
        assert_eq!(handshake(&zero, (config, zero.here.to_string())).is_ok(), good);
    }
    let before = one.server();
    hand.set(today + DAY * 59);
    assert!(Arc::ptr_eq(&before, &one.server()));
    hand.set(today + DAY * 61);
    assert!(!Arc::ptr_eq(&before, &one.server()), "it is renewed");
    // the clock was set back: one that counts now is made
    hand.set(today);
    assert_eq!(handshake(&zero, one.client(id(0)).unwrap()), Ok(peer(1)));
    assert_eq!(handshake(&one, zero.client(id(1)).unwrap()), Ok(peer(0)));
}

#[test]
fn introductions_are_bounded_by_the_ledger() {
    let place = Site::new();
    let zero = place.open(0);
    place.start(&zero, 1);
    place.start(&zero, 2);
    let one = place.open(1);
    let other_key = |node: u32, start: u32| {
        let id = PeerId { node: id(node), ..zero.here };
        let key = KeyPair::generate().unwrap();
        let certificate = certificate(id, &key, SystemTime::now()).unwrap().pem();
        let needs_key = false;
        Introduction { machine: id.machine, node: id.node, start, certificate, needs_key }
    };
    let of = |pki: &Pki, node: u32| {
        pki.known().into_iter().find(|known| known.node == id(node)).unwrap()
    };
    // node 2 runs: nobody replaces its key, not even with a start to come
    assert!(matches!(zero.meet(other_key(2, 1)), Err(NotBelieved::Runs)));
    assert!(matches!(zero.meet(other_key(2, 2)), Err(NotBelieved::Start { said: 2, boots: 1 })));
    assert!(matches!(zero.meet(other_key(0, 1)), Err(NotBelieved::Ourselves)));
    // a key that another node has
    let stolen = Introduction { node: id(3), ..of(&zero, 2) };
    assert!(matches!(zero.meet(stolen), Err(NotBelieved::KeyOfAnother(node)) if node == id(2)));
    let torn = Introduction { certificate: "-----BEGIN".into(), ..other_key(3, 1) };
    assert!(matches!(zero.meet(torn), Err(NotBelieved::Certificate(_))));
    // what is known already is no news
    assert!(!zero.meet(of(&one, 1)).unwrap());
    // node 2 ends: its next start may have another key, the one after that not yet
    place.fake.set_state(id(2), NodeState::Halted);
    assert!(matches!(zero.meet(other_key(2, 3)), Err(NotBelieved::Start { said: 3, boots: 1 })));
    let next = other_key(2, 2);
    assert!(zero.meet(next.clone()).unwrap());
    assert_eq!(of(&zero, 2), next);
    // a node that was removed is forgotten, one that is there is not
    zero.forget_if_gone(id(2));
    assert!(zero.client(id(2)).is_some());
    // nor is one that owns something and whose record was written over
    let machine: &dyn Machine = &place.fake;
    machine.claim(ResourceKey::memory(POOL0.0), id(2), false).unwrap();
    place.fake.lose_record(id(2));
    zero.forget_if_gone(id(2));
    assert!(zero.client(id(2)).is_some());
    assert!(zero.meet(other_key(3, 1)).unwrap(), "a node that is about to be made");
    zero.forget_if_gone(id(3));
    assert!(zero.client(id(3)).is_none());
}

#[test]
fn node_holds_no_key_but_its_own() {
    let place = Site::new();
    let zero = place.open(0);
    place.start(&zero, 1);
    place.start(&zero, 2);
    let mut keys = Vec::new();
    for file in fs::read_dir(place.bundle(2).join("pki")).unwrap().flatten() {
        let text = fs::read_to_string(file.path()).unwrap();
        keys.extend(text.matches("PRIVATE KEY").map(|_| file.file_name()));
    }
    // begin and end of one
    assert_eq!(keys, [KEY, KEY]);
    let text = fs::read_to_string(place.bundle(2).join("pki").join(KEY)).unwrap();
    assert!(text != zero.key.serialize_pem() && text != place.open(1).key.serialize_pem());
    // and its starter has not kept it
    let mut left = Vec::new();
    for file in fs::read_dir(place.folder.path().join("state0/pki")).unwrap().flatten() {
        let text = fs::read_to_string(file.path()).unwrap();
        if text.contains("PRIVATE KEY") {
            left.push(text);
        }
    }
    assert_eq!(left, [zero.key.serialize_pem()]);
}

#[test]
fn keys_and_machine_id_are_made_once_and_a_torn_key_anew() {
    let place = Site::new();
    let (first, again) = (place.open(0), place.open(0));
    assert_eq!(first.here, again.here);
    assert_eq!(first.key.serialize_pem(), again.key.serialize_pem());
    let key = place.folder.path().join("state0/pki").join(KEY);
    fs::write(&key, "").unwrap();
    let healed = place.open(0);
    assert_eq!(healed.here, first.here);
    assert_eq!(fs::read_to_string(key).unwrap(), healed.key.serialize_pem());
}

#[test]
fn nodes_of_an_earlier_boot_of_the_machine_are_not_known() {
    let place = Site::new();
    let zero = place.open(0);
    place.start(&zero, 1);
    assert!(place.open(0).client(id(1)).is_some());
    let path = place.folder.path().join("state0/pki").join(KNOWN);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("\"boot_id\":42", "\"boot_id\":41", 1)).unwrap();
    assert!(place.open(0).client(id(1)).is_none());
}

#[test]
fn node_without_bundle_has_no_keys() {
    let place = Site::new();
    let result = place.open_at(1, &Hand::now());
    assert!(matches!(result, Err(PkiError::NoBundle { .. })));
}

/// A key in a bundle that its initrd does not bring would cost it the one that it has.
#[test]
fn node_0_gets_a_key_only_if_its_own_ends_with_it() {
    for volatile in [false, true] {
        let place = Site { volatile, ..Site::new() };
        let zero = place.open(0);
        place.start(&zero, 1);
        let one = place.open(1);
        let files = one.files(NodeId::ZERO, &"node0".parse().unwrap()).unwrap();
        assert_eq!(!files.is_empty(), volatile);
    }
}

#[test]
fn node_0_that_was_started_again_without_keys_makes_none_and_says_what_to_do() {
    let place = Site { volatile: true, ..Site::new() };
    place.open(0);
    let state = place.folder.path().join("state0/pki");
    fs::remove_dir_all(&state).unwrap();
    place.fake.set_state(NodeId::ZERO, NodeState::Crashed);
    let machine: &dyn Machine = &place.fake;
    machine.load(NodeId::ZERO, &tempfile::tempfile().unwrap(), None, "").unwrap();
    machine.start(NodeId::ZERO).unwrap();
    let refused = place.open_at(0, &Hand::now()).err().expect("nobody would believe a new one");
    assert!(matches!(&refused, PkiError::Forgotten { .. }), "{refused}");
    assert!(refused.to_string().contains("put [state] dir of mint.toml on a disk"), "{refused}");
    assert_eq!(fs::read_dir(state).unwrap().count(), 0);
}
