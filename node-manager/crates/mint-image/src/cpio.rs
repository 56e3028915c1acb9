// SPDX-License-Identifier: Apache-2.0
//! Writes cpio archives (newc) that the kernel unpacks from an initrd.

/// An archive that grows. Everything in it belongs to root, with time 0, so
/// that the same content gives the same bytes.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

impl Archive {
    /// An archive without members.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a folder. Its parent has to be in the archive, or there already.
    pub fn folder(&mut self, name: &str, mode: u32) {
        self.member(name, 0o040_000 | mode, 2, &[]);
    }

    /// Adds a file.
    pub fn file(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.member(name, 0o100_000 | mode, 1, data);
    }

    /// The archive with its trailer, a multiple of 4 bytes long.
    pub fn finish(mut self) -> Vec<u8> {
        self.inode = 0;
        self.member("TRAILER!!!", 0, 1, &[]);
        self.bytes
    }

    fn member(&mut self, name: &str, mode: u32, links: u32, data: &[u8]) {
        self.inode += 1;
        let size = u32::try_from(data.len()).expect("members are key files of a few KiB");
        let name_size = u32::try_from(name.len() + 1).expect("names are constants");
        let fields = [self.inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08X}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_is_a_multiple_of_four() {
        let mut archive = Archive::new();
        archive.file("a", 0o600, b"12345");
        assert_eq!(archive.finish().len() % 4, 0);
    }

    #[test]
    fn cpio_lists_what_we_wrote() {
        let mut archive = Archive::new();
        archive.folder("mint", 0o700);
        archive.file("mint/node.toml", 0o600, b"id=1\n");
        let bytes = archive.finish();
        let mut child = std::process::Command::new("cpio")
            .args(["-t", "--quiet"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("cpio is needed here: make setup");
        std::io::Write::write_all(child.stdin.as_mut().unwrap(), &bytes).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "mint\nmint/node.toml\n");
    }
}
