// SPDX-License-Identifier: Apache-2.0
//! A host's NUMA nodes, processes and pages for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mint_guests::counters::{Counters, Group, OpenError, Totals};
use mint_guests::cpu_events::Event;
use mint_guests::residents::Pages;
use mint_layout::NumaId;

use crate::layout::{Buffer, Memory, Meter, Timed};

pub(crate) const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// Where each QEMU has its guest's RAM, and of how much.
pub(crate) const ADDRESS: u64 = 0x7f00_0000_0000;
pub(crate) const RAM: u64 = 16 * MIB;

/// Where pages of processes are.
#[derive(Default)]
pub(crate) struct Table {
    /// By process and address.
    pages: Mutex<BTreeMap<(u32, u64), NumaId>>,
    /// NUMA nodes that take nothing more.
    pub full: Mutex<BTreeSet<NumaId>>,
    /// What happens once, when memory is about to go.
    pub at_next: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// What is to come to which: file, offset and bytes in MiB, NUMA node.
    pub preferred: Mutex<Vec<(PathBuf, u64, u64, u32)>>,
    /// How CPUs read memory of NUMA nodes: a CPU and a NUMA node, nanoseconds and MB/s.
    pub reads: Mutex<BTreeMap<(u32, u32), (f64, f64)>>,
    /// What happens once, when somebody is about to have memory.
    pub at_buffer: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Table {
    /// A process has pages in a range of MiB of its RAM.
    pub fn put(&self, process: u32, mib: Range<u64>, numa: u32) {
        let addresses = (ADDRESS + mib.start * MIB..ADDRESS + mib.end * MIB).step_by(4096);
        self.pages.lock().unwrap().extend(addresses.map(|at| ((process, at), NumaId(numa))));
    }

    /// A process has ended.
    pub fn end(&self, process: u32) {
        self.pages.lock().unwrap().retain(|(of, _), _| *of != process);
    }

    /// MiB of a process on each NUMA node.
    pub fn there(&self, process: u32) -> BTreeMap<u32, u64> {
        let mut bytes = BTreeMap::new();
        for ((of, _), numa) in self.pages.lock().unwrap().iter() {
            if *of == process {
                *bytes.entry(numa.0).or_insert(0) += PAGE;
            }
        }
        bytes.into_iter().map(|(numa, bytes)| (numa, bytes / MIB)).collect()
    }
}

impl Pages for Table {
    fn numas(&self, process: u32, addresses: &[u64]) -> io::Result<Vec<Option<NumaId>>> {
        let pages = self.pages.lock().unwrap();
        if !pages.keys().any(|(of, _)| *of == process) {
            return Err(io::Error::from_raw_os_error(3));
        }
        Ok(addresses.iter().map(|at| pages.get(&(process, *at)).copied()).collect())
    }
}

impl Memory for Table {
    fn relocate(
        &self,
        process: u32,
        addresses: &[u64],
        to: NumaId,
    ) -> io::Result<Vec<Option<NumaId>>> {
        let happens = self.at_next.lock().unwrap().take();
        happens.into_iter().for_each(|happens| happens());
        if !self.full.lock().unwrap().contains(&to) {
            let mut pages = self.pages.lock().unwrap();
            for at in addresses {
                if let Some(numa) = pages.get_mut(&(process, *at)) {
                    *numa = to;
                }
            }
        }
        self.numas(process, addresses)
    }

    fn prefer(&self, file: &Path, offset: u64, bytes: u64, numa: NumaId) -> io::Result<()> {
        let told = (file.to_owned(), offset / MIB, bytes / MIB, numa.0);
        self.preferred.lock().unwrap().push(told);
        Ok(())
    }
}

struct Reads(u32, BTreeMap<(u32, u32), (f64, f64)>);

impl Meter for Table {
    fn buffer(&self, numa: NumaId, _: u64) -> io::Result<Box<dyn Buffer>> {
        let happens = self.at_buffer.lock().unwrap().take();
        happens.into_iter().for_each(|happens| happens());
        Ok(Box::new(Reads(numa.0, self.reads.lock().unwrap().clone())))
    }
}

impl Buffer for Reads {
    fn read(&mut self, cpu: u32, _: Duration) -> io::Result<Timed> {
        let (latency_ns, read_mb_s) =
            *self.1.get(&(cpu, self.0)).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Timed { latency_ns, read_mb_s })
    }
}

/// What threads have done, by the CPU's counters.
#[derive(Clone, Default)]
pub(crate) struct Counted(Arc<Mutex<BTreeMap<u32, Totals>>>);

