// SPDX-License-Identifier: Apache-2.0
//! Which interfaces carry a default route, from the kernel's own tables.

use std::collections::BTreeSet;

/// Interfaces with a default route, by the texts of `/proc/net/route` and
/// `/proc/net/ipv6_route`.
pub fn default_route_interfaces(ipv4: &str, ipv6: &str) -> BTreeSet<String> {
    let mut interfaces = BTreeSet::new();
    for line in ipv4.lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if let [interface, "00000000", _, _, _, _, _, "00000000", ..] = fields[..] {
            interfaces.insert(interface.to_owned());
        }
    }
    for line in ipv6.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let everywhere = fields.first().is_some_and(|to| to.bytes().all(|b| b == b'0'));
        if let (true, Some(&"00"), Some(&interface)) = (everywhere, fields.get(1), fields.last()) {
            // the kernel's own unreachable default is on lo
            if interface != "lo" {
                interfaces.insert(interface.to_owned());
            }
        }
    }
    interfaces
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n";

    #[test]
    fn only_default_routes_count() {
        let ipv4 = format!(
            "{HEAD}eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
             eth1\t000AA8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
        );
        let zeros = "0".repeat(32);
        let ipv6 = format!(
            "{zeros} 00 {zeros} 00 {zeros} ffffffff 00000001 00000000 00200200 lo\n\
             {zeros} 00 {zeros} 00 fe80{rest} 00000400 00000001 00000000 00000003 eth2\n\
             fe80{rest} 40 {zeros} 00 {zeros} 00000100 00000001 00000000 00000001 eth3\n",
            rest = "0".repeat(28)
        );
        let found = default_route_interfaces(&ipv4, &ipv6);
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["eth0", "eth2"]);
        assert!(default_route_interfaces("", "").is_empty());
    }
}
