// SPDX-License-Identifier: Apache-2.0
//! The bridge of a node's guests: which steps make it, or why it is not made.
//!
//! Either it is part of the one Ethernet of all guests ([`ethernet`]), or, with an uplink, of the
//! Ethernet that this card is on. It is never both: two nodes with a card on one Ethernet would
//! close a circle, in which frames go round for ever.

use crate::description::Description;
use crate::ethernet;
use crate::failure::Failure;

/// What is there already.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BridgeFacts {
    /// Whether the bridge is there.
    pub exists: bool,
    /// The card that is to be in it.
    pub uplink: Option<UplinkFacts>,
    /// MAC address that the bridge gets where there is mint0 ([`ethernet::bridge_mac`]).
    pub mint0: Option<String>,
    /// Whether [`ethernet::PORT`] is there.
    pub port_exists: bool,
    /// Network cards that are ports of the bridge.
    pub cards: Vec<String>,
    /// Whether the kernel knows IPv6.
    pub has_ipv6: bool,
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

/// One step towards the bridge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// `ip` with these words.
    Ip(String),
    /// A setting of the kernel: its path below the root, and the value.
    Set(String, &'static str),
}

/// The steps, in order. A card whose addresses the node needs is not bridged: a port of a bridge
/// has none that work.
///
/// # Errors
/// [`Failure::Failed`] when the card is not there, [`Failure::Refused`] when it is in use, or
/// when another card is in the bridge, whose Ethernet would become one with the guests' own.
pub fn plan(node: &Description, facts: &BridgeFacts) -> Result<Vec<Step>, Failure> {
    let bridge = node.bridge.as_str();
    if let Some(uplink) = &facts.uplink {
        check_uplink(node, uplink)?;
    }
    if let Some(card) = facts.cards.iter().find(|&card| *card != node.uplink) {
        return Err(Failure::Refused(format!(
            "{card} is a port of {bridge}, but is not the uplink of node {}; take it out \
             (ip link set {card} nomaster), or name it in /etc/mint/kvm.toml",
            node.name
        )));
    }

    let ip = Step::Ip;
    let ipv4 = |setting: &str| format!("proc/sys/net/ipv4/{setting}");
    let mut steps = Vec::new();
    if !facts.exists {
        steps.push(ip(format!("link add {bridge} type bridge stp_state 0 forward_delay 0")));
    }
    match (&facts.mint0, facts.uplink.is_some()) {
        (Some(mac), false) => steps.extend(machine_wide(bridge, mac, facts)),
        _ if facts.port_exists => steps.push(ip(format!("link delete {}", ethernet::PORT))),
        _ => {}
    }
    if facts.uplink.is_none() {
        // first: dnsmasq calls itself by the first address there is, so that to a guest all
        // nodes' are one server
        let gateway = ethernet::gateway(node.guest_network);
        steps.push(ip(format!("address replace {gateway}/32 dev {bridge}")));
        // every node has that one: none may make it known as its own
        steps.push(Step::Set(ipv4(&format!("conf/{bridge}/arp_announce")), "2"));
    }
    steps.push(ip(format!("address replace {} dev {bridge}", node.guest_network)));
    if facts.has_ipv6 {
        // a guest does not tell its node where to send
        steps.push(Step::Set(format!("proc/sys/net/ipv6/conf/{bridge}/accept_ra"), "0"));
        let address = node.guest_network6;
        steps.push(ip(format!("address replace {address} dev {bridge} nodad")));
    }
    steps.push(ip(format!("link set {bridge} up")));
    if facts.uplink.is_some() {
        steps.push(ip(format!("link set {} up master {bridge}", node.uplink)));
    }
    steps.push(Step::Set(ipv4("ip_forward"), "1"));
    Ok(steps)
}

