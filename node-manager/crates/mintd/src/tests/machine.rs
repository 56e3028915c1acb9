// SPDX-License-Identifier: Apache-2.0
//! Several daemons on one fake machine, each with its own root folder, threads
//! and address on the loopback device: everything but the kernel and `mint0`.
//!
//! A node's daemon is started from the bundle that its starter really made: taken
//! out of the initrd that the fake machine was given. A task of each daemon stands
//! for its kernel: it tells changes of state, and ends the node when its poweroff
//! command was run.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use mint_api::{Client, Versions};
use mint_host::Host as _;
use mint_image::kernel_image;
use mint_node::fake::FakeMachine;
use mint_node::{Config, Machine as _};
use mint_serve::listen;
use mint_sys::Event;
use mint_types::{Kind, NodeId, NodeState, ResourceKey};
use tokio::runtime::Runtime;

use crate::app::App;
use crate::changes;
use crate::run::Parts;
use crate::run_error::RunError;

use super::STUCK;

/// How often the stand-ins of the kernels look.
const LOOK: Duration = Duration::from_millis(2);

/// A machine with daemons.
pub(super) struct Machine {
    pub fake: FakeMachine,
    folder: tempfile::TempDir,
    config: Config,
}

/// A node's daemon. It is killed when it is dropped.
pub(super) struct Daemon {
    pub app: Arc<App>,
    /// The machine as this daemon has it.
    pub machine: Arc<FakeMachine>,
    pub client: Client,
    pub root: PathBuf,
    runtime: Option<Runtime>,
    /// That of the daemon; a successor waits for it.
    lock: Option<File>,
}

