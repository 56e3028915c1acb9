// SPDX-License-Identifier: Apache-2.0
//! Looks at a kernel image before anything is moved for it: a node that was
//! given cores and memory for a file that cannot boot is a rollback that need
//! not happen. Offsets are those of Documentation/arch/x86/boot.rst.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use mint_types::{Refusal, RefusalCode};

use crate::image_file::{self, ImageFileError};

/// Older protocols have no `kernel_info`.
const BOOT_PROTOCOL_MIN: u16 = 0x020f;
/// `xloadflags`: the kernel has the 64-bit entry point, and may sit above 4 GiB.
const XLF_64BIT_ENTRY: u16 = 1 << 0;
const SECTOR_BYTES: u64 = 512;
/// Of the header, what is looked at.
const HEADER_BYTES: usize = 0x26c;
/// Of `kernel_info` with its variable data, what is looked at.
const INFO_BYTES_MAX: usize = 4096;
const NO_MARK: ImageFault = ImageFault::NoMint("it carries no Mint mark");
/// What a kernel that can be a node begins its `kernel_info` data with.
const MINT_MAGIC: &[u8; 4] = b"MINT";

/// What is wrong with an image.
#[derive(Debug, PartialEq, Eq)]
pub enum ImageFault {
    /// No bzImage at all.
    NotKernel(&'static str),
    /// Shorter than its header says.
    Truncated {
        /// Bytes that the header tells of.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// A kernel that cannot be a node.
    NoMint(&'static str),
}

/// Checks the file for a node with so much memory, and returns it; the refusal names it and
/// says what to do.
///
/// # Errors
/// With `image_missing`, `image_not_kernel`, `image_truncated`, `image_no_mint` or
/// `image_too_large`.
pub fn check_kernel(path: &Path, memory_bytes: u64) -> Result<File, Refusal> {
    let name = path.display();
    let resource = format!("kernel {name}");
    let missing = |error: ImageFileError| match error {
        ImageFileError::TooLarge { .. } => Refusal::new(
            RefusalCode::ImageTooLarge,
            &resource,
            format_args!("kernel {name}: {error}"),
        )
        .hint("give the node more memory"),
        error => Refusal::new(
            RefusalCode::ImageMissing,
            &resource,
            format_args!("kernel {name} cannot be read: {error}"),
        )
        .hint("give the path of a bzImage with --kernel"),
    };
    let (file, found) = image_file::open(path, memory_bytes).map_err(missing)?;
    let read = |at, buffer: &mut [u8]| file.read_at(buffer, at);
    let checked = check(found.len(), read).map_err(|error| missing(error.into()))?;
    checked.map_err(|fault| match fault {
        ImageFault::NotKernel(why) => Refusal::new(
            RefusalCode::ImageNotKernel,
            &resource,
            format_args!("{name} is no kernel image: {why}"),
        )
        .hint("a node boots a bzImage (arch/x86/boot/bzImage, /boot/vmlinuz-…)"),
        ImageFault::Truncated { expected, found } => Refusal::new(
            RefusalCode::ImageTruncated,
            &resource,
            format_args!(
                "kernel {name} is truncated: its header tells of {expected} bytes, {found} are there"
            ),
        )
        .hint("copy it again"),
        ImageFault::NoMint(why) => Refusal::new(
            RefusalCode::ImageNoMint,
            &resource,
            format_args!("kernel {name} cannot be a node: {why}"),
        )
        .hint("build it with CONFIG_MINT=y"),
    })?;
    Ok(file)
}

/// Checks an image in memory.
///
/// # Errors
/// With the first fault that is found.
pub fn check_bytes(bytes: &[u8]) -> Result<(), ImageFault> {
    let read = |at: u64, buffer: &mut [u8]| {
        let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..)).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    };
    check(bytes.len() as u64, read).expect("a slice can be read")
}

/// Checks an image of so many bytes, of which it reads two small parts.
fn check(
    bytes: u64,
    read: impl Fn(u64, &mut [u8]) -> io::Result<usize>,
) -> io::Result<Result<(), ImageFault>> {
    let part = |at: u64, length: usize| -> io::Result<Vec<u8>> {
        let mut part = vec![0; length];
        let mut filled = 0;
        while filled < length {
            match read(at.saturating_add(filled as u64), &mut part[filled..])? {
                0 => break,
                count => filled += count,
            }
        }
        part.truncate(filled);
        Ok(part)
    };
    let header = part(0, HEADER_BYTES)?;
    let info_at = match check_header(&header, bytes) {
        Ok(info_at) => info_at,
        Err(fault) => return Ok(Err(fault)),
    };
    Ok(check_info(&part(info_at, INFO_BYTES_MAX)?))
}

/// The header, of an image of so many bytes: where its `kernel_info` is.
fn check_header(header: &[u8], bytes: u64) -> Result<u64, ImageFault> {
    if header.get(0x202..0x206) != Some(b"HdrS") || header.get(0x1fe..0x200) != Some(&[0x55, 0xaa])
    {
        return Err(ImageFault::NotKernel("it has no Linux boot header"));
    }
    if header.len() < HEADER_BYTES {
        let expected = HEADER_BYTES as u64;
        return Err(ImageFault::Truncated { expected, found: header.len() as u64 });
    }
    // boot.rst: 0 stands for 4, for historical reasons
    let setup_sects = match header[0x1f1] {
        0 => 4,
        sectors => u64::from(sectors),
    };
    let setup_bytes = (setup_sects + 1) * SECTOR_BYTES;
    let code_bytes = u64::from(u32_at(header, 0x1f4).unwrap_or(0)) * 16;
    let expected = setup_bytes + code_bytes;
    if bytes < expected {
        return Err(ImageFault::Truncated { expected, found: bytes });
    }
    if u16_at(header, 0x206).unwrap_or(0) < BOOT_PROTOCOL_MIN {
        return Err(ImageFault::NoMint("its boot protocol is older than 2.15"));
    }
    if u16_at(header, 0x236).unwrap_or(0) & XLF_64BIT_ENTRY == 0 {
        return Err(ImageFault::NoMint("it has no 64-bit entry point"));
    }
    if header[0x234] == 0 {
        return Err(ImageFault::NoMint("it is not relocatable"));
    }
    match u32_at(header, 0x268).unwrap_or(0) {
        0 => Err(NO_MARK),
        info_at => Ok(setup_bytes + u64::from(info_at)),
    }
}

fn check_info(info: &[u8]) -> Result<(), ImageFault> {
    if !info.starts_with(b"LToP") {
        return Err(NO_MARK);
    }
    let field = |at| u32_at(info, at).and_then(|value| usize::try_from(value).ok()).unwrap_or(0);
    match info.get(field(4)..field(8)) {
        Some(data) if data.starts_with(MINT_MAGIC) => Ok(()),
        _ => Err(NO_MARK),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A file that passes as a kernel with the Mint mark, for tests.
#[cfg(any(test, feature = "fake"))]
pub fn pretend_kernel() -> Vec<u8> {
    let setup_bytes = 1024;
    let mut image = vec![0; setup_bytes + 4096];
    image[0x1f1] = 1;
    image[0x1f4..0x1f8].copy_from_slice(&(4096u32 / 16).to_le_bytes());
    image[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
    image[0x202..0x206].copy_from_slice(b"HdrS");
    image[0x206..0x208].copy_from_slice(&0x020fu16.to_le_bytes());
    image[0x234] = 1;
    image[0x236..0x238].copy_from_slice(&XLF_64BIT_ENTRY.to_le_bytes());
    image[0x268..0x26c].copy_from_slice(&0x100u32.to_le_bytes());
    let info = &mut image[setup_bytes + 0x100..];
    info[..4].copy_from_slice(b"LToP");
    info[4..8].copy_from_slice(&16u32.to_le_bytes());
    info[8..12].copy_from_slice(&28u32.to_le_bytes());
    info[16..20].copy_from_slice(MINT_MAGIC);
    image
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn kernel_with_the_mark_passes() {
        assert_eq!(check_bytes(&pretend_kernel()), Ok(()));
    }

    #[test]
    fn text_is_no_kernel() {
        assert!(matches!(check_bytes(b"hello"), Err(ImageFault::NotKernel(_))));
        assert!(matches!(check_bytes(&[0; 8192]), Err(ImageFault::NotKernel(_))));
    }

    #[test]
    fn one_missing_byte_is_noticed() {
        let image = pretend_kernel();
        let short = &image[..image.len() - 1];
        assert_eq!(check_bytes(short), Err(ImageFault::Truncated { expected: 5120, found: 5119 }));
        assert!(matches!(check_bytes(&image[..0x210]), Err(ImageFault::Truncated { .. })));
    }

    #[test]
    fn of_a_large_file_little_is_read_and_of_others_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bzImage");
        std::fs::write(&path, pretend_kernel()).unwrap();
        check_kernel(&path, 1 << 20).unwrap();
        let code = |path: &Path, memory| check_kernel(path, memory).unwrap_err().code;
        assert_eq!(code(&path, 5119), RefusalCode::ImageTooLarge);
        // more than any machine has
        File::options().write(true).open(&path).unwrap().set_len(1 << 42).unwrap();
        check_kernel(&path, 1 << 42).unwrap();
        assert_eq!(code(Path::new("/dev/zero"), u64::MAX), RefusalCode::ImageMissing);
    }

    #[test]
    fn stock_kernel_lacks_the_mark() {
        let mut image = pretend_kernel();
        // stock: kernel_info without variable data
        image[1024 + 0x100 + 8..1024 + 0x100 + 12].copy_from_slice(&16u32.to_le_bytes());
        assert_eq!(check_bytes(&image), Err(ImageFault::NoMint("it carries no Mint mark")));
        let mut old = pretend_kernel();
        old[0x206] = 0x0c;
        assert!(matches!(check_bytes(&old), Err(ImageFault::NoMint(_))));
    }

    proptest! {
        #[test]
        fn damaged_headers_never_panic(at in 0usize..0x300, byte: u8, cut in 0usize..5120) {
            let mut image = pretend_kernel();
            image[at] = byte;
            let _ = check_bytes(&image);
            let _ = check_bytes(&image[..cut]);
        }
    }
}
