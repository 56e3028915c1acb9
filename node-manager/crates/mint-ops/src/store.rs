// SPDX-License-Identifier: Apache-2.0
//! Where operations are kept: one file each, so that several can be open at once.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use mint_types::OperationId;

use crate::area::NoRoom;

/// The journal cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("journal {}: cannot {action}", path.display())]
pub struct JournalError {
    /// What was tried.
    pub action: &'static str,
    /// The file or folder.
    pub path: PathBuf,
    /// What the system or the control area said.
    #[source]
    pub source: io::Error,
}

impl JournalError {
    /// Why there is no room for an operation's intent, if that is it: it has changed
    /// nothing.
    pub fn no_room(&self) -> Option<NoRoom> {
        self.source.get_ref()?.downcast_ref().copied()
    }
}

/// What the journal's folder holds.
#[derive(Debug, Default)]
pub struct Kept {
    /// Entries, by number.
    pub entries: Vec<(OperationId, Vec<u8>)>,
    /// Files that are no entries of this journal, and must not be taken for nothing.
    pub strange: Vec<PathBuf>,
}

/// A file of the journal that is not understood. It is told of, and kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadEntry {
    /// Where the file is.
    pub path: PathBuf,
    /// Why it is not.
    pub why: String,
}

/// Keeps entries.
#[expect(clippy::missing_errors_doc, reason = "each fails when the disk does")]
pub trait Store: Send + Sync {
    /// All that is kept.
    fn read(&self) -> Result<Kept, JournalError>;
    /// Replaces an entry, whole. A durable one is on disk before this returns.
    fn write(&self, id: OperationId, data: &[u8], durable: bool) -> Result<(), JournalError>;
    /// Drops an entry.
    fn remove(&self, id: OperationId) -> Result<(), JournalError>;
    /// How people find it.
    fn place(&self, id: OperationId) -> PathBuf;
}

/// A folder with a file `N.json` for operation N.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// The one file that earlier versions kept their open operation in.
    earlier: PathBuf,
}

const NEW: &str = "new";

impl Folder {
    /// The folder `operations` in the state's folder, which has to exist.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn open(state: &Path) -> Result<Self, JournalError> {
        let path = state.join("operations");
        fs::create_dir_all(&path).map_err(|source| JournalError {
            action: "make it",
            path: path.clone(),
            source,
        })?;
        Ok(Self { path, earlier: state.join("journal.jsonl") })
    }
}

impl Store for Folder {
    fn read(&self) -> Result<Kept, JournalError> {
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| JournalError { action, path, source }
        };
        let mut kept = Kept::default();
        if fs::metadata(&self.earlier).is_ok_and(|found| found.len() > 0) {
            kept.strange.push(self.earlier.clone());
        }
        for found in fs::read_dir(&self.path).map_err(failed("list it", &self.path))? {
            let path = found.map_err(failed("list it", &self.path))?.path();
            let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
            match (number, path.extension().and_then(|end| end.to_str())) {
                (Some(id), Some("json")) => {
                    let data = fs::read(&path).map_err(failed("read it", &path))?;
                    kept.entries.push((OperationId(id), data));
                }
                // never came to be: what it was to replace is still there
                (Some(_), Some(NEW)) => {
                    fs::remove_file(&path).map_err(failed("remove it", &path))?;
                }
                _ => kept.strange.push(path),
            }
        }
        kept.entries.sort_unstable_by_key(|(id, _)| *id);
        kept.strange.sort_unstable();
        Ok(kept)
    }

    fn write(&self, id: OperationId, data: &[u8], durable: bool) -> Result<(), JournalError> {
        let path = self.place(id);
        let new = path.with_extension(NEW);
        let write = || {
            let mut options = OpenOptions::new();
            let mut file =
                options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(data)?;
            if durable {
                file.sync_data()?;
            }
            fs::rename(&new, &path)?;
            if durable { File::open(&self.path)?.sync_all() } else { Ok(()) }
        };
        write().map_err(|source| JournalError { action: "write it", path, source })
    }

    fn remove(&self, id: OperationId) -> Result<(), JournalError> {
        let path = self.place(id);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(JournalError { action: "remove it", path, source })
            }
            _ => Ok(()),
        }
    }

    fn place(&self, id: OperationId) -> PathBuf {
        self.path.join(format!("{id}.json"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_replaced_whole_and_half_written_ones_are_nothing() {
        let state = tempfile::tempdir().unwrap();
        let folder = Folder::open(state.path()).unwrap();
        folder.write(OperationId(2), b"two", true).unwrap();
        folder.write(OperationId(10), b"ten", false).unwrap();
        folder.write(OperationId(2), b"2", true).unwrap();
        fs::write(folder.path.join("2.new"), b"ha").unwrap();
        let kept = folder.read().unwrap();
        let entries: Vec<_> = kept.entries.iter().map(|(id, data)| (id.0, &data[..])).collect();
        assert_eq!(entries, [(2, &b"2"[..]), (10, &b"ten"[..])]);
        assert!(kept.strange.is_empty() && !folder.path.join("2.new").exists());
        folder.remove(OperationId(2)).unwrap();
        folder.remove(OperationId(2)).unwrap();
        assert_eq!(folder.read().unwrap().entries.len(), 1);
    }

    #[test]
    fn strange_files_are_told() {
        let state = tempfile::tempdir().unwrap();
        let folder = Folder::open(state.path()).unwrap();
        fs::write(state.path().join("journal.jsonl"), b"").unwrap();
        assert!(folder.read().unwrap().strange.is_empty(), "nothing was open");
        fs::write(state.path().join("journal.jsonl"), b"{\"begin\":{}}\n").unwrap();
        fs::write(folder.path.join("note.txt"), b"x").unwrap();
        assert_eq!(folder.read().unwrap().strange.len(), 2);
    }
}
