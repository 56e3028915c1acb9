// SPDX-License-Identifier: Apache-2.0
//! Where this daemon keeps things, and what the node that started us left.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use mint_node::files::write_atomic;

/// Used when the configured folder cannot be written (read-only root).
const VOLATILE_STATE: &str = "run/mint/state";

/// The folder for journal, descriptions and keys: the configured one if it can
/// be written, else one in `/run`.
pub(crate) fn state_dir(root: &Path, configured: &Path) -> io::Result<PathBuf> {
    let wanted = root.join(configured.strip_prefix("/").unwrap_or(configured));
    match usable(&wanted) {
        Ok(()) => Ok(wanted),
        Err(error) => {
            let volatile = root.join(VOLATILE_STATE);
            tracing::warn!(dir = %wanted.display(), %error, instead = %volatile.display(),
                "state is kept until this node ends only");
            usable(&volatile)?;
            Ok(volatile)
        }
    }
}

/// What Mint's initrd wrote of the node's writable layer: `disk` or `tmpfs`.
const UPPER: &str = "run/mint/upper";
/// File systems in memory (linux/magic.h: `TMPFS_MAGIC`, `RAMFS_MAGIC`).
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Whether what is in that folder ends with this node.
pub(crate) fn is_volatile(root: &Path, folder: &Path) -> bool {
    // an overlay does not tell where its upper layer is
    fs::read_to_string(root.join(UPPER)).is_ok_and(|upper| upper.trim() == "tmpfs")
        || folder.starts_with(root.join("run"))
        || rustix::fs::statfs(folder)
            .is_ok_and(|found| u64::try_from(found.f_type).is_ok_and(|t| IN_MEMORY.contains(&t)))
}

fn usable(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    let probe = folder.join(".probe");
    fs::write(&probe, b"")?;
    fs::remove_file(&probe)
}

/// Writes a file that only root can read; never seen half written.
pub(crate) fn write_private(path: &Path, data: &[u8]) -> io::Result<()> {
    write_atomic(path, data, 0o600)
}

/// Replaces our section of a text file that others write to as well, or adds it
/// at the end. No section is left when `lines` is empty.
pub(crate) fn write_section(path: &Path, lines: &[String], mode: u32) -> io::Result<()> {
    const BEGIN: &str = "# Mint: begin (written by mintd)";
    const END: &str = "# Mint: end";
    let old = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let mut new = String::new();
    let mut ours = false;
    for line in old.lines() {
        match line {
            BEGIN => ours = true,
            END if ours => ours = false,
            _ if !ours => {
                new.push_str(line);
                new.push('\n');
            }
            _ => {}
        }
    }
    if !lines.is_empty() {
        new.push_str(&format!("{BEGIN}\n{}\n{END}\n", lines.join("\n")));
    }
    if new == old {
        return Ok(());
    }
    let mode = fs::metadata(path).map_or(mode, |found| found.permissions().mode() & 0o777);
    write_atomic(path, new.as_bytes(), mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn section_is_replaced_and_the_rest_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts");
        fs::write(&path, "127.0.0.1 localhost\n").unwrap();
        write_section(&path, &["10.77.0.10 node0".into()], 0o644).unwrap();
        fs::write(&path, fs::read_to_string(&path).unwrap() + "::1 ip6\n").unwrap();
        write_section(&path, &["10.77.0.11 node1".into()], 0o644).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("127.0.0.1 localhost\n::1 ip6\n# Mint: begin"), "{text}");
        assert!(text.contains("node1") && !text.contains("node0"), "{text}");
        write_section(&path, &[], 0o644).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "127.0.0.1 localhost\n::1 ip6\n");
    }

    #[test]
    fn folder_that_ends_with_the_node_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("run/mint")).unwrap();
        assert!(is_volatile(root, &root.join(VOLATILE_STATE)));
        // of the file systems that every Linux has, one in memory and one that is not
        assert!(is_volatile(root, Path::new("/dev/shm")));
        assert!(!is_volatile(root, Path::new("/proc")));
        fs::write(root.join(UPPER), "disk\n").unwrap();
        assert!(!is_volatile(root, Path::new("/proc")));
        fs::write(root.join(UPPER), "tmpfs\n").unwrap();
        assert!(is_volatile(root, Path::new("/proc")));
    }

    #[test]
    fn private_files_are_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        fs::write(&path, "old").unwrap();
        write_private(&path, b"new").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
