// SPDX-License-Identifier: Apache-2.0
//! Addresses of guests: what dnsmasq is told on each node.
//!
//! Every node has a dnsmasq, and none is a master: all hear each guest's request, for guests are
//! on one Ethernet, and all call themselves by the address that every node has, the gateway's: to
//! a guest they are one server. dnsmasq makes the address of the MAC (a hash), and pings it before
//! it gives it away, so each node offers the same one. A guest that has moved, or whose node is
//! gone, asks its new node, which takes a lease over that it does not know
//! (`dhcp-authoritative`).

use std::path::Path;

use crate::description::Description;
use crate::ethernet;

/// Where leases are kept over restarts of dnsmasq and of the node.
pub const LEASES: &str = "/var/lib/mint/dhcp.leases";
/// There while dnsmasq runs; below the root.
pub const PID_FILE: &str = "run/mint/dnsmasq.pid";
/// How long an address is a guest's after it was last heard of.
const LEASE: &str = "1h";
/// dnsmasq's own default is 1000.
const LEASES_MAX: u32 = 16384;
/// Seconds between two announcements of the IPv6 prefix.
const ANNOUNCED_EVERY_S: u32 = 60;

/// Whether this node gives guests their addresses: never on an Ethernet that is not ours.
pub fn serves(node: &Description) -> bool {
    node.dhcp && node.uplink.is_empty()
}

/// dnsmasq's configuration; `leases` is the file that keeps them.
pub fn config(node: &Description, leases: &Path) -> String {
    let network = node.guest_network;
    let (first, last) = ethernet::leases(network);
    let (gateway, mask) = (ethernet::gateway(network), network.netmask());
    let (bridge, prefix6) = (&node.bridge, node.guest_network6.network());
    let leases = leases.display();
    format!(
        "# Made by mint-kvm-config at each boot, of /etc/mint/kvm.toml\n\
         interface={bridge}\n\
         except-interface=lo\n\
         bind-dynamic\n\
         # names: what this node can resolve, it resolves for its guests\n\
         no-hosts\n\
         domain-needed\n\
         bogus-priv\n\
         # every node gives the same address for a MAC, and the same gateway: its own\n\
         dhcp-range={first},{last},{mask},{LEASE}\n\
         dhcp-option=option:router,{gateway}\n\
         dhcp-option=option:dns-server,{gateway}\n\
         dhcp-authoritative\n\
         dhcp-lease-max={LEASES_MAX}\n\
         dhcp-leasefile={leases}\n\
         # IPv6: guests make their addresses of prefix and MAC; nodes do not route it\n\
         enable-ra\n\
         ra-param={bridge},{ANNOUNCED_EVERY_S},0\n\
         dhcp-range={prefix6},ra-only,64\n\
         user=dnsmasq\n\
         pid-file=/{PID_FILE}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::tests::web;

    #[test]
    fn nodes_tell_guests_the_same() {
        let text = config(&web(), Path::new(LEASES));
        for line in [
            "interface=mintbr0",
            "dhcp-range=10.78.128.0,10.78.255.254,255.255.0.0,1h",
            "dhcp-option=option:router,10.78.0.1",
            "dhcp-range=fd4d:494e:5400:78::,ra-only,64",
            "dhcp-leasefile=/var/lib/mint/dhcp.leases",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
        }
        let other = Description {
            id: mint_types::NodeId::new(2).unwrap(),
            guest_network: "10.78.0.12/16".parse().unwrap(),
            guest_network6: "fd4d:494e:5400:78::12/64".parse().unwrap(),
            ..web()
        };
        assert_eq!(config(&other, Path::new(LEASES)), text);
    }

    #[test]
    fn no_addresses_are_given_on_an_ethernet_that_is_not_ours() {
        assert!(serves(&web()));
        assert!(!serves(&Description { uplink: "eth0".to_owned(), ..web() }));
        assert!(!serves(&Description { dhcp: false, ..web() }));
    }
}
