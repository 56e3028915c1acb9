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
use mint_node::files::write_atomic;
use mint_node::{Done, about};
use mint_ops::Op;
use mint_plan::Inventory;
use mint_types::{NodeId, NodeName, NodeSpec, NodeStatus, Refusal, RefusalCode, format_bytes};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::app::App;
use crate::peer_clients::peer_error;
use crate::vmcore;
use crate::waiting::{is_live, ms, result, tell_peers, wait_started};

/// For node 0 to take the order to end itself.
const LEAVE_WITHIN: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);
/// Files of what was fetched.
const KERNEL: &str = "kernel";
const INITRD: &str = "initrd";
const SPEC: &str = "spec.json";
/// For images, where nothing says how much memory is available.
const ROOM_BYTES: u64 = 1 << 30;
/// What names of folders with images begin with.
const SET: &str = "set-";

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
    stored(&folder(app))
}

fn stored(folder: &Path) -> Option<NodeSpec> {
    let text = fs::read(folder.join(SPEC)).ok()?;
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
    op: &Op,
    inventory: &Inventory,
    request: StartRequest,
) -> Result<NodeResult, ErrorBody> {
    let zero = inventory
        .node(NodeId::ZERO)
        .ok_or_else(|| ErrorBody::new(ErrorCode::Failed, "the ledger has no node 0"))?
        .clone();
    if let Some(refusal) = inventory.lends(NodeId::ZERO).filter(|_| zero.state.is_live()) {
        return Err(ErrorBody::refused(vec![refusal]));
    }
    if app.here == NodeId::ZERO {
        return by_a_peer(&app, op, inventory, &zero, &request).await;
    }
    let began = Instant::now();
    if zero.state.is_live() {
        let client = app.peers.client(NodeId::ZERO)?;
        let journal = |error| ErrorBody::from_error(ErrorCode::Failed, &error);
        op.begin(about(&zero), false).map_err(journal)?;
        op.progress(&format!("fetch the images of {}", zero.label()));
        let fetched = fetch(&app, &client).await;
        let cancelled = op.check();
        if fetched.is_err() || cancelled.is_err() {
            op.taken_back(Vec::new()).map_err(journal)?;
        }
        fetched?;
        cancelled.map_err(|error| ErrorBody::from_error(ErrorCode::Cancelled, &error))?;
        op.no_return().map_err(journal)?;
        app.marks().ordered.note(zero.id, zero.boots);
        tell_peers(&app, inventory, &zero).await;
        let left = leave(&app, op, &client, &request, &zero).await;
        if left.is_err() && is_live(&app, zero.id)? {
            // it runs on: nothing is left to be finished
            op.taken_back(Vec::new()).map_err(journal)?;
        }
        left?;
    }
    let spec = fetched(&app).ok_or_else(|| not_fetched(&zero))?;
    let mut times = TimesView { stop_ms: Some(ms(began)), ..TimesView::default() };
    let done: Done = app.carry(op, move |nodes, op| nodes.start(op, "0", Some(spec))).await?;
    wait_started(&app, done.node, request.wait, request.wait_s, &mut times, op).await?;
    info!("node 0 was started again");
    Ok(result(&app, done, times).await)
}

