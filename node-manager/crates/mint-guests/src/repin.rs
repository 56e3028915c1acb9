// SPDX-License-Identifier: Apache-2.0
//! CPUs for the threads of running guests whose host loses some: by the rules of a guest that
//! comes to a host ([`crate::landing`]), as if it came to what this one keeps. Pure.

use std::collections::BTreeMap;

use mint_types::{CpuSet, GuestThread, PinChange};
use serde::Deserialize;

use crate::domain::{DomainError, cpu_set};
use crate::landing::{HostCpus, land};

/// No guest has more.
const VCPUS_MAX: u32 = 4096;

/// A guest that runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pinned {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// Its XML as it runs.
    pub xml: String,
    /// XML of its definition; none of a guest without one.
    pub persistent_xml: Option<String>,
}

/// Other CPUs for a guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Repin {
    /// Its name.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// As it runs, then of its definition.
    pub changes: Vec<PinChange>,
}

/// The XML of a guest cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("CPUs of vm {name} cannot be told")]
pub struct RepinError {
    /// Its name.
    pub name: String,
    /// Why.
    #[source]
    pub source: DomainError,
}

/// Gives the guests that use CPUs which go others, one guest after the other. A guest that uses
/// none of them stays as it is, and what one of its vCPUs has for itself is left to it.
///
/// # Errors
/// When a guest's XML cannot be read.
pub fn repin(guests: &[Pinned], online: &CpuSet, going: &CpuSet) -> Result<Vec<Repin>, RepinError> {
    let kept: CpuSet = online.iter().filter(|&cpu| !going.contains(cpu)).collect();
    let mut all = Vec::new();
    for guest in guests {
        let failed = |source| RepinError { name: guest.name.clone(), source };
        let running = threads(&guest.xml).map_err(failed)?;
        let defined = guest.persistent_xml.as_deref().map(threads).transpose().map_err(failed)?;
        all.push((guest, running, defined));
    }
    let mut repins = Vec::new();
    for at in 0..all.len() {
        let others = all.iter().enumerate().filter(|(other, _)| *other != at);
        let taken = others.flat_map(|(_, (_, running, _))| own(running)).collect();
        // which NUMA nodes it has matters to memory alone
        let host = HostCpus { online: kept.clone(), taken, numa_nodes: CpuSet::default() };
        let (guest, running, defined) = &mut all[at];
        let failed = |source| RepinError { name: guest.name.clone(), source };
        let mut changes = Vec::new();
        if uses(running, going) {
            changes = change(running, &guest.xml, &host, false).map_err(failed)?;
        }
        if let (Some(defined), Some(xml)) = (defined, &guest.persistent_xml) {
            if uses(defined, going) {
                changes.extend(change(defined, xml, &host, true).map_err(failed)?);
            }
        }
        if !changes.is_empty() {
            let (name, uuid) = (guest.name.clone(), guest.uuid.clone());
            repins.push(Repin { name, uuid, changes });
        }
    }
    Ok(repins)
}

/// CPUs of threads that have not all of them.
type Threads = BTreeMap<GuestThread, CpuSet>;

/// CPUs that a vCPU has for itself.
fn own(threads: &Threads) -> impl Iterator<Item = u32> + '_ {
    let alone = |(thread, cpus): &(&GuestThread, &CpuSet)| {
        matches!(thread, GuestThread::Vcpu(_)) && cpus.len() == 1
    };
    threads.iter().filter(alone).flat_map(|(_, cpus)| cpus.iter())
}

fn uses(threads: &Threads, going: &CpuSet) -> bool {
    threads.values().any(|cpus| cpus.iter().any(|cpu| going.contains(cpu)))
}

/// What is another once the guest is on that host. The threads are as they are there afterwards.
fn change(
    threads: &mut Threads,
    xml: &str,
    host: &HostCpus,
    is_defined: bool,
) -> Result<Vec<PinChange>, DomainError> {
    let landed = self::threads(&land(xml, host)?.xml)?;
    let mut changes = Vec::new();
    for (&thread, cpus) in threads {
        // one that has no pin there may run on all that the host keeps
        let now = landed.get(&thread).unwrap_or(&host.online).clone();
        if *cpus != now {
            let was = std::mem::replace(cpus, now.clone());
            changes.push(PinChange { thread, is_defined, was, now });
        }
    }
    Ok(changes)
}

#[derive(Deserialize)]
struct Xml {
    vcpu: Option<Vcpu>,
    cputune: Option<Tune>,
}

#[derive(Deserialize)]
struct Vcpu {
    #[serde(rename = "@cpuset")]
    cpuset: Option<String>,
    #[serde(rename = "$text", default)]
    count: String,
}

#[derive(Deserialize, Default)]
struct Tune {
    #[serde(rename = "vcpupin", default)]
    vcpus: Vec<VcpuPin>,
    #[serde(rename = "emulatorpin", default)]
    emulator: Vec<EmulatorPin>,
    #[serde(rename = "iothreadpin", default)]
    iothreads: Vec<IothreadPin>,
}

#[derive(Deserialize)]
struct VcpuPin {
    #[serde(rename = "@vcpu")]
    vcpu: u32,
    #[serde(rename = "@cpuset")]
    cpuset: String,
}

#[derive(Deserialize)]
struct EmulatorPin {
    #[serde(rename = "@cpuset")]
    cpuset: String,
}

#[derive(Deserialize)]
struct IothreadPin {
    #[serde(rename = "@iothread")]
    iothread: u32,
    #[serde(rename = "@cpuset")]
    cpuset: String,
}

/// Threads that a domain's XML keeps to CPUs: each to its own, or those of `<vcpu cpuset>`, which
/// are for vCPUs and the emulator where nothing else is said.
fn threads(xml: &str) -> Result<Threads, DomainError> {
    let unreadable = |why: String| DomainError::Unreadable(why);
    let read: Xml = quick_xml::de::from_str(xml).map_err(|error| unreadable(error.to_string()))?;
    let set = |text: &str| {
        cpu_set(text).ok_or_else(|| unreadable(format!("`{text}` is no list of CPUs")))
    };
    let mut threads = Threads::new();
    if let Some(Vcpu { cpuset: Some(text), count }) = read.vcpu {
        let cpus = set(&text)?;
        let count = count.trim().parse::<u32>().unwrap_or(1).min(VCPUS_MAX);
        threads.extend((0..count).map(|number| (GuestThread::Vcpu(number), cpus.clone())));
        threads.insert(GuestThread::Emulator, cpus);
    }
    let tune = read.cputune.unwrap_or_default();
    for pin in tune.vcpus {
        threads.insert(GuestThread::Vcpu(pin.vcpu), set(&pin.cpuset)?);
    }
    for pin in tune.emulator {
        threads.insert(GuestThread::Emulator, set(&pin.cpuset)?);
    }
    for pin in tune.iothreads {
        threads.insert(GuestThread::Iothread(pin.iothread), set(&pin.cpuset)?);
    }
    Ok(threads)
}

#[cfg(test)]
#[path = "tests/repin.rs"]
mod tests;
