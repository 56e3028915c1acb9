// SPDX-License-Identifier: Apache-2.0
//! Looks whether an initrd is whole: the kernel would find out only after the
//! node has started. An initrd is a sequence of cpio archives, plain or
//! compressed, with zero bytes between them
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use mint_types::{Refusal, RefusalCode, format_bytes};

use crate::image_file::{self, FileId, ImageFileError};

const NEWC_HEADER_BYTES: usize = 110;
const TRAILER: &[u8] = b"TRAILER!!!";
/// The kernel takes no longer names (PATH_MAX, with the zero byte).
const NAME_BYTES_MAX: usize = 4096;
/// The daemon's program.
const MINTD: &[u8] = b"mintd";
/// Bytes that tell formats apart.
const MAGIC_BYTES: u64 = 6;
const BUFFER_BYTES: usize = 64 << 10;

/// What is wrong with an initrd.
#[derive(Debug, PartialEq, Eq)]
pub enum InitrdFault {
    /// It ends in the middle, or its compressed data are damaged.
    Broken {
        /// Where the damaged part starts, in bytes.
        at: u64,
        /// What the decoder said.
        why: String,
    },
    /// Nothing that the kernel could unpack.
    Unknown {
        /// Where, in bytes.
        at: u64,
    },
    /// What is in it is more than may be.
    TooLarge,
}

/// What the check could not see.
pub type Note = Option<String>;

/// What is known of an initrd that passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// What the check could not see.
    pub note: Note,
    /// All that the kernel unpacks, as far as the check could see.
    pub unpacked_bytes: u64,
    /// Whether a program `mintd` is in it; with a note, it may be where the check could not
    /// see.
    pub mintd: bool,
}

/// An initrd that passed.
#[derive(Debug)]
pub struct Initrd {
    /// The file, at its beginning.
    pub file: File,
    /// Size of the file, in bytes.
    pub bytes: u64,
    /// What the check could not see, with the file's name.
    pub note: Note,
    /// Whether a program `mintd` may be in it.
    pub may_have_mintd: bool,
}

/// Files that passed: one that did not change is not unpacked again for each step of an
/// operation. It is the process's, as the files are.
static PASSED: Passed = Passed(Mutex::new(Vec::new()));
const PASSED_MAX: usize = 8;

struct Passed(Mutex<Vec<(FileId, Checked)>>);

impl Passed {
    fn get(&self, id: FileId) -> Option<Checked> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().find(|(known, _)| *known == id).map(|(_, checked)| checked.clone())
    }

    fn put(&self, id: FileId, checked: &Checked) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() == PASSED_MAX {
            known.remove(0);
        }
        known.push((id, checked.clone()));
    }
}

/// Checks the file for a node with so much memory.
///
/// # Errors
/// With `initrd_missing`, `initrd_truncated`, `initrd_unknown` or `image_too_large`.
pub fn check_initrd(path: &Path, memory_bytes: u64) -> Result<Initrd, Refusal> {
    let name = path.display();
    let resource = format!("initrd {name}");
    let too_large = |why: String| {
        Refusal::new(RefusalCode::ImageTooLarge, &resource, format_args!("initrd {name}: {why}"))
            .hint("give the node more memory, or it a smaller initrd")
    };
    let missing = |error: ImageFileError| match error {
        ImageFileError::TooLarge { .. } => too_large(error.to_string()),
        error => Refusal::new(
            RefusalCode::InitrdMissing,
            &resource,
            format_args!("initrd {name} cannot be read: {error}"),
        )
        .hint("give the path of a regular file with --initrd"),
    };
    let (file, found) = image_file::open(path, memory_bytes).map_err(missing)?;
    let unpacked_too_large = || {
        too_large(format!(
            "unpacked it is more than the memory of the node, {}",
            format_bytes(memory_bytes)
        ))
    };
    let id = FileId::of(&found);
    let checked = match PASSED.get(id) {
        Some(checked) if checked.unpacked_bytes > memory_bytes => Err(InitrdFault::TooLarge),
        Some(checked) => Ok(checked),
        None => check(&file, memory_bytes).inspect(|checked| PASSED.put(id, checked)),
    };
    let initrd = |checked: Checked| -> io::Result<Initrd> {
        io::Seek::rewind(&mut &file)?;
        let may_have_mintd = checked.mintd || checked.note.is_some();
        let note = checked.note.map(|why| format!("initrd {name}: {why}"));
        Ok(Initrd { file, bytes: found.len(), note, may_have_mintd })
    };
    match checked {
        Ok(checked) => initrd(checked).map_err(|error| missing(error.into())),
        Err(InitrdFault::TooLarge) => Err(unpacked_too_large()),
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
    check(bytes, u64::MAX).map(|checked| checked.note)
}

/// Reads, and counts how far it came.
struct Counted<R> {
    inner: R,
    at: u64,
}

impl<R: BufRead> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.inner.consume(count);
        self.at += count as u64;
    }
}

