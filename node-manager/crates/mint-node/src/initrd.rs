// SPDX-License-Identifier: Apache-2.0
//! Looks whether an initrd is whole: the kernel would find out only after the
//! node has started. An initrd is a sequence of cpio archives, plain or
//! compressed, with zero bytes between them
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::fs;
use std::io::{self, BufRead, Read};
use std::path::Path;

use mint_types::{Refusal, RefusalCode};

const NEWC_HEADER_BYTES: usize = 110;
const TRAILER: &[u8] = b"TRAILER!!!";

/// What is wrong with an initrd.
#[derive(Debug, PartialEq, Eq)]
pub enum InitrdFault {
    /// It ends in the middle, or its compressed data are damaged.
    Broken {
        /// Where the damaged part starts, in bytes.
        at: usize,
        /// What the decoder said.
        why: String,
    },
    /// Nothing that the kernel could unpack.
    Unknown {
        /// Where, in bytes.
        at: usize,
    },
}

/// What the check could not see.
pub type Note = Option<String>;

/// Checks the file and returns its bytes, which the loader wants next.
///
/// # Errors
/// With `initrd_missing`, `initrd_truncated` or `initrd_unknown`.
pub fn check_initrd(path: &Path) -> Result<(Vec<u8>, Note), Refusal> {
    let name = path.display();
    let resource = format!("initrd {name}");
    let bytes = fs::read(path).map_err(|error| {
        Refusal::new(
            RefusalCode::InitrdMissing,
            &resource,
            format_args!("initrd {name} cannot be read: {error}"),
        )
        .hint("give its path with --initrd")
    })?;
    match check_bytes(&bytes) {
        Ok(note) => Ok((bytes, note.map(|why| format!("initrd {name}: {why}")))),
        Err(InitrdFault::Broken { at, why }) => Err(Refusal::new(
            RefusalCode::InitrdTruncated,
            &resource,
            format_args!("initrd {name} is truncated or damaged (part at byte {at}: {why})"),
        )
        .hint("copy or build it again")),
        Err(InitrdFault::Unknown { at }) => Err(Refusal::new(
            RefusalCode::InitrdUnknown,
            &resource,
            format_args!("{name} is no initrd: nothing the kernel can unpack at byte {at}"),
        )
        .hint("an initrd is a cpio archive (newc), plain or compressed")),
    }
}

/// Checks an initrd in memory: every part of it.
///
/// # Errors
/// With the first fault.
pub fn check_bytes(bytes: &[u8]) -> Result<Note, InitrdFault> {
    let mut at = 0;
    let mut parts = 0;
    loop {
        at += bytes[at..].iter().take_while(|&&byte| byte == 0).count();
        let rest = &bytes[at..];
        if rest.is_empty() {
            // an empty file is what a failed copy leaves behind
            return if parts == 0 { Err(InitrdFault::Unknown { at: 0 }) } else { Ok(None) };
        }
        let broken = |why: String| InitrdFault::Broken { at, why };
        if rest.starts_with(b"07070") {
            at += skip_cpio(rest).map_err(broken)?;
        } else if rest.starts_with(&[0x1f, 0x8b]) {
            let mut reader = rest;
            let data = gunzip(&mut reader).map_err(|error| broken(error.to_string()))?;
            check_archives(&data).map_err(broken)?;
            at += rest.len() - reader.len();
        } else if rest.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
            let mut reader = rest;
            let data = unzstd(&mut reader).map_err(|error| broken(error.to_string()))?;
            check_archives(&data).map_err(broken)?;
            at += rest.len() - reader.len();
        } else if let Some(format) = other_format(rest) {
            return Ok(Some(format!("{format} data are not checked for truncation")));
        } else {
            return Err(InitrdFault::Unknown { at });
        }
        parts += 1;
    }
}

/// Formats that the kernel unpacks but this check cannot look into.
fn other_format(bytes: &[u8]) -> Option<&'static str> {
    [
        (&b"\xfd7zXZ\0"[..], "xz"),
        (&b"BZh"[..], "bzip2"),
        (&[0x02, 0x21, 0x4c, 0x18][..], "lz4"),
        (&[0x5d, 0x00, 0x00][..], "lzma"),
        (&b"\x89LZO\0"[..], "lzo"),
    ]
    .into_iter()
    .find_map(|(magic, name)| bytes.starts_with(magic).then_some(name))
}

