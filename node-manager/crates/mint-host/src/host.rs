// SPDX-License-Identifier: Apache-2.0
//! What this node's own kernel says about its devices in sysfs and procfs:
//! drivers, users, IOMMU groups. A trait, and the real one takes the root of
//! the tree as an argument: tests give it a folder.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use mint_types::{Bdf, BlockPages, Load, PagesOfKind, is_driver_name};

use crate::tree::{Tree, names};
use crate::{load, pages};

/// What is said of a disk whose user cannot be named.
const HELD: &str = "is held by a file system or another exclusive user";

/// Facts of this node's own devices, and their drivers.
#[expect(clippy::missing_errors_doc, reason = "each fails when sysfs says so")]
pub trait Host: Send + Sync {
    /// Driver that is bound to the function.
    fn driver(&self, bdf: Bdf) -> Option<String>;
    /// Who uses the function, in words: empty when it can be given away.
    fn users(&self, bdf: Bdf) -> Vec<String>;
    /// Other functions of the same IOMMU group, without bridges.
    fn group_peers(&self, bdf: Bdf) -> Vec<Bdf>;
    /// Whether a memory block of this node holds only what its kernel can move: one of the
    /// movable zone. Such a block can be given away.
    fn is_movable(&self, block: u32) -> bool;
    /// What in the memory block at these addresses its kernel cannot move now: one without
    /// any can most likely be given away, too. None if the kernel does not tell.
    fn immovable(&self, phys: Range<u64>) -> Option<Vec<PagesOfKind>>;
    /// What keeps the memory block at these addresses where it is, after its kernel tried
    /// in vain to empty it, until the time was over or not; none where it does not tell.
    fn block_pages(&self, phys: Range<u64>, timed_out: bool) -> Option<BlockPages>;
    /// Guests' vCPUs that may run on that core alone, in words; `apic_id` names it.
    fn pinned_vcpus(&self, apic_id: u32) -> Vec<String>;
    /// What this node uses.
    fn load(&self) -> Load;
    /// Takes the driver away from the function.
    fn unbind(&self, bdf: Bdf) -> io::Result<()>;
    /// Gives the function to that driver, unless it has one already.
    fn bind(&self, bdf: Bdf, driver: Option<&str>) -> io::Result<()>;
}

/// The kernel's parameter `memory_hotplug.online_policy`.
const ONLINE_POLICY: &str = "sys/module/memory_hotplug/parameters/online_policy";

/// The running system's trees.
#[derive(Debug, Clone)]
pub struct SysHost {
    tree: Tree,
}

impl SysHost {
    /// `root` is `/`, or a folder with a copy of the files in tests.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { tree: Tree::new(root) }
    }

    /// Has the kernel online memory as movable where the writer of a block's `state` leaves
    /// the choice to it (`online`). By its own rule a block joins the zone of its neighbours,
    /// or the normal zone: what came at runtime, and was taken offline and online again by
    /// hand, would never leave the node any more.
    ///
    /// # Errors
    /// When the kernel has no such parameter or refuses.
    pub fn online_as_movable(&self) -> io::Result<()> {
        self.write(&self.tree.path(ONLINE_POLICY), "auto-movable")
    }

    fn function(&self, bdf: Bdf) -> PathBuf {
        self.tree.path(format!("sys/bus/pci/devices/{bdf}"))
    }

    /// Members of a class (`block`, `net`) whose device is this function.
    fn class_members(&self, class: &str, bdf: Bdf) -> Vec<String> {
        let component = bdf.to_string();
        names(&self.tree.path("sys/class").join(class))
            .into_iter()
            .filter(|name| {
                fs::canonicalize(self.tree.path("sys/class").join(class).join(name))
                    .is_ok_and(|path| path.iter().any(|part| part == component.as_str()))
            })
            .collect()
    }

    fn block_users(&self, disk: &str) -> Vec<String> {
        let class = self.tree.path("sys/class/block");
        let mut users = Vec::new();
        for holder in names(&class.join(disk).join("holders")) {
            let kind = if class.join(&holder).join("md").exists() {
                "RAID array"
            } else if class.join(&holder).join("dm").exists() {
                "device-mapper volume"
            } else {
                "device"
            };
            users.push(format!("{disk} is part of {kind} {holder}"));
        }
        let number = fs::read_to_string(class.join(disk).join("dev")).unwrap_or_default();
        let number = number.trim();
        for line in self.tree.read("proc/self/mountinfo").lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            if let [_, _, device, _, place, ..] = fields[..] {
                if !number.is_empty() && device == number {
                    users.push(if place == "/" {
                        format!("{disk} holds the root file system")
                    } else {
                        format!("{disk} is mounted on {place}")
                    });
                }
            }
        }
        let node = format!("/dev/{disk}");
        if self
            .tree
            .read("proc/swaps")
            .lines()
            .any(|line| line.split_whitespace().next() == Some(&node))
        {
            users.push(format!("{disk} is swap space"));
        }
        if users.is_empty() && self.is_held(disk) {
            users.push(format!("{disk} {HELD}"));
        }
        users
    }

    /// An exclusive open fails with EBUSY for as long as a file system, RAID,
    /// LVM or another exclusive user has the disk, also where no mount table
    /// shows it: the lower layers of an overlay root are seen only here.
    fn is_held(&self, disk: &str) -> bool {
        const O_EXCL: i32 = 0o200;
        OpenOptions::new()
            .read(true)
            .custom_flags(O_EXCL)
            .open(self.tree.path("dev").join(disk))
            .is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
    }

    fn default_route_interfaces(&self) -> BTreeSet<String> {
        let (ipv4, ipv6) =
            (self.tree.read("proc/net/route"), self.tree.read("proc/net/ipv6_route"));
        mint_types::default_route_interfaces(&ipv4, &ipv6)
    }

    /// Linux's number on this node of the core with that APIC id.
    fn linux_cpu(&self, apic_id: u32) -> Option<u32> {
        let mut processor = None;
        for line in self.tree.read("proc/cpuinfo").lines() {
            let (key, value) = line.split_once(':').unwrap_or_default();
            match (key.trim_end(), value.trim().parse().ok()) {
                ("processor", number) => processor = number,
                ("apicid", number) if number == Some(apic_id) => return processor,
                _ => {}
            }
        }
        None
    }

    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        fs::write(path, text)
    }
}