impl Daemon {
    /// Where it keeps its journal and the like.
    pub fn state_dir(&self) -> PathBuf {
        crate::identity::state_dir(&self.root, &self.app.config.state.dir).unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Daemon {
    /// Whether it was.
    pub fn is_killed(&self) -> bool {
        self.runtime.is_none()
    }

    /// Kills it: nothing of it goes on.
    pub fn kill(&mut self) {
        self.lock = None;
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A /24 of the loopback device that no other process of tests uses at this time: the
/// ports tell this one's machines apart.
fn loopback_subnet() -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high | 1, low, 0)
}

impl Machine {
    /// The fake one of [`FakeMachine::new`].
    pub fn new() -> Self {
        Self::with(FakeMachine::new())
    }

    /// Another one, whose nodes have addresses that the first one's have not.
    pub fn another() -> Self {
        let mut machine = Self::new();
        let [first, second, third, _] = loopback_subnet().octets();
        let other = Ipv4Addr::new(first, second & !1, third, 0);
        machine.config.network.subnet = ipnet::Ipv4Net::new(other, 24).unwrap();
        machine
    }

    pub fn with(fake: FakeMachine) -> Self {
        static MACHINES: AtomicU16 = AtomicU16::new(0);
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.node.kernel = folder.path().join("bzImage");
        config.node.initrd = folder.path().join("initrd");
        config.network.subnet = ipnet::Ipv4Net::new(loopback_subnet(), 24).unwrap();
        config.network.port = 21_000 + MACHINES.fetch_add(1, Ordering::Relaxed);
        config.ssh.manage = false;
        config.wait.start_s = 20;
        std::fs::write(&config.node.kernel, kernel_image::pretend_kernel()).unwrap();
        std::fs::write(&config.node.initrd, mint_image::cpio::Archive::new().finish()).unwrap();
        Self { fake, folder, config }
    }

    /// Starts a node's daemon, as its init would: with the bundle that it was loaded with.
    pub fn daemon(&self, node: u32) -> Daemon {
        self.daemon_with(node, Versions::OURS, |_| {})
    }

    /// The same, of another version, or with other settings.
    pub fn daemon_with(
        &self,
        node: u32,
        versions: Versions,
        change: impl FnOnce(&mut Config),
    ) -> Daemon {
        let root = self.root(node);
        for folder in ["etc", "proc", "run/mint"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        std::fs::write(root.join("proc/cmdline"), format!("root=/dev/vda{node}\n")).unwrap();
        let bundle = root.join("run/mint/bundle");
        if let Some(initrd) = self.fake.initrd(id(node)) {
            _ = std::fs::remove_dir_all(&bundle);
            unpack(&initrd, &root.join("run"), &bundle);
        }
        self.probe(node);
        let mut config = self.config.clone();
        let run = |name: &str| vec!["touch".into(), path_text(&root.join(name))];
        config.commands.poweroff = run("poweroff");
        config.commands.leave = run("leave");
        change(&mut config);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name(format!("mintd-{node}"))
            .enable_all()
            .build()
            .unwrap();
        let machine = Arc::new(self.fake.also_from(node));
        let socket = root.join("run/mint/mintd.sock");
        let seen = machine.clone();
        let starting = {
            let (root, socket) = (root.clone(), socket.clone());
            async move {
                let config = Arc::new(config);
                let deadline = Instant::now() + STUCK;
                let started = loop {
                    let parts = Parts {
                        machine: machine.clone(),
                        host: machine.clone(),
                        config: config.clone(),
                        root: root.clone(),
                        bundle: bundle.clone(),
                        area: None,
                        versions,
                    };
                    match parts.start().await {
                        Ok(started) => break started,
                        // a program that another test of this process is just starting has
                        // all our files, up to its exec
                        Err(RunError::Running { .. }) if Instant::now() < deadline => {
                            tokio::time::sleep(LOOK).await;
                        }
                        Err(error) => panic!("{error}"),
                    }
                };
                let app = started.app.clone();
                _ = std::fs::remove_file(&socket);
                (app, started.launch(listen(&socket).unwrap()))
            }
        };
        // in a thread of its own, as tests are tasks themselves
        let handle = runtime.handle().clone();
        let (app, lock) =
            std::thread::scope(|scope| scope.spawn(|| handle.block_on(starting)).join().unwrap());
        runtime.spawn(kernel(app.clone(), self.fake.also_from(node), root.clone()));
        let client = Client::unix(socket);
        Daemon { app, machine: seen, client, root, runtime: Some(runtime), lock: Some(lock) }
    }

    /// A kernel that boots binds drivers to what it owns.
    fn probe(&self, node: u32) {
        for device in self.fake.resources(Kind::Device).unwrap() {
            let bdf = device.key.bdf().filter(|_| device.owner == Some(id(node)));
            if let Some(bdf) = bdf.filter(|&bdf| self.fake.driver(bdf).is_none()) {
                self.fake.bind(bdf, None).unwrap();
            }
        }
    }

    /// A node's root folder.
    pub fn root(&self, node: u32) -> PathBuf {
        self.folder.path().join(format!("node{node}"))
    }

    /// Where a node's daemon serves peers.
    pub fn address(&self, node: u32) -> std::net::SocketAddr {
        (self.config.network.address(id(node)), self.config.network.port).into()
    }

    pub fn state(&self, node: u32) -> Option<NodeState> {
        self.fake.node(id(node)).unwrap().map(|node| node.state)
    }

    pub fn boots(&self, node: u32) -> u32 {
        self.fake.node(id(node)).unwrap().unwrap().boots
    }

    /// Who owns a resource.
    pub fn owner(&self, key: ResourceKey) -> Option<u32> {
        let all = self.fake.resources(key.kind).unwrap();
        all.into_iter().find(|resource| resource.key == key).unwrap().owner.map(NodeId::as_u32)
    }
}

pub(super) fn id(node: u32) -> NodeId {
    NodeId::new(node).unwrap()
}

fn path_text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Stands for a node's kernel as its daemon sees it.
async fn kernel(app: Arc<App>, fake: FakeMachine, root: PathBuf) {
    let here = fake.info().unwrap().node;
    let states = || -> BTreeMap<NodeId, (NodeState, u32)> {
        let nodes = fake.nodes().unwrap();
        nodes.into_iter().map(|node| (node.id, (node.state, node.boots))).collect()
    };
    let mut seen = states();
    loop {
        tokio::time::sleep(LOOK).await;
        for (file, end) in [("poweroff", NodeState::Halted), ("leave", NodeState::Reboot)] {
            if std::fs::remove_file(root.join(file)).is_ok() {
                fake.set_state(here, end);
            }
        }
        let now = states();
        let ids: std::collections::BTreeSet<_> = seen.keys().chain(now.keys()).copied().collect();
        for node in ids {
            let state = |all: &BTreeMap<NodeId, (NodeState, u32)>| {
                all.get(&node).copied().unwrap_or((NodeState::Unused, 0))
            };
            let (old, new) = (state(&seen), state(&now));
            if old != new {
                let event = Event { seq: 1, time_ns: 1, node, old: old.0, new: new.0, lost: 0 };
                changes::state_changed(&app, &event);
            }
        }
        seen = now;
    }
}

/// Unpacks the members `mint/…` of an initrd to `bundle`, as a node's init does.
fn unpack(initrd: &[u8], above: &Path, bundle: &Path) {
    let mut at = 0;
    while let Some(header) = initrd.get(at..at + 110) {
        if &header[..6] != b"070701" {
            // padding between archives
            at += 4;
            continue;
        }
        let field = |index: usize| {
            let digits = std::str::from_utf8(&header[6 + 8 * index..14 + 8 * index]).unwrap();
            usize::from_str_radix(digits, 16).unwrap()
        };
        let (mode, bytes, name_bytes) = (field(1), field(6), field(11));
        let name = std::str::from_utf8(&initrd[at + 110..at + 109 + name_bytes]).unwrap();
        let data_at = (at + 110 + name_bytes).next_multiple_of(4);
        if name == "mint" || name.starts_with("mint/") {
            let path = bundle.join(name.trim_start_matches("mint").trim_start_matches('/'));
            assert!(path.starts_with(above));
            if mode & 0o170_000 == 0o040_000 {
                std::fs::create_dir_all(&path).unwrap();
            } else {
                std::fs::write(&path, &initrd[data_at..data_at + bytes]).unwrap();
            }
        }
        at = (data_at + bytes).next_multiple_of(4);
    }
}
