// SPDX-License-Identifier: Apache-2.0
//! Nodes by what users call them.

use mint_api::{ErrorBody, Link};
use mint_types::{MachineId, NodeId, NodeName, NodeStatus, Refusal, RefusalCode};

use crate::app::App;
use crate::links::no_link;

/// Where a node is.
#[derive(Debug)]
pub(crate) enum Place {
    /// In this machine.
    Own(NodeStatus),
    /// In a linked one.
    Linked(Box<Link>, NodeId),
}

/// The node that a path means: of this machine, or `MACHINE/NODE`, where a machine's id is as
/// good as its name.
pub(crate) fn place(app: &App, reference: &str) -> Result<Place, ErrorBody> {
    let Some((machine, node)) = reference.split_once('/') else {
        return resolve(app, reference).map(Place::Own);
    };
    let own = app.peers.tls.as_ref().map(|pki| pki.here().machine);
    if own.is_some() && machine.parse::<MachineId>().ok() == own {
        return resolve(app, node).map(Place::Own);
    }
    let link = app.links.find(machine).ok_or_else(|| no_link(machine))?;
    let id = linked_node(&link, node)?;
    Ok(Place::Linked(Box::new(link), id))
}

/// One of a linked machine's nodes, by name, `nodeN` or id.
fn linked_node(link: &Link, reference: &str) -> Result<NodeId, ErrorBody> {
    let named = link.view.nodes.iter().find(|node| node.name == reference).map(|node| node.id);
    let number = reference
        .parse::<u32>()
        .ok()
        .or_else(|| reference.parse::<NodeName>().ok().and_then(|name| name.stands_for()));
    let numbered = number.and_then(|id| NodeId::new(id).ok());
    let id = named.or(numbered).filter(|id| link.view.nodes.iter().any(|node| node.id == *id));
    id.ok_or_else(|| {
        let name = &link.view.name;
        let text = format!("machine {name} has no node {reference} that runs");
        let hint = match link.view.is_up {
            true => "mintctl machine show lists its nodes".to_owned(),
            false => format!("machine {name} does not answer: {}", link.view.reason),
        };
        let resource = format!("node {name}/{reference}");
        let refusal = Refusal::new(RefusalCode::NodeAbsent, resource, text).hint(hint);
        ErrorBody::refused(vec![refusal])
    })
}

/// The node of this machine that a path means.
pub(crate) fn resolve(app: &App, reference: &str) -> Result<NodeStatus, ErrorBody> {
    app.inventory()?
        .resolve(reference)
        .cloned()
        .map_err(|refusal| ErrorBody::refused(vec![refusal]))
}
