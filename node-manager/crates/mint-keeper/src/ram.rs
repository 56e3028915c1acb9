// SPDX-License-Identifier: Apache-2.0
//! A guest's memory in its QEMU: the file of a tmpfs, and where it is mapped.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::path::Path;

/// A guest's memory cannot be found.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RamError {
    /// Nothing of that folder is mapped.
    #[error("QEMU has no memory in {0}: the guest wants file-backed, shared memory there")]
    None(String),
    /// More than one file, or parts of one.
    #[error("QEMU's memory in {0} is not one file of {1} bytes, mapped once and whole")]
    Other(String, u64),
    /// The file.
    #[error("cannot open the guest's memory")]
    Open(#[source] io::Error),
}

/// A mapping of a whole file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Addresses of its parts, as the kernel lists them.
    parts: Vec<Range<u64>>,
}

/// The memory, opened.
pub(crate) struct Ram {
    /// The file.
    pub file: File,
    /// Where it begins in QEMU.
    pub base: u64,
    /// How long it is.
    pub bytes: u64,
}

struct Line<'a> {
    addresses: Range<u64>,
    offset: u64,
    is_shared: bool,
    /// Device and inode.
    file: (&'a str, &'a str),
}

/// A line of /proc/PID/maps that maps a file of a folder.
fn line<'a>(text: &'a str, folder: &Path) -> Option<Line<'a>> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let [addresses, rights, offset, device, inode, path, ..] = words[..] else { return None };
    if !Path::new(path).starts_with(folder) {
        return None;
    }
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = addresses.split_once('-')?;
    Some(Line {
        addresses: hex(start)?..hex(end)?,
        offset: hex(offset)?,
        is_shared: rights.ends_with('s'),
        file: (device, inode),
    })
}

/// Where the guest's memory, of so many bytes, is.
pub(crate) fn in_maps(maps: &str, folder: &Path, bytes: u64) -> Result<Place, RamError> {
    let lines: Vec<Line<'_>> = maps.lines().filter_map(|text| line(text, folder)).collect();
    let name = || folder.display().to_string();
    let first = lines.first().ok_or_else(|| RamError::None(name()))?;
    let (base, file) = (first.addresses.start, first.file);
    let mut end = 0;
    for line in &lines {
        let fits = line.is_shared
            && line.file == file
            && line.offset == end
            && line.addresses.start.checked_sub(base) == Some(end);
        if !fits {
            return Err(RamError::Other(name(), bytes));
        }
        end += line.addresses.end - line.addresses.start;
    }
    if end != bytes {
        return Err(RamError::Other(name(), bytes));
    }
    Ok(Place { parts: lines.into_iter().map(|line| line.addresses).collect() })
}

impl Ram {
    /// Opens what a process has mapped there.
    pub fn open(process: u32, place: &Place) -> Result<Self, RamError> {
        let (first, last) = match place.parts.as_slice() {
            [] => return Err(RamError::Open(io::ErrorKind::NotFound.into())),
            [only] => (only, only),
            [first, .., last] => (first, last),
        };
        let path = format!("/proc/{process}/map_files/{:x}-{:x}", first.start, first.end);
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(RamError::Open)?;
        Ok(Self { file, base: first.start, bytes: last.end - first.start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
55d0c8a00000-55d0c8b00000 r-xp 00000000 fe:00 131 /usr/bin/qemu-system-x86_64
7f1000000000-7f1004000000 rw-s 00000000 00:1f 42 /run/mint/ram/libvirt/qemu/1-big/pc.ram
7f1004000000-7f1008000000 rw-s 04000000 00:1f 42 /run/mint/ram/libvirt/qemu/1-big/pc.ram
7f1009000000-7f1009001000 rw-p 00000000 00:00 0
7f1009001000-7f1009002000 rw-s 00000000 00:01 7 /dev/zero (deleted)
";

    fn find(maps: &str, bytes: u64) -> Result<Place, RamError> {
        in_maps(maps, Path::new("/run/mint/ram"), bytes)
    }

    #[test]
    fn memory_is_one_file_mapped_whole() {
        let place = find(MAPS, 128 << 20).unwrap();
        assert_eq!(
            place.parts,
            [0x7f10_0000_0000..0x7f10_0400_0000, 0x7f10_0400_0000..0x7f10_0800_0000]
        );
    }

    #[test]
    fn anything_else_is_refused() {
        assert!(matches!(find("", 4096), Err(RamError::None(_))));
        assert!(matches!(
            find(&MAPS.replace("/run/mint/ram/", "/dev/shm/"), 128 << 20),
            Err(RamError::None(_))
        ));
        for bad in [
            MAPS.replace("rw-s 04000000", "rw-p 04000000"),
            MAPS.replace("rw-s 04000000 00:1f 42", "rw-s 04000000 00:1f 43"),
            MAPS.replace("rw-s 04000000", "rw-s 03000000"),
            MAPS.replace("7f1004000000-7f1008000000 rw-s", "7f1005000000-7f1009000000 rw-s"),
        ] {
            assert!(matches!(find(&bad, 128 << 20), Err(RamError::Other(..))), "{bad}");
        }
        assert!(matches!(find(MAPS, 64 << 20), Err(RamError::Other(..))));
    }
}