/// The bridge becomes a part of the machine's Ethernet. Its address never changes, whatever else
/// is in the bridge.
fn machine_wide(bridge: &str, mac: &str, facts: &BridgeFacts) -> Vec<Step> {
    let (port, vlan) = (ethernet::PORT, ethernet::VLAN);
    let mut steps = vec![format!("link set {bridge} address {mac}")];
    if !facts.port_exists {
        // loose: it may be up before mint0 is
        steps.push(format!("link add link mint0 name {port} type vlan id {vlan} loose_binding on"));
    }
    // that of mint0 may be another node's on a linked machine, and the bridge would take what
    // comes from there for its own
    steps.push(format!("link set {port} address {mac}"));
    // mint0 takes more, guests' and other cards do not; segmentation is left to the receiver
    steps.extend([port, bridge].map(|device| format!("link set {device} mtu {}", ethernet::MTU)));
    if facts.has_ipv6 {
        steps.push(format!("link set {port} addrgenmode none"));
    }
    steps.push(format!("link set {port} up master {bridge}"));
    // who asks for the gateway is answered by its own node, and the others are not asked
    steps.push(format!("link set {port} type bridge_slave neigh_suppress on"));
    steps.into_iter().map(Step::Ip).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::tests::web;

    const MAC: &str = "02:4d:49:4e:54:01";

    fn with_uplink(uplink: UplinkFacts) -> (Description, BridgeFacts) {
        let node = Description { uplink: "eth0".to_owned(), ..web() };
        (node, BridgeFacts { exists: true, uplink: Some(uplink), ..BridgeFacts::default() })
    }

    fn on_mint0() -> BridgeFacts {
        BridgeFacts { mint0: Some(MAC.to_owned()), has_ipv6: true, ..BridgeFacts::default() }
    }

    fn lines(node: &Description, facts: &BridgeFacts) -> Vec<String> {
        let line = |step| match step {
            Step::Ip(words) => words,
            Step::Set(path, value) => format!("{path} {value}"),
        };
        plan(node, facts).unwrap().into_iter().map(line).collect()
    }

    #[test]
    fn bridge_without_mint0_is_the_nodes_own() {
        let all = [
            "link add mintbr0 type bridge stp_state 0 forward_delay 0",
            "address replace 10.78.0.1/32 dev mintbr0",
            "proc/sys/net/ipv4/conf/mintbr0/arp_announce 2",
            "address replace 10.78.0.11/16 dev mintbr0",
            "link set mintbr0 up",
            "proc/sys/net/ipv4/ip_forward 1",
        ];
        assert_eq!(lines(&web(), &BridgeFacts::default()), all);
        let again = BridgeFacts { exists: true, ..BridgeFacts::default() };
        assert_eq!(lines(&web(), &again), all[1..]);
    }

    #[test]
    fn bridge_joins_the_ethernet_of_all_nodes_before_it_is_up() {
        let all = lines(&web(), &on_mint0());
        let joined = [
            "link set mintbr0 address 02:4d:49:4e:54:01",
            "link add link mint0 name mint0.78 type vlan id 78 loose_binding on",
            "link set mint0.78 address 02:4d:49:4e:54:01",
            "link set mint0.78 mtu 1500",
            "link set mintbr0 mtu 1500",
            "link set mint0.78 addrgenmode none",
            "link set mint0.78 up master mintbr0",
            "link set mint0.78 type bridge_slave neigh_suppress on",
            "address replace 10.78.0.1/32 dev mintbr0",
        ];
        assert_eq!(all[1..10], joined);
        let set = all.iter().position(|line| line.ends_with("accept_ra 0")).unwrap();
        assert!(set < all.iter().position(|line| line == "link set mintbr0 up").unwrap());
        assert!(
            all.contains(&"address replace fd4d:494e:5400:78::11/64 dev mintbr0 nodad".to_owned())
        );
        let again = BridgeFacts { exists: true, port_exists: true, ..on_mint0() };
        assert!(!lines(&web(), &again).iter().any(|line| line.contains(" add ")));
    }

    #[test]
    fn card_joins_last_and_the_ethernet_of_all_nodes_is_left_first() {
        let uplink = UplinkFacts { exists: true, ..Default::default() };
        let (node, facts) = with_uplink(uplink);
        let facts = BridgeFacts { mint0: Some(MAC.to_owned()), port_exists: true, ..facts };
        let all = lines(&node, &facts);
        let at = |wanted: &str| all.iter().position(|line| line == wanted);
        assert_eq!(at("link delete mint0.78"), Some(0));
        assert_eq!(at("link set eth0 up master mintbr0"), Some(all.len() - 2));
        assert!(!all.iter().any(|line| line.contains("10.78.0.1/32")), "{all:?}");
    }

    #[test]
    fn card_that_is_no_uplink_any_more_is_refused_with_the_way_out() {
        let facts = BridgeFacts { exists: true, cards: vec!["eth0".to_owned()], ..on_mint0() };
        let Err(Failure::Refused(text)) = plan(&web(), &facts) else { panic!() };
        assert!(text.contains("ip link set eth0 nomaster"), "{text}");
        let (node, facts) = with_uplink(UplinkFacts {
            exists: true,
            has_default_route: false,
            master: Some("mintbr0".to_owned()),
        });
        assert!(plan(&node, &BridgeFacts { cards: vec!["eth0".to_owned()], ..facts }).is_ok());
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
}
