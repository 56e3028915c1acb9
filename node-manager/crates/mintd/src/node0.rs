// SPDX-License-Identifier: Apache-2.0
//! Node 0 restarts alone, the others run on (mint-kvm 2.2: independent restart).
//!
//! It ends like any node, by a restart or a panic: its cores go to the park loop
//! and no reset line is touched. Every peer keeps its images since it met it; one
//! loads them into its memory and starts it; it takes up the ledger as it finds it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::response::Response;
use mint_api::{BootView, Client, ErrorBody, ErrorCode, NodeResult, StartRequest, TimesView};
use mint_node::{Done, Inventory};
use mint_types::{NodeId, NodeName, NodeSpec, NodeStatus, Refusal, RefusalCode};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::app::{App, job_lost, op_error};
use crate::lines::Lines;
use crate::operations::{is_live, ms, result, tell_peers, wait_started};
use crate::peers::peer_error;
use crate::vmcore;

/// For node 0 to take the order to end itself.
const LEAVE_WITHIN: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);
/// Files of the folder with what was fetched; the description is written last.
const KERNEL: &str = "kernel";
const INITRD: &str = "initrd";
const SPEC: &str = "spec.json";

/// What a peer has to know of this node's start.
///
/// # Errors
/// Without procfs.
pub(crate) fn boot_view(app: &App) -> Result<BootView, ErrorBody> {
    fs::read_to_string(app.root.join("proc/cmdline"))
        .map(|text| BootView {
            cmdline: text.trim_end().to_owned(),
            restart: app.config.node0.restart,
        })
        .map_err(|error| ErrorBody::from_error(ErrorCode::Failed, &error))
}

/// A file of this node's next start: the one that is set, else the other.
///
/// # Errors
/// When it cannot be read.
pub(crate) async fn file(set: &Path, default: &Path) -> Result<Response, ErrorBody> {
    let path = if set.as_os_str().is_empty() { default } else { set }.to_owned();
    let opened = tokio::task::spawn_blocking(move || {
        let file = File::open(&path).map_err(|error| (path.clone(), error))?;
        let bytes = file.metadata().map_err(|error| (path, error))?.len();
        Ok::<_, (PathBuf, io::Error)>((file, bytes))
    });
    let (file, bytes) = opened
        .await
        .map_err(|error| ErrorBody::from_error(ErrorCode::Failed, &error))?
        .map_err(|(path, error)| {
            let mut body = ErrorBody::from_error(ErrorCode::Failed, &error);
            body.message = format!("cannot read {}: {}", path.display(), body.message);
            body
        })?;
    Ok(vmcore::stream(file, bytes))
}

/// Only node 0 leaves: others are stopped.
///
/// # Errors
/// On any other node.
pub(crate) fn leave_here(app: &App) -> Result<(), ErrorBody> {
    if app.here == NodeId::ZERO {
        return Ok(());
    }
    let text = format!("this is node {}: only node 0 ends so", app.here);
    Err(ErrorBody::new(ErrorCode::BadRequest, text))
}

