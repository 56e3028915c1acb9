// SPDX-License-Identifier: Apache-2.0
//! This node's way to the nodes of linked machines: the kernel's routes.

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use mint_api::Link;
use mint_node::config::Network;
use mint_types::NodeId;
use serde::Deserialize;
use tracing::warn;

use crate::network::{NetworkError, ip};

/// Of Ethernet, where a device does not tell.
const MTU: u32 = 1500;
/// Marks routes that are ours (ip-route(8), `proto`).
const PROTOCOL: &str = "178";

const FORWARDS: &str = "proc/sys/net/ipv4/ip_forward";

/// What `ip -json route` says of a route.
#[derive(Deserialize)]
struct Route {
    #[serde(default)]
    dst: String,
    #[serde(default)]
    dev: String,
    gateway: Option<String>,
}

/// Whether this is a node's whole system: tests have a folder, and the routes of their host.
pub(super) fn is_whole(root: &Path) -> bool {
    root == Path::new("/")
}

/// Finds the wire to an address, and gives its largest packet, in bytes.
///
/// # Errors
/// When there is none, or routers are between.
pub(super) fn wire_mtu(root: &Path, address: Ipv4Addr) -> Result<u32, String> {
    if !is_whole(root) {
        return Ok(MTU);
    }
    let shown = ip(&["-json", "route", "get", &address.to_string()])
        .map_err(|error| format!("there is no way to {address}: {error}"))?;
    let route = parse(&shown).into_iter().next();
    let route = route.ok_or_else(|| format!("there is no way to {address}"))?;
    if let Some(gateway) = route.gateway {
        return Err(format!(
            "{address} is behind the router {gateway}, which knows no nodes: a wire is a network \
             that both nodes are on"
        ));
    }
    let path = root.join("sys/class/net").join(&route.dev).join("mtu");
    let mtu = fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok());
    Ok(mtu.unwrap_or(MTU))
}

fn parse(shown: &str) -> Vec<Route> {
    serde_json::from_str(shown).unwrap_or_default()
}

/// Words of `ip` for the route to a machine.
fn words(link: &Link, here: NodeId, network: &Network) -> String {
    let view = &link.view;
    if view.via == here {
        // its nodes know us by our address on mint0
        let source = network.address(here);
        let (subnet, address, mtu) = (view.subnet, view.address, link.mtu);
        return format!("{subnet} via {address} src {source} mtu {mtu} proto {PROTOCOL}");
    }
    let via = network.address(view.via);
    format!("{} via {via} mtu {} proto {PROTOCOL}", view.subnet, link.mtu)
}

/// Sets the routes to all machines, and deletes those to others.
///
/// # Errors
/// The first that could not be set; the others are.
pub(super) fn set(
    root: &Path,
    links: &[Link],
    here: NodeId,
    network: &Network,
) -> Result<(), NetworkError> {
    if !is_whole(root) {
        return Ok(());
    }
    let mut first = Ok(());
    if links.iter().any(|link| link.view.via == here) {
        // what other nodes say to linked machines goes through this one
        if let Err(error) = fs::write(root.join(FORWARDS), "1\n") {
            warn!(%error, "other nodes of this machine do not reach linked ones");
        }
    }
    let wanted: BTreeSet<String> = links.iter().map(|link| link.view.subnet.to_string()).collect();
    for route in parse(&ip(&["-json", "route", "show", "proto", PROTOCOL])?) {
        if !wanted.contains(&route.dst) {
            _ = ip(&["route", "delete", &route.dst, "proto", PROTOCOL]);
        }
    }
    for link in links {
        let words = words(link, here, network);
        let words: Vec<&str> = ["route", "replace"].into_iter().chain(words.split(' ')).collect();
        if let (Err(error), Ok(())) = (ip(&words), &first) {
            first = Err(error);
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::tests::link;

    #[test]
    fn nodes_without_the_wire_go_through_the_one_that_has_it() {
        let network = Network::default();
        let link = link("b", 1, 0);
        assert_eq!(
            words(&link, NodeId::ZERO, &network),
            "10.77.1.0/24 via 192.0.2.2 src 10.77.0.10 mtu 1500 proto 178"
        );
        assert_eq!(
            words(&link, NodeId::new(1).unwrap(), &network),
            "10.77.1.0/24 via 10.77.0.10 mtu 1500 proto 178"
        );
    }

    #[test]
    fn routes_are_read_as_ip_writes_them() {
        let shown = r#"[{"dst":"10.77.1.0/24","gateway":"192.0.2.2","dev":"eth0","flags":[]}]"#;
        let found = parse(shown);
        assert_eq!((found[0].dst.as_str(), found[0].dev.as_str()), ("10.77.1.0/24", "eth0"));
        assert!(parse("").is_empty());
    }
}
