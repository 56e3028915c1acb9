// SPDX-License-Identifier: Apache-2.0
//! Keeps links as they are to be, for ever: routes, who is believed, names, libvirt's TLS, the
//! guests' Ethernet, and what the other nodes of this machine know of them.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use mint_api::{Link, Links, MachineNews};
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::{address, routes};
use crate::app::App;
use crate::libvirt_tls::{self, Node};
use crate::nodes::refresh_names;

/// Between two looks, if there are links.
const PERIOD: Duration = Duration::from_secs(5);
/// And if there are none: certificates are renewed.
const PERIOD_ALONE: Duration = Duration::from_secs(600);
/// For a linked machine, or a node of ours, to answer.
const WITHIN: Duration = Duration::from_secs(5);
/// Where `mint-kvm-config link` finds the ends of the guests' Ethernet.
const ENDS: &str = "run/mint/links.json";

/// What the last look has set.
#[derive(Default)]
struct Set {
    links: Vec<Link>,
    /// Whether other nodes were ever told of links.
    has_told: bool,
    /// The ends of the guests' Ethernet that are in the bridge.
    ends: Vec<Value>,
}

/// Looks for ever.
pub(crate) async fn watch(app: Arc<App>) {
    let mut set = Set::default();
    loop {
        look(&app, &mut set).await;
        let period = if app.links.all().is_empty() { PERIOD_ALONE } else { PERIOD };
        _ = timeout(period, app.links.changed.notified()).await;
    }
}

async fn look(app: &Arc<App>, set: &mut Set) {
    let links = app.links.all();
    let is_other = |link: &Link, old: &Link| {
        (&link.view.name, link.view.via, link.view.subnet, &link.known, &link.view.nodes)
            != (&old.view.name, old.view.via, old.view.subnet, &old.known, &old.view.nodes)
    };
    let is_news = links.len() != set.links.len()
        || links.iter().zip(&set.links).any(|(link, old)| is_other(link, old));
    if is_news {
        believe(app, &links);
        info!(links = links.len(), "links to other machines have changed");
    }
    set.links.clone_from(&links);
    let shared = app.clone();
    let done = tokio::task::spawn_blocking(move || {
        if is_news || !links.is_empty() {
            if let Err(error) =
                routes::set(&shared.root, &links, shared.here, &shared.config.network)
            {
                warn!(%error, "not all linked machines are reached");
            }
        }
        if is_news {
            refresh_names(&shared);
        }
        if install_tls(&shared) && routes::is_whole(&shared.root) {
            libvirt_tls::tell_libvirtd();
        }
    });
    _ = done.await;
    ask(app).await;
    ends(app, set).await;
    tell(app, set).await;
}

/// The first look at a new link: says whether the other machine answers.
pub(super) async fn begin(app: &Arc<App>) {
    let links = app.links.all();
    believe(app, &links);
    let shared = app.clone();
    let set = tokio::task::spawn_blocking(move || {
        routes::set(&shared.root, &links, shared.here, &shared.config.network)
    });
    if let Ok(Err(error)) = set.await {
        warn!(%error, "not all linked machines are reached");
    }
    ask(app).await;
}

/// TLS believes the nodes of linked machines.
fn believe(app: &App, links: &[Link]) {
    let Some(pki) = &app.peers.tls else { return };
    let known = links.iter().flat_map(|link| link.known.iter().cloned()).collect();
    if let Err(error) = pki.believe_linked(known) {
        warn!(%error, "nodes of linked machines are not believed");
    }
}

/// Asks each linked machine who is there.
async fn ask(app: &Arc<App>) {
    for link in app.links.own() {
        let asked = async {
            let client =
                app.peers.linked(&link, link.gateway).map_err(|error| error.to_string())?;
            match timeout(WITHIN, client.get::<MachineNews>("/v1/local/machine")).await {
                Ok(answer) => answer.map_err(|error| {
                    mint_api::ErrorBody::from_error(mint_api::ErrorCode::PeerUnreachable, &error)
                        .to_string()
                }),
                Err(_) => Err(format!("no answer within {} s", WITHIN.as_secs())),
            }
        };
        let news = asked.await;
        if let (true, Err(reason)) = (link.view.is_up, &news) {
            warn!(machine = %link.view.name, reason, "a linked machine does not answer");
        }
        app.links.heard(link.view.machine, news);
    }
    believe(app, &app.links.all());
}

/// Tells the other nodes of this machine.
async fn tell(app: &Arc<App>, set: &mut Set) {
    let links = app.links.own();
    if links.is_empty() && !set.has_told {
        return;
    }
    set.has_told = true;
    let news = Links { via: app.here, links };
    let nodes = app.machine.nodes().unwrap_or_default();
    for node in nodes.into_iter().filter(|node| node.state.is_live() && node.id != app.here) {
        let Ok(client) = app.peers.client(node.id) else { continue };
        let told = timeout(WITHIN, client.post::<Value>("/v1/local/links", &news)).await;
        if !matches!(told, Ok(Ok(_))) {
            debug!(node = %node.id, "not told of links");
        }
    }
}

/// libvirt and QEMU have a certificate, and believe this machine's and linked ones'. Gives
/// whether libvirt is to read something anew.
pub(crate) fn install_tls(app: &App) -> bool {
    let Some(pki) = &app.peers.tls else { return false };
    let Some(authority) = pki.authority() else { return false };
    let Ok(Some(status)) = app.machine.node(app.here) else { return false };
    let address = app.config.network.address(app.here).into();
    let links = app.links.all();
    let linked: Vec<&str> = links.iter().map(|link| link.authority.as_str()).collect();
    let node = Node { status: &status, address };
    match libvirt_tls::install(&app.root, authority, &node, &linked, pki.now()) {
        Ok(is_news) => is_news,
        Err(error) => {
            warn!(%error, "libvirt has no TLS");
            false
        }
    }
}

/// The guests' Ethernet reaches linked machines through the nodes that have the wires.
async fn ends(app: &Arc<App>, set: &mut Set) {
    let end =
        |link: &Link| json!({ "name": link.view.name, "address": address(link, link.gateway) });
    let ends: Vec<Value> = app.links.own().iter().map(end).collect();
    if ends == set.ends || !routes::is_whole(&app.root) {
        return;
    }
    let path = app.root.join(ENDS);
    let text = serde_json::to_vec(&ends).expect("addresses are plain data");
    let run = tokio::task::spawn_blocking(move || {
        fs::write(path, text)?;
        Command::new("mint-kvm-config").arg("link").output()
    });
    match run.await {
        Ok(Ok(ended)) if ended.status.success() => set.ends = ends,
        Ok(Ok(ended)) => {
            warn!(
                said = String::from_utf8_lossy(&ended.stderr).trim(),
                "the guests' Ethernet does not reach linked machines"
            );
        }
        Ok(Err(error)) => debug!(%error, "no mint-kvm-config here"),
        Err(_) => {}
    }
}
