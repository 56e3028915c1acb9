// SPDX-License-Identifier: Apache-2.0
//! libvirt, through its own library: the one file that knows it.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mint_guests::arrival::{CpuVerdict, Neighbour};
use mint_guests::domain::{Domain as Read, VcpuPin, element, terminal};
use mint_guests::marks::{NAMESPACE, PREFIX, mark, owners};
use mint_types::{CpuSet, GuestThread, PinChange};
use tracing::warn;
use virt::connect::Connect;
use virt::domain::{Domain, JobStats, MemoryStat, MigrateParameters};
use virt::error::{Error, ErrorDomain, ErrorNumber};
use virt::storage_vol::StorageVol;
use virt::sys;

use crate::hypervisor::{
    Figures, GuestFacts, Hypervisor, HypervisorError, Leaving, Move, Needs, Progress, Room,
};

/// Between two looks at a migration.
const LOOK: Duration = Duration::from_millis(500);
const MIB: u64 = 1 << 20;
/// Where the host's CPU is in libvirt's capabilities.
const HOST_CPU: [&str; 3] = ["capabilities", "host", "cpu"];

/// This node's libvirt. Its connection is made when it is needed, and made anew when it broke.
pub struct Libvirt {
    uri: String,
    connection: Mutex<Option<Connect>>,
}

impl Libvirt {
    /// The libvirt behind a URI, e.g. `qemu:///system`.
    pub fn new(uri: &str) -> Self {
        // else it prints each error by itself
        virt::error::clear_error_callback();
        Self { uri: uri.to_owned(), connection: Mutex::default() }
    }

    fn connect(&self) -> Result<Connect, HypervisorError> {
        let mut slot = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = slot.as_ref().filter(|open| open.is_alive().unwrap_or(false)) {
            return Ok(open.clone());
        }
        let fresh = Connect::open(Some(&self.uri))
            .map_err(|error| HypervisorError::Silent(error.message().to_owned()))?;
        *slot = Some(fresh.clone());
        Ok(fresh)
    }

    /// What the virt crate does not have, or not for all kinds of threads.
    fn virsh(&self, words: &[&str]) -> Result<(), HypervisorError> {
        let done = Command::new("virsh")
            .args(["-q", "-c", &self.uri])
            .args(words)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| HypervisorError::Said(format!("cannot run virsh: {error}")))?;
        if done.status.success() {
            return Ok(());
        }
        Err(HypervisorError::Said(String::from_utf8_lossy(&done.stderr).trim().to_owned()))
    }

    fn domain(&self, reference: &str) -> Result<Domain, HypervisorError> {
        // the library takes C strings
        if reference.is_empty() || reference.contains('\0') {
            return Err(HypervisorError::NoGuest(reference.escape_default().to_string()));
        }
        let connection = self.connect()?;
        let found = Domain::lookup_by_name(&connection, reference).or_else(|error| {
            Domain::lookup_by_uuid_string(&connection, reference).map_err(|_| error)
        });
        found.map_err(|error| match error.code() {
            ErrorNumber::NoDomain => HypervisorError::NoGuest(reference.to_owned()),
            _ => said(&error),
        })
    }
}

fn said(error: &Error) -> HypervisorError {
    let text = error.message().to_owned();
    // a libvirtd that went away
    if error.domain() == ErrorDomain::Rpc {
        HypervisorError::Silent(text)
    } else {
        HypervisorError::Said(text)
    }
}

fn facts(domain: &Domain) -> Result<GuestFacts, Error> {
    let (state, why) = domain.get_state()?;
    let info = domain.get_info()?;
    let is_active = domain.is_active()?;
    // of a guest that is coming, libvirt tells nothing but that it cannot tell
    let has_job = is_active && domain.get_job_info().map_or(true, |job| !is_idle(&job));
    Ok(GuestFacts {
        name: domain.get_name()?,
        uuid: domain.get_uuid_string()?,
        state: state_word(state),
        active: is_active,
        vcpus: info.nr_virt_cpu,
        memory_bytes: info.max_mem.saturating_mul(1024),
        persistent: domain.is_persistent()?,
        autostart: domain.get_autostart().unwrap_or(false),
        has_job,
        is_stuck: state == sys::VIR_DOMAIN_PAUSED && !has_job && is_for_migration(why),
    })
}

