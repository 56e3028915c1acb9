// SPDX-License-Identifier: Apache-2.0
//! Two copies of what sub hosts keep of a guest: each memory server may have a mirror on another
//! node, which has the same.

use mint_api::{ClientError, ErrorBody, ErrorCode, NodeKeeps, NodeView};
use mint_split::{
    Lease, LeaseEnd, Mirror, NodeStart, Server, ServerAddress, ServerMirror, SplitGuest,
};
use mint_types::{NodeState, Refusal, RefusalCode};
use serde_json::Value;
use tracing::warn;

use crate::app::{App, client_error, path_of};
use crate::servers::{Host, ask, failed, kept_lease, lease, named, path_to, random_secret, text};

fn is_node(nodes: &[NodeView], name: &str, node: &NodeView) -> bool {
    named(nodes, name).is_some_and(|named| named.id == node.id)
}

/// Nodes that may have a guest's mirror: each has one part of a guest, or one copy.
fn free_nodes<'a>(nodes: &'a [NodeView], guest: &SplitGuest) -> Vec<&'a NodeView> {
    let has_some = |node: &NodeView| {
        let of_server = |server: &Server| {
            let mirror = server.mirror.as_ref();
            let is_mirror = mirror.is_some_and(|mirror| is_node(nodes, &mirror.node, node));
            !server.is_over() && (is_node(nodes, &server.node, node) || is_mirror)
        };
        guest.servers.iter().any(of_server)
    };
    let is_left = |node: &NodeView| {
        let left = |start: &NodeStart| start.node == node.id.as_u32() && start.boots == node.boots;
        guest.left.iter().any(left)
    };
    let may = |node: &&NodeView| {
        node.state == NodeState::Running && !node.is_self && !has_some(node) && !is_left(node)
    };
    nodes.iter().filter(may).collect()
}

/// A mirror for one of a guest's memory servers, which has been told of it.
///
/// # Errors
/// When no node can be one, with the reasons of all, or the memory server does not answer.
pub(crate) async fn find(
    app: &App,
    guest: &SplitGuest,
    server: &Server,
    nodes: &[NodeView],
    main: NodeStart,
) -> Result<ServerMirror, ErrorBody> {
    let mut refusals = Vec::new();
    for node in free_nodes(nodes, guest) {
        let host = Host::own(node);
        let wanted = lease(guest, random_secret()?, server.limit_bytes, main);
        let given = match ask(app, &host, &wanted).await {
            Ok(given) => given,
            Err(error) if error.code == ErrorCode::PlanRefused => {
                refusals.extend(error.refusals);
                continue;
            }
            Err(error) => {
                refusals.push(silent(guest, node, &error));
                continue;
            }
        };
        let at = Mirror { address: given.address, secret: wanted.secret };
        let mirror = ServerMirror { node: node.name.clone(), at, start: given.start };
        let told = Server { mirror: Some(mirror.clone()), ..server.clone() };
        match tell(app, guest, &told, nodes, main).await {
            Ok(true) => return Ok(mirror),
            Ok(false) => {
                end(app, &host.path, &wanted).await;
                let text = format!("the memory server of {} knows no mirrors", server.node);
                return Err(failed(text).hint("its node has an older image"));
            }
            Err(error) => {
                end(app, &host.path, &wanted).await;
                return Err(error);
            }
        }
    }
    if refusals.is_empty() {
        let text = format!(
            "there is no other node for a second copy of what {} keeps of guest {}",
            server.node, guest.name
        );
        let refusal =
            Refusal::new(RefusalCode::NodeNotRunning, format_args!("vm {}", guest.name), text);
        refusals.push(refusal.hint("start another node, or leave --copies out"));
    }
    Err(ErrorBody::refused(refusals))
}

fn silent(guest: &SplitGuest, node: &NodeView, error: &ErrorBody) -> Refusal {
    let text = format!("{} gives no lease: {error}", node.name);
    Refusal::new(RefusalCode::NodeNotRunning, format_args!("vm {}", guest.name), text)
}

/// A memory server is told which mirror it has; gives whether it sees to it.
pub(crate) async fn tell(
    app: &App,
    guest: &SplitGuest,
    server: &Server,
    nodes: &[NodeView],
    main: NodeStart,
) -> Result<bool, ErrorBody> {
    let lease = kept_lease(guest, server, server.limit_bytes, main);
    let path = path_to(nodes, server)
        .ok_or_else(|| failed(format_args!("there is no node {} any more", server.node)))?;
    let given: ServerAddress =
        app.mintd.post(&format!("{path}/leases"), &lease).await.map_err(client_error)?;
    Ok(given.mirrors || lease.mirror.is_none())
}

async fn end(app: &App, path: &str, lease: &Lease) {
    let Lease { uuid, secret, epoch, .. } = *lease;
    let end = LeaseEnd { uuid, secret, epoch: Some(epoch) };
    // one that cannot be told ends with its main host
    _ = app.mintd.post::<Value>(&format!("{path}/leases/end"), &end).await;
}

/// Ends the lease of a mirror.
pub(crate) async fn forget(
    app: &App,
    guest: &SplitGuest,
    mirror: &ServerMirror,
    nodes: &[NodeView],
) {
    let Some(path) = named(nodes, &mirror.node).map(|node| path_of(None, node.id)) else { return };
    let end = LeaseEnd { uuid: guest.uuid, secret: mirror.at.secret, epoch: Some(guest.epoch) };
    let ended: Result<Value, ClientError> =
        app.mintd.post(&format!("{path}/leases/end"), &end).await;
    if let Err(error) = ended {
        warn!(guest = guest.name, node = mirror.node, %error, "a mirror's lease goes on");
    }
}

/// A mirror in the place of its memory server: who was that hears no more of it.
///
/// # Errors
/// When its node does not answer: all is as before.
pub(crate) async fn promoted(
    app: &App,
    guest: &SplitGuest,
    server: &Server,
    mirror: &ServerMirror,
    nodes: &[NodeView],
    main: NodeStart,
) -> Result<Server, ErrorBody> {
    let promoted = Server {
        node: mirror.node.clone(),
        address: mirror.at.address,
        secret: random_secret()?,
        start: mirror.start,
        mirror: None,
        ..server.clone()
    };
    tell(app, guest, &promoted, nodes, main).await?;
    Ok(promoted)
}

/// What the mirror of a memory server may not have yet; none if it has none, or nobody says.
pub(crate) async fn behind_bytes(app: &App, guest: &SplitGuest, server: &Server) -> Option<u64> {
    server.mirror.as_ref()?;
    let path = path_to(&app.nodes().await.ok()?, server)?;
    let keeps: NodeKeeps = app.mintd.get(&format!("{path}/leases")).await.ok()?;
    let uuid = text(&guest.uuid);
    keeps.mirrors.iter().find(|mirror| mirror.uuid == uuid).map(|mirror| mirror.behind_bytes)
}
