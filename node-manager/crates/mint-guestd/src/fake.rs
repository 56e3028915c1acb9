// SPDX-License-Identifier: Apache-2.0
//! A hypervisor of memory, for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::Duration;

use mint_guests::arrival::{CpuVerdict, Neighbour};
use mint_guests::domain::VcpuPin;
use mint_guests::marks::mark;
use mint_types::{CpuSet, PinChange};

use crate::hypervisor::{
    Figures, GuestFacts, Hypervisor, HypervisorError, Leaving, Move, Needs, Progress, Room,
};

/// What the hypervisors of a test have.
#[derive(Default)]
pub(crate) struct Fake {
    /// By name: its facts and its XML.
    pub guests: Mutex<BTreeMap<String, (GuestFacts, String)>>,
    /// Where guests that move go, as their address says it; else libvirt says no.
    pub others: Mutex<BTreeMap<String, Arc<Fake>>>,
    /// Terminals of guests' consoles, by name.
    pub consoles: Mutex<BTreeMap<String, String>>,
    /// How guests left: where libvirt was reached, and whether under TLS.
    pub ways: Mutex<Vec<String>>,
    /// What was done, in words.
    pub log: Mutex<Vec<String>>,
    /// Guests that get no other CPUs.
    pub unpinnable: Mutex<BTreeSet<String>>,
    /// It does not answer.
    pub is_silent: Mutex<bool>,
    /// A migration does not end before it is cancelled: none has been yet, or one.
    pub cancelled: Mutex<Option<bool>>,
    /// Its QEMU has sent all: it is cancelled in vain, and fails when the other one has ended.
    pub has_sent_all: Mutex<bool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fake {
    /// Defines a guest.
    pub fn define(&self, name: &str, is_active: bool, xml: &str) {
        let facts = GuestFacts {
            name: name.into(),
            uuid: format!("uuid-{name}"),
            state: if is_active { "running" } else { "shut off" },
            active: is_active,
            vcpus: 1,
            memory_bytes: 128 << 20,
            persistent: true,
            autostart: false,
            has_job: false,
            is_stuck: false,
        };
        lock(&self.guests).insert(name.into(), (facts, xml.into()));
    }

    pub fn has(&self, name: &str) -> bool {
        lock(&self.guests).contains_key(name)
    }

    fn find(&self, reference: &str) -> Result<(GuestFacts, String), HypervisorError> {
        if *lock(&self.is_silent) {
            return Err(HypervisorError::Silent("no".into()));
        }
        let guests = lock(&self.guests);
        let found = guests
            .values()
            .find(|(facts, _)| [&facts.name, &facts.uuid].contains(&&reference.to_owned()));
        found.cloned().ok_or_else(|| HypervisorError::NoGuest(reference.into()))
    }

    fn set(&self, reference: &str, is_active: bool) -> Result<(), HypervisorError> {
        let (facts, xml) = self.find(reference)?;
        if facts.active == is_active {
            return Err(HypervisorError::Said("it is so already".into()));
        }
        self.define(&facts.name, is_active, &xml);
        if let Some((new, _)) = lock(&self.guests).get_mut(&facts.name) {
            new.uuid = facts.uuid;
        }
        Ok(())
    }
}

impl Hypervisor for Fake {
    fn guests(&self) -> Result<Vec<GuestFacts>, HypervisorError> {
        if *lock(&self.is_silent) {
            return Err(HypervisorError::Silent("no".into()));
        }
        Ok(lock(&self.guests).values().map(|(facts, _)| facts.clone()).collect())
    }

    fn guest(&self, reference: &str) -> Result<GuestFacts, HypervisorError> {
        Ok(self.find(reference)?.0)
    }

    fn define(&self, xml: &str) -> Result<(), HypervisorError> {
        let name = mint_guests::domain::element(xml, &["domain", "name"]);
        let name = name.and_then(|name| name.strip_prefix("<name>")?.strip_suffix("</name>"));
        let name = name.ok_or_else(|| HypervisorError::Said("it has no name".into()))?;
        Fake::define(self, name, false, xml);
        Ok(())
    }

    fn start(&self, reference: &str) -> Result<(), HypervisorError> {
        self.set(reference, true)
    }

    fn resume(&self, reference: &str) -> Result<(), HypervisorError> {
        let (facts, xml) = self.find(reference)?;
        self.define(&facts.name, true, &xml);
        Ok(())
    }

    fn shutdown(&self, reference: &str) -> Result<(), HypervisorError> {
        lock(&self.log).push(format!("shutdown {reference}"));
        self.find(reference).map(drop)
    }

