// SPDX-License-Identifier: Apache-2.0
//! Machines that are linked: requests and replies of `/v1/machine…`, and what daemons tell each
//! other of links.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use mint_types::{MachineId, NodeId, NodeName};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::types::Introduction;

/// Path of a node, by name, `nodeN`, id, or, of a linked machine, `MACHINE/NODE`.
pub fn node_path(node: &str) -> String {
    format!("/v1/nodes/{}", utf8_percent_encode(node, NON_ALPHANUMERIC))
}

/// What a machine tells another one, so that they can be linked: `GET
/// /v1/machine/introduction`. It holds no secret. The node that says it is the one that the
/// other machine reaches first.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct MachineIntroduction {
    /// Who says it.
    pub node: Introduction,
    /// Addresses of its nodes on their `mint0`.
    #[schema(value_type = String)]
    pub subnet: Ipv4Net,
    /// Port of its daemons.
    pub port: u16,
    /// Certificate of its authority for libvirt and QEMU, as PEM.
    pub authority: String,
}

/// `POST /v1/machine/links`: the answering node is the one that has the wire.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkRequest {
    /// What this machine calls the other one.
    #[schema(value_type = String)]
    pub name: NodeName,
    /// Address of the other machine's node that introduces it, on a network that the answering
    /// node reaches without this link.
    #[schema(value_type = String)]
    pub address: Ipv4Addr,
    /// What the other machine said of itself.
    pub introduction: MachineIntroduction,
}

/// This machine: `GET /v1/machine`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct MachineView {
    /// Its id; none if the answering node serves no others.
    #[schema(value_type = Option<String>)]
    pub id: Option<MachineId>,
    /// Addresses of its nodes.
    #[schema(value_type = String)]
    pub subnet: Ipv4Net,
    /// Machines that it is linked with, by name.
    pub links: Vec<LinkView>,
}

/// A linked machine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct LinkView {
    /// What this machine calls it.
    #[schema(value_type = String)]
    pub name: NodeName,
    /// Its id.
    #[schema(value_type = String)]
    pub machine: MachineId,
    /// Our node that has the wire.
    #[schema(value_type = u32)]
    pub via: NodeId,
    /// Address of its node at the other end.
    #[schema(value_type = String)]
    pub address: Ipv4Addr,
    /// Addresses of its nodes.
    #[schema(value_type = String)]
    pub subnet: Ipv4Net,
    /// Whether it answers.
    pub is_up: bool,
    /// Why it does not.
    pub reason: String,
    /// Its nodes that run, as it last said.
    pub nodes: Vec<LinkedNode>,
}

/// A running node of a linked machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct LinkedNode {
    /// Its id there.
    #[schema(value_type = u32)]
    pub id: NodeId,
    /// Its name there.
    pub name: String,
}

/// What a machine tells a linked one about itself: `GET /v1/local/machine`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct MachineNews {
    /// Its nodes that run.
    pub nodes: Vec<LinkedNode>,
    /// How to know them.
    pub known: Vec<Introduction>,
}

/// A link, as the node that has the wire keeps it and tells the others of its machine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Link {
    /// What is shown of it.
    #[serde(flatten)]
    pub view: LinkView,
    /// Port of its daemons.
    pub port: u16,
    /// Id of its node at the other end.
    #[schema(value_type = u32)]
    pub gateway: NodeId,
    /// Largest packet of the wire, in bytes.
    pub mtu: u32,
    /// Certificate of its authority.
    pub authority: String,
    /// Its nodes, as it last said.
    pub known: Vec<Introduction>,
}

/// All links of a node: `POST /v1/local/links`, from node to node of one machine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Links {
    /// The node that has their wires.
    #[schema(value_type = u32)]
    pub via: NodeId,
    /// All that it has.
    pub links: Vec<Link>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_of_a_linked_machine_is_one_part_of_a_path() {
        assert_eq!(node_path("node2"), "/v1/nodes/node2");
        assert_eq!(node_path("b/node1"), "/v1/nodes/b%2Fnode1");
    }
}
