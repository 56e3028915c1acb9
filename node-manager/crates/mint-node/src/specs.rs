// SPDX-License-Identifier: Apache-2.0
//! Descriptions of the nodes that this mintd added: what to boot when one is
//! started again. They belong to one boot of the machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mint_types::{NodeId, NodeSpec};
use serde::{Deserialize, Serialize};

/// A node's description, as it was added.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StoredSpec {
    /// Boot of the machine in which it was added.
    pub boot_id: u64,
    /// The node's id.
    pub node: NodeId,
    /// Its description.
    pub spec: NodeSpec,
}

/// A description cannot be kept.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct SpecError {
    /// What was tried.
    pub action: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub source: io::Error,
}

/// Folder with one file per node.
#[derive(Clone, Debug)]
pub struct SpecStore {
    folder: PathBuf,
    boot_id: u64,
}

impl SpecStore {
    /// Descriptions of another boot of the machine are not seen.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn open(state: &Path, boot_id: u64) -> Result<Self, SpecError> {
        let folder = state.join("nodes");
        fs::create_dir_all(&folder).map_err(|source| SpecError {
            action: "make",
            path: folder.clone(),
            source,
        })?;
        Ok(Self { folder, boot_id })
    }

    /// The description of a node, if this mintd added it.
    pub fn get(&self, node: NodeId) -> Option<NodeSpec> {
        let text = fs::read_to_string(self.path(node)).ok()?;
        let stored: StoredSpec = serde_json::from_str(&text).ok()?;
        (stored.boot_id == self.boot_id && stored.node == node).then_some(stored.spec)
    }

    /// Keeps a description.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn put(&self, node: NodeId, spec: &NodeSpec) -> Result<(), SpecError> {
        let stored = StoredSpec { boot_id: self.boot_id, node, spec: spec.clone() };
        let text = serde_json::to_string_pretty(&stored).expect("plain data is always JSON");
        let path = self.path(node);
        let new = path.with_extension("new");
        fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).map_err(|source| SpecError {
            action: "write",
            path,
            source,
        })
    }

    /// Forgets a description.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn forget(&self, node: NodeId) -> Result<(), SpecError> {
        let path = self.path(node);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(SpecError { action: "remove", path, source })
            }
            _ => Ok(()),
        }
    }

    fn path(&self, node: NodeId) -> PathBuf {
        self.folder.join(format!("{node}.json"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_die_with_the_boot_of_the_machine() {
        let folder = tempfile::tempdir().unwrap();
        let node = NodeId::new(3).unwrap();
        let spec = NodeSpec::named("web".parse().unwrap());
        let store = SpecStore::open(folder.path(), 1).unwrap();
        store.put(node, &spec).unwrap();
        assert_eq!(store.get(node), Some(spec));
        assert_eq!(SpecStore::open(folder.path(), 2).unwrap().get(node), None);
        store.forget(node).unwrap();
        store.forget(node).unwrap();
        assert_eq!(store.get(node), None);
    }
}
