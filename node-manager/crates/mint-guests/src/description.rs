// SPDX-License-Identifier: Apache-2.0
//! The description of a node: what libvirt's configuration on it is made from.

use std::fs;
use std::path::{Path, PathBuf};

use ipnet::{Ipv4Net, Ipv6Net};
use mint_types::NodeId;
use serde::{Deserialize, Serialize};

use crate::cpus::CpuList;
use crate::ethernet;
use crate::failure::Failure;

/// Longest name of a network interface (`IFNAMSIZ` without the NUL).
const INTERFACE_BYTES_MAX: usize = 15;
/// Longest host name that Linux keeps.
const HOST_NAME_BYTES_MAX: usize = 64;

/// What a node is, in TOML; other keys are an error.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Host name of the node; it is only shown.
    pub name: String,
    /// Its number.
    pub id: NodeId,
    /// Linux CPU numbers on that node.
    pub cpus: CpuList,
    /// Memory of the node, in bytes.
    pub memory_bytes: u64,
    /// Folder on the node's own disk for guests' disks; absolute.
    pub pool_path: PathBuf,
    /// Bridge that guests are on.
    pub bridge: String,
    /// Address of the node on that bridge, and the prefix of the network of all guests.
    pub guest_network: Ipv4Net,
    /// The same of IPv6.
    pub guest_network6: Ipv6Net,
    /// Network card to put into the bridge; empty for none.
    #[serde(default)]
    pub uplink: String,
    /// Whether the node gives guests their addresses (where it has no uplink).
    #[serde(default = "yes")]
    pub dhcp: bool,
    /// 0: guests get no TSC deadline timer.
    #[serde(default = "one")]
    pub tsc_deadline: u8,
}

fn one() -> u8 {
    1
}

fn yes() -> bool {
    true
}

impl Description {
    /// Reads a description.
    ///
    /// # Errors
    /// [`Failure::Usage`], with file and line, when it cannot be read or is no description.
    pub fn load(path: &Path) -> Result<Self, Failure> {
        let text = fs::read_to_string(path).map_err(|error| {
            Failure::Usage(format!("cannot read the node description {}: {error}", path.display()))
        })?;
        Self::parse(&text).map_err(|why| Failure::Usage(format!("{}: {why}", path.display())))
    }

    /// A description from its text; checked.
    ///
    /// # Errors
    /// What is wrong, with the line where it is one line's fault.
    pub fn parse(text: &str) -> Result<Self, String> {
        let description: Self =
            toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        description.check()?;
        Ok(description)
    }

    /// Its text.
    ///
    /// # Errors
    /// When a path in it is no text.
    pub fn to_toml(&self) -> Result<String, Failure> {
        toml::to_string(self)
            .map_err(|error| Failure::Failed(format!("cannot write the description: {error}")))
    }

    /// What types do not say.
    ///
    /// # Errors
    /// What is wrong.
    pub fn check(&self) -> Result<(), String> {
        check_host_name(&self.name)?;
        if self.cpus.repeats() {
            return Err(format!("cpus names a CPU twice: '{}'", self.cpus));
        }
        if !self.pool_path.is_absolute() {
            return Err(format!("pool_path must be absolute, not '{}'", self.pool_path.display()));
        }
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        if self.bridge.is_empty() || !self.bridge.chars().all(plain) {
            return Err(format!("bridge '{}' is no interface name", self.bridge));
        }
        if self.bridge.len() > INTERFACE_BYTES_MAX {
            return Err(format!(
                "bridge '{}' is longer than {INTERFACE_BYTES_MAX} characters",
                self.bridge
            ));
        }
        if !self.uplink.is_empty() {
            check_interface("uplink", &self.uplink)?;
        }
        ethernet::check_prefixes(self.guest_network, self.guest_network6)?;
        if self.tsc_deadline > 1 {
            return Err(format!("tsc_deadline must be 0 or 1, not '{}'", self.tsc_deadline));
        }
        Ok(())
    }
}

/// Whether Linux can have an interface of that name (`dev_valid_name`).
///
/// # Errors
/// Why not; `what` says which setting it is.
pub fn check_interface(what: &str, name: &str) -> Result<(), String> {
    let bad = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    if name.is_empty()
        || name.len() > INTERFACE_BYTES_MAX
        || name == "."
        || name == ".."
        || name.contains(bad)
    {
        return Err(format!("{what} '{name}' is no interface name"));
    }
    Ok(())
}

/// A host name as servers have it, with capitals and dots too.
fn check_host_name(name: &str) -> Result<(), String> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    if name.is_empty() || !name.chars().all(good) {
        return Err(format!(
            "the node's name must be made of a-z, A-Z, 0-9, '-', '.' and '_', not '{name}'"
        ));
    }
    if name.len() > HOST_NAME_BYTES_MAX {
        return Err(format!(
            "the node's name '{name}' is longer than {HOST_NAME_BYTES_MAX} characters"
        ));
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A node of 1 GiB and two CPUs.
    pub(crate) fn web() -> Description {
        Description {
            name: "web".to_owned(),
            id: NodeId::new(1).unwrap(),
            cpus: CpuList::parse("0-1").unwrap(),
            memory_bytes: 1 << 30,
            pool_path: "/var/lib/libvirt/images".into(),
            bridge: "mintbr0".to_owned(),
            guest_network: "10.78.0.11/16".parse().unwrap(),
            guest_network6: "fd4d:494e:5400:78::11/64".parse().unwrap(),
            uplink: String::new(),
            dhcp: true,
            tsc_deadline: 1,
        }
    }

    #[test]
    fn text_round_trips() {
        let text = web().to_toml().unwrap();
        assert!(text.starts_with("name = \"web\"\nid = 1\ncpus = \"0-1\"\n"), "{text}");
        assert_eq!(Description::parse(&text), Ok(web()));
    }

    #[test]
    fn host_names_of_servers_are_taken() {
        for name in ["Server1.example.org", "DB_2", "a", &"x".repeat(64)] {
            assert_eq!(Description { name: name.to_owned(), ..web() }.check(), Ok(()), "{name}");
        }
        for name in ["", "a b", "a\n", "<a>", "(none)", &"x".repeat(65)] {
            assert!(Description { name: name.to_owned(), ..web() }.check().is_err(), "{name}");
        }
    }

    #[test]
    fn uplink_is_an_interface_name() {
        for name in ["eth0", "enp3s0f0np0", "bond0.100"] {
            assert_eq!(Description { uplink: name.to_owned(), ..web() }.check(), Ok(()), "{name}");
        }
        for name in ["..", "a/b", "a b", "sixteen_letters_"] {
            assert!(Description { uplink: name.to_owned(), ..web() }.check().is_err(), "{name}");
        }
    }

    #[test]
    fn address_without_a_prefix_is_told_with_its_line() {
        let text = web().to_toml().unwrap();
        for bad in ["10.78.0.11", "10.78.0.11/33", "999.1.1.1/16", "10.78.0.11/", "x/16"] {
            let error = Description::parse(&text.replace("10.78.0.11/16", bad)).unwrap_err();
            assert!(error.contains("guest_network") && error.contains("line"), "{bad}: {error}");
        }
    }

    proptest! {
        #[test]
        fn parser_never_panics(text in "\\PC*") {
            let _ = Description::parse(&text);
        }
    }
}
