// SPDX-License-Identifier: Apache-2.0
//! Files that are whole after a crash and after a loss of power.

use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Writes a file whole or not at all, with these permission bits, whoever else writes it at
/// the same time: the last one counts. When it returns, the file is on its disk.
///
/// # Errors
/// When the folder cannot be written; the file is then as it was.
pub fn write_atomic(path: &Path, data: &[u8], mode: u32) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut file = tempfile::Builder::new().prefix(".mint-new-").tempfile_in(folder)?;
    file.write_all(data)?;
    // the umask has no say in it
    file.as_file().set_permissions(Permissions::from_mode(mode))?;
    // a name must not reach the disk before the bytes do
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn all_who_write_a_file_at_once_write_it_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        std::thread::scope(|scope| {
            for letter in b'a'..=b'h' {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..25 {
                        write_atomic(path, &[letter; 100_000], 0o644).unwrap();
                        let read = fs::read(path).unwrap();
                        assert_eq!(read.len(), 100_000);
                        assert!(read.iter().all(|byte| *byte == read[0]));
                    }
                });
            }
        });
        let left = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 1, "nothing is left beside it");
    }

    #[test]
    fn mode_is_what_was_asked_for_and_a_failure_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        fs::write(&path, "old").unwrap();
        for mode in [0o600, 0o644] {
            write_atomic(&path, b"new", mode).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode);
        }
        let folder_in_the_way = folder.path().join("folder");
        fs::create_dir(&folder_in_the_way).unwrap();
        assert!(write_atomic(&folder_in_the_way, b"x", 0o600).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing is left behind");
    }
}
