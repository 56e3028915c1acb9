// SPDX-License-Identifier: Apache-2.0
//! The trees of procfs and sysfs, below a root, and what their folders say of processes.

use std::fs;
use std::path::{Path, PathBuf};

/// Where `proc`, `sys` and `dev` are.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    root: PathBuf,
}

impl Tree {
    /// `root` is `/`, or a folder with a copy of the files in tests.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Below the root.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    /// A file's text; none if it cannot be read.
    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root.join(path)).unwrap_or_default()
    }

    /// Ids of all processes that run a program. A kernel's own threads, which are most of
    /// what is there, have none.
    pub fn processes(&self) -> Vec<String> {
        let proc = self.root.join("proc");
        let mut found = names(&proc);
        found.retain(|name| {
            name.bytes().all(|byte| byte.is_ascii_digit())
                && fs::read_link(proc.join(name).join("exe")).is_ok()
        });
        found
    }

    /// Number of the vCPU that a thread is: QEMU calls them "CPU n/KVM".
    pub fn vcpu_of_thread(&self, folder: &str) -> Option<String> {
        let comm = self.read(&format!("{folder}/comm"));
        let vcpu = comm.trim().strip_prefix("CPU ").and_then(|n| n.strip_suffix("/KVM"));
        vcpu.map(str::to_owned)
    }

    /// The name that QEMU was given for its guest; else its process id.
    pub fn guest_name(&self, pid: &str) -> String {
        let line = self.read(&format!("proc/{pid}/cmdline"));
        let mut words = line.split('\0').skip_while(|&word| word != "-name").skip(1);
        let name = words.next().and_then(|value| {
            let first = value.split(',').next()?;
            Some(first.strip_prefix("guest=").unwrap_or(first).to_owned())
        });
        name.unwrap_or_else(|| format!("of process {pid}"))
    }
}

/// Names in a folder, sorted; none if it is not there.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    names
}