/// Passes so many bytes and fails at the next one.
struct Limited<'a, R> {
    inner: R,
    left: &'a Cell<u64>,
    exceeded: &'a Cell<bool>,
}

impl<R: Read> Read for Limited<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        match self.left.get().checked_sub(count as u64) {
            Some(left) => self.left.set(left),
            None => {
                self.exceeded.set(true);
                return Err(io::Error::other("it is too large"));
            }
        }
        Ok(count)
    }
}

/// Checks every part of an initrd, piece by piece. All that is in it together may be of so
/// many bytes.
///
/// # Errors
/// With the first fault.
pub fn check(source: impl Read, unpacked_max: u64) -> Result<Checked, InitrdFault> {
    let mut input = Counted { inner: BufReader::with_capacity(BUFFER_BYTES, source), at: 0 };
    let (left, exceeded) = (Cell::new(unpacked_max), Cell::new(false));
    let mut mintd = false;
    let mut found = |name: &[u8]| mintd |= name.rsplit(|&byte| byte == b'/').next() == Some(MINTD);
    let mut note = None;
    let mut parts = 0;
    loop {
        let broken = |at| move |why: String| InitrdFault::Broken { at, why };
        let more = skip_zeros(&mut input).map_err(|error| broken(input.at)(error.to_string()))?;
        let at = input.at;
        if !more {
            // an empty file is what a failed copy leaves behind
            if parts == 0 {
                return Err(InitrdFault::Unknown { at: 0 });
            }
            break;
        }
        let mut magic = Vec::new();
        (&mut input)
            .take(MAGIC_BYTES)
            .read_to_end(&mut magic)
            .map_err(|error| broken(at)(error.to_string()))?;
        let mut part = magic.as_slice().chain(&mut input);
        let limit = |inner| BufReader::new(Limited { inner, left: &left, exceeded: &exceeded });
        let result = if magic.starts_with(b"07070") {
            let mut part = Limited { inner: &mut part, left: &left, exceeded: &exceeded };
            skip_cpio(&mut part, &mut found)
        } else if magic.starts_with(&[0x1f, 0x8b]) {
            let decoder: Box<dyn Read> = Box::new(flate2::bufread::GzDecoder::new(&mut part));
            check_archives(&mut limit(decoder), &mut found)
        } else if magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
            ruzstd::decoding::StreamingDecoder::new(&mut part)
                .map_err(|error| error.to_string())
                .and_then(|decoder| check_archives(&mut limit(Box::new(decoder)), &mut found))
        } else if let Some(format) = other_format(&magic) {
            note = Some(format!("{format} data are not checked for truncation"));
            break;
        } else {
            return Err(InitrdFault::Unknown { at });
        };
        if exceeded.get() {
            return Err(InitrdFault::TooLarge);
        }
        result.map_err(broken(at))?;
        parts += 1;
    }
    Ok(Checked { note, unpacked_bytes: unpacked_max - left.get(), mintd })
}

