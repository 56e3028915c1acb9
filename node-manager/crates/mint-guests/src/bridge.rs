// SPDX-License-Identifier: Apache-2.0
//! The bridge of a node's guests: which `ip` commands make it, or why it is not made.

use std::net::Ipv4Addr;

use mint_types::{NODE_MAX, NodeId};

use crate::description::{Description, GuestNetwork};
use crate::failure::Failure;

/// What is there already.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BridgeFacts {
    /// Whether the bridge is there.
    pub exists: bool,
    /// The card that is to be in it.
    pub uplink: Option<UplinkFacts>,
}

/// A network card that is to be in the bridge.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UplinkFacts {
    /// Whether the node has it.
    pub exists: bool,
    /// Whether a default route goes through it.
    pub has_default_route: bool,
    /// Bridge or bond that it is a port of.
    pub master: Option<String>,
}

/// The `ip` commands, in order, without their first word. A card whose addresses the node needs
/// is not bridged: a port of a bridge has none that work.
///
/// # Errors
/// [`Failure::Failed`] when the card is not there, [`Failure::Refused`] when it is in use.
pub fn plan(node: &Description, facts: &BridgeFacts) -> Result<Vec<Vec<String>>, Failure> {
    let bridge = node.bridge.as_str();
    if let Some(uplink) = &facts.uplink {
        check_uplink(node, uplink)?;
    }
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let mut commands = Vec::new();
    if !facts.exists {
        commands.push(words(&format!("link add {bridge} type bridge stp_state 0 forward_delay 0")));
    }
    commands.push(words(&format!("address replace {} dev {bridge}", node.guest_network)));
    commands.push(words(&format!("link set {bridge} up")));
    if facts.uplink.is_some() {
        commands.push(words(&format!("link set {} up master {bridge}", node.uplink)));
    }
    Ok(commands)
}

fn check_uplink(node: &Description, uplink: &UplinkFacts) -> Result<(), Failure> {
    let (name, bridge) = (&node.uplink, &node.bridge);
    if !uplink.exists {
        return Err(Failure::Failed(format!("uplink {name}: this node has no such network card")));
    }
    match &uplink.master {
        Some(master) if master == bridge => Ok(()),
        Some(master) => Err(Failure::Refused(format!(
            "uplink {name} is a port of {master}; take it out (ip link set {name} nomaster), or \
             name another card in /etc/mint/kvm.toml"
        ))),
        None if uplink.has_default_route => Err(Failure::Refused(format!(
            "uplink {name} carries the default route of node {}, which would lose it in the \
             bridge {bridge}; name another card in /etc/mint/kvm.toml, or first move its \
             addresses and routes to {bridge} (ip link add {bridge} type bridge)",
            node.name
        ))),
        None => Ok(()),
    }
}

/// Lines for `ip -batch`: the guests of the other nodes, by their node's address on mint0.
/// Those follow each other in the order of the nodes' ids, so this node's own address there,
/// `on_mint0`, tells all.
pub fn routes(own: NodeId, on_mint0: Ipv4Addr) -> String {
    let node_0 = u32::from(on_mint0).wrapping_sub(own.as_u32());
    NodeId::below(NODE_MAX)
        .filter(|&node| node != own)
        .map(|node| {
            let GuestNetwork { address, prefix_bits } = GuestNetwork::of_node(node);
            let [a, b, c, _] = address.octets();
            let via = Ipv4Addr::from(node_0.wrapping_add(node.as_u32()));
            format!("route replace {a}.{b}.{c}.0/{prefix_bits} via {via} dev mint0\n")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::tests::web;

    fn with_uplink(uplink: UplinkFacts) -> (Description, BridgeFacts) {
        let node = Description { uplink: "eth0".to_owned(), ..web() };
        (node, BridgeFacts { exists: true, uplink: Some(uplink) })
    }

    #[test]
    fn only_what_is_missing_is_made() {
        let lines = |facts: &BridgeFacts| -> Vec<String> {
            plan(&web(), facts).unwrap().iter().map(|words| words.join(" ")).collect()
        };
        let all = [
            "link add mintbr0 type bridge stp_state 0 forward_delay 0",
            "address replace 10.78.11.1/24 dev mintbr0",
            "link set mintbr0 up",
        ];
        assert_eq!(lines(&BridgeFacts::default()), all);
        assert_eq!(lines(&BridgeFacts { exists: true, uplink: None }), all[1..]);
    }

    #[test]
    fn card_joins_the_bridge_last() {
        let (node, facts) = with_uplink(UplinkFacts { exists: true, ..Default::default() });
        let last = plan(&node, &facts).unwrap().pop().unwrap().join(" ");
        assert_eq!(last, "link set eth0 up master mintbr0");
    }

    #[test]
    fn card_with_the_default_route_is_refused_with_the_way_out() {
        let uplink = UplinkFacts { exists: true, has_default_route: true, master: None };
        let (node, facts) = with_uplink(uplink);
        let Err(Failure::Refused(text)) = plan(&node, &facts) else { panic!() };
        assert!(text.contains("eth0 carries the default route of node web"), "{text}");
        assert!(text.contains("/etc/mint/kvm.toml"), "{text}");
    }

    #[test]
    fn card_of_another_bridge_is_refused_and_one_of_this_stays() {
        let master = |name: &str| {
            let master = Some(name.to_owned());
            with_uplink(UplinkFacts { exists: true, has_default_route: true, master })
        };
        let (node, facts) = master("br7");
        let Err(Failure::Refused(text)) = plan(&node, &facts) else { panic!() };
        assert!(text.contains("is a port of br7"), "{text}");
        let (node, facts) = master("mintbr0");
        assert!(plan(&node, &facts).is_ok());
    }

    #[test]
    fn absent_card_is_told() {
        let (node, facts) = with_uplink(UplinkFacts::default());
        assert!(matches!(plan(&node, &facts), Err(Failure::Failed(_))));
    }

    #[test]
    fn routes_go_to_all_other_nodes() {
        let text = routes(NodeId::new(1).unwrap(), Ipv4Addr::new(10, 9, 0, 11));
        assert_eq!(text.lines().count(), 15);
        assert!(!text.contains("10.78.11.0"), "{text}");
        assert!(
            text.starts_with("route replace 10.78.10.0/24 via 10.9.0.10 dev mint0\n"),
            "{text}"
        );
    }
}
