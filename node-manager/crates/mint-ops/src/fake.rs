// SPDX-License-Identifier: Apache-2.0
//! A store in memory, and a fuse that ends the daemon at any of its acts: as a kill does,
//! nothing of what would have come is done.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mint_types::OperationId;

use crate::store::{JournalError, Kept, Store};

/// What a thread of a daemon that was killed unwinds with.
#[derive(Debug)]
pub struct Killed;

/// Lets so many acts happen, then no more.
#[derive(Clone, Debug)]
pub struct Fuse(Arc<AtomicI64>);

impl Default for Fuse {
    fn default() -> Self {
        Self(Arc::new(AtomicI64::new(i64::MAX)))
    }
}

impl Fuse {
    /// So many acts are left from now on.
    pub fn set(&self, acts: u32) {
        self.0.store(i64::from(acts), Ordering::SeqCst);
    }

    /// There is no end any more.
    pub fn mend(&self) {
        self.0.store(i64::MAX, Ordering::SeqCst);
    }

    /// How many acts there were since there was no end.
    pub fn acts(&self) -> u32 {
        u32::try_from(i64::MAX - self.0.load(Ordering::SeqCst)).unwrap_or(u32::MAX)
    }

    /// Whether it ended something.
    pub fn blown(&self) -> bool {
        self.0.load(Ordering::SeqCst) < 0
    }

    /// An act: it happens, or its thread ends here.
    ///
    /// # Panics
    /// Unwinds with [`Killed`], without a message, when no act is left.
    pub fn act(&self) {
        if self.0.fetch_sub(1, Ordering::SeqCst) <= 0 {
            std::panic::resume_unwind(Box::new(Killed));
        }
    }
}

/// Keeps entries in memory; clones are the same store.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Each write and removal is an act.
    pub fuse: Fuse,
    entries: Arc<Mutex<BTreeMap<OperationId, Vec<u8>>>>,
    full: Arc<AtomicBool>,
}

impl Memory {
    /// An empty one, whose acts are that fuse's.
    pub fn with(fuse: &Fuse) -> Self {
        Self { fuse: fuse.clone(), ..Self::default() }
    }

    /// Whether nothing can be written.
    pub fn fail(&self, full: bool) {
        self.full.store(full, Ordering::SeqCst);
    }

    /// What is kept of an operation.
    pub fn get(&self, id: OperationId) -> Option<Vec<u8>> {
        self.lock().get(&id).cloned()
    }

    /// Keeps that, whatever it is.
    pub fn put(&self, id: OperationId, data: &[u8]) {
        self.lock().insert(id, data.to_vec());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<OperationId, Vec<u8>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for Memory {
    fn read(&self) -> Result<Kept, JournalError> {
        let entries = self.lock().iter().map(|(&id, data)| (id, data.clone())).collect();
        Ok(Kept { entries, strange: Vec::new() })
    }

    fn write(&self, id: OperationId, data: &[u8], _durable: bool) -> Result<(), JournalError> {
        self.fuse.act();
        if self.full.load(Ordering::SeqCst) {
            let source = std::io::ErrorKind::StorageFull.into();
            return Err(JournalError { action: "write it", path: self.place(id), source });
        }
        self.lock().insert(id, data.to_vec());
        Ok(())
    }

    fn remove(&self, id: OperationId) -> Result<(), JournalError> {
        self.fuse.act();
        self.lock().remove(&id);
        Ok(())
    }

    fn place(&self, id: OperationId) -> PathBuf {
        format!("memory/{id}.json").into()
    }
}
