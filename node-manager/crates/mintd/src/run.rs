// SPDX-License-Identifier: Apache-2.0
//! Start and end of the daemon.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use axum::Router;
use mint_api::Versions;
use mint_host::{Host, SysHost};
use mint_image::Bundle;
use mint_node::{Config, KernelMachine, Machine, Nodes, SpecStore};
use mint_ops::{Area, Folder, Operations};
use mint_serve::listen;
use mint_sys::Device;
use mint_types::{NodeId, NodeState};
use sd_notify::NotifyState;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use crate::app::App;
use crate::audit::AuditLog;
use crate::events::EventLog;
use crate::facts::NodeFacts;
use crate::layout_metrics::LayoutMetrics;
use crate::links::Links;
use crate::marks::{Marks, Ordered};
use crate::move_metrics::MoveMetrics;
use crate::peer_clients::PeerClients;
use crate::pki::{NoKeys, Pki, Place};
use crate::restart::start_again;
use crate::run_error::{RunError, file_error};
use crate::ssh::SshKeys;
use crate::{
    changes, events, heal, heartbeats, identity, instance, intents, interrupted, links, metrics,
    network, nodes, routes, server, takeover,
};

/// How long to wait for mint0 to take our address.
const BIND_TRIES: u32 = 100;
const BIND_PAUSE: Duration = Duration::from_millis(100);
/// For operations in progress to come to their ends when the daemon ends.
const END_WITHIN: Duration = Duration::from_secs(8);
const IDLE_POLL: Duration = Duration::from_millis(20);

/// Where things are.
#[derive(Clone, Debug)]
pub struct Options {
    /// Path of `mint.toml`.
    pub config: PathBuf,
    /// Socket for users.
    pub socket: PathBuf,
    /// The kernel's device.
    pub device: PathBuf,
    /// What the node that started us left.
    pub bundle: PathBuf,
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// When the daemon cannot start.
pub fn run(options: &Options) -> Result<(), RunError> {
    let config = Config::load(&options.config)?;
    let machine = KernelMachine::open(&options.device, config.wait.move_ms)?;
    let events = Device::open(&options.device)?;
    let area = intents::open(&options.device)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(RunError::Runtime)?;
    let root = PathBuf::from("/");
    let host = SysHost::new(&root);
    if let Err(error) = host.online_as_movable() {
        warn!("memory that is onlined by hand may not be movable: {error}");
    }
    runtime.block_on(async {
        let parts = Parts {
            host: Arc::new(host),
            machine: Arc::new(machine),
            config: Arc::new(config),
            root,
            bundle: options.bundle.clone(),
            area,
            versions: Versions::OURS,
        };
        instance::await_end_of_another(&parts.root, &options.socket).await?;
        let started = parts.start().await?;
        serve(started, Some(events), &options.socket).await
    })?;
    runtime.shutdown_background();
    Ok(())
}

/// What the daemon is made of; tests put a fake machine in.
pub(crate) struct Parts {
    pub machine: Arc<dyn Machine>,
    pub host: Arc<dyn Host>,
    pub config: Arc<Config>,
    pub root: PathBuf,
    pub bundle: PathBuf,
    /// Where other nodes find intents, if the machine has room for them.
    pub area: Option<Box<dyn Area>>,
    /// Versions of the interface to peers.
    pub versions: Versions,
}

/// A daemon that is ready to serve.
pub(crate) struct Started {
    pub app: Arc<App>,
    pub router: Router,
    tls: Option<Arc<Pki>>,
    /// Held as long as this daemon lives.
    lock: File,
}

impl Parts {
    /// Lock, keys, journal; what was left in the middle is settled.
    pub async fn start(mut self) -> Result<Started, RunError> {
        let info = self.machine.info()?;
        self.take_facts(info.node_max)?;
        let here = info.node;
        let run_dir = self.root.join("run/mint");
        // before anything else: what another one is doing is not ours to settle
        let lock = instance::lock(&self.root)?;
        let state_dir = identity::state_dir(&self.root, &self.config.state.dir)
            .map_err(file_error(&self.config.state.dir))?;
        info!(node = %here, state = %state_dir.display(), "mintd {}", env!("CARGO_PKG_VERSION"));
        let (bundle, pki) = self.keys(here, &state_dir);
        let peers = Arc::new(PeerClients {
            tls: pki.clone(),
            versions: self.versions,
            network: self.config.network.clone(),
            move_timeout: Duration::from_millis(u64::from(self.config.wait.move_ms) * 2 + 5_000),
            runtime: tokio::runtime::Handle::current(),
            clients: Mutex::default(),
            apart: Mutex::default(),
            learned: Mutex::default(),
            known: Mutex::default(),
            heard: Mutex::default(),
        });
        let specs = SpecStore::open(&state_dir)?;
        let folder = Folder::open(&state_dir)?;
        let ops = Operations::open_with(folder, self.area, info.boot_id, events::now_ns)?;
        let nodes = Nodes {
            machine: self.machine.clone(),
            host: self.host.clone(),
            peers: peers.clone(),
            bundle,
            config: self.config.clone(),
            ops: ops.clone(),
            specs: specs.clone(),
        };
        let app = Arc::new(App {
            machine: self.machine,
            host: self.host,
            config: self.config,
            nodes: Arc::new(nodes),
            ops,
            events: EventLog::open(&run_dir.join("events.jsonl")),
            move_metrics: MoveMetrics::default(),
            layout_metrics: LayoutMetrics::default(),
            audit: AuditLog::open(&state_dir),
            peers,
            links: Links::open(&state_dir),
            specs,
            root: self.root,
            bundle: self.bundle,
            here,
            marks: Mutex::new(Marks {
                ordered: Ordered::open(run_dir.join("ordered.json")),
                ..Marks::default()
            }),
            ending: AtomicBool::new(false),
        });
        let own_keys = crate::ssh::host_keys(&app.root, &app.bundle);
        app.marks().ssh_host_keys.insert(here, own_keys);
        if app.config.network.enabled {
            network::note_address(&app.root, &app.config.network, here);
        }
        // libvirtd waits for it, and reads it when it starts
        links::watch::install_tls(&app);
        interrupted::settle(&app).await;
        interrupted::end_elsewhere(&app);
        let router = routes::router(app.clone());
        Ok(Started { app, router, tls: pki, lock })
    }

