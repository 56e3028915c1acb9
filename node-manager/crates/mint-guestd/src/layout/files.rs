// SPDX-License-Identifier: Apache-2.0
//! What this daemon writes down for the next one.

use std::io::Write;
use std::path::Path;
use std::{fs, io};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::warn;

/// What is written there; nothing where nothing is, or what nobody can read.
pub(super) fn read<T: Default + DeserializeOwned>(path: &Path) -> T {
    let Ok(text) = fs::read(path) else { return T::default() };
    serde_json::from_slice(&text).unwrap_or_else(|error| {
        warn!(path = %path.display(), %error, "what was written down of layouts cannot be read");
        T::default()
    })
}

/// Writes it in one piece.
///
/// # Errors
/// When it cannot be written.
pub(super) fn write<T: Serialize>(path: &Path, what: &T) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(&serde_json::to_vec(what)?)?;
    // on a disk a file that is named so could be empty after a loss of power
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}
