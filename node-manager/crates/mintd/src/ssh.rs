// SPDX-License-Identifier: Apache-2.0
//! Logins between nodes: one key pair of the machine, which node 0 makes and
//! bundles carry on; host keys of every node, told over mutual TLS.
//!
//! What is root's own (`/root/.ssh`) is left alone: ssh and sshd are told by files that are
//! mintd's, but for a section of `ssh_known_hosts`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ipnet::Ipv4Net;
use mint_node::config::Network;
use mint_node::files::write_atomic;
use mint_types::{NodeId, NodeStatus};
use tracing::warn;

use crate::identity::{write_private, write_section};
use crate::network::host_names;

/// Where the machine's key is for ssh to find.
const IDENTITY: &str = "run/mint/ssh/id_ed25519";
/// Whom sshd lets in, where its AuthorizedKeysFile names this, too.
const AUTHORIZED: &str = "run/mint/ssh/authorized_keys";
/// ssh's settings for nodes; Debian's ssh_config includes this folder.
const CLIENT_FOLDER: &str = "etc/ssh/ssh_config.d";
const CLIENT_FILE: &str = "mint.conf";

/// The machine's key pair.
#[derive(Clone, Debug)]
pub(crate) struct SshKeys {
    private: Vec<u8>,
    public: String,
    /// Addresses of `mint0`: logins come from there only.
    subnet: Ipv4Net,
}

impl SshKeys {
    /// From the bundle; on node 0 without one from `state`, made if needed.
    /// `None` where there is no ssh, or no bundle.
    pub fn open(
        node: NodeId,
        bundle: &Path,
        state: &Path,
        subnet: Ipv4Net,
    ) -> io::Result<Option<Self>> {
        let in_bundle = bundle.join("ssh/id_ed25519");
        let path = if in_bundle.exists() {
            in_bundle
        } else if node == NodeId::ZERO {
            let path = state.join("ssh/id_ed25519");
            if !path.exists() && !keygen(&path, "mint machine")? {
                return Ok(None);
            }
            path
        } else {
            return Ok(None);
        };
        let public = fs::read_to_string(path.with_extension("pub"))?;
        Ok(Some(Self { private: fs::read(&path)?, public: public.trim().to_owned(), subnet }))
    }

    /// What a node gets: this pair, and a host key of its own.
    pub fn bundle_files(&self, node: NodeId) -> io::Result<Vec<(String, Vec<u8>)>> {
        let mut files = vec![
            ("authorized_keys".to_owned(), format!("{}\n", self.authorized_line()).into_bytes()),
            ("ssh/id_ed25519".to_owned(), self.private.clone()),
            ("ssh/id_ed25519.pub".to_owned(), format!("{}\n", self.public).into_bytes()),
        ];
        // in memory only: the folder is on a tmpfs and goes at once
        let folder = PathBuf::from(format!("/run/mint/hostkey-{node}-{}", std::process::id()));
        let path = folder.join("key");
        let made = keygen(&path, &format!("node{node}")).and_then(|made| {
            if made {
                files.push(("ssh_host_ed25519_key".to_owned(), fs::read(&path)?));
                let public = fs::read(path.with_extension("pub"))?;
                files.push(("ssh_host_ed25519_key.pub".to_owned(), public));
            }
            Ok(())
        });
        _ = fs::remove_dir_all(&folder);
        made.map(|()| files)
    }

    fn authorized_line(&self) -> String {
        format!("from=\"{}\" {}", self.subnet, self.public)
    }

    /// Lets the pair in, and lets root's ssh use it for nodes.
    pub fn install(&self, root: &Path) -> io::Result<()> {
        private_folder(&root.join("run/mint/ssh"))?;
        write_private(&root.join(IDENTITY), &self.private)?;
        let authorized = format!("{}\n", self.authorized_line());
        write_private(&root.join(AUTHORIZED), authorized.as_bytes())
    }
}

