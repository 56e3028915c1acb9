// SPDX-License-Identifier: Apache-2.0
//! What is being changed, on disk before it is changed. One line of JSON per
//! fact; at most one operation is open, as one thread owns all mutation.
//!
//! ```text
//!   (empty) --begin--> open --done(i)…--> open --end--> (empty)
//! ```
//! A mintd that finds an open operation was killed in the middle of it:
//! [`Journal::open_operation`] says what is left to be taken back or finished.

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

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Begin(Begun),
    /// Step of that index was done.
    Done(usize),
    /// Step of that index was taken back.
    Undone(usize),
}

/// An operation that a killed mintd left behind.
#[derive(Clone, PartialEq, Debug)]
pub struct Open {
    /// What was begun.
    pub begun: Begun,
    /// How many steps are known to be done; the one after may be, too.
    pub done: usize,
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

    /// The operation that was not ended, if there is one. Lines that make no
    /// sense (the machine lost power while the last one was written) end it.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn open_operation(&self) -> Result<Option<Open>, JournalError> {
        let text =
            fs::read_to_string(&self.path).map_err(|source| self.error("read it", source))?;
        let mut open: Option<Open> = None;
        for line in text.lines() {
            match (serde_json::from_str(line), &mut open) {
                (Ok(Line::Begin(begun)), _) => open = Some(Open { begun, done: 0 }),
                (Ok(Line::Done(index)), Some(open)) => open.done = index + 1,
                (Ok(Line::Undone(index)), Some(open)) => open.done = index,
                _ => break,
            }
        }
        Ok(open)
    }

    /// Begins an operation; nothing may be changed before this returns.
    ///
    /// # Errors
    /// When it cannot be written to disk.
    pub fn begin(&mut self, begun: &Begun) -> Result<(), JournalError> {
        self.end()?;
        self.write(&Line::Begin(begun.clone()))
    }

    /// A step was done.
    ///
    /// # Errors
    /// When it cannot be written to disk.
    pub fn done(&mut self, index: usize) -> Result<(), JournalError> {
        self.write(&Line::Done(index))
    }

    /// A step was taken back.
    ///
    /// # Errors
    /// When it cannot be written to disk.
    pub fn undone(&mut self, index: usize) -> Result<(), JournalError> {
        self.write(&Line::Undone(index))
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

    fn write(&mut self, line: &Line) -> Result<(), JournalError> {
        let mut text = serde_json::to_string(line).expect("plain data is always JSON");
        text.push('\n');
        self.file
            .write_all(text.as_bytes())
            .and_then(|()| self.file.sync_data())
            .map_err(|source| self.error("write to it", source))
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
        journal.done(0).unwrap();
        journal.end().unwrap();
        assert_eq!(journal.open_operation().unwrap(), None);
    }

    #[test]
    fn killed_in_the_middle_is_seen_by_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(folder.path()).unwrap();
        journal.begin(&begun()).unwrap();
        journal.done(0).unwrap();
        drop(journal);
        let open = Journal::open(folder.path()).unwrap().open_operation().unwrap().unwrap();
        assert_eq!(open, Open { begun: begun(), done: 1 });
    }

    #[test]
    fn torn_last_line_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(folder.path()).unwrap();
        journal.begin(&begun()).unwrap();
        journal.file.write_all(b"{\"done\":").unwrap();
        assert_eq!(journal.open_operation().unwrap().unwrap().done, 0);
    }
}
