// SPDX-License-Identifier: Apache-2.0
//! What procfs says of a guest's QEMU (proc(5)): its vCPUs' threads, and where its RAM is mapped.

use std::path::Path;

use mint_types::CpuSet;

/// A tick of procfs's times: USER_HZ is 100 on x86.
const TICK_MS: u64 = 10;
/// Fields of a stat file from the state on, which follows the name.
const UTIME: usize = 11;
const STIME: usize = 12;
const PROCESSOR: usize = 36;

/// A vCPU's thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VcpuThread {
    /// Number of the vCPU.
    pub vcpu: u32,
    /// Of the thread.
    pub tid: u32,
    /// Time that it has run since its begin, milliseconds.
    pub run_ms: u64,
    /// CPU that it ran on last.
    pub cpu: u32,
    /// CPUs that it may run on.
    pub allowed: CpuSet,
}

/// RAM of a guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RamMapping {
    /// Where its QEMU has it.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Where that begins in its file; 0 of RAM that is none.
    pub offset: u64,
    /// Whether it is a file or a memfd, which other processes can map, too.
    pub is_file: bool,
}

impl RamMapping {
    /// The mapping's own name of its file (proc(5)), which root can open whatever became of that.
    pub fn path(&self, process: u32) -> String {
        let Self { address, bytes, .. } = self;
        format!("/proc/{process}/map_files/{address:x}-{:x}", address + bytes)
    }
}

/// The vCPUs of a process, in their order: QEMU calls their threads "CPU n/KVM". One that ends meanwhile is
/// left out. `root` is `/`, or a folder with a copy of the files in tests.
pub fn threads(root: &Path, process: u32) -> Vec<VcpuThread> {
    let folder = root.join(format!("proc/{process}/task"));
    let Ok(entries) = std::fs::read_dir(&folder) else { return Vec::new() };
    let mut found: Vec<VcpuThread> = entries
        .flatten()
        .filter_map(|entry| {
            let tid = entry.file_name().to_str()?.parse().ok()?;
            thread(&entry.path(), tid)
        })
        .collect();
    found.sort_by_key(|thread| thread.vcpu);
    found
}

fn thread(folder: &Path, tid: u32) -> Option<VcpuThread> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let name = read("comm")?;
    let vcpu = name.trim().strip_prefix("CPU ")?.strip_suffix("/KVM")?.parse().ok()?;
    let stat = read("stat")?;
    // the name may hold blanks and brackets
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let status = read("status")?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(VcpuThread {
        vcpu,
        tid,
        run_ms: (number(UTIME)? + number(STIME)?) * TICK_MS,
        cpu: u32::try_from(number(PROCESSOR)?).ok()?,
        allowed: allowed.trim().parse().ok()?,
    })
}

/// Where a process has its guest's RAM: the largest file of a tmpfs or memfd that it shares, or, if it has none, its
/// largest memory of its own. None: the process has ended.
pub fn ram(root: &Path, process: u32) -> Option<RamMapping> {
    let maps = std::fs::read_to_string(root.join(format!("proc/{process}/maps"))).ok()?;
    maps.lines().filter_map(mapping).max_by_key(|mapping| (mapping.is_file, mapping.bytes))
}

fn mapping(line: &str) -> Option<RamMapping> {
    let mut words = line.split_whitespace();
    let (range, flags, offset) = (words.next()?, words.next()?, words.next()?);
    let name = words.nth(2).unwrap_or_default();
    // of others: a ring with a device, a library
    let is_file = flags.ends_with('s')
        && (name.starts_with("/memfd:memory-backend") || name.starts_with("/run/mint/ram/"));
    let is_own = flags.ends_with('p') && name.is_empty();
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = range.split_once('-')?;
    let (address, end) = (hex(start)?, hex(end)?);
    let bytes = end.checked_sub(address)?;
    let is_ram = flags.starts_with("rw") && (is_file || is_own);
    is_ram.then_some(RamMapping { address, bytes, offset: hex(offset)?, is_file })
}

#[cfg(test)]
#[path = "tests/vcpus.rs"]
mod tests;
