// SPDX-License-Identifier: Apache-2.0
//! The one Ethernet of the guests of all nodes: what it is called, and who has which address.
//!
//! It is a VLAN on mint0, a port of each node's bridge: mint0 is a switch that learns where
//! guests are, and the VLAN keeps guests apart from what the nodes say to each other. Of a
//! network, the first address is the gateway: every node has it, and answers its own guests.
//! Nodes' own addresses follow from the eleventh; DHCP gives the upper half to guests.

use std::net::Ipv4Addr;

use ipnet::{Ipv4Net, Ipv6Net};
use mint_types::NodeId;

/// The bridge of a node's guests.
pub const BRIDGE: &str = "mintbr0";
/// The VLAN's number on mint0.
pub const VLAN: u16 = 78;
/// The VLAN's device, a port of the bridge.
pub const PORT: &str = "mint0.78";
/// Its MTU, the one that guests' cards have by default.
pub const MTU: u16 = 1500;
/// Addresses of guests and nodes, unless the owner says otherwise.
pub const NETWORK: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 78, 0, 0), 16);
/// The same of IPv6: a unique local prefix.
pub const NETWORK6: Ipv6Net =
    Ipv6Net::new_assert(std::net::Ipv6Addr::new(0xfd4d, 0x494e, 0x5400, 0x78, 0, 0, 0, 0), 64);
/// Addresses on mint0, unless the owner says otherwise.
const MINT0: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 77, 0, 0), 24);
/// Node 0's address, counted from the network's, where there is no mint0.
const NODE_0: u32 = 10;

/// Whether all nodes and some guests have room in a network, and guests can make addresses of
/// their own in the other.
///
/// # Errors
/// What it must be.
pub fn check_prefixes(network: Ipv4Net, network6: Ipv6Net) -> Result<(), String> {
    if !(8..=24).contains(&network.prefix_len()) {
        return Err(format!("guest_network must have a prefix of 8 to 24 bits, not {network}"));
    }
    if network6.prefix_len() != 64 {
        return Err(format!("guest_network6 must have a prefix of 64 bits, not {network6}"));
    }
    Ok(())
}

fn nth(network: Ipv4Net, number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(network.network()).wrapping_add(number))
}

/// A node's place in a network, out of its upper half: what its address on mint0 ends with.
/// Nodes of linked machines have other subnets there, and so other places.
fn place(network: Ipv4Net, node: NodeId, mint0: Option<Ipv4Addr>) -> u32 {
    let lower_half = u32::from(network.hostmask()) >> 1;
    mint0.map_or(NODE_0 + node.as_u32(), u32::from) & lower_half
}

/// A node's address in a network: 10.78.0.10 is that of 10.77.0.10 on mint0, node 0.
pub fn node_address(network: Ipv4Net, node: NodeId, mint0: Option<Ipv4Addr>) -> Ipv4Net {
    let address = nth(network, place(network, node, mint0));
    Ipv4Net::new_assert(address, network.prefix_len())
}

/// A node's address in a network of IPv6: …::10 is that of 10.77.0.10 on mint0, …::1:10 that of
/// 10.77.1.10.
pub fn node_address6(network: Ipv6Net, node: NodeId, mint0: Option<Ipv4Addr>) -> Ipv6Net {
    let [high, low] = [8, 0].map(|bits| place(NETWORK, node, mint0) >> bits & 0xff);
    // written in decimal, as the IPv4 address is
    let digits = |number: u32| {
        let shown = number.to_string();
        u128::from_str_radix(&shown, 16).expect("decimal digits are hexadecimal ones")
    };
    let address = u128::from(network.network()) | digits(high) << 16 | digits(low);
    Ipv6Net::new_assert(address.into(), network.prefix_len())
}

