// SPDX-License-Identifier: Apache-2.0
//! `/etc/mint/kvm.toml`: what the owner of a node says about its guests.

use std::fs;
use std::io;
use std::path::Path;

use ipnet::{Ipv4Net, Ipv6Net};
use serde::Deserialize;

use crate::description::check_interface;
use crate::ethernet;
use crate::failure::Failure;

/// The settings; other keys are an error. A file that is not there means defaults.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Network card of the node to put into the bridge; empty for none.
    pub uplink: String,
    /// Whether the node gives guests their addresses. It never does where it has an uplink.
    pub dhcp: bool,
    /// Addresses of guests and of the nodes beside them; the same on every node of a machine.
    pub guest_network: Ipv4Net,
    /// The same of IPv6.
    pub guest_network6: Ipv6Net,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            uplink: String::new(),
            dhcp: true,
            guest_network: ethernet::NETWORK,
            guest_network6: ethernet::NETWORK6,
        }
    }
}

impl Settings {
    /// Reads the file.
    ///
    /// # Errors
    /// [`Failure::Usage`], with file and line, when it cannot be read or says something else
    /// than it may.
    pub fn load(path: &Path) -> Result<Self, Failure> {
        let usage = |why: String| Failure::Usage(format!("{}: {why}", path.display()));
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(usage(format!("cannot read it: {error}"))),
        };
        let settings: Self = toml::from_str(&text)
            .map_err(|error| usage(error.to_string().trim_end().to_owned()))?;
        if !settings.uplink.is_empty() {
            check_interface("uplink", &settings.uplink).map_err(usage)?;
        }
        ethernet::check_prefixes(settings.guest_network, settings.guest_network6).map_err(usage)?;
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Settings, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kvm.toml");
        fs::write(&path, text).unwrap();
        Settings::load(&path)
    }

    #[test]
    fn absent_file_means_defaults() {
        assert_eq!(Settings::load(Path::new("/nowhere/kvm.toml")), Ok(Settings::default()));
        assert_eq!(load("# nothing\n"), Ok(Settings::default()));
        assert_eq!(load("uplink = \"eth0\"\n").unwrap().uplink, "eth0");
    }

    #[test]
    fn unknown_key_is_named_with_its_line() {
        let Err(Failure::Usage(text)) = load("# ours\nuplnik = \"eth0\"\n") else { panic!() };
        assert!(text.contains("kvm.toml") && text.contains("line 2"), "{text}");
        assert!(text.contains("uplnik"), "{text}");
    }

    #[test]
    fn wrong_values_are_refused() {
        for text in [
            "uplink = 1",
            "uplink = \"a/b\"",
            "uplink",
            "dhcp = 1",
            "guest_network = \"10.0.0.0/30\"",
            "guest_network = \"fd00::/64\"",
            "guest_network6 = \"fd00::/65\"",
        ] {
            assert!(matches!(load(text), Err(Failure::Usage(_))), "{text}");
        }
    }
}
