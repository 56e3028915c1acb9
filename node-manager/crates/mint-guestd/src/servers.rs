// SPDX-License-Identifier: Apache-2.0
//! Memory servers of a guest, which are other nodes', and leases that are asked of them.

use std::fs;

use mint_api::{ErrorBody, ErrorCode, LinkView, LinkedNode, NodeView};
use mint_split::{Lease, LeaseEnd, NodeStart, Server, ServerAddress, SplitGuest, Uuid};
use mint_types::{MachineId, NodeId, Refusal, RefusalCode};
use serde_json::Value;

use crate::app::{App, client_error, path_of};

pub(crate) fn failed(text: impl std::fmt::Display) -> ErrorBody {
    ErrorBody::new(ErrorCode::Failed, text)
}

/// A node that may keep pages, of this machine or of a linked one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Host {
    /// Its path.
    pub path: String,
    /// As a guest's definition names it.
    pub name: String,
    /// Its machine; none: this one.
    pub machine: Option<MachineId>,
    pub node: NodeId,
}

impl Host {
    /// Of this machine.
    pub fn own(node: &NodeView) -> Self {
        let path = path_of(None, node.id);
        Self { path, name: node.name.clone(), machine: None, node: node.id }
    }
}

/// A memory server with a lease.
///
/// # Errors
/// When the node gives none: it has none then, also if its answer was lost.
pub(crate) async fn ask(app: &App, host: &Host, lease: &Lease) -> Result<Server, ErrorBody> {
    let (path, node) = (&host.path, &host.name);
    match app.mintd.post::<ServerAddress>(&format!("{path}/leases"), lease).await {
        Ok(given) => Ok(Server {
            node: node.clone(),
            address: given.address,
            secret: lease.secret,
            limit_bytes: lease.limit_bytes,
            leaves: false,
            start: given.start,
            mirror: None,
            machine: host.machine,
        }),
        Err(error) => {
            if !lease.stays {
                let end =
                    LeaseEnd { uuid: lease.uuid, secret: lease.secret, epoch: Some(lease.epoch) };
                _ = app.mintd.post::<Value>(&format!("{path}/leases/end"), &end).await;
            }
            Err(client_error(error))
        }
    }
}

/// What a memory server wants to hear of a guest.
pub(crate) fn random_secret() -> Result<[u8; 16], ErrorBody> {
    let mut secret = [0; 16];
    let random = fs::File::open("/dev/urandom").and_then(|mut random| {
        use std::io::Read;
        random.read_exact(&mut secret)
    });
    random.map_err(|error| failed(format_args!("no random numbers: {error}")))?;
    Ok(secret)
}

/// A number that nothing else has.
///
/// # Errors
/// As [`random_secret`].
pub(crate) fn random_number() -> Result<u64, ErrorBody> {
    let [a, b, c, d, e, f, g, h, ..] = random_secret()?;
    Ok(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
}

/// A lease for a guest of this node, which began to run at that start.
pub(crate) fn lease(
    guest: &SplitGuest,
    secret: [u8; 16],
    limit_bytes: u64,
    main: NodeStart,
) -> Lease {
    let SplitGuest { uuid, epoch, memory_bytes, .. } = *guest;
    let (stays, mirror, machine) = (false, None, None);
    Lease { uuid, secret, epoch, memory_bytes, limit_bytes, main, stays, mirror, machine }
}

/// The lease of a memory server that keeps some already, and goes on with that and its mirror.
pub(crate) fn kept_lease(
    guest: &SplitGuest,
    server: &Server,
    limit_bytes: u64,
    main: NodeStart,
) -> Lease {
    let mirror = server.mirror.as_ref().map(|mirror| mirror.at);
    Lease { stays: true, mirror, ..lease(guest, server.secret, limit_bytes, main) }
}

/// Whether what was on a node is gone: it has ended, or started anew.
pub(crate) fn has_ended(nodes: &[NodeView], start: Option<NodeStart>) -> bool {
    // of one that did not tell nothing is known
    let Some(start) = start else { return false };
    !nodes.iter().any(|node| {
        node.id.as_u32() == start.node && node.boots == start.boots && node.state.is_live()
    })
}

/// The node that a user calls so.
pub(crate) fn named<'a>(nodes: &'a [NodeView], name: &str) -> Option<&'a NodeView> {
    nodes.iter().find(|node| node.name == name || node.id.to_string() == name)
}

