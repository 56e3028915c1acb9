// SPDX-License-Identifier: Apache-2.0
//! This node's [`Load`], from procfs (proc(5)).

use mint_types::{GuestLoad, Load};

use crate::tree::{Tree, names};

/// A tick of procfs's times: USER_HZ is 100 on x86.
const TICK_MS: u64 = 10;

/// Position of `idle` and `iowait` in a `cpu` line of /proc/stat; `guest` times are
/// in `user` already.
const IDLE: [usize; 2] = [3, 4];
const COUNTED: usize = 8;

/// The first line that begins with `word`: its numbers.
fn numbers(text: &str, word: &str) -> Vec<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(word))
        .map(|rest| rest.split_whitespace().filter_map(|field| field.parse().ok()).collect())
        .unwrap_or_default()
}

/// A line "Name:   123 kB", in bytes.
fn bytes_of(text: &str, name: &str) -> u64 {
    numbers(text, name).first().map_or(0, |kib| kib * 1024)
}

/// Reads it all; what cannot be read counts as nothing.
pub(crate) fn read(tree: &Tree) -> Load {
    let stat = tree.read("proc/stat");
    let cpu = numbers(&stat, "cpu ");
    let total: u64 = cpu.iter().take(COUNTED).sum();
    let idle: u64 = IDLE.iter().filter_map(|&at| cpu.get(at)).sum();
    let memory = tree.read("proc/meminfo");
    let uptime = tree.read("proc/uptime");
    let (seconds, hundredths) =
        uptime.split_whitespace().next().and_then(|text| text.split_once('.')).unwrap_or_default();
    let parse = |text: &str| text.parse::<u64>().unwrap_or(0);
    Load {
        uptime_ms: parse(seconds) * 1000 + parse(hundredths) * 10,
        cpu_busy_ms: total.saturating_sub(idle) * TICK_MS,
        cpu_idle_ms: idle * TICK_MS,
        memory_bytes: bytes_of(&memory, "MemTotal:"),
        memory_available_bytes: bytes_of(&memory, "MemAvailable:"),
        interrupts: numbers(&stat, "intr").first().copied().unwrap_or(0),
        guests: guests(tree),
    }
}

/// Every process with threads that QEMU calls vCPUs.
fn guests(tree: &Tree) -> Vec<GuestLoad> {
    let mut found = Vec::new();
    for pid in tree.processes() {
        let threads = names(&tree.path(format!("proc/{pid}/task")));
        let is_vcpu =
            |thread: &&String| tree.vcpu_of_thread(&format!("proc/{pid}/task/{thread}")).is_some();
        let vcpus = threads.iter().filter(is_vcpu).count();
        if vcpus == 0 {
            continue;
        }
        // utime and stime, counted from the end of the name, which may hold blanks
        let stat = tree.read(&format!("proc/{pid}/stat"));
        let fields: Vec<u64> = stat
            .rsplit_once(')')
            .map(|(_, rest)| rest.split_whitespace().map(|field| field.parse().unwrap_or(0)))
            .into_iter()
            .flatten()
            .collect();
        found.push(GuestLoad {
            name: tree.guest_name(&pid),
            vcpus: u32::try_from(vcpus).unwrap_or(u32::MAX),
            memory_bytes: bytes_of(&tree.read(&format!("proc/{pid}/status")), "VmRSS:"),
            cpu_ms: fields.iter().skip(11).take(2).sum::<u64>() * TICK_MS,
        });
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn counters_are_taken_from_procfs() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("proc/70/task/71")).unwrap();
        fs::create_dir_all(root.join("proc/70/task/70")).unwrap();
        fs::create_dir_all(root.join("proc/8/task/8")).unwrap();
        for (file, text) in [
            ("proc/stat", "cpu  10 2 3 100 5 1 2 3 9 0\ncpu0 1 2 3\nintr 4711 1 2 3\nctxt 5\n"),
            ("proc/meminfo", "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  400 kB\n"),
            ("proc/uptime", "12.34 50.00\n"),
            ("proc/70/cmdline", "qemu\0-name\0guest=web1,debug-threads=on\0"),
            ("proc/70/stat", "70 (a b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0\n"),
            ("proc/70/status", "Name: qemu\nVmRSS:  2048 kB\n"),
            ("proc/70/task/70/comm", "qemu-system-x86\n"),
            ("proc/70/task/71/comm", "CPU 0/KVM\n"),
            ("proc/8/task/8/comm", "sh\n"),
        ] {
            fs::write(root.join(file), text).unwrap();
        }
        for pid in [8, 70] {
            let exe = root.join(format!("proc/{pid}/exe"));
            std::os::unix::fs::symlink("/usr/bin/program", exe).unwrap();
        }
        let guest =
            GuestLoad { name: "web1".into(), vcpus: 1, memory_bytes: 2 << 20, cpu_ms: 2000 };
        let want = Load {
            uptime_ms: 12_340,
            cpu_busy_ms: 210,
            cpu_idle_ms: 1050,
            memory_bytes: 1000 << 10,
            memory_available_bytes: 400 << 10,
            interrupts: 4711,
            guests: vec![guest],
        };
        assert_eq!(read(&Tree::new(root)), want);
    }

    #[test]
    fn nothing_to_read_is_nothing_used() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(&Tree::new(folder.path())), Load::default());
    }
}
