// SPDX-License-Identifier: Apache-2.0
//! What a migration may leave behind, written down before it begins: half copies of disks on
//! the node that it goes to, old copies on the node that it left. One file each, in the state
//! folder, until somebody has seen how it ended ([`crate::settle`]).

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mint_types::{MachineId, NodeId};
use serde::{Deserialize, Serialize};
use tracing::warn;

/// On which side of a migration this node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Side {
    /// The guest is to come here.
    Arrival,
    /// The guest is to leave.
    Departure,
}

/// A migration that has begun, as one of its nodes remembers it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub side: Side,
    /// The guest's UUID.
    pub uuid: String,
    /// Number of this migration, the same on both sides: a guest may be on its way more than once.
    #[serde(default)]
    pub attempt: Option<u64>,
    /// Node at the other end.
    pub peer: NodeId,
    /// That node's machine, if it is a linked one.
    #[serde(default)]
    pub machine: Option<MachineId>,
    /// Files of disks that are copied: of an arrival none was there before.
    pub disks: Vec<String>,
    /// Its definition on the node that it leaves; none of an arrival.
    #[serde(default)]
    pub xml: Option<String>,
    /// Of an arrival: how its memory comes; none of a guest whose memory is not split.
    #[serde(default)]
    pub memory: Option<mint_split::Arrival>,
    /// Of an arrival: why it does not come; none if nobody has said so.
    #[serde(default)]
    pub why: Option<String>,
}

impl Record {
    /// Whether it is of that migration. A daemon of before these had numbers says none: then it is
    /// of the only one that there is.
    pub fn is_of(&self, attempt: Option<u64>) -> bool {
        self.attempt.zip(attempt).is_none_or(|(own, other)| own == other)
    }
}

/// The records of this node.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    folder: PathBuf,
    /// Nobody writes one that somebody forgets.
    changing: Arc<Mutex<()>>,
}

impl Journal {
    /// Those in a folder, which is made when the first one is written.
    pub fn below(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), changing: Arc::default() }
    }

    fn path(&self, side: Side, uuid: &str) -> Option<PathBuf> {
        let side = match side {
            Side::Arrival => "arrival",
            Side::Departure => "departure",
        };
        // it comes from a peer, and becomes a file's name
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        let good = !uuid.is_empty() && uuid.len() <= 64 && uuid.bytes().all(is_plain);
        good.then(|| self.folder.join(format!("{uuid}.{side}.json")))
    }

    /// Writes a record down; it is on the disk when this returns.
    ///
    /// # Errors
    /// When its UUID is none, or the folder cannot be written to.
    pub fn write(&self, record: &Record) -> io::Result<()> {
        let _changing = self.lock();
        self.put(record)
    }

    /// Adds to the record of a guest that was to come why it does not, if that is there still, is the
    /// one that is meant, and says nothing of it yet.
    ///
    /// # Errors
    /// When the folder cannot be written to.
    pub fn note(&self, uuid: &str, is_it: impl Fn(&Record) -> bool, why: &str) -> io::Result<()> {
        let _changing = self.lock();
        let found = self.get(Side::Arrival, uuid);
        match found.filter(|record| record.why.is_none() && is_it(record)) {
            Some(record) => self.put(&Record { why: Some(why.to_owned()), ..record }),
            None => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, record: &Record) -> io::Result<()> {
        let path = self.path(record.side, &record.uuid);
        let path = path.ok_or_else(|| io::Error::other(format!("{:?} is no UUID", record.uuid)))?;
        fs::create_dir_all(&self.folder)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        File::open(&self.folder)?.sync_all()
    }

    /// One of them.
    pub fn get(&self, side: Side, uuid: &str) -> Option<Record> {
        read(&self.path(side, uuid)?)
    }

    /// The same, if it is of that migration.
    pub fn of(&self, side: Side, uuid: &str, attempt: Option<u64>) -> Option<Record> {
        self.get(side, uuid).filter(|record| record.is_of(attempt))
    }

    /// Forgets one; it may be gone already. One of another migration of that guest stays.
    pub fn forget(&self, record: &Record) {
        let Record { side, ref uuid, attempt, .. } = *record;
        let Some(path) = self.path(side, uuid) else { return };
        let _changing = self.lock();
        if self.get(side, uuid).is_some_and(|now| !now.is_of(attempt)) {
            return;
        }
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                warn!(path = %path.display(), %error, "a record stays");
            }
            _ => {}
        }
    }

    /// All of them.
    pub fn all(&self) -> Vec<Record> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return Vec::new() };
        let files = entries.flatten().map(|entry| entry.path());
        files
            .filter(|path| path.extension().is_some_and(|end| end == "json"))
            .filter_map(|path| read(&path))
            .collect()
    }
}

fn read(path: &Path) -> Option<Record> {
    let text = fs::read(path).ok()?;
    serde_json::from_slice(&text)
        .map_err(|error| warn!(path = %path.display(), %error, "a record that cannot be read"))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_outlive_their_writer_until_they_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("guests");
        let record = |side, uuid: &str| Record {
            side,
            uuid: uuid.into(),
            attempt: Some(1),
            peer: NodeId::new(2).unwrap(),
            machine: None,
            disks: vec!["/d".into()],
            xml: None,
            memory: None,
            why: None,
        };
        let journal = Journal::below(&path);
        assert_eq!(journal.all(), []);
        journal.write(&record(Side::Arrival, "a-1")).unwrap();
        journal.write(&record(Side::Departure, "a-1")).unwrap();
        let again = Journal::below(&path);
        assert_eq!(again.all().len(), 2);
        assert_eq!(again.get(Side::Arrival, "a-1"), Some(record(Side::Arrival, "a-1")));
        let other = Record { attempt: Some(2), ..record(Side::Arrival, "a-1") };
        again.forget(&other);
        assert_eq!(again.get(Side::Arrival, "a-1"), Some(record(Side::Arrival, "a-1")));
        assert_eq!(again.of(Side::Arrival, "a-1", Some(2)), None);
        assert_eq!(again.of(Side::Arrival, "a-1", Some(1)), Some(record(Side::Arrival, "a-1")));
        // of a peer that gives them no numbers
        assert_eq!(again.of(Side::Arrival, "a-1", None), Some(record(Side::Arrival, "a-1")));
        again.note("a-1", |record| record.is_of(Some(2)), "of another").unwrap();
        again.note("a-1", |record| record.is_of(Some(1)), "why").unwrap();
        again.note("a-1", |record| record.is_of(Some(1)), "and then").unwrap();
        let why = again.get(Side::Arrival, "a-1").unwrap().why;
        assert_eq!(why.as_deref(), Some("why"));
        again.forget(&record(Side::Arrival, "a-1"));
        again.note("a-1", |_| true, "nobody asks").unwrap();
        assert_eq!(again.get(Side::Arrival, "a-1"), None);
        again.forget(&record(Side::Arrival, "a-1"));
        assert_eq!(again.all(), [record(Side::Departure, "a-1")]);
        for bad in ["", "../a", "a/b", &"a".repeat(65)] {
            assert!(journal.write(&record(Side::Arrival, bad)).is_err(), "{bad}");
        }
    }
}