fn gunzip(reader: &mut &[u8]) -> io::Result<Vec<u8>> {
    let mut data = Vec::new();
    flate2::bufread::GzDecoder::new(reader as &mut dyn BufRead).read_to_end(&mut data)?;
    Ok(data)
}

fn unzstd(reader: &mut &[u8]) -> io::Result<Vec<u8>> {
    let mut data = Vec::new();
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(reader).map_err(io::Error::other)?;
    decoder.read_to_end(&mut data)?;
    Ok(data)
}

/// Decompressed data: one archive or more, zero bytes between and after.
fn check_archives(data: &[u8]) -> Result<(), String> {
    let mut at = 0;
    loop {
        at += data[at..].iter().take_while(|&&byte| byte == 0).count();
        if at == data.len() {
            return if at == 0 { Err("it is empty".into()) } else { Ok(()) };
        }
        at += skip_cpio(&data[at..])?;
    }
}

/// Length of the cpio archive (newc) that the bytes start with.
fn skip_cpio(bytes: &[u8]) -> Result<usize, String> {
    let mut at = 0usize;
    let ends_early = || "the cpio archive ends early".to_owned();
    loop {
        let header = bytes.get(at..at + NEWC_HEADER_BYTES).ok_or_else(ends_early)?;
        if !header.starts_with(b"070701") && !header.starts_with(b"070702") {
            return Err("a cpio header is damaged".into());
        }
        let field = |index: usize| -> Result<usize, String> {
            let digits = &header[6 + 8 * index..14 + 8 * index];
            std::str::from_utf8(digits)
                .ok()
                .and_then(|digits| usize::from_str_radix(digits, 16).ok())
                .ok_or_else(|| "a cpio header is damaged".to_owned())
        };
        let (file_bytes, name_bytes) = (field(6)?, field(11)?);
        let name_at = at + NEWC_HEADER_BYTES;
        let name = bytes.get(name_at..name_at + name_bytes).ok_or_else(ends_early)?;
        let data_at = (name_at + name_bytes).next_multiple_of(4);
        if name.strip_suffix(b"\0") == Some(TRAILER) {
            return Ok(data_at.min(bytes.len()));
        }
        if bytes.len() < data_at + file_bytes {
            return Err(ends_early());
        }
        at = (data_at + file_bytes).next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpio::Archive;
    use proptest::prelude::*;
    use std::io::Write;

    fn archive() -> Vec<u8> {
        let mut archive = Archive::new();
        archive.folder("etc", 0o755);
        archive.file("etc/motd", 0o644, &vec![b'x'; 5000]);
        archive.finish()
    }

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(data: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(data, ruzstd::encoding::CompressionLevel::Fastest)
    }

    #[test]
    fn plain_gzip_and_zstd_pass_also_one_after_the_other() {
        let mut all = archive();
        all.extend([0; 512]);
        all.extend(gzip(&archive()));
        all.extend([0; 3]);
        all.extend(zstd(&archive()));
        assert_eq!(check_bytes(&all), Ok(None));
    }

    #[test]
    fn half_an_archive_is_broken_in_every_format() {
        for whole in [archive(), gzip(&archive()), zstd(&archive())] {
            let half = &whole[..whole.len() / 2];
            assert!(matches!(check_bytes(half), Err(InitrdFault::Broken { .. })));
        }
    }

    #[test]
    fn text_and_emptiness_are_no_initrd() {
        assert_eq!(check_bytes(b"hello"), Err(InitrdFault::Unknown { at: 0 }));
        assert_eq!(check_bytes(b""), Err(InitrdFault::Unknown { at: 0 }));
        assert_eq!(check_bytes(&[0; 64]), Err(InitrdFault::Unknown { at: 0 }));
    }

    #[test]
    fn formats_that_are_not_decoded_are_told() {
        let note = check_bytes(b"\xfd7zXZ\0abc").unwrap().unwrap();
        assert!(note.contains("xz"), "{note}");
    }

    proptest! {
        #[test]
        fn truncation_anywhere_is_an_error(cut in 1usize..5000) {
            let whole = archive();
            prop_assert!(check_bytes(&whole[..cut.min(whole.len() - 5)]).is_err());
        }

        #[test]
        fn garbage_never_panics(bytes: Vec<u8>) {
            let _ = check_bytes(&bytes);
            let mut tail = archive();
            tail.extend(bytes);
            let _ = check_bytes(&tail);
        }
    }
}