/// The first peer whose daemon listens does it; what it says until we end is passed on.
async fn by_a_peer(
    app: &Arc<App>,
    op: &Op,
    inventory: &Inventory,
    zero: &NodeStatus,
    request: &StartRequest,
) -> Result<NodeResult, ErrorBody> {
    for peer in inventory.nodes.iter().filter(|node| node.id != app.here && node.state.is_live()) {
        if !app.peers.listens(peer.id).await {
            continue;
        }
        // that it was started again, our next daemon sees by its boots
        op.begin(about(zero), false)
            .map_err(|error| ErrorBody::from_error(ErrorCode::Failed, &error))?;
        op.progress(&format!("{} restarts {}", peer.label(), zero.label()));
        let client = app.peers.client(peer.id)?;
        let path = format!("/v1/nodes/{}/restart", zero.id);
        let passed = client.operate(&path, request, |text| op.progress(text)).await;
        _ = op.taken_back(Vec::new());
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
    let room_bytes = match app.host.load().memory_available_bytes {
        0 => ROOM_BYTES,
        // the other half is for what runs here
        available => available / 2,
    };
    fetch_set(&folder(app), client, room_bytes).await
}

/// Files that belong together: each set has a folder of its own, and the description, which
/// is written last and as a whole, says which one counts.
async fn fetch_set(folder: &Path, client: &Client, room_bytes: u64) -> Result<(), ErrorBody> {
    let failed = |error: io::Error| ErrorBody::from_error(ErrorCode::Failed, &error);
    fs::create_dir_all(folder).map_err(failed)?;
    let boot: BootView = client.get("/v1/local/boot").await.map_err(peer_error)?;
    // goes with an error
    let set = tempfile::Builder::new().prefix(SET).tempdir_in(folder).map_err(failed)?;
    let mut left = room_bytes;
    for what in [KERNEL, INITRD] {
        let mut reader =
            client.bytes(&format!("/v1/local/boot/{what}")).await.map_err(peer_error)?;
        let mut file = File::create(set.path().join(what)).map_err(failed)?;
        while let Some(data) = reader.next().await.map_err(peer_error)? {
            left = left.checked_sub(data.len() as u64).ok_or_else(|| {
                let room = format_bytes(room_bytes);
                let text = format!(
                    "the images of node 0 are larger than what there is room for here ({room})"
                );
                ErrorBody::new(ErrorCode::Failed, text)
            })?;
            file.write_all(&data).map_err(failed)?;
        }
    }
    let name: NodeName = "node0".parse().expect("a good name");
    let spec = NodeSpec {
        kernel: Some(set.path().join(KERNEL)),
        initrd: Some(set.path().join(INITRD)),
        cmdline: Some(boot.cmdline),
        restart: boot.restart,
        ..NodeSpec::named(name)
    };
    let text = serde_json::to_vec(&spec).map_err(|error| failed(error.into()))?;
    write_atomic(&folder.join(SPEC), &text, 0o600).map_err(failed)?;
    let current = set.keep();
    for entry in fs::read_dir(folder).map_err(failed)?.flatten() {
        let older = entry.file_name().to_string_lossy().starts_with(SET);
        if older && entry.path() != current {
            fs::remove_dir_all(entry.path()).map_err(failed)?;
        }
    }
    Ok(())
}

/// Asks node 0 to end, and waits until it has.
async fn leave(
    app: &Arc<App>,
    op: &Op,
    client: &Client,
    request: &StartRequest,
    zero: &NodeStatus,
) -> Result<(), ErrorBody> {
    let label = zero.label();
    op.progress(&format!("stop {label}"));
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

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use mint_types::RestartPolicy;
    use tokio::net::UnixListener;

    use super::*;
    use crate::server::serve_unix;

    /// A node 0 whose command line, kernel and initrd are that word; without an initrd, if
    /// `broken`.
    fn node0(socket: &Path, word: &'static str, broken: bool) -> Client {
        _ = fs::remove_file(socket);
        let view = BootView { cmdline: word.into(), restart: RestartPolicy::OnCrash };
        let mut router = Router::new()
            .route("/v1/local/boot", get(async move || axum::Json(view)))
            .route("/v1/local/boot/kernel", get(async move || word));
        if !broken {
            router = router.route("/v1/local/boot/initrd", get(async move || word));
        }
        tokio::spawn(serve_unix(UnixListener::bind(socket).unwrap(), router));
        Client::unix(socket)
    }

    /// Command line, kernel and initrd of the next start.
    fn set(folder: &Path) -> [String; 3] {
        let spec = stored(folder).unwrap();
        let read = |path: Option<PathBuf>| fs::read_to_string(path.unwrap()).unwrap();
        [spec.cmdline.unwrap(), read(spec.kernel), read(spec.initrd)]
    }

    #[test]
    fn images_and_description_are_replaced_as_one() {
        let folder = tempfile::tempdir().unwrap();
        let (sets, socket) = (folder.path().join("node0"), folder.path().join("socket"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let fetch = async |word, broken, room| {
                let client = node0(&socket, word, broken);
                fetch_set(&sets, &client, room).await
            };
            fetch("old", true, 100).await.unwrap_err();
            assert!(stored(&sets).is_none());
            fetch("old", false, 100).await.unwrap();
            assert_eq!(set(&sets), ["old"; 3]);
            fetch("new", true, 100).await.unwrap_err();
            assert_eq!(set(&sets), ["old"; 3], "it broke off after the kernel");
            let error = fetch("new", false, 5).await.unwrap_err();
            assert!(error.message.contains("larger than"), "{error}");
            assert_eq!(set(&sets), ["old"; 3]);
            fetch("new", false, 6).await.unwrap();
            assert_eq!(set(&sets), ["new"; 3]);
            assert_eq!(fs::read_dir(&sets).unwrap().count(), 2, "one set and its description");
        });
    }
}
