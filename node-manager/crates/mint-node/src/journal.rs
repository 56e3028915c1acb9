// SPDX-License-Identifier: Apache-2.0
//! What is being changed, on disk before it is changed: one line of JSON. At most one
//! operation is open, as one thread owns all mutation.
//!
//! ```text
//!   (empty) --begin--> open --end--> (empty)
//! ```
//! A mintd that finds an open operation was killed in the middle of it:
//! [`Journal::open_operation`] says what is to be taken back or finished. How far it had
//! come the ledger tells, which cannot be out of date: each step is looked at before it
//! is taken back (`apply.rs`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use mint_types::{NodeId, NodeName, Step};
use serde::{Deserialize, Serialize};

/// What an operation is, and so how an interrupted one ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Interrupted: taken back.
    Add,
    /// Interrupted: finished, as there is no way back to a stopped node that
    /// the user wanted to be rid of.
    Remove,
    /// Interrupted: taken back.
    Resize,
}

/// An operation that was begun.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Begun {
    /// What.
    pub operation: Operation,
    /// Boot of the machine that it belongs to: after a reboot it is void.
    pub boot_id: u64,
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub name: NodeName,
    /// All its steps.
    pub steps: Vec<Step>,
}

/// What is in the file.
#[derive(Serialize, Deserialize)]
struct Line<T> {
    begin: T,
}

/// The journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("journal {}: cannot {action}", path.display())]
pub struct JournalError {
    /// What was tried.
    pub action: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub source: io::Error,
}

/// The journal of this node's mintd.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Opens `journal.jsonl` in the folder, which has to exist.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn open(folder: &Path) -> Result<Self, JournalError> {
        let path = folder.join("journal.jsonl");
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .map_err(|source| JournalError { action: "open it", path: path.clone(), source })?;
        Ok(Self { path, file })
    }

    /// The operation that was not ended, if there is one. A line that makes no sense
    /// (the node ended while it was written) is none: nothing had been changed yet.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn open_operation(&self) -> Result<Option<Begun>, JournalError> {
        let text =
            fs::read_to_string(&self.path).map_err(|source| self.error("read it", source))?;
        let line = text.lines().next().and_then(|line| serde_json::from_str(line).ok());
        Ok(line.map(|line: Line<Begun>| line.begin))
    }

    /// Begins an operation; nothing may be changed before this returns.
    ///
    /// # Errors
    /// When it cannot be written to disk.
    pub fn begin(&mut self, begun: &Begun) -> Result<(), JournalError> {
        let mut text =
            serde_json::to_string(&Line { begin: begun }).expect("plain data is always JSON");
        text.push('\n');
        self.file
            .set_len(0)
            .and_then(|()| self.file.write_all(text.as_bytes()))
            .and_then(|()| self.file.sync_data())
            .map_err(|source| self.error("write to it", source))
    }

    /// The operation is over, this way or that.
    ///
    /// # Errors
    /// When it cannot be written to disk.
    pub fn end(&mut self) -> Result<(), JournalError> {
        self.file
            .set_len(0)
            .and_then(|()| self.file.sync_data())
            .map_err(|source| self.error("empty it", source))
    }

    fn error(&self, action: &'static str, source: io::Error) -> JournalError {
        JournalError { action, path: self.path.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mint_types::ResourceKey;

    fn begun() -> Begun {
        let node = NodeId::new(1).unwrap();
        Begun {
            operation: Operation::Add,
            boot_id: 7,
            node,
            name: "web".parse().unwrap(),
            steps: vec![Step::Claim { key: ResourceKey::cpu(2), node, driver: None }],
        }
    }

    #[test]
    fn ended_operation_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(folder.path()).unwrap();
        journal.begin(&begun()).unwrap();
        journal.end().unwrap();
        assert_eq!(journal.open_operation().unwrap(), None);
    }

    #[test]
    fn killed_in_the_middle_is_seen_by_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(folder.path()).unwrap();
        journal.begin(&begun()).unwrap();
        drop(journal);
        let open = Journal::open(folder.path()).unwrap().open_operation().unwrap();
        assert_eq!(open, Some(begun()));
    }

    #[test]
    fn torn_line_is_no_operation() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(folder.path()).unwrap();
        journal.file.write_all(b"{\"begin\":{\"operation\":\"add\",").unwrap();
        assert_eq!(journal.open_operation().unwrap(), None);
        journal.begin(&begun()).unwrap();
        assert_eq!(journal.open_operation().unwrap(), Some(begun()));
    }
}
