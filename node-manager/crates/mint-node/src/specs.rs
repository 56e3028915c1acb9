// SPDX-License-Identifier: Apache-2.0
//! Descriptions of the nodes that this mintd added: what to boot when one is
//! started again. They belong to one boot of the machine, and to one node: an id is
//! used again, and another mintd may have removed the node and made the next one of
//! that id, even of that name. The ledger counts the changes of each resource, so a
//! description is its node's for as long as that node has something of what it had.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mint_types::{NodeId, NodeSpec, NodeStatus, Refusal, RefusalCode, ResourceKey};
use serde::{Deserialize, Serialize};

use crate::files::write_atomic;
use mint_plan::Inventory;

/// A resource since it came to the node: any other owner meanwhile has changed the count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Holding {
    /// The resource.
    pub key: ResourceKey,
    /// Changes of its ledger word.
    pub changes: u32,
}

/// A node's description, as it was added.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StoredSpec {
    /// Boot of the machine in which it was added.
    pub boot_id: u64,
    /// The node's id.
    pub node: NodeId,
    /// Its description.
    pub spec: NodeSpec,
    /// What it owned when this was written.
    #[serde(default)]
    pub held: Vec<Holding>,
}

impl StoredSpec {
    /// Whether it is of the node that has that id now.
    fn is_of(&self, inventory: &Inventory, node: NodeId) -> bool {
        let named =
            inventory.node(node).is_some_and(|status| status.name == self.spec.name.as_str());
        named && !self.is_stale(inventory, node)
    }

    /// Whether its node is gone. A node that is gone has given back all that it owned; a
    /// record of a node, with its name, can be written over.
    fn is_stale(&self, inventory: &Inventory, node: NodeId) -> bool {
        self.boot_id != inventory.info.boot_id
            || self.node != node
            || !holdings(inventory, node).any(|holding| self.held.contains(&holding))
    }
}

fn holdings(inventory: &Inventory, node: NodeId) -> impl Iterator<Item = Holding> {
    let holding =
        |resource: &mint_types::Resource| Holding { key: resource.key, changes: resource.changes };
    inventory.owned_by(node).map(holding)
}

/// A description cannot be kept.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}", path.display())]
pub struct SpecError {
    /// What was tried.
    pub action: &'static str,
    /// Where the file is.
    pub path: PathBuf,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

/// Folder with one file per node.
#[derive(Clone, Debug)]
pub struct SpecStore {
    folder: PathBuf,
    /// Held while a description is written, or found stale and removed.
    writing: Arc<Mutex<()>>,
}

impl SpecStore {
    /// Descriptions below the folder `state`.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub fn open(state: &Path) -> Result<Self, SpecError> {
        let folder = state.join("nodes");
        fs::create_dir_all(&folder).map_err(|source| SpecError {
            action: "make",
            path: folder.clone(),
            source,
        })?;
        Ok(Self { folder, writing: Arc::default() })
    }

    /// The description of the node that has that id now, if this mintd added it.
    pub fn get(&self, inventory: &Inventory, node: NodeId) -> Option<NodeSpec> {
        self.read(node).filter(|stored| stored.is_of(inventory, node)).map(|stored| stored.spec)
    }

    fn read(&self, node: NodeId) -> Option<StoredSpec> {
        let text = fs::read_to_string(self.path(node)).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Keeps a description. `inventory` is read after the node got what it owns.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn put(
        &self,
        inventory: &Inventory,
        node: NodeId,
        spec: &NodeSpec,
    ) -> Result<(), SpecError> {
        let _writing = self.lock();
        let stored = StoredSpec {
            boot_id: inventory.info.boot_id,
            node,
            spec: spec.clone(),
            held: holdings(inventory, node).collect(),
        };
        let text = serde_json::to_string_pretty(&stored).expect("plain data is always JSON");
        let path = self.path(node);
        write_atomic(&path, text.as_bytes(), 0o600).map_err(|source| SpecError {
            action: "write",
            path,
            source,
        })
    }

    /// Forgets a description whose node is gone, whoever removed it. `ledger` reads the
    /// ledger; nothing is forgotten if it cannot.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn forget_stale(
        &self,
        node: NodeId,
        ledger: impl FnOnce() -> Option<Inventory>,
    ) -> Result<(), SpecError> {
        // a new node's description may be written meanwhile: the ledger is read after
        // the description, and nobody writes one in between
        let _writing = self.lock();
        match self.read(node) {
            Some(stored) if ledger().is_some_and(|now| stored.is_stale(&now, node)) => {
                self.remove(node)
            }
            _ => Ok(()),
        }
    }

    /// Forgets a description.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn forget(&self, node: NodeId) -> Result<(), SpecError> {
        let _writing = self.lock();
        self.remove(node)
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, node: NodeId) -> Result<(), SpecError> {
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

/// Nothing says what a node boots; `silent` are nodes whose mintd may have its description
/// and did not answer.
pub fn no_description(node: &NodeStatus, silent: &[String]) -> Refusal {
    let label = node.label();
    let why = match silent {
        [] => "no mintd that answers has its description".to_owned(),
        silent => format!(
            "this mintd does not have its description, and that of {} does not answer",
            silent.join(", ")
        ),
    };
    let name = node.display_name();
    Refusal::new(
        RefusalCode::DescriptionMissing,
        &label,
        format_args!("what {label} boots is not known here: {why}"),
    )
    .hint(format_args!(
        "start it on the node that added it; or boot the kernel, initrd and command line of this \
         node's mint.toml: mintctl node start {name} --default-image"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeMachine;
    use crate::machine::Machine;
    use crate::machine::read_ledger;

    #[test]
    fn descriptions_die_with_the_boot_of_the_machine() {
        let folder = tempfile::tempdir().unwrap();
        let node = NodeId::new(3).unwrap();
        let fake = FakeMachine::new().with_node(3, "web", &[ResourceKey::cpu(5)]);
        let inventory = read_ledger(&fake).unwrap();
        let spec = NodeSpec::named("web".parse().unwrap());
        let store = SpecStore::open(folder.path()).unwrap();
        store.put(&inventory, node, &spec).unwrap();
        assert_eq!(store.get(&inventory, node), Some(spec));
        let mut next_boot = inventory.clone();
        next_boot.info.boot_id += 1;
        assert_eq!(store.get(&next_boot, node), None);
        store.forget(node).unwrap();
        store.forget(node).unwrap();
        assert_eq!(store.get(&inventory, node), None);
    }

    #[test]
    fn only_stale_descriptions_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let node = NodeId::new(3).unwrap();
        let fake = FakeMachine::new().with_node(3, "web", &[ResourceKey::cpu(5)]);
        let read = || Some(read_ledger(&fake).unwrap());
        let store = SpecStore::open(folder.path()).unwrap();
        store.put(&read().unwrap(), node, &NodeSpec::named("web".parse().unwrap())).unwrap();
        store.forget_stale(node, read).unwrap();
        assert!(store.read(node).is_some(), "its node is there");
        let record = fake.lose_record(node);
        store.forget_stale(node, read).unwrap();
        assert!(store.read(node).is_some(), "only the record of its node is not");
        fake.put_record(record);
        fake.set_state(node, mint_types::NodeState::Halted);
        fake.release(ResourceKey::cpu(5), node, false).unwrap();
        fake.destroy(node).unwrap();
        store.forget_stale(node, read).unwrap();
        assert!(store.read(node).is_none(), "its node is gone");
    }
}