/// A node that is to keep pages; `MACHINE/NODE` is one of a linked machine.
///
/// # Errors
/// When there is none, or it is this one.
pub(crate) async fn find(app: &App, nodes: &[NodeView], name: &str) -> Result<Host, ErrorBody> {
    let Some((machine, node)) = name.split_once('/') else { return host(nodes, name) };
    let refused = |code, text: String| {
        let refusal = Refusal::new(code, format_args!("node {name}"), text);
        ErrorBody::refused(vec![
            refusal.hint("mintctl machine show lists machines and their nodes"),
        ])
    };
    let is_it =
        |link: &&LinkView| link.name.as_str() == machine || link.machine.to_string() == machine;
    let links = app.links().await?.links;
    let Some(link) = links.iter().find(is_it) else {
        let text = format!("this machine is linked with none that is called {machine}");
        return Err(refused(RefusalCode::MachineAbsent, text));
    };
    if !link.is_up {
        let text = format!("machine {machine} does not answer: {}", link.reason);
        return Err(refused(RefusalCode::PeerUnreachable, text));
    }
    let its = |one: &&LinkedNode| {
        let id = one.id.to_string();
        one.name == node || id == node || format!("node{id}") == node
    };
    let Some(found) = link.nodes.iter().find(its) else {
        return Err(refused(
            RefusalCode::NodeAbsent,
            format!("machine {machine} has no node {node} that runs"),
        ));
    };
    Ok(Host {
        path: path_of(Some(link.machine), found.id),
        name: format!("{}/{}", link.name, found.name),
        machine: Some(link.machine),
        node: found.id,
    })
}

/// Whether a memory server is that node's, of that machine (none: this one).
pub(crate) fn is_on(
    nodes: &[NodeView],
    server: &Server,
    machine: Option<MachineId>,
    node: NodeId,
) -> bool {
    let its = match server.machine {
        None => named(nodes, &server.node).map(|node| node.id.as_u32()),
        Some(_) => server.start.map(|start| start.node),
    };
    server.machine == machine && its == Some(node.as_u32())
}

/// The node of a memory server that a guest has; none if there is none of that name any more.
pub(crate) fn path_to(nodes: &[NodeView], server: &Server) -> Option<String> {
    match (server.machine, server.start) {
        (None, _) => named(nodes, &server.node).map(|node| path_of(None, node.id)),
        (machine, start) => Some(path_of(machine, NodeId::new(start?.node).ok()?)),
    }
}

/// A node of this machine that is to keep pages.
pub(crate) fn host(nodes: &[NodeView], name: &str) -> Result<Host, ErrorBody> {
    match named(nodes, name) {
        Some(node) if !node.is_self => Ok(Host::own(node)),
        Some(_) => Err(failed(format_args!(
            "node {name} runs the guest: in a split of its memory it is called main"
        ))),
        None => {
            let text = format!("there is no node {name} to keep a part of the guest's memory");
            let refusal = Refusal::new(RefusalCode::NodeAbsent, format_args!("node {name}"), text)
                .hint("mintctl node list");
            Err(ErrorBody::refused(vec![refusal]))
        }
    }
}

/// As libvirt writes it.
pub(crate) fn text(uuid: &Uuid) -> String {
    let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let part = |range: std::ops::Range<usize>| digits.get(range).unwrap_or_default();
    [part(0..8), part(8..12), part(12..16), part(16..20), part(20..32)].join("-")
}