/// What we fetched of node 0 when we met it; nothing if we never could.
pub(crate) fn fetched(app: &App) -> Option<NodeSpec> {
    let text = fs::read(folder(app).join(SPEC)).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Why node 0 cannot be started here: dead, it does not give its images any more.
pub(crate) fn not_fetched(zero: &NodeStatus) -> ErrorBody {
    let label = zero.label();
    let why = format!("{label} boots images of its own, which this node could not fetch");
    let hint = "try on another node; if none has them, reset the machine";
    let refusal = Refusal::new(RefusalCode::ImageMissing, &label, why).hint(hint);
    ErrorBody::refused(vec![refusal])
}

/// Node 0 runs and answers: keeps what it boots for the day when it cannot give it.
pub(crate) async fn keep(app: &App) {
    let fetched = match app.peers.client(NodeId::ZERO) {
        Ok(client) => fetch(app, &client).await,
        Err(error) => Err(error),
    };
    if let Err(error) = fetched {
        warn!("images of node 0 are not kept here: {error}");
    }
}

fn folder(app: &App) -> PathBuf {
    app.root.join("run/mint/node0")
}

/// Restarts node 0: on any other node. Said on node 0 itself, a peer is asked.
pub(crate) async fn restart(
    app: Arc<App>,
    inventory: &Inventory,
    request: StartRequest,
    lines: Lines,
) -> Result<NodeResult, ErrorBody> {
    let zero = inventory
        .node(NodeId::ZERO)
        .ok_or_else(|| ErrorBody::new(ErrorCode::Failed, "the ledger has no node 0"))?
        .clone();
    if let Some(refusal) = inventory.lends(NodeId::ZERO).filter(|_| zero.state.is_live()) {
        return Err(ErrorBody::refused(vec![refusal]));
    }
    if app.here == NodeId::ZERO {
        return by_a_peer(&app, inventory, &zero, &request, &lines).await;
    }
    let began = Instant::now();
    if zero.state.is_live() {
        let client = app.peers.client(NodeId::ZERO)?;
        lines.progress(format!("fetch the images of {}", zero.label()));
        fetch(&app, &client).await?;
        app.marks().ordered.note(zero.id, zero.boots);
        tell_peers(&app, inventory, &zero).await;
        leave(&app, &client, &request, &lines, &zero).await?;
    }
    let spec = fetched(&app).ok_or_else(|| not_fetched(&zero))?;
    let mut times = TimesView { stop_ms: Some(ms(began)), ..TimesView::default() };
    let told = lines.clone();
    let done: Done = app
        .driver
        .run(move |nodes| nodes.start("0", Some(spec), &|text| told.progress(text)))
        .await
        .map_err(job_lost)?
        .map_err(op_error)?;
    wait_started(&app, done.node, request.wait, request.wait_s, &mut times, &lines).await?;
    info!("node 0 was started again");
    Ok(result(&app, done, times).await)
}

/// The first peer whose daemon listens does it; what it says until we end is passed on.
async fn by_a_peer(
    app: &Arc<App>,
    inventory: &Inventory,
    zero: &NodeStatus,
    request: &StartRequest,
    lines: &Lines,
) -> Result<NodeResult, ErrorBody> {
    for peer in inventory.nodes.iter().filter(|node| node.id != app.here && node.state.is_live()) {
        if !app.peers.listens(peer.id).await {
            continue;
        }
        lines.progress(format!("{} restarts {}", peer.label(), zero.label()));
        let client = app.peers.client(peer.id)?;
        let path = format!("/v1/nodes/{}/restart", zero.id);
        let passed = client.operate(&path, request, |text| lines.progress(text)).await;
        return passed.map_err(peer_error);
    }
    let label = zero.label();
    let refusal = Refusal::new(
        RefusalCode::NodeSelf,
        &label,
        format_args!("{label} can be started again only by another node, and none answers"),
    );
    Err(ErrorBody::refused(vec![refusal.hint("to restart the machine: mintctl machine reboot")]))
}

/// Node 0's images, command line and policy, into our memory.
async fn fetch(app: &App, client: &Client) -> Result<(), ErrorBody> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());
    let _fetching = ONE_AT_A_TIME.lock().await;
    let folder = folder(app);
    let failed = |error: io::Error| ErrorBody::from_error(ErrorCode::Failed, &error);
    fs::create_dir_all(&folder).map_err(failed)?;
    let boot: BootView = client.get("/v1/local/boot").await.map_err(peer_error)?;
    for what in [KERNEL, INITRD] {
        let part = folder.join(format!("{what}.part"));
        let mut reader =
            client.bytes(&format!("/v1/local/boot/{what}")).await.map_err(peer_error)?;
        let mut file = File::create(&part).map_err(failed)?;
        while let Some(data) = reader.next().await.map_err(peer_error)? {
            file.write_all(&data).map_err(failed)?;
        }
        fs::rename(&part, folder.join(what)).map_err(failed)?;
    }
    let name: NodeName = "node0".parse().expect("a good name");
    let spec = NodeSpec {
        kernel: Some(folder.join(KERNEL)),
        initrd: Some(folder.join(INITRD)),
        cmdline: Some(boot.cmdline),
        restart: boot.restart,
        ..NodeSpec::named(name)
    };
    let text = serde_json::to_vec(&spec).map_err(|error| failed(error.into()))?;
    fs::write(folder.join(SPEC), text).map_err(failed)
}

/// Asks node 0 to end, and waits until it has.
async fn leave(
    app: &Arc<App>,
    client: &Client,
    request: &StartRequest,
    lines: &Lines,
    zero: &NodeStatus,
) -> Result<(), ErrorBody> {
    let label = zero.label();
    lines.progress(format!("stop {label}"));
    let nothing = json!({});
    match timeout(LEAVE_WITHIN, client.post::<Value>("/v1/local/leave", &nothing)).await {
        Ok(asked) => asked.map(drop).map_err(peer_error)?,
        Err(_) => {
            let text = format!("mintd of {label} did not take the order to end");
            return Err(ErrorBody::new(ErrorCode::PeerUnreachable, text));
        }
    }
    let limit_s = request.timeout_s.unwrap_or(app.config.wait.stop_s);
    let deadline = Instant::now() + Duration::from_secs(limit_s);
    while is_live(app, zero.id)? {
        if Instant::now() >= deadline {
            // nobody takes the platform's cores away by force
            let text = format!(
                "{label} was asked to end, and still runs after {limit_s} s: once it has ended, \
                 mintctl node start node0"
            );
            return Err(ErrorBody::new(ErrorCode::Failed, text));
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}