/// Whether anything comes after the zero bytes that come.
fn skip_zeros(input: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let buffer = input.fill_buf()?;
        if buffer.is_empty() {
            return Ok(false);
        }
        let zeros = buffer.iter().take_while(|&&byte| byte == 0).count();
        let more = zeros < buffer.len();
        input.consume(zeros);
        if more {
            return Ok(true);
        }
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

/// Decompressed data: one archive or more, zero bytes between and after.
fn check_archives(input: &mut impl BufRead, found: &mut impl FnMut(&[u8])) -> Result<(), String> {
    let mut archives = 0;
    while skip_zeros(input).map_err(|error| error.to_string())? {
        skip_cpio(input, found)?;
        archives += 1;
    }
    if archives == 0 { Err("it is empty".into()) } else { Ok(()) }
}

/// Reads the cpio archive (newc) that comes, and tells the names in it.
fn skip_cpio(input: &mut impl Read, found: &mut impl FnMut(&[u8])) -> Result<(), String> {
    let damaged = || "a cpio header is damaged".to_owned();
    let told = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => "the cpio archive ends early".to_owned(),
        _ => error.to_string(),
    };
    loop {
        let mut header = [0; NEWC_HEADER_BYTES];
        input.read_exact(&mut header).map_err(told)?;
        if !header.starts_with(b"070701") && !header.starts_with(b"070702") {
            return Err(damaged());
        }
        let field = |index: usize| -> Result<usize, String> {
            let digits = &header[6 + 8 * index..14 + 8 * index];
            std::str::from_utf8(digits)
                .ok()
                .and_then(|digits| usize::from_str_radix(digits, 16).ok())
                .ok_or_else(damaged)
        };
        let (file_bytes, name_bytes) = (field(6)?, field(11)?);
        if name_bytes > NAME_BYTES_MAX {
            return Err(damaged());
        }
        let mut name = vec![0; name_bytes];
        input.read_exact(&mut name).map_err(told)?;
        let end = NEWC_HEADER_BYTES + name_bytes;
        let padding = end.next_multiple_of(4) - end;
        if name.strip_suffix(b"\0") == Some(TRAILER) {
            // the end of the file may be the end of the padding
            io::copy(&mut input.take(padding as u64), &mut io::sink()).map_err(told)?;
            return Ok(());
        }
        found(name.strip_suffix(b"\0").unwrap_or(&name));
        let skipped = (padding + file_bytes) as u64;
        if io::copy(&mut input.take(skipped), &mut io::sink()).map_err(told)? < skipped {
            return Err(told(io::ErrorKind::UnexpectedEof.into()));
        }
        let padding = (file_bytes.next_multiple_of(4) - file_bytes) as u64;
        io::copy(&mut input.take(padding), &mut io::sink()).map_err(told)?;
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

    #[test]
    fn mintd_is_found_wherever_it_is() {
        let mut other = Archive::new();
        other.file("usr/sbin/mintd.old", 0o755, b"x");
        other.folder("mintd/doc", 0o755);
        let other = other.finish();
        let mut with = Archive::new();
        with.file("usr/sbin/mintd", 0o755, b"x");
        let with = with.finish();
        let mintd = |bytes: Vec<u8>| check(bytes.as_slice(), u64::MAX).unwrap().mintd;
        for pack in [gzip, zstd, |data: &[u8]| data.to_vec()] {
            assert!(!mintd(pack(&other)));
            assert!(mintd(pack(&with)));
            assert!(mintd([pack(&other), pack(&with)].concat()));
        }
    }

    #[test]
    fn content_is_limited_however_small_it_is_packed() {
        let mut large = Archive::new();
        large.file("zeros", 0o644, &vec![0; 1 << 20]);
        let large = large.finish();
        for packed in [gzip(&large), zstd(&large), large.clone()] {
            let all = large.len() as u64;
            assert_eq!(check(packed.as_slice(), all).unwrap().unpacked_bytes, all);
            assert_eq!(check(packed.as_slice(), all - 1), Err(InitrdFault::TooLarge));
            // parts count together
            let twice = [packed.clone(), packed].concat();
            assert_eq!(check(twice.as_slice(), 2 * all - 1), Err(InitrdFault::TooLarge));
            assert_eq!(check(twice.as_slice(), 2 * all).unwrap().unpacked_bytes, 2 * all);
        }
    }

    /// Pieces as a slow pipe gives them.
    struct Bytewise<'a>(&'a [u8]);

    impl Read for Bytewise<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = buffer.len().min(1);
            self.0.read(&mut buffer[..count])
        }
    }

    #[test]
    fn check_does_not_depend_on_how_the_bytes_come() {
        let mut all = gzip(&archive());
        all.extend([0; 5]);
        all.extend(zstd(&archive()));
        all.extend(archive());
        assert_eq!(check(Bytewise(&all), u64::MAX), check(all.as_slice(), u64::MAX));
        let half = &all[..all.len() - 100];
        assert_eq!(check(Bytewise(half), u64::MAX), check(half, u64::MAX));
        assert!(check(half, u64::MAX).is_err());
    }

    #[test]
    fn file_is_unpacked_once_and_again_when_it_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("initrd");
        let id = || FileId::of(&std::fs::metadata(&path).unwrap());
        std::fs::write(&path, gzip(&archive())).unwrap();
        assert_eq!(PASSED.get(id()), None);
        let initrd = check_initrd(&path, 1 << 30).unwrap();
        assert!(PASSED.get(id()).is_some());
        let mut bytes = Vec::new();
        (&initrd.file).read_to_end(&mut bytes).unwrap();
        assert!(bytes == gzip(&archive()) && bytes.len() as u64 == initrd.bytes);
        // what is known of it counts for a smaller node, too
        let code = |memory: u64| check_initrd(&path, memory).unwrap_err().code;
        assert_eq!(code(archive().len() as u64 - 1), RefusalCode::ImageTooLarge);
        assert_eq!(code(10), RefusalCode::ImageTooLarge);
        std::fs::write(&path, &gzip(&archive())[..50]).unwrap();
        assert_eq!(code(1 << 30), RefusalCode::InitrdTruncated);
    }

    proptest! {
        #[test]
        fn truncation_anywhere_is_an_error(cut in 1usize..5000) {
            let whole = archive();
            prop_assert!(check_bytes(&whole[..cut.min(whole.len() - 5)]).is_err());
        }

        #[test]
        fn damage_of_a_member_is_seen_or_harmless(at in 0usize..500, byte: u8) {
            let mut damaged = archive();
            let old = std::mem::replace(&mut damaged[at], byte);
            let magic = [0, 116].iter().any(|&header| (header..header + 6).contains(&at));
            let found = check_bytes(&damaged);
            if old == byte || at >= 236 {
                // the file's content is nobody's business
                prop_assert_eq!(found, Ok(None));
            } else if magic {
                prop_assert!(found.is_err(), "{}", at);
            }
        }
    }
}
