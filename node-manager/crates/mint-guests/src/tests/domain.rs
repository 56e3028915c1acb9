// SPDX-License-Identifier: Apache-2.0
use proptest::prelude::*;

use super::*;

/// As libvirt 11 gives it, shortened.
pub(crate) const WEB: &str = r#"<domain type='kvm' id='3'>
  <name>web</name>
  <uuid>6f5d2f2c-3a76-4a4e-9a0e-0b9f6a1f8d11</uuid>
  <memory unit='KiB'>524288</memory>
  <currentMemory unit='KiB'>262144</currentMemory>
  <vcpu placement='static' cpuset='2-3'>2</vcpu>
  <cputune>
    <vcpupin vcpu='0' cpuset='2'/>
    <vcpupin vcpu='1' cpuset='3'/>
    <emulatorpin cpuset='2-3'/>
  </cputune>
  <numatune>
    <memory mode='strict' nodeset='1'/>
  </numatune>
  <os>
    <type arch='x86_64' machine='pc-q35-10.0'>hvm</type>
    <kernel>/boot/vmlinuz-mint</kernel>
    <initrd>/boot/guest.initrd</initrd>
    <cmdline>console=ttyS0 a=&lt;b&gt;</cmdline>
  </os>
  <cpu mode='host-passthrough' check='none' migratable='on'>
    <feature policy='disable' name='tsc-deadline'/>
  </cpu>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2' cache='none'/>
      <source file='/var/lib/mint/web.qcow2' index='1'/>
      <backingStore/>
      <target dev='vda' bus='virtio'/>
    </disk>
    <controller type='usb' model='none'/>
    <disk type='file' device='cdrom'>
      <target dev='sda' bus='sata'/>
      <readonly/>
    </disk>
    <interface type='network'>
      <mac address='02:4d:49:47:01:0a'/>
      <source network='mint' portid='x' bridge='mint-guests'/>
      <model type='virtio'/>
    </interface>
    <serial type='pty'><source path='/dev/pts/1'/><target port='0'/></serial>
    <memballoon model='none'/>
  </devices>
</domain>
"#;

/// The same guest with another device.
fn with(device: &str) -> Domain {
    Domain::parse(&WEB.replace("</devices>", &format!("{device}</devices>"))).unwrap()
}

#[test]
fn facts_of_a_domain_are_read() {
    let web = Domain::parse(WEB).unwrap();
    assert_eq!((web.kind.as_str(), web.name.as_str()), ("kvm", "web"));
    assert_eq!(web.uuid.as_deref(), Some("6f5d2f2c-3a76-4a4e-9a0e-0b9f6a1f8d11"));
    assert_eq!(web.memory_bytes, 512 << 20);
    assert_eq!(web.machine, "pc-q35-10.0");
    assert_eq!(web.boot_files, ["/boot/vmlinuz-mint", "/boot/guest.initrd"]);
    let pins: Vec<_> = web.vcpu_pins.iter().map(|pin| (pin.vcpu, pin.cpus.to_string())).collect();
    assert_eq!(pins, [(0, "2".to_owned()), (1, "3".to_owned())]);
    assert_eq!(web.disks.len(), 2, "also with another device between them");
    assert_eq!(web.disks[0].path.as_deref(), Some("/var/lib/mint/web.qcow2"));
    assert_eq!((web.disks[0].target.as_str(), web.disks[0].is_readonly), ("vda", false));
    assert_eq!((&web.disks[1].path, web.disks[1].is_readonly), (&None, true));
    assert_eq!(web.cards, [Card { kind: "network".into(), source: Some("mint".into()) }]);
    assert!(web.is_host_cpu && !web.has_huge_pages);
    assert!(web.passed.is_empty() && web.folders.is_empty() && web.tied.is_empty());
    let cpu = web.cpu_xml.unwrap();
    assert!(cpu.starts_with("<cpu mode='host-passthrough'") && cpu.ends_with("</cpu>"), "{cpu}");
}

/// With firmware whose settings are a file of the guest's own.
pub(crate) fn with_nvram(nvram: &str) -> String {
    let loader = "<loader readonly='yes' type='pflash'>/usr/share/OVMF/CODE.fd</loader>";
    WEB.replace("</os>", &format!("{loader}{nvram}</os>"))
}

