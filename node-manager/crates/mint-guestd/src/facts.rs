// SPDX-License-Identifier: Apache-2.0
//! What this host has for guests, from its files: memory, CPUs, network devices, disks' files.
//! Below a root that tests choose.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use mint_guests::arrival::FileFacts;
use mint_guests::ethernet::{BRIDGE, PORT};
use mint_types::CpuSet;

/// `st_blocks` counts these.
const BLOCK_BYTES: u64 = 512;
/// File systems that several hosts have at the same time.
const NETWORK: [&str; 9] =
    ["nfs", "nfs4", "cifs", "smb3", "ceph", "glusterfs", "fuse.glusterfs", "ocfs2", "gfs2"];

/// The host's files.
#[derive(Clone, Debug)]
pub(crate) struct HostFiles {
    root: PathBuf,
}

impl HostFiles {
    pub fn below(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// A path of the host, below the root.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_default()
    }

    /// Memory that a new process may have without swapping.
    pub fn free_memory_bytes(&self) -> u64 {
        let text = self.read("/proc/meminfo");
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
        let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        kib.unwrap_or(0).saturating_mul(1024)
    }

    /// CPUs that are online.
    pub fn online_cpus(&self) -> CpuSet {
        self.read("/sys/devices/system/cpu/online").trim().parse().unwrap_or_default()
    }

    /// This kernel's numbers of cores that are online.
    pub fn cpus_of(&self, apic_ids: &[u32]) -> CpuSet {
        let text = self.read("/proc/cpuinfo");
        let mut number = None;
        let found = text.lines().filter_map(|line| {
            let (key, value) = line.split_once(':')?;
            let value = value.trim().parse::<u32>().ok();
            match key.trim_end() {
                "processor" => number = value,
                "apicid" if value.is_some_and(|id| apic_ids.contains(&id)) => return number,
                _ => {}
            }
            None
        });
        found.collect()
    }

    /// NUMA nodes.
    pub fn numa_nodes(&self) -> CpuSet {
        self.read("/sys/devices/system/node/online").trim().parse().unwrap_or_default()
    }

    /// Network devices.
    pub fn network_devices(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path("/sys/class/net")) else { return Vec::new() };
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// Whether its guests' bridge is a part of the one Ethernet of all nodes.
    pub fn is_on_machine_ethernet(&self) -> bool {
        self.path(&format!("/sys/class/net/{BRIDGE}/brif/{PORT}")).exists()
    }

    /// What the file system of a folder has free for root.
    pub fn free_bytes(&self, folder: &str) -> u64 {
        rustix::fs::statvfs(self.path(folder))
            .map_or(0, |fs| fs.f_bavail.saturating_mul(fs.f_frsize))
    }

