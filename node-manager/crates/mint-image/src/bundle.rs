// SPDX-License-Identifier: Apache-2.0
//! What a node is told at its start beside its image: name, address, keys. One
//! more cpio archive behind its initrd, with the folder `/mint`.

use mint_types::{NodeId, NodeName};

use crate::cpio::Archive;

/// A file of the bundle, below `/mint`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BundleFile {
    /// E.g. `pki/ca.pem`; folders are made as needed.
    pub name: String,
    /// Its bytes.
    pub data: Vec<u8>,
}

/// The bundle of a node cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make {what} for node {node}")]
pub struct BundleError {
    /// Which part.
    pub what: &'static str,
    /// For whom.
    pub node: NodeId,
    /// What failed below.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Who makes bundles: mintd with its keys; tests without.
pub trait Bundle: Send + Sync {
    /// Files for that node, new ones at each start; none for one that has all on its own
    /// disk.
    ///
    /// # Errors
    /// When a key cannot be made or signed.
    fn files(&self, node: NodeId, name: &NodeName) -> Result<Vec<BundleFile>, BundleError>;
}

/// The archive with these files, all readable by root only; nothing for no files. `before` bytes of
/// initrd come before it, and the kernel wants archives at multiples of 4.
pub fn archive(files: &[BundleFile], before: u64) -> Vec<u8> {
    if files.is_empty() {
        return Vec::new();
    }
    let mut archive = Archive::new();
    let mut folders = vec![String::new()];
    archive.folder("mint", 0o700);
    for file in files {
        if let Some((folder, _)) = file.name.rsplit_once('/') {
            if !folders.iter().any(|known| known == folder) {
                archive.folder(&format!("mint/{folder}"), 0o700);
                folders.push(folder.to_owned());
            }
        }
        archive.file(&format!("mint/{}", file.name), 0o600, &file.data);
    }
    let padding = before.next_multiple_of(4) - before;
    let mut bytes: Vec<u8> = (0..padding).map(|_| 0).collect();
    bytes.extend(archive.finish());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_starts_at_a_multiple_of_four() {
        let files = [BundleFile { name: "pki/ca.pem".into(), data: b"x".to_vec() }];
        let bytes = archive(&files, 5);
        assert_eq!(&bytes[..9], b"\0\0\x00070701");
        assert_eq!(crate::initrd::check_bytes(&bytes), Ok(None));
    }
}
