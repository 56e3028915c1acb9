// SPDX-License-Identifier: Apache-2.0
//! Memory servers of a guest, which are other nodes', and leases that are asked of them.

use std::fs;

use mint_api::{ErrorBody, ErrorCode, NodeView};
use mint_split::{Lease, LeaseEnd, NodeStart, Server, ServerAddress, SplitGuest, Uuid};
use mint_types::{Refusal, RefusalCode};
use serde_json::Value;

use crate::app::{App, client_error, path_of};

pub(crate) fn failed(text: impl std::fmt::Display) -> ErrorBody {
    ErrorBody::new(ErrorCode::Failed, text)
}

/// A memory server with a lease.
///
/// # Errors
/// When the node, whose path that is, gives none: it has none then, also if its answer was lost.
pub(crate) async fn ask(
    app: &App,
    path: &str,
    node: &str,
    lease: &Lease,
) -> Result<Server, ErrorBody> {
    match app.mintd.post::<ServerAddress>(&format!("{path}/leases"), lease).await {
        Ok(given) => Ok(Server {
            node: node.to_owned(),
            address: given.address,
            secret: lease.secret,
            limit_bytes: lease.limit_bytes,
            leaves: false,
            start: given.start,
            mirror: None,
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

/// A lease for a guest of this node, which began to run at that start.
pub(crate) fn lease(
    guest: &SplitGuest,
    secret: [u8; 16],
    limit_bytes: u64,
    main: NodeStart,
) -> Lease {
    let SplitGuest { uuid, epoch, memory_bytes, .. } = *guest;
    Lease { uuid, secret, epoch, memory_bytes, limit_bytes, main, stays: false, mirror: None }
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

/// The node that a user calls so.
pub(crate) fn named<'a>(nodes: &'a [NodeView], name: &str) -> Option<&'a NodeView> {
    nodes.iter().find(|node| node.name == name || node.id.to_string() == name)
}

/// Path of a node that is to keep pages.
pub(crate) fn host(nodes: &[NodeView], name: &str) -> Result<String, ErrorBody> {
    match named(nodes, name) {
        Some(node) if !node.is_self => Ok(path_of(None, node.id)),
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
