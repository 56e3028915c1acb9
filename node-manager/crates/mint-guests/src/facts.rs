// SPDX-License-Identifier: Apache-2.0
//! What this node is, from its own files; the root of the tree is an argument, so that tests
//! give a folder.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use mint_types::{NodeId, default_route_interfaces};

use crate::bridge::{BridgeFacts, UplinkFacts};
use crate::cpus::CpuList;
use crate::description::Description;
use crate::ethernet;
use crate::failure::Failure;
use crate::settings::Settings;

/// The running node's trees.
#[derive(Debug, Clone)]
pub struct Facts {
    root: PathBuf,
}

impl Facts {
    /// `root` is `/`, or a folder with a copy of the files in tests.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// A path below the root.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_default().trim().to_owned()
    }

    fn must_read(&self, path: &str) -> Result<String, Failure> {
        fs::read_to_string(self.path(path))
            .map(|text| text.trim().to_owned())
            .map_err(|error| Failure::Failed(format!("cannot read /{path}: {error}")))
    }

    /// The node's description.
    ///
    /// # Errors
    /// When a file of the kernel cannot be read, or `/etc/mint/kvm.toml` is no good.
    pub fn describe(&self) -> Result<Description, Failure> {
        let settings = Settings::load(&self.path("etc/mint/kvm.toml"))?;
        let id = match self.read("run/mint/node-id").as_str() {
            "" => NodeId::ZERO,
            text => text.parse().ok().and_then(|id| NodeId::new(id).ok()).ok_or_else(|| {
                Failure::Failed(format!("/run/mint/node-id: '{text}' is no node"))
            })?,
        };
        let online = self.must_read("sys/devices/system/cpu/online")?;
        let cpus = CpuList::parse(&online).ok_or_else(|| {
            Failure::Failed(format!("/sys/devices/system/cpu/online: '{online}' is no list"))
        })?;
        let flags = self.read("proc/cpuinfo");
        let mint0 = self.mint0_address();
        Ok(Description {
            name: self.host_name(id),
            id,
            cpus,
            memory_bytes: self.memory_bytes()?,
            pool_path: "/var/lib/libvirt/images".into(),
            bridge: ethernet::BRIDGE.to_owned(),
            guest_network: ethernet::node_address(settings.guest_network, id, mint0),
            guest_network6: ethernet::node_address6(settings.guest_network6, id, mint0),
            uplink: settings.uplink,
            dhcp: settings.dhcp,
            // On a CPU whose TSC has no constant rate (an emulated machine) KVM arms the
            // deadline timer as many seconds late as the host is up; guests then take the local
            // APIC's one-shot timer, which is right there.
            tsc_deadline: u8::from(flags.split_whitespace().any(|flag| flag == "constant_tsc")),
        })
    }

    /// This node's address on mint0, as mintd writes it down.
    pub fn mint0_address(&self) -> Option<Ipv4Addr> {
        self.read("run/mint/address").parse().ok()
    }

    /// The kernel says `(none)` until somebody gives it a name.
    fn host_name(&self, id: NodeId) -> String {
        match self.read("proc/sys/kernel/hostname").as_str() {
            "" | "(none)" => format!("node{id}"),
            name => name.to_owned(),
        }
    }

    fn memory_bytes(&self) -> Result<u64, Failure> {
        let meminfo = self.must_read("proc/meminfo")?;
        let kib = meminfo.lines().find_map(|line| {
            line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
        });
        let kib = kib.ok_or_else(|| Failure::Failed("/proc/meminfo has no MemTotal".to_owned()))?;
        Ok(kib << 10)
    }

    /// What is to be known before the bridge is made.
    pub fn bridge(&self, node: &Description) -> BridgeFacts {
        let class = self.path("sys/class/net");
        let uplink = (!node.uplink.is_empty()).then(|| self.uplink(&class, &node.uplink));
        BridgeFacts {
            exists: class.join(&node.bridge).exists(),
            uplink,
            mint0: Some(self.read("sys/class/net/mint0/address"))
                .filter(|mac| !mac.is_empty())
                .map(|mac| ethernet::bridge_mac(&mac, self.mint0_address())),
            port_exists: class.join(ethernet::PORT).exists(),
            cards: self.cards_in(&class, &node.bridge),
            has_ipv6: self.path("proc/sys/net/ipv6").exists(),
        }
    }

    /// Ports of a bridge that are devices of the machine, not made by software.
    fn cards_in(&self, class: &Path, bridge: &str) -> Vec<String> {
        let ports = fs::read_dir(class.join(bridge).join("brif")).into_iter().flatten().flatten();
        let mut cards: Vec<String> = ports
            .filter_map(|port| port.file_name().into_string().ok())
            .filter(|port| class.join(port).join("device").exists())
            .collect();
        cards.sort();
        cards
    }

    fn uplink(&self, class: &Path, name: &str) -> UplinkFacts {
        let routes = default_route_interfaces(
            &self.read("proc/net/route"),
            &self.read("proc/net/ipv6_route"),
        );
        let master = fs::read_link(class.join(name).join("master")).ok();
        UplinkFacts {
            exists: class.join(name).exists(),
            has_default_route: routes.contains(name),
            master: master.and_then(|path| Some(path.file_name()?.to_str()?.to_owned())),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Node 1 with two CPUs, 1 GiB, and the cards eth0 (default route) and eth1 (in br7).
    pub(crate) fn tree() -> (tempfile::TempDir, Facts) {
        let folder = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("run/mint/node-id", "1\n");
        put("proc/sys/kernel/hostname", "Web-1.example.org\n");
        put("proc/sys/net/ipv4/ip_forward", "0\n");
        put("proc/sys/net/ipv4/conf/mintbr0/arp_announce", "0\n");
        put("proc/sys/net/ipv6/conf/mintbr0/accept_ra", "1\n");
        put("sys/class/net/mint0/address", "02:4d:49:4e:54:01\n");
        put("sys/devices/system/cpu/online", "0-1\n");
        put("proc/meminfo", "MemTotal:        1048576 kB\nMemFree: 1 kB\n");
        put("proc/cpuinfo", "flags\t\t: fpu constant_tsc svm\n");
        put(
            "proc/net/route",
            "Iface\tDestination\tGateway\nignored\n\
             eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n",
        );
        for card in ["eth0", "eth1", "br7"] {
            fs::create_dir_all(folder.path().join("sys/class/net").join(card)).unwrap();
        }
        symlink("../br7", folder.path().join("sys/class/net/eth1/master")).unwrap();
        let facts = Facts::new(folder.path());
        (folder, facts)
    }

    #[test]
    fn description_is_the_nodes_and_passes_its_own_check() {
        let (_folder, facts) = tree();
        let node = facts.describe().unwrap();
        assert_eq!(node.name, "Web-1.example.org");
        assert_eq!(node.cpus.as_str(), "0-1");
        assert_eq!((node.memory_bytes, node.tsc_deadline), (1 << 30, 1));
        assert_eq!(node.guest_network.to_string(), "10.78.0.11/16");
        assert_eq!(Description::parse(&node.to_toml().unwrap()), Ok(node));
    }

    #[test]
    fn node_without_a_name_is_called_by_its_number() {
        let (folder, facts) = tree();
        fs::write(folder.path().join("proc/sys/kernel/hostname"), "(none)\n").unwrap();
        assert_eq!(facts.describe().unwrap().name, "node1");
    }

    #[test]
    fn emulated_tsc_takes_the_deadline_timer_away() {
        let (folder, facts) = tree();
        fs::write(folder.path().join("proc/cpuinfo"), "flags : fpu nonconstant_tsc\n").unwrap();
        assert_eq!(facts.describe().unwrap().tsc_deadline, 0);
    }

    #[test]
    fn settings_are_heard_and_bad_ones_told() {
        let (folder, facts) = tree();
        fs::create_dir_all(folder.path().join("etc/mint")).unwrap();
        let file = folder.path().join("etc/mint/kvm.toml");
        fs::write(&file, "uplink = \"eth0\"\n").unwrap();
        assert_eq!(facts.describe().unwrap().uplink, "eth0");
        fs::write(&file, "colour = \"red\"\n").unwrap();
        assert!(matches!(facts.describe(), Err(Failure::Usage(_))));
    }

    #[test]
    fn cards_are_seen_with_route_and_master() {
        let (_folder, facts) = tree();
        let of = |uplink: &str| {
            let node = Description { uplink: uplink.to_owned(), ..facts.describe().unwrap() };
            facts.bridge(&node).uplink
        };
        assert_eq!(of(""), None);
        let eth0 = of("eth0").unwrap();
        assert!(eth0.exists && eth0.has_default_route && eth0.master.is_none());
        let eth1 = of("eth1").unwrap();
        assert!(eth1.exists && !eth1.has_default_route);
        assert_eq!(eth1.master.as_deref(), Some("br7"));
        assert!(!of("eth9").unwrap().exists);
    }
}
