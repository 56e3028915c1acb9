// SPDX-License-Identifier: Apache-2.0
//! Pages of a guest go to NUMA nodes. All of it blocks.

use std::io;
use std::path::Path;

use mint_api::LayoutFigures;
use mint_guests::residents::Resident;
use mint_layout::{Bind, NumaId};
use tracing::info;

use super::memory::Memory;

const PAGE: u64 = 4096;
const STEP: usize = 4096;
/// Pages that go at once.
const BATCH: usize = 512;

/// Where a guest's QEMU has that place of its RAM.
pub(super) fn address(resident: &Resident, offset: u64) -> Option<u64> {
    let ram = resident.ram.as_ref()?;
    Some(ram.address + offset.checked_sub(ram.offset)?)
}

/// Has memory of a process go to a NUMA node, as long as that is to go on. Gives the bytes that are there then.
pub(super) fn relocate(
    memory: &dyn Memory,
    process: u32,
    (start, bytes): (u64, u64),
    to: NumaId,
    goes_on: impl Fn() -> bool,
) -> u64 {
    let mut went = 0;
    let mut at = start;
    while at < start + bytes && goes_on() {
        let pages = (at..start + bytes).step_by(STEP).take(BATCH);
        let addresses: Vec<u64> = pages.collect();
        match memory.relocate(process, &addresses, to) {
            Ok(there) => {
                went += PAGE * there.iter().filter(|numa| **numa == Some(to)).count() as u64;
            }
            Err(error) => {
                info!(process, %error, "its memory stays where it is");
                return went;
            }
        }
        at += PAGE * addresses.len() as u64;
    }
    went
}

/// Has what comes of a range of a file be of its NUMA node.
///
/// # Errors
/// As [`Memory::prefer`].
pub(super) fn prefer(memory: &dyn Memory, file: &Path, bind: &Bind) -> io::Result<()> {
    memory.prefer(file, bind.offset, bind.bytes, bind.numa)
}

/// Sees that all of a range is on its NUMA node, and counts what is not.
///
/// # Errors
/// When the process has ended.
pub(super) fn sweep(
    memory: &dyn Memory,
    process: u32,
    (address, bind): (u64, Bind),
    figures: &mut LayoutFigures,
) -> io::Result<()> {
    let pages: Vec<u64> = (address..address + bind.bytes).step_by(STEP).collect();
    for addresses in pages.chunks(BATCH) {
        let there = memory.numas(process, addresses)?;
        let wrong: Vec<u64> = addresses
            .iter()
            .zip(&there)
            .filter(|(_, numa)| numa.is_some_and(|numa| numa != bind.numa))
            .map(|(address, _)| *address)
            .collect();
        let all = there.iter().filter(|numa| numa.is_some()).count();
        let mut right = all - wrong.len();
        if !wrong.is_empty() {
            let now = memory.relocate(process, &wrong, bind.numa)?;
            let went = now.iter().filter(|numa| **numa == Some(bind.numa)).count();
            figures.relocated_bytes += PAGE * went as u64;
            right += went;
        }
        figures.placed_bytes += PAGE * right as u64;
        figures.elsewhere_bytes += PAGE * (all - right) as u64;
    }
    Ok(())
}