    /// What is in these files and folders, those that are there, outlives this host's death when
    /// this returns; so do the names of files.
    ///
    /// # Errors
    /// When one cannot be written to its disk.
    pub fn sync<'path>(&self, paths: impl IntoIterator<Item = &'path str>) -> io::Result<()> {
        for path in paths {
            let path = self.path(path);
            for path in [Some(path.as_path()), path.parent()].into_iter().flatten() {
                match File::open(path) {
                    Ok(file) => file.sync_all()?,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Those of the files that are there.
    pub fn files<'path>(
        &self,
        paths: impl IntoIterator<Item = &'path str>,
    ) -> BTreeMap<String, FileFacts> {
        let mounts = self.read("/proc/self/mountinfo");
        let facts = |path: &str| {
            let found = fs::metadata(self.path(path)).ok()?;
            let is_device = found.file_type().is_block_device();
            let allocated_bytes = found.blocks().saturating_mul(BLOCK_BYTES);
            let real = fs::canonicalize(self.path(path)).ok()?;
            let real = Path::new("/").join(real.strip_prefix(&self.root).unwrap_or(&real));
            Some(FileFacts { allocated_bytes, is_device, network: network(&mounts, &real) })
        };
        paths.into_iter().filter_map(|path| Some((path.to_owned(), facts(path)?))).collect()
    }
}

/// The file on its network file system, e.g. `nfs4 server:/guests/web.raw`, from
/// `/proc/self/mountinfo` (proc(5)); none where its file system is the host's own.
fn network(mounts: &str, file: &Path) -> Option<String> {
    // a later mount lies over an earlier one
    let mount =
        mounts.lines().filter_map(Mount::parse).fold(None, |best: Option<Mount>, mount| {
            let deeper = |best: &Mount| mount.point.len() >= best.point.len();
            let holds = file.starts_with(&mount.point) && best.as_ref().is_none_or(deeper);
            if holds { Some(mount) } else { best }
        })?;
    if !NETWORK.contains(&mount.kind.as_str()) {
        return None;
    }
    let rest = file.strip_prefix(&mount.point).ok()?;
    let on_server = Path::new(&mount.root).join(rest);
    Some(format!("{} {}:{}", mount.kind, mount.source, on_server.display()))
}

struct Mount {
    root: String,
    point: String,
    kind: String,
    source: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let (mut left, mut right) = (left.split(' ').skip(3), right.split(' '));
        Some(Self {
            root: plain(left.next()?),
            point: plain(left.next()?),
            kind: right.next()?.to_owned(),
            source: plain(right.next()?),
        })
    }
}

/// The kernel writes blanks and such as `\040`.
fn plain(text: &str) -> String {
    let signs = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    signs.into_iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
21 1 254:0 / / rw - ext4 /dev/vda rw
40 21 0:33 / /srv/nfs rw,relatime shared:2 - nfs4 server:/export rw,vers=4.2
41 21 0:34 /sub /srv/my\\040disks rw - nfs4 server:/other rw
42 40 254:1 / /srv/nfs/local rw - ext4 /dev/vdb rw
";

    #[test]
    fn what_is_there_is_synced_and_what_is_not_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("web.raw"), "disk").unwrap();
        let host = HostFiles::below(folder.path());
        host.sync(["/web.raw", "/gone.raw", "/no/folder"]).unwrap();
        host.sync(["/web.raw/below"]).unwrap_err();
    }

    #[test]
    fn file_on_a_network_file_system_is_named_as_its_server_does() {
        let at = |path: &str| network(MOUNTS, Path::new(path));
        assert_eq!(at("/srv/nfs/a/web.raw").as_deref(), Some("nfs4 server:/export:/a/web.raw"));
        let blank = at("/srv/my disks/web.raw");
        assert_eq!(blank.as_deref(), Some("nfs4 server:/other:/sub/web.raw"));
        for own in ["/var/web.raw", "/srv/nfs/local/web.raw", "/srv/nfsother"] {
            assert_eq!(at(own), None, "{own}");
        }
    }

    #[test]
    fn facts_of_the_host_are_read_below_its_root() {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:    2048 kB\n"),
            ("sys/devices/system/cpu/online", "0-2\n"),
            ("sys/devices/system/node/online", "0\n"),
            ("proc/cpuinfo", "processor\t: 0\napicid\t\t: 4\n\nprocessor\t: 1\napicid\t\t: 6\n"),
            ("disks/web.raw", "12345"),
        ] {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fs::create_dir_all(folder.path().join("sys/class/net/mint0")).unwrap();
        let host = HostFiles::below(folder.path());
        assert_eq!(host.free_memory_bytes(), 2 << 20);
        assert_eq!((host.online_cpus().len(), host.numa_nodes().len()), (3, 1));
        assert_eq!(host.cpus_of(&[6, 9]).to_string(), "1");
        assert_eq!(host.network_devices(), ["mint0"]);
        assert!(!host.is_on_machine_ethernet());
        fs::create_dir_all(folder.path().join("sys/class/net/mintbr0/brif/mint0.78")).unwrap();
        assert!(host.is_on_machine_ethernet());
        assert!(host.free_bytes("/disks") > 0);
        let files = host.files(["/disks/web.raw", "/disks/gone.raw"]);
        assert_eq!(files.len(), 1);
        let web = &files["/disks/web.raw"];
        assert!(web.allocated_bytes > 0 && !web.is_device && web.network.is_none(), "{web:?}");
    }
}
