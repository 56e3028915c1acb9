// SPDX-License-Identifier: Apache-2.0
//! What a guest's cloud-init is told at its first boot: a small FAT file system, as its
//! *NoCloud* source wants it (label `CIDATA`, files `user-data` and `meta-data`).

use std::io::{self, Cursor, Write};

use fatfs::{FileSystem, FormatVolumeOptions, FsOptions, format_volume};

/// As cloud-init looks for it.
const LABEL: [u8; 11] = *b"CIDATA     ";
/// Room for the file system's own tables.
const TABLES_BYTES: usize = 1 << 20;

/// The disk: `user_data` as it is, and the guest's name and instance id (a guest with another
/// one is set up anew).
///
/// # Errors
/// When it cannot be written, which is memory's fault alone.
pub fn image(name: &str, instance_id: &str, user_data: &str) -> io::Result<Vec<u8>> {
    let bytes = (TABLES_BYTES + user_data.len()).next_multiple_of(TABLES_BYTES);
    let mut disk = Cursor::new(vec![0; bytes]);
    format_volume(&mut disk, FormatVolumeOptions::new().volume_label(LABEL))?;
    let files = FileSystem::new(&mut disk, FsOptions::new())?;
    let folder = files.root_dir();
    let meta = format!("instance-id: {instance_id}\nlocal-hostname: {name}\n");
    for (file, text) in [("user-data", user_data), ("meta-data", &meta)] {
        let mut file = folder.create_file(file)?;
        file.write_all(text.as_bytes())?;
        file.flush()?;
    }
    drop(folder);
    files.unmount()?;
    Ok(disk.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn cloud_init_finds_label_and_files() {
        let user_data = "#cloud-config\n".to_owned() + &"# much\n".repeat(300_000);
        let disk = image("web", "i-1", &user_data).unwrap();
        let files = FileSystem::new(Cursor::new(disk), FsOptions::new()).unwrap();
        assert_eq!(files.read_volume_label_from_root_dir().unwrap().as_deref(), Some("CIDATA"));
        let read = |name: &str| {
            let mut text = String::new();
            files.root_dir().open_file(name).unwrap().read_to_string(&mut text).unwrap();
            text
        };
        assert_eq!(read("user-data"), user_data);
        assert_eq!(read("meta-data"), "instance-id: i-1\nlocal-hostname: web\n");
    }
}
