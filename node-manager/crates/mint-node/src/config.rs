// SPDX-License-Identifier: Apache-2.0
//! `/etc/mint/mint.toml` and `/etc/mint/nodes.d/*.toml`.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use ipnet::Ipv4Net;
use mint_types::{NodeId, NodeSpec, RestartPolicy};
use serde::{Deserialize, Serialize};

/// Effective settings of the daemon. Every key has a default, so that an empty
/// or absent file is a good one.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// What new nodes boot unless they say otherwise.
    pub node: NodeDefaults,
    /// How long to wait for what.
    pub wait: Waits,
    /// `mint0`.
    pub network: Network,
    /// Where things are kept.
    pub state: State,
    /// Logins between nodes.
    pub ssh: Ssh,
    /// Programs of this node.
    pub commands: Commands,
    /// Commands of other nodes' users and of this one's.
    pub exec: Exec,
    /// Numbers for Prometheus.
    pub metrics: Metrics,
    /// Memory of other nodes' guests.
    pub memory: Memory,
    /// What node 0 boots when a peer starts it again.
    pub node0: Node0,
}

/// What node 0 boots when a peer starts it again; its command line is the one that
/// it has. Empty: what new nodes boot.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Node0 {
    /// Kernel image.
    pub kernel: PathBuf,
    /// Initrd.
    pub initrd: PathBuf,
    /// When a peer starts node 0 again without being asked.
    pub restart: RestartPolicy,
}

/// What new nodes boot.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeDefaults {
    /// Kernel image.
    pub kernel: PathBuf,
    /// Initrd.
    pub initrd: PathBuf,
    /// Command line.
    pub cmdline: String,
}

/// How long is waited for what: the end of each name has its unit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Waits {
    /// For a started node's mintd, in seconds.
    #[serde(deserialize_with = "mint_types::limit_s")]
    pub start_s: u64,
    /// For a node's orderly end before it is killed, in seconds.
    #[serde(deserialize_with = "mint_types::limit_s")]
    pub stop_s: u64,
    /// After so many seconds without a heartbeat, or with fewer cores online than it owns,
    /// a running node counts as degraded.
    #[serde(deserialize_with = "mint_types::limit_s")]
    pub degraded_s: u64,
    /// After so many seconds without a heartbeat it counts as hung.
    #[serde(deserialize_with = "mint_types::limit_s")]
    pub hung_s: u64,
    /// For one core, block or function to change its owner, in milliseconds.
    pub move_ms: u32,
}

/// `mint0` and what is served on it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Network {
    /// Whether mintd sets `mint0` up and serves other nodes on it.
    pub enabled: bool,
    /// TCP port of the daemon.
    pub port: u16,
    /// MTU of `mint0`; less if the device says so.
    pub mtu: u32,
    /// Addresses on `mint0`, see [`Network::address`]. Node 0's counts: it reaches the
    /// others in their bundles.
    pub subnet: Ipv4Net,
}

impl Network {
    /// Addresses below node 0's, for whatever else is on `mint0`.
    const NODE_0: u32 = 10;

    /// Address of a node on `mint0`: the subnet's tenth and so on. [`Network::has_room`]
    /// says for how many nodes that is right.
    pub fn address(&self, node: NodeId) -> Ipv4Addr {
        let first = u32::from(self.subnet.network());
        Ipv4Addr::from(first.wrapping_add(Self::NODE_0).wrapping_add(node.as_u32()))
    }

    /// Whether so many nodes have addresses in the subnet, its broadcast address left out.
    pub fn has_room(&self, nodes: u32) -> bool {
        let past_last = u64::from(u32::from(self.subnet.network()))
            + u64::from(Self::NODE_0)
            + u64::from(nodes);
        past_last <= u64::from(u32::from(self.subnet.broadcast()))
    }
}

/// Where things are kept.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct State {
    /// Journal, descriptions of nodes, keys.
    pub dir: PathBuf,
}

/// Logins between nodes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ssh {
    /// Whether root of any node may log in on any other, with a key pair that
    /// exists on this machine's nodes only.
    pub manage: bool,
}

/// Programs of this system that mintd runs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Commands {
    /// Ends this node in an orderly way. On node 0 that ends the machine: it is
    /// to stop the other nodes first (`mintctl node stop --all`).
    pub poweroff: Vec<String>,
    /// The same, and starts it again.
    pub reboot: Vec<String>,
    /// Ends node 0 alone, for a peer to start it again.
    pub leave: Vec<String>,
}

/// `mintctl node exec`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Exec {
    /// Whether this node runs commands that come through its daemon.
    pub enabled: bool,
}

impl Default for Exec {
    fn default() -> Self {
        Self { enabled: true }
    }
}

/// Numbers for Prometheus.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Address and port to serve `/metrics` on, for anybody who can connect; nothing
    /// is served if this is empty. The daemon's socket has it in any case.
    pub listen: String,
}

/// What this node keeps of the memory of other nodes' guests.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    /// At most so much, as [`mint_types::parse_bound`] reads it; as much as there is room for if this
    /// is empty.
    #[serde(deserialize_with = "bound")]
    pub keep_max: String,
}

fn bound<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    mint_types::parse_bound(&text).map_err(serde::de::Error::custom)?;
    Ok(text)
}

