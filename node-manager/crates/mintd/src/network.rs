// SPDX-License-Identifier: Apache-2.0
//! `mint0` of this node, and the names of all nodes.

use std::io;
use std::path::Path;
use std::process::Command;

use mint_api::Link;
use mint_node::config::Network;
use mint_types::{NodeId, NodeName, NodeStatus};
use serde::Deserialize;
use tracing::{info, warn};

use crate::identity::write_section;
use crate::links::address;

const DEVICE: &str = "mint0";

/// `mint0` cannot be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    /// This kernel has no such device.
    #[error("there is no network device mint0")]
    NoDevice,
    /// `ip` cannot be run.
    #[error("cannot run `ip {arguments}`")]
    Run {
        /// Its arguments.
        arguments: String,
        #[source]
        source: io::Error,
    },
    /// `ip` says no.
    #[error("`ip {arguments}` failed: {message}")]
    Ip {
        /// Its arguments.
        arguments: String,
        /// What it said.
        message: String,
    },
}

/// Where `mint-kvm-config` reads our address on `mint0`: guests' Ethernet has one like it.
const ADDRESS: &str = "run/mint/address";

/// Writes this node's address down, before anybody can ask for it.
pub(crate) fn note_address(root: &Path, network: &Network, node: NodeId) {
    let path = root.join(ADDRESS);
    if let Err(error) = std::fs::write(&path, format!("{}\n", network.address(node))) {
        warn!(path = %path.display(), %error, "guests' Ethernet may have a wrong address here");
    }
}

/// Gives `mint0` its address and MTU and brings it up.
pub(crate) fn configure(root: &Path, network: &Network, node: NodeId) -> Result<(), NetworkError> {
    if !root.join("sys/class/net").join(DEVICE).exists() {
        return Err(NetworkError::NoDevice);
    }
    let shown = ip(&["-json", "-details", "link", "show", "dev", DEVICE])?;
    let mtu = max_mtu(&shown).map_or(network.mtu, |max| network.mtu.min(max)).to_string();
    let address = format!("{}/{}", network.address(node), network.subnet.prefix_len());
    ip(&["link", "set", "dev", "lo", "up"])?;
    ip(&["link", "set", "dev", DEVICE, "mtu", &mtu, "up"])?;
    ip(&["address", "replace", &address, "dev", DEVICE])?;
    info!(%address, %mtu, "mint0 is up");
    Ok(())
}

pub(crate) fn ip(arguments: &[&str]) -> Result<String, NetworkError> {
    let output = Command::new("ip")
        .args(arguments)
        .output()
        .map_err(|source| NetworkError::Run { arguments: arguments.join(" "), source })?;
    if !output.status.success() {
        return Err(NetworkError::Ip {
            arguments: arguments.join(" "),
            message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What `ip -json -details link show` says of a device.
#[derive(Deserialize)]
struct Shown {
    /// 0: it has no limit.
    max_mtu: Option<u32>,
}

/// The device's own limit.
fn max_mtu(shown: &str) -> Option<u32> {
    let shown: Vec<Shown> = serde_json::from_str(shown).ok()?;
    shown.first()?.max_mtu.filter(|&max| max > 0)
}

/// Names of a node: `nodeN`, and its own if that is one: it comes from memory that others
/// write to, and goes into files that others read.
pub(crate) fn host_names(node: &NodeStatus) -> Vec<String> {
    let mut names = vec![format!("node{}", node.id)];
    let own = node.display_name();
    if own.parse::<NodeName>().is_ok() && !names.contains(&own) {
        names.push(own);
    }
    names
}

/// Names of a linked machine's nodes: `nodeN.MACHINE`, and its own before the machine's.
fn linked_lines(link: &Link) -> impl Iterator<Item = String> {
    link.view.nodes.iter().map(move |node| {
        let machine = &link.view.name;
        let mut names = vec![format!("node{}.{machine}", node.id)];
        let own = format!("{}.{machine}", node.name);
        if node.name.parse::<NodeName>().is_ok() && !names.contains(&own) {
            names.push(own);
        }
        format!("{} {}", address(link, node.id), names.join(" "))
    })
}

/// Writes the nodes' names into `/etc/hosts`.
pub(crate) fn write_hosts(root: &Path, network: &Network, nodes: &[NodeStatus], links: &[Link]) {
    let lines: Vec<String> = nodes
        .iter()
        .map(|node| format!("{} {}", network.address(node.id), host_names(node).join(" ")))
        .chain(links.iter().flat_map(linked_lines))
        .collect();
    let path = root.join("etc/hosts");
    if let Err(error) = write_section(&path, &lines, 0o644) {
        warn!(path = %path.display(), %error, "names of nodes are not known here");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_of_the_device_is_found() {
        let shown = |max: u32| {
            format!(
                r#"[{{"ifname":"mint0","mtu":1500,"min_mtu":68,"max_mtu":{max},"group":"default"}}]"#
            )
        };
        assert_eq!(max_mtu(&shown(65_280)), Some(65_280));
        assert_eq!(max_mtu(&shown(0)), None);
        assert_eq!(max_mtu("[]"), None);
        assert_eq!(max_mtu("nothing"), None);
    }
}
