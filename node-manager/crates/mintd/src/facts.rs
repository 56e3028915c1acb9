// SPDX-License-Identifier: Apache-2.0
//! `node.toml` of the bundle: what the starter tells a node about itself.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

use ipnet::Ipv4Net;
use mint_node::config::Network;
use mint_types::{MachineId, NodeId, NodeName};
use serde::{Deserialize, Serialize};

const FILE: &str = "node.toml";

/// A node, as its starter knows it. Starters of other versions may say more or less.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct NodeFacts {
    /// Its name.
    pub name: NodeName,
    /// Its id.
    pub id: NodeId,
    /// Its address on `mint0`.
    pub address: Ipv4Addr,
    /// All nodes' addresses.
    #[serde(default)]
    pub subnet: Option<Ipv4Net>,
    /// Its machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineId>,
}

impl NodeFacts {
    /// Of a node that is to be started.
    pub fn new(network: &Network, id: NodeId, name: &NodeName) -> Self {
        let address = network.address(id);
        Self { name: name.clone(), id, address, subnet: Some(network.subnet), machine: None }
    }

    /// As the file: name and text.
    pub fn file(&self) -> (String, Vec<u8>) {
        let text = toml::to_string(self).expect("facts are plain data");
        (FILE.to_owned(), text.into_bytes())
    }

    /// What our starter left; nothing where nobody started us.
    ///
    /// # Errors
    /// When it is there and cannot be read.
    pub fn read(bundle: &Path) -> io::Result<Option<Self>> {
        match fs::read_to_string(bundle.join(FILE)) {
            Ok(text) => toml::from_str(&text).map(Some).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_other_versions_are_understood() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(NodeFacts::read(folder.path()).unwrap(), None);
        let network = Network::default();
        let facts = NodeFacts::new(&network, NodeId::new(1).unwrap(), &"web".parse().unwrap());
        let (name, text) = facts.file();
        fs::write(folder.path().join(&name), &text).unwrap();
        assert_eq!(NodeFacts::read(folder.path()).unwrap(), Some(facts.clone()));
        // init reads these with sed
        let text = String::from_utf8(text).unwrap();
        assert!(text.starts_with("name = \"web\"\nid = 1\n"), "{text}");
        let newer = "later = 1\nname = \"web\"\nid = 1\naddress = \"10.77.0.11\"\n";
        fs::write(folder.path().join(&name), newer).unwrap();
        let read = NodeFacts::read(folder.path()).unwrap().unwrap();
        assert_eq!((read.address, read.subnet), (facts.address, None));
        fs::write(folder.path().join(&name), "name = 1").unwrap();
        assert!(NodeFacts::read(folder.path()).is_err());
    }
}