impl Host for SysHost {
    fn driver(&self, bdf: Bdf) -> Option<String> {
        let target = fs::read_link(self.function(bdf).join("driver")).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }

    fn users(&self, bdf: Bdf) -> Vec<String> {
        let mut users = Vec::new();
        // partitions first: the whole disk is held for as long as one of them is
        let mut disks = self.class_members("block", bdf);
        disks.sort_by_key(|disk| std::cmp::Reverse(disk.len()));
        for disk in disks {
            let held = self.block_users(&disk);
            let known = users.iter().any(|user: &String| user.starts_with(&disk));
            users.extend(held.into_iter().filter(|text| !(known && text.contains(HELD))));
        }
        let routes = self.default_route_interfaces();
        for interface in self.class_members("net", bdf) {
            if routes.contains(&interface) {
                users.push(format!("{interface} carries the default route"));
            }
            let master = self.tree.path("sys/class/net").join(&interface).join("master");
            if let Some(bridge) = fs::read_link(master)
                .ok()
                .and_then(|target| target.file_name()?.to_str().map(str::to_owned))
            {
                users.push(format!("{interface} is a port of {bridge}"));
            }
        }
        let vfs = fs::read_to_string(self.function(bdf).join("sriov_numvfs")).unwrap_or_default();
        if let Some(count) = vfs.trim().parse::<u32>().ok().filter(|&count| count > 0) {
            users.push(format!(
                "{count} virtual functions of it are enabled (echo 0 to its sriov_numvfs ends them)"
            ));
        }
        if self.driver(bdf).as_deref() == Some("vfio-pci") {
            users.push("it is passed through to a guest (vfio-pci)".to_owned());
        }
        users
    }

    fn group_peers(&self, bdf: Bdf) -> Vec<Bdf> {
        names(&self.function(bdf).join("iommu_group/devices"))
            .into_iter()
            .filter_map(|name| name.parse().ok())
            .filter(|&peer| peer != bdf)
            .filter(|&peer| {
                let class = fs::read_to_string(self.function(peer).join("class"));
                !class.is_ok_and(|class| class.starts_with("0x06"))
            })
            .collect()
    }

    fn is_movable(&self, block: u32) -> bool {
        let zones = self.tree.read(&format!("sys/devices/system/memory/memory{block}/valid_zones"));
        zones.split_whitespace().next() == Some("Movable")
    }

    fn immovable(&self, phys: Range<u64>) -> Option<Vec<PagesOfKind>> {
        pages::immovable(&self.tree, phys)
    }

    fn block_pages(&self, phys: Range<u64>, timed_out: bool) -> Option<BlockPages> {
        pages::read(&self.tree, phys, timed_out)
    }

    fn pinned_vcpus(&self, apic_id: u32) -> Vec<String> {
        let Some(cpu) = self.linux_cpu(apic_id) else { return Vec::new() };
        let mut pinned = Vec::new();
        for pid in self.tree.processes() {
            for thread in names(&self.tree.path(format!("proc/{pid}/task"))) {
                let path = format!("proc/{pid}/task/{thread}");
                let Some(vcpu) = self.tree.vcpu_of_thread(&path) else { continue };
                let status = self.tree.read(&format!("{path}/status"));
                let allowed =
                    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
                if allowed.is_some_and(|list| list.trim() == cpu.to_string()) {
                    pinned.push(format!("vCPU {vcpu} of guest {}", self.tree.guest_name(&pid)));
                }
            }
        }
        pinned
    }

