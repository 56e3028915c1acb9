// SPDX-License-Identifier: Apache-2.0
//! Guests that run on this host, from libvirt's own records of them: without libvirt, so that each second is fine.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use quick_xml::Reader;
use quick_xml::events::Event;

use crate::domain::{Domain, VcpuPin, element};
use crate::marks::{marked, owners};

/// Where libvirt has a record of each guest that runs.
const RECORDS: &str = "run/libvirt/qemu";

/// A guest with a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Running {
    /// Its UUID.
    pub uuid: String,
    /// Its name.
    pub name: String,
    /// Process of its QEMU.
    pub qemu: u32,
    /// vCPUs that its owner keeps to some CPUs.
    pub pins: Vec<VcpuPin>,
    /// Those that a layout keeps.
    pub marked: Vec<VcpuPin>,
    /// Whether its memory cannot go to another NUMA node: a device of the host has it, it is locked, or of huge pages.
    pub is_fixed: bool,
    /// Whether it is still on its way here, by a migration.
    pub is_coming: bool,
}

/// What was read of a host's records: one that has not changed is not read again.
#[derive(Debug, Default)]
pub struct Records(BTreeMap<PathBuf, (Stamp, Option<Running>)>);

/// A file that has another one has changed.
type Stamp = (SystemTime, u64, u64);

impl Records {
    /// All guests that run, by their UUIDs; `root` is `/`, or a folder with a copy of the files in tests. One whose
    /// record cannot be read, as it is about to end, is left out.
    pub fn look(&mut self, root: &Path) -> Vec<Running> {
        let entries = std::fs::read_dir(root.join(RECORDS)).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        let mut now = BTreeMap::new();
        for path in paths.filter(|path| path.extension().is_some_and(|end| end == "xml")) {
            let Some(stamp) = stamp(&path) else { continue };
            let known = self.0.remove(&path).filter(|(known, _)| *known == stamp);
            let fresh = || std::fs::read_to_string(&path).ok().and_then(|text| read(&text));
            let found = known.map_or_else(fresh, |(_, found)| found);
            now.insert(path, (stamp, found));
        }
        self.0 = now;
        let mut found: Vec<Running> = self.0.values().filter_map(|(_, one)| one.clone()).collect();
        found.sort_by(|one, other| one.uuid.cmp(&other.uuid));
        found
    }
}

/// libvirt writes a record anew under another name, and puts it in the place of the last.
fn stamp(path: &Path) -> Option<Stamp> {
    let of = std::fs::metadata(path).ok()?;
    Some((of.modified().ok()?, of.ino(), of.len()))
}

/// All guests that run, read once.
pub fn running(root: &Path) -> Vec<Running> {
    Records::default().look(root)
}

fn read(record: &str) -> Option<Running> {
    let xml = element(record, &["domstatus", "domain"])?;
    let domain = Domain::parse(xml).ok()?;
    let locked = element(xml, &["domain", "memoryBacking", "locked"]).is_some();
    Some(Running {
        pins: owners(xml, &domain),
        marked: marked(xml),
        uuid: domain.uuid?,
        name: domain.name,
        qemu: process(record)?,
        is_coming: is_coming(record),
        is_fixed: locked || domain.has_huge_pages || !domain.passed.is_empty(),
    })
}

/// libvirt names the job in the record until all that comes is there.
fn is_coming(record: &str) -> bool {
    let job = |element: &str| {
        let mut reader = Reader::from_str(element);
        let (Event::Start(tag) | Event::Empty(tag)) = reader.read_event().ok()? else {
            return None;
        };
        Some(tag.try_get_attribute("async").ok()??.unescape_value().ok()?.into_owned())
    };
    element(record, &["domstatus", "job"]).and_then(job).is_some_and(|job| job == "migration in")
}

/// Of the record's first element.
fn process(record: &str) -> Option<u32> {
    let mut reader = Reader::from_str(record);
    loop {
        match reader.read_event().ok()? {
            Event::Start(tag) => {
                let pid = tag.try_get_attribute("pid").ok()??;
                return pid.unescape_value().ok()?.trim().parse().ok();
            }
            Event::Eof => return None,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::tests::WEB;

    #[test]
    fn records_that_can_be_read_are_guests() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(RECORDS);
        std::fs::create_dir_all(&folder).unwrap();
        let put = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        let record = |pid: &str, domain: &str| {
            format!("<!-- by libvirt -->\n<domstatus state='running' {pid}>\n{domain}</domstatus>")
        };
        put("web.xml", &record("reason='booted' pid='4711'", WEB));
        put("ending.xml", &record("", WEB));
        put("broken.xml", "<domstatus pid='1'>");
        put("web.pid", "4711");
        let found = running(root.path());
        let [web] = &found[..] else { panic!("{found:?}") };
        let parsed = Domain::parse(WEB).unwrap();
        assert_eq!(
            (Some(&web.uuid), &web.name, web.qemu),
            (parsed.uuid.as_ref(), &parsed.name, 4711)
        );
        assert_eq!(web.pins, parsed.vcpu_pins);
        assert_eq!(web.is_fixed, parsed.has_huge_pages || !parsed.passed.is_empty());
        assert_eq!(running(Path::new("/nowhere")), []);
    }

    #[test]
    fn pins_of_a_layout_are_not_its_owners() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(RECORDS);
        std::fs::create_dir_all(&folder).unwrap();
        let free = "<domain type='kvm'><name>a</name><uuid>u</uuid><memory>1024</memory></domain>";
        let kept = crate::pins::keep_to(free, &["1-2".parse().unwrap()]).unwrap();
        let record = format!("<domstatus pid='9'>{kept}</domstatus>");
        std::fs::write(folder.join("a.xml"), record).unwrap();
        let found = &running(root.path())[0];
        assert_eq!((found.pins.len(), found.marked.len()), (0, 1));
    }

    #[test]
    fn guest_comes_as_long_as_its_record_names_that_job() {
        let record =
            |job: &str| format!("<domstatus state='paused' pid='7'>{job}{WEB}</domstatus>");
        let is_coming = |job: &str| read(&record(job)).unwrap().is_coming;
        // as libvirt writes it
        assert!(is_coming("<job type='none' async='migration in' phase='prepare' flags='0x0'/>"));
        assert!(is_coming("<job type='none' async='migration in'><temp/></job>"));
        for job in ["", "<job type='modify'/>", "<job type='none' async='migration out'/>"] {
            assert!(!is_coming(job), "{job}");
        }
    }

    #[test]
    fn record_that_changes_or_goes_is_seen() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join(RECORDS);
        std::fs::create_dir_all(&folder).unwrap();
        let put = |pid: u32| {
            let text = format!("<domstatus pid='{pid}'>{WEB}</domstatus>");
            std::fs::write(folder.join("new"), text).unwrap();
            std::fs::rename(folder.join("new"), folder.join("web.xml")).unwrap();
        };
        let mut records = Records::default();
        let mut qemus =
            || -> Vec<u32> { records.look(root.path()).iter().map(|one| one.qemu).collect() };
        assert!(qemus().is_empty());
        put(7);
        assert_eq!((qemus(), qemus()), (vec![7], vec![7]));
        put(8);
        assert_eq!(qemus(), [8]);
        std::fs::remove_file(folder.join("web.xml")).unwrap();
        assert!(qemus().is_empty());
    }
}