fn is_for_migration(why: i32) -> bool {
    u32::try_from(why).is_ok_and(|why| why == sys::VIR_DOMAIN_PAUSED_MIGRATION)
}

/// As virsh says it.
fn state_word(state: sys::virDomainState) -> &'static str {
    match state {
        sys::VIR_DOMAIN_RUNNING => "running",
        sys::VIR_DOMAIN_BLOCKED => "idle",
        sys::VIR_DOMAIN_PAUSED => "paused",
        sys::VIR_DOMAIN_SHUTDOWN => "in shutdown",
        sys::VIR_DOMAIN_SHUTOFF => "shut off",
        sys::VIR_DOMAIN_CRASHED => "crashed",
        sys::VIR_DOMAIN_PMSUSPENDED => "pmsuspended",
        _ => "no state",
    }
}

/// Whether nothing is done with the guest in the background.
fn is_idle(job: &JobStats) -> bool {
    u32::try_from(job.r#type).is_ok_and(|kind| kind == sys::VIR_DOMAIN_JOB_NONE)
}

fn progress(job: &JobStats) -> Progress {
    let memory = job.mem_remaining.unwrap_or(0);
    let page = job.mem_page_size.unwrap_or(4096);
    Progress {
        elapsed_ms: job.time_elapsed.unwrap_or(0),
        rest_bytes: memory.saturating_add(job.disk_remaining.unwrap_or(0)),
        total_bytes: job.mem_total.unwrap_or(0).saturating_add(job.disk_total.unwrap_or(0)),
        disk_sent_bytes: job.disk_processed.unwrap_or(0),
        rate_bytes_s: job.mem_bps.unwrap_or(0).saturating_add(job.disk_bps.unwrap_or(0)),
        dirty_bytes_s: job.mem_dirty_rate.unwrap_or(0).saturating_mul(page),
        rounds: job.mem_iteration.unwrap_or(0),
        is_post_copy: false,
    }
}

/// CPUs that a vCPU of a running guest has for itself.
fn pins(connection: &Connect) -> Result<CpuSet, Error> {
    let mut pinned = BTreeSet::new();
    for domain in connection.list_all_domains(sys::VIR_CONNECT_LIST_DOMAINS_ACTIVE)? {
        // one that ends meanwhile has no pins
        let Ok(xml) = domain.get_xml_desc(0) else { continue };
        let Ok(read) = Read::parse(&xml) else { continue };
        for pin in owners(&xml, &read).iter().filter(|pin| pin.cpus.len() == 1) {
            pinned.extend(pin.cpus.iter());
        }
    }
    Ok(pinned.into_iter().collect())
}

/// Folders of the pools that are active. libvirt makes the files that are copied here, unless
/// it believes that they are there: so pools that get some are looked through again first.
fn pools(connection: &Connect, wanted: &[String]) -> Result<Vec<String>, Error> {
    let active = sys::VIR_CONNECT_LIST_STORAGE_POOLS_ACTIVE;
    let mut folders = Vec::new();
    for pool in connection.list_all_storage_pools(active)? {
        let Ok(xml) = pool.get_xml_desc(0) else { continue };
        let Some(folder) = pool_folder(&xml) else { continue };
        let looked = if wanted.contains(&folder) { pool.refresh(0).map(drop) } else { Ok(()) };
        if let Err(error) = looked {
            warn!(folder, error = error.message(), "a storage pool is not looked through again");
        }
        folders.push(folder);
    }
    Ok(folders)
}

/// The folder in a pool's XML; none of a pool that has another kind of target.
fn pool_folder(xml: &str) -> Option<String> {
    let path = element(xml, &["pool", "target", "path"])?;
    let text = path.strip_prefix("<path>")?.strip_suffix("</path>")?;
    text.starts_with('/').then(|| text.to_owned())
}

impl Hypervisor for Libvirt {
    fn guests(&self) -> Result<Vec<GuestFacts>, HypervisorError> {
        let domains = self.connect()?.list_all_domains(0).map_err(|error| said(&error))?;
        let mut all = Vec::new();
        for domain in domains {
            match facts(&domain) {
                Ok(facts) => all.push(facts),
                // it went while we looked
                Err(error) if error.code() == ErrorNumber::NoDomain => {}
                Err(error) => return Err(said(&error)),
            }
        }
        all.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(all)
    }

    fn guest(&self, reference: &str) -> Result<GuestFacts, HypervisorError> {
        facts(&self.domain(reference)?).map_err(|error| said(&error))
    }

    fn define(&self, xml: &str) -> Result<(), HypervisorError> {
        let connection = self.connect()?;
        let validate = sys::VIR_DOMAIN_DEFINE_VALIDATE;
        Domain::define_xml_flags(&connection, xml, validate).map(drop).map_err(|error| said(&error))
    }

    fn start(&self, reference: &str) -> Result<(), HypervisorError> {
        self.domain(reference)?.create().map(drop).map_err(|error| said(&error))
    }

    fn resume(&self, reference: &str) -> Result<(), HypervisorError> {
        self.domain(reference)?.resume().map(drop).map_err(|error| said(&error))
    }

    fn shutdown(&self, reference: &str) -> Result<(), HypervisorError> {
        self.domain(reference)?.shutdown().map(drop).map_err(|error| said(&error))
    }

    fn destroy(&self, reference: &str) -> Result<(), HypervisorError> {
        self.domain(reference)?.destroy().map_err(|error| said(&error))
    }

    fn console(&self, reference: &str) -> Result<String, HypervisorError> {
        let xml = self.domain(reference)?.get_xml_desc(0).map_err(|error| said(&error))?;
        terminal(&xml).ok_or_else(|| {
            let text = "it has no serial console on a pty (<console type='pty'/>)";
            HypervisorError::Said(text.to_owned())
        })
    }

    fn definition(&self, reference: &str) -> Result<String, HypervisorError> {
        let domain = self.domain(reference)?;
        let flags = sys::VIR_DOMAIN_XML_INACTIVE | sys::VIR_DOMAIN_XML_SECURE;
        if !domain.is_persistent().map_err(|error| said(&error))? {
            let text = format!("guest {reference} has no definition: it is gone when it ends");
            return Err(HypervisorError::Said(text));
        }
        domain.get_xml_desc(flags).map_err(|error| said(&error))
    }

    fn leaving(&self, reference: &str) -> Result<Leaving, HypervisorError> {
        let (connection, domain) = (self.connect()?, self.domain(reference)?);
        let read = || -> Result<Leaving, Error> {
            let guest = facts(&domain)?;
            let inactive = sys::VIR_DOMAIN_XML_INACTIVE | sys::VIR_DOMAIN_XML_MIGRATABLE;
            let persistent_xml =
                guest.persistent.then(|| domain.get_xml_desc(inactive)).transpose()?;
            Ok(Leaving {
                host_cpu_xml: element(&connection.get_capabilities()?, &HOST_CPU)
                    .map(str::to_owned),
                xml: domain.get_xml_desc(sys::VIR_DOMAIN_XML_MIGRATABLE)?,
                persistent_xml,
                guest,
            })
        };
        read().map_err(|error| said(&error))
    }

    fn resident_bytes(&self, reference: &str) -> Result<u64, HypervisorError> {
        let stats = self.domain(reference)?.memory_stats(0);
        let resident = |stats: Vec<MemoryStat>| {
            stats.into_iter().find(|stat| stat.tag == sys::VIR_DOMAIN_MEMORY_STAT_RSS)
        };
        // one that cannot tell is taken for one that has touched nothing yet
        Ok(stats.ok().and_then(resident).map_or(0, |stat| stat.val.saturating_mul(1024)))
    }

    fn pin(&self, reference: &str, change: &PinChange) -> Result<(), HypervisorError> {
        let uuid = self.domain(reference)?.get_uuid_string().map_err(|error| said(&error))?;
        let (cpus, when) =
            (change.now.to_string(), if change.is_defined { "--config" } else { "--live" });
        match change.thread {
            GuestThread::Vcpu(vcpu) => {
                self.virsh(&["vcpupin", &uuid, &vcpu.to_string(), &cpus, when])
            }
            GuestThread::Emulator => self.virsh(&["emulatorpin", &uuid, &cpus, when]),
            GuestThread::Iothread(thread) => {
                self.virsh(&["iothreadpin", &uuid, &thread.to_string(), &cpus, when])
            }
        }
    }

    fn mark(&self, reference: &str, pins: &[VcpuPin]) -> Result<(), HypervisorError> {
        let element = (!pins.is_empty()).then(|| mark(pins, false));
        let kind = i32::try_from(sys::VIR_DOMAIN_METADATA_ELEMENT).unwrap_or_default();
        let (prefix, space) = (Some(PREFIX), Some(NAMESPACE));
        let live = sys::VIR_DOMAIN_AFFECT_LIVE;
        let domain = self.domain(reference)?;
        let done = domain.set_metadata(kind, element.as_deref(), prefix, space, live);
        done.map(drop).map_err(|error| said(&error))
    }

    fn room(&self, needs: &Needs) -> Result<Room, HypervisorError> {
        let connection = self.connect()?;
        let cpu = match needs.cpu_xml.as_deref().map(|xml| connection.compare_cpu(xml, 0)) {
            None => CpuVerdict::Fits,
            Some(Ok(sys::VIR_CPU_COMPARE_IDENTICAL | sys::VIR_CPU_COMPARE_SUPERSET)) => {
                CpuVerdict::Fits
            }
            Some(Ok(sys::VIR_CPU_COMPARE_INCOMPATIBLE)) => {
                CpuVerdict::Differs("this host's CPU lacks some of it".to_owned())
            }
            Some(Err(error)) if error.code() == ErrorNumber::CpuIncompatible => {
                CpuVerdict::Differs(error.message().to_owned())
            }
            Some(_) => CpuVerdict::Unknown,
        };
        let machine = connection
            .get_domain_capabilities(
                None,
                Some("x86_64"),
                Some(&needs.machine),
                Some(&needs.domain_type),
                0,
            )
            .map(drop)
            .map_err(|error| error.message().to_owned());
        let read = || -> Result<Room, Error> {
            let mut guests = Vec::new();
            for domain in connection.list_all_domains(0)? {
                guests.push(Neighbour {
                    name: domain.get_name()?,
                    uuid: domain.get_uuid_string()?,
                    is_active: domain.is_active()?,
                });
            }
            Ok(Room {
                pinned: pins(&connection)?,
                guests,
                networks: connection.list_networks()?,
                pools: pools(&connection, &needs.folders)?,
                cpu,
                machine,
            })
        };
        read().map_err(|error| said(&error))
    }

    fn migrate(&self, what: &Move, tell: &mut dyn FnMut(Progress)) -> Result<(), HypervisorError> {
        let domain = self.domain(&what.name)?;
        if let Some(downtime_ms) = what.downtime_ms {
            domain.migrate_set_max_downtime(downtime_ms, 0).map_err(|error| said(&error))?;
        }
        let (parameters, flags) = how(what);
        let (done, ended) = channel();
        let mut is_post_copy = false;
        std::thread::scope(|scope| {
            let moving = domain.clone();
            scope.spawn(move || {
                let result = moving.migrate_to_uri3(Some(&what.to_uri), parameters, flags);
                // the receiver is in this scope
                _ = done.send(result);
            });
            loop {
                match ended.recv_timeout(LOOK) {
                    Ok(result) => return result.map_err(|error| said(&error)),
                    Err(RecvTimeoutError::Timeout) => {
                        let Ok(job) = domain.get_job_stats(0) else { continue };
                        let mut now = progress(&job);
                        let is_due = what
                            .post_copy_after_s
                            .is_some_and(|after| now.elapsed_ms >= after.saturating_mul(1000));
                        // its memory is on its way: before that there is nothing to switch
                        if is_due && !is_post_copy && now.rounds > 0 {
                            is_post_copy = self.virsh(&["migrate-postcopy", &what.name]).is_ok();
                        }
                        now.is_post_copy = is_post_copy;
                        tell(now);
                    }
                    Err(RecvTimeoutError::Disconnected) => {
                        let text = "the thread that migrates panicked".to_owned();
                        return Err(HypervisorError::Said(text));
                    }
                }
            }
        })
    }

    fn cancel(&self, reference: &str) -> Result<(), HypervisorError> {
        let uuid = self.domain(reference)?.get_uuid_string().map_err(|error| said(&error))?;
        self.virsh(&["domjobabort", &uuid])
    }

    fn undefine(&self, reference: &str) -> Result<(), HypervisorError> {
        // its firmware's settings are a file like its disks
        let keep = sys::VIR_DOMAIN_UNDEFINE_KEEP_NVRAM;
        self.domain(reference)?.undefine_flags(keep).map_err(|error| said(&error))
    }

    fn drop_disk(&self, path: &str) -> Result<(), HypervisorError> {
        let connection = self.connect()?;
        for domain in connection.list_all_domains(0).map_err(|error| said(&error))? {
            // one that ends meanwhile has no disks
            let Ok(xml) = domain.get_xml_desc(0) else { continue };
            let read =
                Read::parse(&xml).map_err(|error| HypervisorError::Said(error.to_string()))?;
            let mut files = read.disks.iter().map(|disk| &disk.path).chain([&read.nvram]);
            if files.any(|file| file.as_deref() == Some(path)) {
                let text = format!("{path} is of guest {}, too", read.name);
                return Err(HypervisorError::Said(text));
            }
        }
        // through libvirt, which else takes the file for one that is still there
        match StorageVol::lookup_by_path(&connection, path) {
            Ok(volume) => volume.delete(0).map_err(|error| said(&error)),
            Err(_) => match std::fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    Err(HypervisorError::Said(format!("{path}: {error}")))
                }
                _ => Ok(()),
            },
        }
    }

    fn arrived(&self, reference: &str) -> Result<Option<Figures>, HypervisorError> {
        let domain = self.domain(reference)?;
        let job = domain
            .get_job_stats(sys::VIR_DOMAIN_JOB_STATS_COMPLETED)
            .map_err(|error| said(&error))?;
        if is_idle(&job) {
            return Ok(None);
        }
        Ok(Some(Figures {
            total_ms: job.time_elapsed.unwrap_or(0),
            downtime_ms: job.downtime.unwrap_or(0),
            memory_sent_bytes: job.mem_processed.unwrap_or(0),
            disk_sent_bytes: job.disk_processed.unwrap_or(0),
            rounds: job.mem_iteration.unwrap_or(0),
        }))
    }
}

