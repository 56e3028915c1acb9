// SPDX-License-Identifier: Apache-2.0
//! Which pages of another process were written to: PAGEMAP_SCAN of its `/proc/PID/pagemap` (the
//! kernel's Documentation/admin-guide/mm/pagemap.rst). Its memory is watched for that
//! ([`crate::Watch::HolesAndWrites`]); nobody waits for a write.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Regions that the kernel tells at once.
const REGIONS: usize = 512;
const PROTECT: u64 = 1;
const ONLY_WATCHED: u64 = 1 << 1;
const IS_WRITTEN: u64 = 1 << 1;

/// A process's pages.
#[derive(Debug)]
pub struct Written(File);

#[repr(C)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    regions_max: u64,
    pages_max: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// _IOWR('f', 16, struct pm_scan_arg)
const PAGEMAP_SCAN: u64 =
    3 << 30 | (size_of::<ScanArgument>() as u64) << 16 | (b'f' as u64) << 8 | 16;
const _: () = assert!(PAGEMAP_SCAN == 0xc060_6610 && size_of::<Region>() == 24);

impl Written {
    /// Of a process.
    ///
    /// # Errors
    /// When there is none, or it is not ours to look at.
    pub fn of(process: u32) -> io::Result<Self> {
        File::open(Path::new(&format!("/proc/{process}/pagemap"))).map(Self)
    }

    /// Ranges of addresses that were written to since this was asked last, or were never asked
    /// for; what is written from now on is told the next time. A page into which a device may
    /// write is told each time, where the kernel knows that.
    ///
    /// # Errors
    /// When the memory is not watched for writes, or the kernel cannot tell.
    pub fn since(&self, start: u64, end: u64) -> io::Result<Vec<Range<u64>>> {
        let mut found = Vec::new();
        let mut regions = [Region { start: 0, end: 0, categories: 0 }; REGIONS];
        let mut at = start;
        while at < end {
            let mut argument = ScanArgument {
                size: size_of::<ScanArgument>() as u64,
                flags: PROTECT | ONLY_WATCHED,
                start: at,
                end,
                walk_end: 0,
                regions: regions.as_mut_ptr().addr() as u64,
                regions_max: REGIONS as u64,
                pages_max: 0,
                category_inverted: 0,
                category_mask: IS_WRITTEN,
                category_anyof_mask: 0,
                return_mask: IS_WRITTEN,
            };
            // SAFETY: the file is open for as long as `self` lives; `argument` is an exclusive
            // reference to a structure whose size it tells and the request has, and `regions` of
            // as many entries as it says outlives the call.
            let count = unsafe {
                libc::ioctl(self.0.as_raw_fd(), PAGEMAP_SCAN, std::ptr::from_mut(&mut argument))
            };
            let Ok(count) = usize::try_from(count) else {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(error);
            };
            found.extend(regions.iter().take(count).map(|region| region.start..region.end));
            if argument.walk_end <= at {
                return Err(io::Error::other("the kernel does not get on"));
            }
            at = argument.walk_end;
        }
        Ok(found)
    }
}