/// The MAC address of a node's bridge: mint0's, which no guest can take over there; where nodes
/// of linked machines may have the same one, another that follows from the address on mint0.
pub fn bridge_mac(mint0_mac: &str, mint0: Option<Ipv4Addr>) -> String {
    match mint0.filter(|address| !MINT0.contains(address)) {
        None => mint0_mac.to_owned(),
        Some(address) => {
            // locally administered, and none that mint0 knows nodes by
            let [a, b, c, d] = address.octets();
            format!("06:4d:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
        }
    }
}

/// The address that guests send to what is not on their Ethernet; every node has it.
pub fn gateway(network: Ipv4Net) -> Ipv4Addr {
    nth(network, 1)
}

/// The first and the last address that DHCP gives.
pub fn leases(network: Ipv4Net) -> (Ipv4Addr, Ipv4Addr) {
    let half = 1 << (31 - u32::from(network.prefix_len()));
    (nth(network, half), Ipv4Addr::from(u32::from(network.broadcast()) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_named_for_its_vlan() {
        assert_eq!(PORT, format!("mint0.{VLAN}"));
    }

    #[test]
    fn nodes_gateway_and_leases_never_meet() {
        let nodes = [NodeId::ZERO, NodeId::new(1).unwrap(), NodeId::new(15).unwrap()];
        let of = |network| nodes.map(|node| node_address(network, node, None).to_string());
        assert_eq!(of(NETWORK), ["10.78.0.10/16", "10.78.0.11/16", "10.78.0.25/16"]);
        assert_eq!(gateway(NETWORK).to_string(), "10.78.0.1");
        let shown = |(first, last): (Ipv4Addr, Ipv4Addr)| format!("{first} {last}");
        assert_eq!(shown(leases(NETWORK)), "10.78.128.0 10.78.255.254");
        let small = "192.168.7.99/24".parse().unwrap();
        assert_eq!(of(small), ["192.168.7.10/24", "192.168.7.11/24", "192.168.7.25/24"]);
        assert_eq!(shown(leases(small)), "192.168.7.128 192.168.7.254");
        let nodes6 = nodes.map(|node| node_address6(NETWORK6, node, None).to_string());
        assert_eq!(nodes6[1], "fd4d:494e:5400:78::11/64");
        assert_eq!(nodes6[2], "fd4d:494e:5400:78::25/64");
    }

    #[test]
    fn nodes_of_linked_machines_have_other_addresses() {
        let of = |mint0: &str, network: Ipv4Net| {
            let mint0 = Some(mint0.parse().unwrap());
            let address = node_address(network, NodeId::ZERO, mint0).to_string();
            (address, node_address6(NETWORK6, NodeId::ZERO, mint0).to_string())
        };
        let shown = |v4: &str, v6: &str| (v4.to_owned(), v6.to_owned());
        assert_eq!(of("10.77.0.11", NETWORK), shown("10.78.0.11/16", "fd4d:494e:5400:78::11/64"));
        assert_eq!(of("10.77.1.11", NETWORK), shown("10.78.1.11/16", "fd4d:494e:5400:78::1:11/64"));
        let mac = |address: &str| bridge_mac("02:4d:49:4e:54:01", Some(address.parse().unwrap()));
        assert_eq!(mac("10.77.0.11"), "02:4d:49:4e:54:01");
        assert_eq!(mac("10.77.1.11"), "06:4d:0a:4d:01:0b");
        assert_eq!(bridge_mac("02:4d:49:4e:54:01", None), "02:4d:49:4e:54:01");
        // DHCP has the upper half
        assert_eq!(of("10.77.201.11", NETWORK).0, "10.78.73.11/16");
        assert_eq!(of("10.77.1.11", "192.168.7.0/24".parse().unwrap()).0, "192.168.7.11/24");
    }

    #[test]
    fn networks_too_small_or_too_large_are_refused() {
        for bits in [0, 7, 25, 32] {
            let network = Ipv4Net::new(Ipv4Addr::new(10, 0, 0, 0), bits).unwrap();
            assert!(check_prefixes(network, NETWORK6).is_err(), "{bits}");
        }
        assert!(check_prefixes(NETWORK, "fd00::/48".parse().unwrap()).is_err());
        assert_eq!(check_prefixes(NETWORK, NETWORK6), Ok(()));
    }
}