/// Makes a key pair; false where there is no ssh-keygen.
fn keygen(path: &Path, comment: &str) -> io::Result<bool> {
    if let Some(folder) = path.parent() {
        private_folder(folder)?;
    }
    let output = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", comment, "-f"])
        .arg(path)
        .output();
    match output {
        Ok(output) if output.status.success() => Ok(true),
        Ok(output) => Err(io::Error::other(format!(
            "ssh-keygen: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn private_folder(folder: &Path) -> io::Result<()> {
    if !folder.is_dir() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    Ok(())
}

/// Public host keys of this node's ssh server.
pub(crate) fn host_keys(root: &Path, bundle: &Path) -> Vec<String> {
    let mut keys = Vec::new();
    for folder in [bundle.to_owned(), root.join("etc/ssh")] {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with("ssh_host_") && name.ends_with("_key.pub") {
                if let Ok(text) = fs::read_to_string(entry.path()) {
                    // without the comment
                    let words: Vec<&str> = text.split_whitespace().take(2).collect();
                    keys.push(words.join(" "));
                }
            }
        }
    }
    keys.sort();
    keys.dedup();
    keys
}

/// Longest line of a public key that is taken: one of RSA with 16384 bits has 2800 bytes.
const KEY_BYTES_MAX: usize = 4096;
/// A server has one of each kind.
const KEYS_MAX: usize = 8;
/// Kinds of host keys (sshd(8), HostKeyAlgorithms, without certificates).
const KEY_KINDS: [&str; 5] =
    ["ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"];

/// Whether a peer's word is a public host key and nothing else: `KIND BASE64`, whose data
/// begin with the same kind (RFC 4253, 6.6).
fn is_host_key(line: &str) -> bool {
    let Some((kind, data)) = line.split_once(' ') else { return false };
    if line.len() > KEY_BYTES_MAX || !KEY_KINDS.contains(&kind) {
        return false;
    }
    let Ok(data) = BASE64_STANDARD.decode(data) else { return false };
    let length = u32::try_from(kind.len()).expect("a short word").to_be_bytes();
    let rest = data.strip_prefix(&length).and_then(|data| data.strip_prefix(kind.as_bytes()));
    rest.is_some_and(|rest| !rest.is_empty())
}

/// The good ones of what a peer says are its host keys.
pub(crate) fn checked_host_keys(node: NodeId, told: Vec<String>) -> Vec<String> {
    let (mut good, bad): (Vec<_>, Vec<_>) = told.into_iter().partition(|key| is_host_key(key));
    if !bad.is_empty() || good.len() > KEYS_MAX {
        warn!(%node, bad = bad.len(), good = good.len(), "host keys that are none, or too many");
    }
    good.truncate(KEYS_MAX);
    good
}

/// A node's names: address, `nodeN`, its own.
fn names(network: &Network, node: &NodeStatus) -> Vec<String> {
    let mut names = vec![network.address(node.id).to_string()];
    names.extend(host_names(node));
    names
}

/// Tells ssh on this node the names and host keys of all nodes.
pub(crate) fn write_clients(
    root: &Path,
    network: &Network,
    nodes: &[NodeStatus],
    keys: &BTreeMap<NodeId, Vec<String>>,
) -> io::Result<()> {
    let known: Vec<String> = nodes
        .iter()
        .flat_map(|node| {
            let names = names(network, node).join(",");
            keys.get(&node.id).into_iter().flatten().map(move |key| format!("{names} {key}"))
        })
        .collect();
    let etc = root.join("etc/ssh");
    if etc.is_dir() {
        write_section(&etc.join("ssh_known_hosts"), &known, 0o644)?;
    }
    let folder = root.join(CLIENT_FOLDER);
    if folder.is_dir() && root.join(IDENTITY).exists() {
        let all: Vec<String> = nodes.iter().flat_map(|node| names(network, node)).collect();
        // from= in authorized_keys wants an address of mint0
        let text = format!(
            "# Written by mintd ([ssh] manage in /etc/mint/mint.toml).\n\
             Match localuser root originalhost {}\n    IdentityFile /{IDENTITY}\n    User root\n",
            all.join(",")
        );
        let file = folder.join(CLIENT_FILE);
        if fs::read_to_string(&file).ok().as_ref() != Some(&text) {
            write_atomic(&file, text.as_bytes(), 0o644)?;
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use mint_types::NodeState;

    pub(crate) fn node(id: u32, name: &str) -> NodeStatus {
        NodeStatus {
            id: NodeId::new(id).unwrap(),
            name: name.into(),
            state: NodeState::Running,
            boots: 1,
            heartbeat: 1,
            state_change_ns: 0,
            cpus_online: 1,
            boot_cpu: None,
            memory_bytes: 0,
            release: String::new(),
            reason: String::new(),
        }
    }

    #[test]
    fn clients_learn_names_and_keys() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("etc/ssh/ssh_config.d")).unwrap();
        let network = Network::default();
        let keys = SshKeys {
            private: b"secret\n".to_vec(),
            public: "ssh-ed25519 AAAA m".into(),
            subnet: network.subnet,
        };
        keys.install(root).unwrap();
        let authorized = fs::read_to_string(root.join(AUTHORIZED)).unwrap();
        assert_eq!(authorized, "from=\"10.77.0.0/24\" ssh-ed25519 AAAA m\n");
        let nodes = [node(0, ""), node(1, "web")];
        let host_keys =
            BTreeMap::from([(NodeId::new(1).unwrap(), vec!["ssh-ed25519 BBBB".to_owned()])]);
        write_clients(root, &network, &nodes, &host_keys).unwrap();
        let known = fs::read_to_string(root.join("etc/ssh/ssh_known_hosts")).unwrap();
        assert!(known.contains("10.77.0.11,node1,web ssh-ed25519 BBBB"), "{known}");
        let config = fs::read_to_string(root.join("etc/ssh/ssh_config.d/mint.conf")).unwrap();
        let hosts = "originalhost 10.77.0.10,node0,10.77.0.11,node1,web\n";
        assert!(config.contains(hosts), "{config}");
        assert!(!root.join("root").exists(), "what is root's own is left alone");
    }

    #[test]
    fn names_of_nodes_that_are_none_are_not_written() {
        let evil = node(1, "web * evil.example");
        assert_eq!(names(&Network::default(), &evil), ["10.77.0.11", "node1"]);
    }

    /// Of the form of an ed25519 key.
    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJd8V3Fl6cRZPoZ8uLzVnN1wJpU0yqgH2m7Q0o0R0lkG";

    #[test]
    fn only_host_keys_are_taken_from_a_peer() {
        assert!(is_host_key(KEY));
        let data = KEY.split_once(' ').unwrap().1;
        let bad = [
            format!("{KEY}\n* ssh-ed25519 {data}"),
            format!("{KEY} comment"),
            format!("@cert-authority {KEY}"),
            format!("* {KEY}"),
            format!("ssh-rsa {data}"),
            format!("ssh-ed25519 {data}\r"),
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5".into(),
            "ssh-ed25519 ".into(),
            "ssh-ed25519".into(),
            String::new(),
            format!("ssh-ed25519 {}", "AAAA".repeat(2000)),
        ];
        for bad in &bad {
            assert!(!is_host_key(bad), "{bad:?}");
        }
        let told = bad.into_iter().chain([KEY.to_owned()]).collect();
        assert_eq!(checked_host_keys(NodeId::ZERO, told), [KEY]);
        let many = vec![KEY.to_owned(); 1000];
        assert_eq!(checked_host_keys(NodeId::ZERO, many).len(), KEYS_MAX);
    }

    #[test]
    fn host_keys_lose_their_comments() {
        let folder = tempfile::tempdir().unwrap();
        let etc = folder.path().join("etc/ssh");
        fs::create_dir_all(&etc).unwrap();
        fs::write(etc.join("ssh_host_rsa_key.pub"), "ssh-rsa AAAA root@x\n").unwrap();
        fs::write(etc.join("ssh_host_rsa_key"), "secret").unwrap();
        let keys = host_keys(folder.path(), &folder.path().join("nowhere"));
        assert_eq!(keys, ["ssh-rsa AAAA"]);
    }
}