#[test]
fn settings_of_the_firmware_are_a_file() {
    let old = "<nvram template='/usr/share/OVMF/VARS.fd'>/nvram/web.fd</nvram>";
    let new = "<nvram type='file' template='/usr/share/OVMF/VARS.fd'><source file='/nvram/web.fd'/></nvram>";
    for nvram in [old, new] {
        let web = Domain::parse(&with_nvram(nvram)).unwrap();
        assert_eq!(web.nvram.as_deref(), Some("/nvram/web.fd"), "{nvram}");
        let firmware = ["/usr/share/OVMF/CODE.fd", "/usr/share/OVMF/VARS.fd"];
        assert!(
            firmware.iter().all(|file| web.boot_files.iter().any(|has| has == file)),
            "{web:?}"
        );
    }
    assert_eq!(Domain::parse(&with_nvram("")).unwrap().nvram, None);
    assert_eq!(Domain::parse(&with_nvram("<nvram/>")).unwrap().nvram, None);
}

#[test]
fn parts_that_tie_a_guest_to_its_host_are_seen() {
    let passed = with(
        "<hostdev mode='subsystem' type='pci'><source><address domain='0x0000' bus='0x03' \
         slot='0x00' function='0x1'/></source></hostdev>",
    );
    assert_eq!(passed.passed, ["pci 0000:03:00.1"]);
    assert_eq!(with("<interface type='hostdev'/>").passed, ["a network function"]);
    let folder =
        with("<filesystem type='mount'><source dir='/srv'/><target dir='srv'/></filesystem>");
    assert_eq!(folder.folders, ["/srv"]);
    assert_eq!(with("<tpm><backend type='emulator'/></tpm>").tied, ["an emulated TPM"]);
    assert!(with("<tpm><backend type='passthrough'/></tpm>").tied.is_empty());
    assert_eq!(with("<shmem name='s'/>").tied.len(), 1);
    let huge = WEB.replace("<os>", "<memoryBacking><hugepages/></memoryBacking><os>");
    assert!(Domain::parse(&huge).unwrap().has_huge_pages);
}

#[test]
fn sizes_are_read_in_every_unit() {
    for (unit, one) in [("b", 1), ("KB", 1_000), ("K", 1024), ("MiB", 1 << 20), ("T", 1 << 40)] {
        let xml = WEB.replace("unit='KiB'>524288", &format!("unit='{unit}'>3"));
        assert_eq!(Domain::parse(&xml).unwrap().memory_bytes, 3 * one, "{unit}");
    }
    let more = WEB.replace("<os>", "<maxMemory slots='4' unit='GiB'>2</maxMemory><os>");
    assert_eq!(Domain::parse(&more).unwrap().memory_bytes, 2 << 30);
    for bad in ["unit='parsecs'>3", "unit='T'>99999999", "unit='K'>-1", "unit='K'>"] {
        let xml = WEB.replace("unit='KiB'>524288", bad);
        assert!(Domain::parse(&xml).is_err(), "{bad}");
    }
}

#[test]
fn cpus_are_read_as_libvirt_writes_them() {
    assert_eq!(cpu_set("0-4,^2, 8").unwrap().to_string(), "0-1,3-4,8");
    for bad in ["", "a", "1-", "^a", "0-4294967295"] {
        assert!(cpu_set(bad).is_none(), "{bad}");
    }
}

#[test]
fn xml_that_is_no_domain_or_too_long_is_an_error() {
    for bad in ["", "<a/>", "<domain/>", "<domain type='kvm'><name>x</name></domain>", "no xml"] {
        assert!(Domain::parse(bad).is_err(), "{bad}");
    }
    let long = format!("<!--{}-->{WEB}", " ".repeat(XML_BYTES_MAX));
    assert!(matches!(Domain::parse(&long), Err(DomainError::TooLong(_))));
}

proptest! {
    /// A peer's XML may be anything.
    #[test]
    fn damaged_xml_never_panics(cut in 0..WEB.len(), to in "\\PC{0,8}", from in 0..WEB.len()) {
        let mut text = WEB.to_owned();
        text.truncate(cut);
        text.push_str(&to);
        text.push_str(&WEB[from..]);
        _ = Domain::parse(&text);
    }
}

#[test]
fn terminal_of_the_first_console_is_found_and_nothing_else_is_opened() {
    let xml = |console: &str| {
        format!(
            "<domain><devices><serial><source path='/dev/pts/9'/></serial>{console}</devices></domain>"
        )
    };
    let pty =
        |path: &str| format!("<console type='pty' tty='{path}'><source path='{path}'/></console>");
    assert_eq!(terminal(&xml(&pty("/dev/pts/3"))).as_deref(), Some("/dev/pts/3"));
    let two = pty("/dev/pts/3") + &pty("/dev/pts/4");
    assert_eq!(terminal(&xml(&two)).as_deref(), Some("/dev/pts/3"));
    for none in ["", "<console type='pty'/>", &pty("/etc/shadow"), &pty("/dev/pts/../sda")] {
        assert_eq!(terminal(&xml(none)), None, "{none}");
    }
    assert_eq!(terminal("no xml"), None);
}