    fn destroy(&self, reference: &str) -> Result<(), HypervisorError> {
        self.set(reference, false)
    }

    fn console(&self, reference: &str) -> Result<String, HypervisorError> {
        let (facts, _) = self.find(reference)?;
        let path = lock(&self.consoles).get(&facts.name).cloned();
        path.ok_or_else(|| HypervisorError::Said("it has no console".into()))
    }

    fn definition(&self, reference: &str) -> Result<String, HypervisorError> {
        self.find(reference).map(|(_, xml)| xml)
    }

    fn leaving(&self, reference: &str) -> Result<Leaving, HypervisorError> {
        let (guest, xml) = self.find(reference)?;
        let persistent_xml = Some(xml.clone());
        Ok(Leaving { guest, xml, persistent_xml, host_cpu_xml: None })
    }

    fn resident_bytes(&self, reference: &str) -> Result<u64, HypervisorError> {
        self.find(reference).map(|_| 0)
    }

    fn pin(&self, reference: &str, change: &PinChange) -> Result<(), HypervisorError> {
        let (facts, _) = self.find(reference)?;
        if lock(&self.unpinnable).contains(&facts.name) {
            return Err(HypervisorError::Said("it is stubborn".into()));
        }
        lock(&self.log).push(format!("{}: {change}", facts.name));
        Ok(())
    }

    fn mark(&self, reference: &str, pins: &[VcpuPin]) -> Result<(), HypervisorError> {
        let (facts, _) = self.find(reference)?;
        lock(&self.log).push(format!("{}: {}", facts.name, mark(pins, false)));
        Ok(())
    }

    fn room(&self, needs: &Needs) -> Result<Room, HypervisorError> {
        let neighbour = |(facts, _): &(GuestFacts, String)| Neighbour {
            name: facts.name.clone(),
            uuid: facts.uuid.clone(),
            is_active: facts.active,
        };
        self.guests()?;
        Ok(Room {
            pinned: CpuSet::default(),
            guests: lock(&self.guests).values().map(neighbour).collect(),
            networks: Vec::new(),
            pools: Vec::new(),
            cpu: CpuVerdict::Fits,
            machine: if needs.domain_type == "kvm" { Ok(()) } else { Err("no".into()) },
        })
    }

    fn migrate(
        &self,
        what: &Move,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), HypervisorError> {
        let (facts, _) = self.find(&what.name)?;
        let (total_bytes, disk_sent_bytes) = (8 << 20, 3 << 20);
        let rest_bytes = total_bytes / 2;
        progress(Progress { total_bytes, rest_bytes, disk_sent_bytes, ..Progress::default() });
        // the copies end
        progress(Progress { total_bytes, ..Progress::default() });
        while let Some(is_cancelled) = *lock(&self.cancelled) {
            if *lock(&self.has_sent_all) {
                let other = lock(&self.others).get(&what.to_address).cloned();
                if other.is_none_or(|other| other.find(&what.name).is_ok_and(|it| !it.0.active)) {
                    return Err(HypervisorError::Said("the other side has ended".into()));
                }
                sleep(Duration::from_millis(5));
                continue;
            }
            if is_cancelled {
                return Err(HypervisorError::Said("canceled by client".into()));
            }
            sleep(Duration::from_millis(5));
        }
        lock(&self.ways).push(format!("{} tls={}", what.to_uri, what.tls));
        let other = lock(&self.others).get(&what.to_address).cloned();
        let other = other.ok_or_else(|| HypervisorError::Said("the wire is cut".into()))?;
        other.define(&facts.name, true, &what.xml);
        lock(&self.guests).remove(&facts.name);
        Ok(())
    }

    fn cancel(&self, reference: &str) -> Result<(), HypervisorError> {
        self.find(reference)?;
        match &mut *lock(&self.cancelled) {
            None => Err(HypervisorError::Said("no job is active".into())),
            Some(is_cancelled) => {
                *is_cancelled = true;
                Ok(())
            }
        }
    }

    fn undefine(&self, reference: &str) -> Result<(), HypervisorError> {
        let (facts, _) = self.find(reference)?;
        if facts.active {
            return Err(HypervisorError::Said("it has a process".into()));
        }
        lock(&self.guests).remove(&facts.name);
        Ok(())
    }

    fn drop_disk(&self, path: &str) -> Result<(), HypervisorError> {
        lock(&self.log).push(format!("dropped {path}"));
        Ok(())
    }

    fn arrived(&self, reference: &str) -> Result<Option<Figures>, HypervisorError> {
        self.find(reference)?;
        Ok(Some(Figures { total_ms: 900, downtime_ms: 40, ..Figures::default() }))
    }
}