impl Default for NodeDefaults {
    fn default() -> Self {
        Self {
            kernel: "/boot/vmlinuz-mint".into(),
            initrd: "/boot/node.initrd".into(),
            cmdline: "console=hvc0".into(),
        }
    }
}

impl Default for Waits {
    fn default() -> Self {
        Self { start_s: 120, stop_s: 30, degraded_s: 5, hung_s: 10, move_ms: 10_000 }
    }
}

impl Default for Network {
    fn default() -> Self {
        let subnet = Ipv4Net::new_assert(Ipv4Addr::new(10, 77, 0, 0), 24);
        Self { enabled: true, port: 7777, mtu: 65_280, subnet }
    }
}

impl Default for State {
    fn default() -> Self {
        Self { dir: "/var/lib/mint".into() }
    }
}

impl Default for Ssh {
    fn default() -> Self {
        Self { manage: true }
    }
}

impl Default for Commands {
    fn default() -> Self {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect();
        Self {
            poweroff: words("poweroff"),
            reboot: words("reboot"),
            leave: words("systemctl reboot --reboot-argument=mint"),
        }
    }
}

/// A configuration file is no good.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It says something else than it may.
    #[error("{} is no good", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Line and reason.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// Two files describe the same node.
    #[error("{} and {} both describe node {name}", first.display(), second.display())]
    Duplicate {
        /// The node.
        name: String,
        /// One file.
        first: PathBuf,
        /// The other file that describes it.
        second: PathBuf,
    },
}

impl Config {
    /// Reads the file; a file that is not there means defaults.
    ///
    /// # Errors
    /// When it cannot be read, or has unknown keys or wrong types.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        match read(path) {
            Ok(text) => parse(path, &text),
            Err(ConfigError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(Self::default())
            }
            Err(error) => Err(error),
        }
    }
}

/// Reads all descriptions `*.toml` in a folder, by name of the file. A folder
/// that is not there holds none.
///
/// # Errors
/// When one of them is no good: then none counts.
pub fn load_specs(folder: &Path) -> Result<Vec<NodeSpec>, ConfigError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(ConfigError::Read { path: folder.to_owned(), source }),
    };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    paths.sort();
    let mut specs: Vec<NodeSpec> = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        let spec: NodeSpec = parse(path, &read(path)?)?;
        if let Some(first) = specs.iter().position(|other| other.name == spec.name) {
            return Err(ConfigError::Duplicate {
                name: spec.name.to_string(),
                first: paths[first].clone(),
                second: paths[index].clone(),
            });
        }
        specs.push(spec);
    }
    Ok(specs)
}

fn read(path: &Path) -> Result<String, ConfigError> {
    fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path, text: &str) -> Result<T, ConfigError> {
    toml::from_str(text)
        .map_err(|source| ConfigError::Parse { path: path.to_owned(), source: Box::new(source) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dist(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist").join(name)
    }

    /// The shipped sample has every key, with its default as value.
    #[test]
    fn shipped_sample_says_the_defaults() {
        let text = fs::read_to_string(dist("mint.toml")).unwrap();
        assert_eq!(Config::load(&dist("mint.toml")).unwrap(), Config::default());
        let sample: toml::Table = toml::from_str(&text).unwrap();
        let full = toml::Table::try_from(Config::default()).unwrap();
        assert_eq!(sample, full, "dist/mint.toml has to show every key");
    }

    #[test]
    fn shipped_node_is_a_good_one() {
        let specs = load_specs(&dist("nodes.d")).unwrap();
        assert_eq!(specs.len(), 1);
        assert_eq!(specs[0].name.as_str(), "web");
    }

    #[test]
    fn unknown_key_is_an_error_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        fs::write(&path, "name = \"a\"\nmemory = \"1G\"\ncores = \"2\"\n").unwrap();
        let error = load_specs(folder.path()).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("line 3") && source.contains("unknown field `cores`"), "{source}");
        fs::write(&path, "[wait]\nstart = 3\n").unwrap();
        assert!(Config::load(&path).is_err());
        fs::write(&path, "[memory]\nkeep_max = \"much\"\n").unwrap();
        let error = Config::load(&path).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("line 2") && source.contains("`much` is no amount"), "{source}");
    }

    #[test]
    fn addresses_are_the_subnets() {
        let network = Network { subnet: "10.9.8.64/27".parse().unwrap(), ..Network::default() };
        let address = |id| network.address(NodeId::new(id).unwrap()).to_string();
        assert_eq!([address(0), address(15)], ["10.9.8.74", "10.9.8.89"]);
        // .95 is the broadcast address
        assert!(network.has_room(21) && !network.has_room(22));
    }

    #[test]
    fn two_files_for_one_node_are_an_error() {
        let folder = tempfile::tempdir().unwrap();
        for file in ["a.toml", "b.toml"] {
            fs::write(folder.path().join(file), "name = \"web\"\n").unwrap();
        }
        assert!(matches!(load_specs(folder.path()), Err(ConfigError::Duplicate { .. })));
    }

    #[test]
    fn absent_files_mean_defaults() {
        let nowhere = Path::new("/nonexistent/mint.toml");
        assert_eq!(Config::load(nowhere).unwrap(), Config::default());
        assert!(load_specs(nowhere).unwrap().is_empty());
    }
}
