// SPDX-License-Identifier: Apache-2.0
//! What libvirt asks its hook for guests of QEMU (libvirt's document "Hooks for specific system
//! management"): of a guest that comes by a migration, the XML that it gets here. So a plain
//! `virsh migrate` has pins of this node, too, as `mintctl vm migrate` has.
//!
//! libvirt waits for its hook and holds locks meanwhile: the hook never calls libvirt. Whatever
//! else it is called for it lets pass, at once; a guest that libvirtd finds again at its start
//! (`reconnect`) would be killed by a hook that fails.

use std::collections::BTreeSet;
use std::path::Path;

use mint_types::CpuSet;

use crate::domain::{Domain, DomainError, element};
use crate::landing::{HostCpus, land};
use crate::marks::owners;

/// What libvirt asks its hook for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// `NAME migrate begin -`: the XML of a guest that comes.
    Arrival,
    /// `NAME started begin -`: its QEMU runs, and goes on only if the hook succeeds.
    Started,
    /// `NAME stopped end -`: its QEMU has ended.
    Stopped,
    /// Anything else: let it pass.
    Other,
}

impl Call {
    /// Of the hook's arguments.
    pub fn of(arguments: &[String]) -> Self {
        let [_, what, when, ..] = arguments else { return Self::Other };
        match (what.as_str(), when.as_str()) {
            ("migrate", "begin") => Self::Arrival,
            ("started", "begin") => Self::Started,
            ("stopped", "end") => Self::Stopped,
            _ => Self::Other,
        }
    }
}

/// The XML that a guest gets on this host; nothing where it fits as it is.
///
/// # Errors
/// When its XML cannot be read: libvirt refuses the migration then.
pub fn answer(xml: &str, host: &HostCpus) -> Result<Option<String>, DomainError> {
    Domain::parse(xml)?;
    let landing = land(xml, host)?;
    Ok((!landing.changes.is_empty()).then_some(landing.xml))
}

/// The host's CPUs and NUMA nodes, from files below `root`; CPUs that running guests have are
/// read from libvirt's own records of them.
pub fn host(root: &Path) -> HostCpus {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    let set = |path: &str| read(path).trim().parse().unwrap_or_default();
    HostCpus {
        online: set("sys/devices/system/cpu/online"),
        taken: taken(&root.join("run/libvirt/qemu")),
        numa_nodes: set("sys/devices/system/node/online"),
    }
}

fn taken(records: &Path) -> CpuSet {
    let mut taken = BTreeSet::new();
    let Ok(entries) = std::fs::read_dir(records) else { return CpuSet::default() };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_none_or(|end| end != "xml") {
            continue;
        }
        // one that ends meanwhile has no CPUs
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let Some(xml) = element(&text, &["domstatus", "domain"]) else { continue };
        let Ok(domain) = Domain::parse(xml) else { continue };
        for pin in owners(xml, &domain).iter().filter(|pin| pin.cpus.len() == 1) {
            taken.extend(pin.cpus.iter());
        }
    }
    taken.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::tests::WEB;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn few_calls_are_answered_and_others_pass() {
        for (text, call) in [
            ("web migrate begin -", Call::Arrival),
            ("web started begin -", Call::Started),
            ("web stopped end -", Call::Stopped),
            ("web reconnect begin -", Call::Other),
            ("web start begin -", Call::Other),
            ("web migrate end -", Call::Other),
            ("web", Call::Other),
            ("", Call::Other),
        ] {
            assert_eq!(Call::of(&words(text)), call, "{text}");
        }
    }

    #[test]
    fn guest_gets_cpus_that_no_running_guest_has() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("sys/devices/system/cpu/online", "0-2\n");
        put("sys/devices/system/node/online", "0\n");
        let other = WEB
            .replace("cpuset='2'", "cpuset='0'")
            .replace("vcpu='1' cpuset='3'", "vcpu='1' cpuset='1-2'");
        put(
            "run/libvirt/qemu/other.xml",
            &format!("<domstatus state='running'>{other}</domstatus>"),
        );
        put("run/libvirt/qemu/broken.xml", "<domstatus>");
        put("run/libvirt/qemu/other.pid", "7");
        let host = host(root.path());
        assert_eq!((host.online.to_string(), host.taken.to_string()), ("0-2".into(), "0".into()));
        let there = answer(WEB, &host).unwrap().unwrap();
        let pins = Domain::parse(&there).unwrap().vcpu_pins;
        let cpus: Vec<String> = pins.iter().map(|pin| pin.cpus.to_string()).collect();
        assert_eq!(cpus, ["2", "1"]);
    }

    #[test]
    fn guest_that_fits_stays_as_it_is_and_one_that_cannot_be_read_is_refused() {
        let set = |text: &str| text.parse::<CpuSet>().unwrap();
        let host =
            HostCpus { online: set("0-7"), taken: CpuSet::default(), numa_nodes: set("0-1") };
        assert_eq!(answer(WEB, &host), Ok(None));
        for bad in ["<domain", "broken", ""] {
            assert!(answer(bad, &host).is_err(), "{bad}");
        }
    }
}