    /// What our starter told us counts more than mint.toml of our image.
    fn take_facts(&mut self, nodes: u32) -> Result<(), RunError> {
        let facts = NodeFacts::read(&self.bundle).map_err(file_error(&self.bundle))?;
        if let Some(subnet) = facts.and_then(|facts| facts.subnet) {
            let mut config = Config::clone(&self.config);
            config.network.subnet = subnet;
            self.config = Arc::new(config);
        }
        let network = &self.config.network;
        if network.enabled && !network.has_room(nodes) {
            return Err(RunError::Subnet { subnet: network.subnet, nodes });
        }
        Ok(())
    }

    fn keys(&self, here: NodeId, state_dir: &Path) -> (Arc<dyn Bundle>, Option<Arc<Pki>>) {
        if !self.config.network.enabled {
            return (Arc::new(NoKeys(self.config.network.clone())), None);
        }
        let ssh = self
            .config
            .ssh
            .manage
            .then(|| SshKeys::open(here, &self.bundle, state_dir, self.config.network.subnet));
        let ssh = match ssh.transpose() {
            Ok(ssh) => ssh.flatten(),
            Err(error) => {
                warn!(%error, "no ssh keys");
                None
            }
        };
        if let Some(Err(error)) = ssh.as_ref().map(|ssh| ssh.install(&self.root)) {
            warn!(%error, "ssh between nodes is not set up");
        }
        let pki = Pki::open(Place {
            bundle: &self.bundle,
            state: state_dir,
            volatile: identity::is_volatile(&self.root, state_dir),
            ledger: self.machine.clone(),
            network: &self.config.network,
            ssh,
            clock: Box::new(SystemTime::now),
        });
        match pki.map(Arc::new) {
            Ok(pki) => (pki.clone(), Some(pki)),
            Err(error) => {
                let error = mint_api::ErrorBody::from_error(mint_api::ErrorCode::Failed, &error);
                warn!("peers are not served: {error}");
                (Arc::new(NoKeys(self.config.network.clone())), None)
            }
        }
    }
}

impl Started {
    /// Starts all tasks; they end with the runtime. Gives the lock, to be held as long.
    #[must_use]
    pub fn launch(self, listener: UnixListener) -> File {
        let Self { app, router, tls, lock } = self;
        tokio::spawn(server::serve_unix(listener, router.clone()));
        tokio::spawn(heartbeats::watch(app.clone()));
        tokio::spawn(heal::watch(app.clone()));
        if app.config.network.enabled {
            tokio::spawn(network_up(app.clone(), tls, router));
            tokio::spawn(app.peers.clone().introduce(app.machine.clone()));
            tokio::spawn(links::watch::watch(app.clone()));
        }
        if !app.config.metrics.listen.is_empty() {
            tokio::spawn(metrics::serve(app.clone()));
        }
        tokio::spawn(takeover::take_over(app.clone()));
        meet_all(&app);
        lock
    }
}

async fn serve(
    started: Started,
    events_device: Option<Device>,
    socket: &Path,
) -> Result<(), RunError> {
    let app = started.app.clone();
    let mut ends = signal(SignalKind::terminate()).map_err(RunError::Runtime)?;
    let mut breaks = signal(SignalKind::interrupt()).map_err(RunError::Runtime)?;
    let listener = listen(socket)?;
    if let Some(device) = events_device {
        changes::watch_kernel(app.clone(), device, tokio::runtime::Handle::current());
    }
    let _lock = started.launch(listener);
    info!(socket = %socket.display(), "serving");
    say_ready();
    tokio::select! {
        _ = ends.recv() => {}
        _ = breaks.recv() => {}
    }
    info!("ending");
    app.ending.store(true, Ordering::Relaxed);
    if let Err(error) = std::fs::remove_file(socket) {
        warn!(%error, "socket is left behind");
    }
    // operations in progress come to their ends; what a kill would leave half
    // done, the next mintd settles by the journal
    let idle = async {
        while !app.ops.is_idle() {
            tokio::time::sleep(IDLE_POLL).await;
        }
    };
    if tokio::time::timeout(END_WITHIN, idle).await.is_err() {
        warn!("an operation is still going on: the journal knows how far");
    }
    Ok(())
}

/// Tells the service manager, if there is one, that requests are answered from now on.
pub(crate) fn say_ready() {
    if let Err(error) = sd_notify::notify(&[NotifyState::Ready]) {
        warn!(%error, "the service manager does not know that mintd is ready");
    }
}

/// What happened while no mintd was here.
fn meet_all(app: &Arc<App>) {
    let Ok(nodes) = app.machine.nodes() else { return };
    for node in nodes.into_iter().filter(|node| node.id != app.here) {
        match node.state {
            NodeState::Running => _ = tokio::spawn(nodes::meet(app.clone(), node.id)),
            end => _ = tokio::spawn(start_again(app.clone(), node.id, end)),
        }
    }
}

/// Sets mint0 up and serves peers on it.
async fn network_up(app: Arc<App>, tls: Option<Arc<Pki>>, router: Router) {
    let setup = tokio::task::spawn_blocking({
        let app = app.clone();
        move || {
            let result = network::configure(&app.root, &app.config.network, app.here);
            nodes::refresh_names(&app);
            result
        }
    });
    match setup.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => warn!(%error, "mint0 is not set up: peers are not reached"),
        Err(error) => warn!(%error, "mint0 is not set up"),
    }
    let Some(tls) = tls else { return };
    let address = (app.config.network.address(app.here), app.config.network.port);
    for _ in 0..BIND_TRIES {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                info!(address = %address.0, port = address.1, "serving peers");
                server::serve_tls(listener, tls, router).await;
                return;
            }
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                tokio::time::sleep(BIND_PAUSE).await;
            }
            Err(error) => {
                warn!(%error, address = %address.0, "peers are not served");
                return;
            }
        }
    }
    warn!(address = %address.0, "peers are not served: no interface has that address");
}