    fn load(&self) -> Load {
        load::read(&self.tree)
    }

    fn unbind(&self, bdf: Bdf) -> io::Result<()> {
        match self.driver(bdf) {
            Some(_) => self.write(&self.function(bdf).join("driver/unbind"), &bdf.to_string()),
            None => Ok(()),
        }
    }

    fn bind(&self, bdf: Bdf, driver: Option<&str>) -> io::Result<()> {
        if self.driver(bdf).is_some() {
            return Ok(());
        }
        let file = match driver {
            Some(driver) if !is_driver_name(driver) => {
                let why = format!("{driver:?} is no name of a driver");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            Some(driver) => self.tree.path(format!("sys/bus/pci/drivers/{driver}/bind")),
            None => self.tree.path("sys/bus/pci/drivers_probe"),
        };
        match self.write(&file, &bdf.to_string()) {
            // somebody was quicker: the kernel probes what it adds
            Err(error) if self.driver(bdf).is_none() => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const DISK: &str = "0000:02:00.0";

    /// A tree with an NVMe disk (one partition) and a NIC.
    fn tree() -> (tempfile::TempDir, SysHost) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let port = root.join("sys/devices/pci0000:00/0000:00:01.0");
        let disk = port.join(DISK).join("nvme/nvme0/nvme0n1");
        fs::create_dir_all(disk.join("nvme0n1p1/holders")).unwrap();
        fs::create_dir_all(disk.join("holders")).unwrap();
        fs::write(disk.join("dev"), "259:0\n").unwrap();
        fs::write(disk.join("nvme0n1p1/dev"), "259:1\n").unwrap();
        let nic = port.join("0000:03:00.0/net/eth0");
        fs::create_dir_all(&nic).unwrap();
        for sub in
            ["sys/class/block", "sys/class/net", "sys/bus/pci/devices", "proc/self", "proc/net"]
        {
            fs::create_dir_all(root.join(sub)).unwrap();
        }
        symlink(&disk, root.join("sys/class/block/nvme0n1")).unwrap();
        symlink(disk.join("nvme0n1p1"), root.join("sys/class/block/nvme0n1p1")).unwrap();
        symlink(&nic, root.join("sys/class/net/eth0")).unwrap();
        symlink(port.join(DISK), root.join("sys/bus/pci/devices").join(DISK)).unwrap();
        let host = SysHost::new(root);
        (folder, host)
    }

    #[test]
    fn driver_is_bound_and_nothing_outside_of_its_folder_is_written() {
        let (folder, host) = tree();
        let bdf: Bdf = "0000:03:00.0".parse().unwrap();
        let root = folder.path();
        for place in ["sys/bus/pci/drivers/e1000e", "sys/bus/pci/drivers", "tmp", "sys"] {
            fs::create_dir_all(root.join(place)).unwrap();
            fs::write(root.join(place).join("bind"), "").unwrap();
        }
        let wrote = |place: &str| fs::read_to_string(root.join(place).join("bind")).unwrap();
        host.bind(bdf, Some("e1000e")).unwrap();
        assert_eq!(wrote("sys/bus/pci/drivers/e1000e"), bdf.to_string());
        let absolute = root.join("tmp").display().to_string();
        for bad in ["../../../../tmp", "..", ".", "", "e1000e/..", "a\nb", absolute.as_str()] {
            let error = host.bind(bdf, Some(bad)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{bad:?}");
        }
        for place in ["sys/bus/pci/drivers", "tmp", "sys"] {
            assert_eq!(wrote(place), "", "{place}");
        }
    }

    #[test]
    fn idle_disk_has_no_users() {
        let (_folder, host) = tree();
        assert_eq!(host.users(DISK.parse().unwrap()), Vec::<String>::new());
    }

    #[test]
    fn only_blocks_of_the_movable_zone_are_movable() {
        let (folder, host) = tree();
        for (block, zones) in [(1, "Movable\n"), (2, "Normal\n"), (3, "Normal Movable\n")] {
            let path = folder.path().join(format!("sys/devices/system/memory/memory{block}"));
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("valid_zones"), zones).unwrap();
        }
        assert_eq!([1, 2, 3, 4].map(|block| host.is_movable(block)), [true, false, false, false]);
    }

    #[test]
    fn policy_for_onlining_is_set_where_the_kernel_has_it() {
        let (folder, host) = tree();
        assert!(host.online_as_movable().is_err());
        let file = folder.path().join(ONLINE_POLICY);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "contig-zones\n").unwrap();
        host.online_as_movable().unwrap();
        assert_eq!(fs::read_to_string(file).unwrap(), "auto-movable");
    }

    #[test]
    fn vcpu_that_may_run_on_one_core_only_is_found() {
        let (folder, host) = tree();
        let root = folder.path();
        let cpuinfo = "processor\t: 0\napicid\t\t: 4\n\nprocessor\t: 1\napicid\t\t: 6\n";
        fs::write(root.join("proc/cpuinfo"), cpuinfo).unwrap();
        for (thread, comm, allowed) in
            [(70, "qemu-system-x86", "0-1"), (71, "CPU 0/KVM", "1"), (72, "CPU 1/KVM", "0-1")]
        {
            let task = root.join(format!("proc/70/task/{thread}"));
            fs::create_dir_all(&task).unwrap();
            fs::write(task.join("comm"), format!("{comm}\n")).unwrap();
            let status = format!("Name:\t{comm}\nCpus_allowed_list:\t{allowed}\n");
            fs::write(task.join("status"), status).unwrap();
        }
        symlink("/usr/bin/qemu-system-x86_64", root.join("proc/70/exe")).unwrap();
        // a kernel's thread of that name
        fs::create_dir_all(root.join("proc/8/task/8")).unwrap();
        for (file, text) in [("comm", "CPU 9/KVM\n"), ("status", "Cpus_allowed_list:\t1\n")] {
            fs::write(root.join("proc/8/task/8").join(file), text).unwrap();
        }
        fs::write(root.join("proc/70/cmdline"), "qemu\0-name\0guest=web1,debug-threads=on\0-S\0")
            .unwrap();
        assert_eq!(host.pinned_vcpus(6), ["vCPU 0 of guest web1"]);
        assert_eq!(host.pinned_vcpus(4), Vec::<String>::new());
        assert_eq!(host.pinned_vcpus(9), Vec::<String>::new());
    }

    #[test]
    fn root_disk_is_seen_through_its_partition() {
        let (folder, host) = tree();
        let line = "22 1 259:1 / / rw,relatime - ext4 /dev/nvme0n1p1 rw\n";
        fs::write(folder.path().join("proc/self/mountinfo"), line).unwrap();
        assert_eq!(host.users(DISK.parse().unwrap()), ["nvme0n1p1 holds the root file system"]);
    }

    #[test]
    fn swap_and_raid_are_users() {
        let (folder, host) = tree();
        let swaps = "Filename Type Size Used Priority\n/dev/nvme0n1p1 partition 1 0 -2\n";
        fs::write(folder.path().join("proc/swaps"), swaps).unwrap();
        let disk = folder.path().join("sys/class/block/nvme0n1");
        fs::create_dir(disk.join("holders/md0")).unwrap();
        let users = host.users(DISK.parse().unwrap());
        assert_eq!(users, ["nvme0n1p1 is swap space", "nvme0n1 is part of device md0"]);
    }

    #[test]
    fn nic_of_the_default_route_is_busy() {
        let (folder, host) = tree();
        let route = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
                     eth0\t00000000\t0202000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n";
        fs::write(folder.path().join("proc/net/route"), route).unwrap();
        let users = host.users("0000:03:00.0".parse().unwrap());
        assert_eq!(users, ["eth0 carries the default route"]);
    }

    #[test]
    fn physical_function_with_virtual_ones_is_busy() {
        let (folder, host) = tree();
        let nic = folder.path().join("sys/bus/pci/devices/0000:03:00.0");
        fs::create_dir_all(&nic).unwrap();
        fs::write(nic.join("sriov_numvfs"), "0\n").unwrap();
        let users = || host.users("0000:03:00.0".parse().unwrap());
        assert_eq!(users(), Vec::<String>::new());
        fs::write(nic.join("sriov_numvfs"), "2\n").unwrap();
        assert!(users()[0].starts_with("2 virtual functions of it are enabled"), "{:?}", users());
    }

    #[test]
    fn bridges_do_not_count_as_group_peers() {
        let (folder, host) = tree();
        let devices = folder.path().join("sys/bus/pci/devices");
        let group = devices.join(DISK).join("iommu_group/devices");
        fs::create_dir_all(&group).unwrap();
        for (peer, class) in [("0000:00:01.0", "0x060400"), ("0000:02:00.1", "0x020000")] {
            fs::create_dir_all(devices.join(peer)).unwrap();
            fs::write(devices.join(peer).join("class"), class).unwrap();
            fs::create_dir(group.join(peer)).unwrap();
        }
        fs::create_dir(group.join(DISK)).unwrap();
        let peers = host.group_peers(DISK.parse().unwrap());
        assert_eq!(peers, ["0000:02:00.1".parse().unwrap()]);
    }
}
