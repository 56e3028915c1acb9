// SPDX-License-Identifier: Apache-2.0
//! The guests' Ethernet reaches linked machines: on the node that has the wires, a VXLAN
//! (RFC 7348) is one more port of the bridge. It sends to every linked machine's node with the
//! wire, and from one machine to another it passes nothing on: there is no circle.

use std::net::Ipv4Addr;
use std::path::Path;
use std::{fs, io};

use serde::Deserialize;

use crate::ethernet::{BRIDGE, MTU, PORT, VLAN};
use crate::facts::Facts;
use crate::failure::Failure;
use crate::tools::{Tools, must};

/// The VXLAN's device, a port of the bridge.
pub const DEVICE: &str = "mintvx";
/// UDP port of VXLAN (IANA).
const UDP_PORT: u16 = 4789;
/// What mintd writes: where the Ethernet ends are.
const ENDS: &str = "run/mint/links.json";
/// Most linked machines; the file is mintd's, and this is a bound for one that is not.
const ENDS_MAX: usize = 64;

/// The other machine's node with the wire.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
pub struct End {
    /// What this machine calls that one.
    pub name: String,
    /// The node's address on its `mint0`.
    pub address: Ipv4Addr,
}

/// Those that mintd has written down; none where it has written nothing.
///
/// # Errors
/// When the file cannot be read.
pub fn ends(facts: &Facts) -> Result<Vec<End>, Failure> {
    let path = facts.path(ENDS);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(&path, &error)),
    };
    let mut ends: Vec<End> =
        serde_json::from_slice(&text).map_err(|error| failed(&path, &error))?;
    ends.truncate(ENDS_MAX);
    Ok(ends)
}

fn failed(path: &Path, error: &dyn std::error::Error) -> Failure {
    Failure::Failed(format!("cannot read {}: {error}", path.display()))
}

/// The commands that make it so; none where nothing is to be done.
fn plan(ends: &[End], own: Option<Ipv4Addr>, is_joined: bool, exists: bool) -> Vec<String> {
    let mut commands = Vec::new();
    if exists {
        // what it has learned is learned again
        commands.push(format!("ip link delete {DEVICE}"));
    }
    let Some(own) = own.filter(|_| is_joined && !ends.is_empty()) else { return commands };
    commands.push(format!(
        "ip link add {DEVICE} type vxlan id {VLAN} dstport {UDP_PORT} local {own} ttl 4"
    ));
    // its packets are larger than the wire's: they are cut and put together again there, and
    // TCP of guests learns that smaller ones go faster
    commands.push(format!("ip link set {DEVICE} mtu {MTU}"));
    for End { address, .. } in ends {
        // who does not know where a frame is to go sends it to all
        commands.push(format!("bridge fdb append 00:00:00:00:00:00 dev {DEVICE} dst {address}"));
    }
    commands.push(format!("ip link set {DEVICE} up master {BRIDGE}"));
    // as on mint0: a gateway answers its own node's guests
    commands.push(format!("ip link set {DEVICE} type bridge_slave neigh_suppress on"));
    commands
}

/// Joins the guests' Ethernet with those of linked machines, or leaves them.
///
/// # Errors
/// When mintd's file cannot be read, or `ip` says no.
pub fn apply(facts: &Facts, tools: &mut dyn Tools) -> Result<(), Failure> {
    let class = facts.path("sys/class/net");
    let is_joined = class.join(BRIDGE).join("brif").join(PORT).exists();
    let exists = class.join(DEVICE).exists();
    for command in plan(&ends(facts)?, facts.mint0_address(), is_joined, exists) {
        let words: Vec<&str> = command.split(' ').collect();
        must(tools, &words, "", || {
            format!("the guests' Ethernet does not reach linked machines: {command}")
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::tests::tree;
    use crate::tools::tests::Played;

    #[test]
    fn ethernet_reaches_all_linked_machines_once_the_bridge_is_on_mint0() {
        let (folder, facts) = tree();
        let put = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let applied = || {
            let mut tools = Played::default();
            apply(&facts, &mut tools).unwrap();
            tools.lines
        };
        put("run/mint/address", "10.77.0.10\n");
        assert!(applied().is_empty(), "there are no links");
        put(ENDS, r#"[{"name":"b","address":"10.77.1.10"},{"name":"c","address":"10.77.2.11"}]"#);
        assert!(applied().is_empty(), "the bridge is on another Ethernet");
        put("sys/class/net/mintbr0/brif/mint0.78", "");
        let wanted = [
            "ip link add mintvx type vxlan id 78 dstport 4789 local 10.77.0.10 ttl 4",
            "ip link set mintvx mtu 1500",
            "bridge fdb append 00:00:00:00:00:00 dev mintvx dst 10.77.1.10",
            "bridge fdb append 00:00:00:00:00:00 dev mintvx dst 10.77.2.11",
            "ip link set mintvx up master mintbr0",
            "ip link set mintvx type bridge_slave neigh_suppress on",
        ];
        assert_eq!(applied(), wanted);
        put("sys/class/net/mintvx/mtu", "1500\n");
        assert_eq!(applied()[0], "ip link delete mintvx", "it is made anew");
        put(ENDS, "[]");
        assert_eq!(applied(), ["ip link delete mintvx"]);
        put(ENDS, "nothing");
        assert!(ends(&facts).is_err());
    }
}