struct OfThread(Counted, u32);

impl Counted {
    /// In all; its group has had counters all the time.
    pub fn did(&self, thread: u32, values: &[u64], ran_ns: u64) {
        let totals = Totals { values: values.into(), enabled_ns: ran_ns, running_ns: ran_ns };
        self.0.lock().unwrap().insert(thread, totals);
    }
}

impl Counters for Counted {
    fn open(&self, thread: u32, _: &[Event]) -> Result<Box<dyn Group>, OpenError> {
        let is_there = self.0.lock().unwrap().contains_key(&thread);
        if is_there { Ok(Box::new(OfThread(self.clone(), thread))) } else { Err(OpenError::Ended) }
    }
}

impl Group for OfThread {
    fn read(&self) -> io::Result<Totals> {
        let totals = self.0.0.lock().unwrap().get(&self.1).cloned();
        totals.ok_or(io::ErrorKind::InvalidData.into())
    }
}

/// Its CPUs are of this kind.
pub(crate) fn cpus_are(root: &Path, vendor: &str, family: u32, model: u32) {
    let text = format!("vendor_id: {vendor}\ncpu family: {family}\nmodel: {model}\n");
    put(root, "proc/cpuinfo", &text);
}

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// Two NUMA nodes of a CPU each, with so many MiB free beside what a QEMU needs.
pub(crate) fn numa(root: &Path, free: [u64; 2]) {
    put(root, "sys/devices/system/node/online", "0-1\n");
    put(root, "sys/devices/system/cpu/online", "0-1\n");
    for (numa, free) in free.into_iter().enumerate() {
        let folder = format!("sys/devices/system/node/node{numa}");
        put(root, &format!("{folder}/cpulist"), &format!("{numa}\n"));
        put(root, &format!("{folder}/distance"), if numa == 0 { "10 20\n" } else { "20 10\n" });
        let text = format!("Node {numa} MemFree:  {} kB\n", (free + 64) * 1024);
        put(root, &format!("{folder}/meminfo"), &text);
    }
}

/// A guest's XML whose vCPU may run anywhere.
pub(crate) fn free(name: &str) -> String {
    format!(
        "<domain type='kvm'><name>{name}</name><uuid>uuid-{name}</uuid>\
         <memory unit='MiB'>16</memory><vcpu>1</vcpu></domain>"
    )
}

/// The same, kept to a CPU by its owner.
pub(crate) fn kept(name: &str, cpu: u32) -> String {
    let pin = format!("</vcpu><cputune><vcpupin vcpu='0' cpuset='{cpu}'/></cputune>");
    free(name).replace("</vcpu>", &pin)
}

/// A guest runs: its vCPU ran on that CPU last, and for so long in all.
pub(crate) fn runs(root: &Path, name: &str, process: u32, cpu: u32, run_ms: u64) {
    runs_as(root, (name, &free(name)), process, cpu, run_ms);
}

/// The same of one with that XML.
pub(crate) fn runs_as(root: &Path, (name, xml): (&str, &str), process: u32, cpu: u32, run_ms: u64) {
    let record = format!("<domstatus state='running' pid='{process}'>{xml}</domstatus>");
    put(root, &format!("run/libvirt/qemu/{name}.xml"), &record);
    put(root, &format!("run/libvirt/qemu/{name}.pid"), &process.to_string());
    let end = ADDRESS + RAM;
    let maps = format!("{ADDRESS:x}-{end:x} rw-s 00000000 00:01 9 /memfd:memory-backend-memfd\n");
    put(root, &format!("proc/{process}/maps"), &maps);
    let task = format!("proc/{process}/task/{}", process + 1);
    let rest: Vec<String> = (13..39).map(|at| if at == 36 { cpu } else { 0 }.to_string()).collect();
    let stat =
        format!("1 (CPU 0/KVM) S 1 2 3 4 5 6 7 8 9 10 {} 0 {}\n", run_ms / 10, rest.join(" "));
    put(root, &format!("{task}/stat"), &stat);
    put(root, &format!("{task}/comm"), "CPU 0/KVM\n");
    may_run(root, process, "0-1");
}

/// Its vCPU may run on these.
pub(crate) fn may_run(root: &Path, process: u32, cpus: &str) {
    let task = format!("proc/{process}/task/{}", process + 1);
    put(root, &format!("{task}/status"), &format!("Cpus_allowed_list:\t{cpus}\n"));
}