/// libvirt's parameters and flags of a migration.
fn how(what: &Move) -> (MigrateParameters, u32) {
    let mut flags = sys::VIR_MIGRATE_LIVE
        | sys::VIR_MIGRATE_PEER2PEER
        | sys::VIR_MIGRATE_UNDEFINE_SOURCE
        | sys::VIR_MIGRATE_ABORT_ON_ERROR;
    if what.persistent_xml.is_some() {
        flags |= sys::VIR_MIGRATE_PERSIST_DEST;
    }
    if !what.disks.is_empty() {
        flags |= sys::VIR_MIGRATE_NON_SHARED_DISK;
    }
    if what.parallel.is_some() {
        flags |= sys::VIR_MIGRATE_PARALLEL;
    }
    if what.compress {
        flags |= sys::VIR_MIGRATE_COMPRESSED;
    }
    if what.post_copy_after_s.is_some() {
        flags |= sys::VIR_MIGRATE_POSTCOPY;
    }
    if what.tls {
        flags |= sys::VIR_MIGRATE_TLS;
    }
    let parameters = MigrateParameters {
        // libvirt counts in MiB a second
        bandwidth: what.bandwidth_bytes_s.map(|bytes| bytes.div_ceil(MIB).max(1)),
        dest_xml: Some(what.xml.clone()),
        persist_xml: what.persistent_xml.clone(),
        migrate_disks: what.disks.clone(),
        compression: what.compress.then(|| "zstd".to_owned()),
        parallel_connections: what.parallel.and_then(|count| i32::try_from(count).ok()),
        listen_address: Some(what.to_address.clone()),
        uri: Some(format!("tcp://{}", what.to_address)),
        ..MigrateParameters::default()
    };
    (parameters, flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_of_a_pool_is_read() {
        let pool = |target: &str| format!("<pool type='dir'><target>{target}</target></pool>");
        let folder = pool_folder(&pool("<path>/var/lib/mint</path>"));
        assert_eq!(folder.as_deref(), Some("/var/lib/mint"));
        assert_eq!(pool_folder(&pool("<path>vg0</path>")), None);
        assert_eq!(pool_folder(&pool("")), None);
    }

    #[test]
    fn limits_of_a_migration_reach_libvirt_in_its_units() {
        let what = Move {
            name: "web".into(),
            to_uri: "qemu+ssh://node2/system".into(),
            to_address: "10.0.0.12".into(),
            tls: false,
            xml: "<domain/>".into(),
            persistent_xml: None,
            disks: Vec::new(),
            bandwidth_bytes_s: Some(3 * MIB + 1),
            downtime_ms: None,
            parallel: None,
            compress: false,
            post_copy_after_s: None,
        };
        let (parameters, flags) = how(&what);
        assert_eq!(parameters.bandwidth, Some(4));
        assert_eq!(parameters.uri.as_deref(), Some("tcp://10.0.0.12"));
        let copies = sys::VIR_MIGRATE_NON_SHARED_DISK;
        assert_eq!(flags & (copies | sys::VIR_MIGRATE_PERSIST_DEST | sys::VIR_MIGRATE_PARALLEL), 0);
        let more = Move {
            persistent_xml: Some("<domain/>".into()),
            disks: vec!["vda".into()],
            parallel: Some(2),
            compress: true,
            ..what.clone()
        };
        assert_eq!(flags & (sys::VIR_MIGRATE_POSTCOPY | sys::VIR_MIGRATE_COMPRESSED), 0);
        assert_eq!((flags & sys::VIR_MIGRATE_TLS, parameters.compression), (0, None));
        let (_, flags) = how(&Move { post_copy_after_s: Some(0), tls: true, ..what });
        assert_ne!(flags & sys::VIR_MIGRATE_POSTCOPY, 0);
        assert_ne!(flags & sys::VIR_MIGRATE_TLS, 0);
        let (parameters, flags) = how(&more);
        assert_eq!(parameters.parallel_connections, Some(2));
        assert_eq!(parameters.compression.as_deref(), Some("zstd"));
        let streams = sys::VIR_MIGRATE_PARALLEL | sys::VIR_MIGRATE_COMPRESSED;
        let all = copies | sys::VIR_MIGRATE_PERSIST_DEST | streams;
        assert_eq!(flags & all, all);
    }
}
