// SPDX-License-Identifier: Apache-2.0
//! libvirt's XML of guests, pool and network.

use std::io;
use std::path::Path;

use quick_xml::Writer;
use quick_xml::events::BytesText;

use crate::domain::MEMORY_ELEMENT;
use crate::guest::{Boot, Firmware, Guest, Network};
use crate::split::{HOST, NAMESPACE, QEMU_NAMESPACE, Split, monitor_arguments};

/// Name of the pool and of the network on every node.
pub const POOL: &str = "mint";
const EMULATOR: &str = "/usr/bin/qemu-system-x86_64";

type Xml = Writer<Vec<u8>>;
type Written = io::Result<()>;

/// The guest's domain.
pub fn domain(guest: &Guest) -> String {
    let attributes = [("type", "kvm"), ("xmlns:qemu", QEMU_NAMESPACE)];
    let attributes = if guest.split.is_some() { &attributes[..] } else { &attributes[..1] };
    document("domain", attributes, |w| {
        text(w, "name", &guest.name)?;
        if let Some(split) = &guest.split {
            parent(w, "metadata", &[], |w| metadata(w, split))?;
        }
        text_with(w, "memory", &[("unit", "KiB")], &guest.memory_kib.to_string())?;
        if guest.split.is_some() {
            // its pager takes pages out of the file, and puts them back
            parent(w, "memoryBacking", &[], |w| {
                empty(w, "source", &[("type", "file")])?;
                empty(w, "access", &[("mode", "shared")])
            })?;
        }
        let vcpu = [("placement", "static"), ("cpuset", guest.node_cpus.as_str())];
        let is_pinned = !guest.vcpu_pins.is_empty();
        let vcpu = if is_pinned { &vcpu[..] } else { &vcpu[..1] };
        text_with(w, "vcpu", vcpu, &guest.vcpus.to_string())?;
        let tune = |w: &mut Xml| {
            for (vcpu, cpu) in guest.vcpu_pins.iter().enumerate() {
                let (vcpu, cpu) = (vcpu.to_string(), cpu.to_string());
                empty(w, "vcpupin", &[("vcpu", &vcpu), ("cpuset", &cpu)])?;
            }
            empty(w, "emulatorpin", &[("cpuset", &guest.node_cpus)])
        };
        if is_pinned {
            parent(w, "cputune", &[], tune)?;
        }
        let firmware = [("firmware", "efi")];
        let is_uefi = matches!(guest.boot, Boot::Disk(Firmware::Uefi));
        parent(w, "os", if is_uefi { &firmware } else { &[] }, |w| {
            text_with(w, "type", &[("arch", "x86_64"), ("machine", "q35")], "hvm")?;
            boot(w, &guest.boot)
        })?;
        parent(w, "features", &[], |w| {
            empty(w, "acpi", &[])?;
            empty(w, "apic", &[])
        })?;
        let cpu = [("mode", "host-passthrough"), ("check", "none"), ("migratable", "on")];
        parent(w, "cpu", &cpu, |w| {
            if guest.tsc_deadline {
                return Ok(());
            }
            empty(w, "feature", &[("policy", "disable"), ("name", "tsc-deadline")])
        })?;
        parent(w, "clock", &[("offset", "utc")], |w| {
            // a guest's kernel lets it tick all the time, and QEMU wakes up for each tick
            empty(w, "timer", &[("name", "hpet"), ("present", "no")])
        })?;
        text(w, "on_poweroff", "destroy")?;
        text(w, "on_reboot", "restart")?;
        text(w, "on_crash", "destroy")?;
        parent(w, "devices", &[], |w| devices(w, guest))?;
        if guest.split.is_none() {
            return Ok(());
        }
        parent(w, "qemu:commandline", &[], |w| {
            let mut each = monitor_arguments(&guest.name).into_iter();
            each.try_for_each(|argument| empty(w, "qemu:arg", &[("value", &argument)]))
        })
    })
}

fn metadata(w: &mut Xml, split: &Split) -> Written {
    let (main, chunk) = (split.main_bytes.to_string(), split.chunk_bytes.to_string());
    let (policy, copies) = (split.policy.name(), split.copies.to_string());
    let attributes = [
        ("xmlns:mint", NAMESPACE),
        ("main", &main),
        ("chunk", &chunk),
        ("policy", policy),
        ("copies", &copies),
    ];
    parent(w, MEMORY_ELEMENT, &attributes, |w| {
        for share in &split.shares {
            empty(w, HOST, &[("node", &share.node), ("bytes", &share.bytes.to_string())])?;
        }
        Ok(())
    })
}

fn boot(w: &mut Xml, boot: &Boot) -> Written {
    match boot {
        Boot::Disk(firmware) => {
            if *firmware == Firmware::Uefi {
                // it takes system management mode, and only runs what Microsoft has signed
                let without = [("enabled", "no"), ("name", "secure-boot")];
                parent(w, "firmware", &[], |w| empty(w, "feature", &without))?;
            }
            empty(w, "boot", &[("dev", "hd")])
        }
        Boot::Kernel { kernel, initrd, cmdline } => {
            text(w, "kernel", kernel)?;
            for (name, value) in [("initrd", initrd), ("cmdline", cmdline)] {
                if let Some(value) = value {
                    text(w, name, value)?;
                }
            }
            Ok(())
        }
    }
}

fn devices(w: &mut Xml, guest: &Guest) -> Written {
    text(w, "emulator", EMULATOR)?;
    if let Some(disk) = &guest.disk {
        let (kind, source) = if disk.is_block { ("block", "dev") } else { ("file", "file") };
        parent(w, "disk", &[("type", kind), ("device", "disk")], |w| {
            empty(w, "driver", &[("name", "qemu"), ("type", disk.format), ("cache", "none")])?;
            empty(w, "source", &[(source, &disk.path)])?;
            empty(w, "target", &[("dev", "vda"), ("bus", "virtio")])
        })?;
    }
    if let Some(seed) = &guest.seed {
        parent(w, "disk", &[("type", "file"), ("device", "disk")], |w| {
            empty(w, "driver", &[("name", "qemu"), ("type", "raw")])?;
            empty(w, "source", &[("file", seed)])?;
            // not marked as read only: libvirt would not copy it when the guest moves
            empty(w, "target", &[("dev", "vdb"), ("bus", "virtio")])
        })?;
    }
    match guest.network {
        Network::None => {}
        Network::Bridge => card(w, "network", guest.mac.as_deref())?,
        Network::User => card(w, "user", guest.mac.as_deref())?,
    }
    empty(w, "controller", &[("type", "usb"), ("model", "none")])?;
    parent(w, "serial", &[("type", "pty")], |w| {
        // virtlogd keeps it: it outlives libvirtd
        let log = format!("/var/log/libvirt/qemu/{}-console.log", guest.name);
        empty(w, "log", &[("file", &log), ("append", "off")])?;
        empty(w, "target", &[("type", "isa-serial"), ("port", "0")])
    })?;
    parent(w, "console", &[("type", "pty")], |w| {
        empty(w, "target", &[("type", "serial"), ("port", "0")])
    })?;
    if guest.has_agent {
        parent(w, "channel", &[("type", "unix")], |w| {
            empty(w, "target", &[("type", "virtio"), ("name", "org.qemu.guest_agent.0")])
        })?;
    }
    empty(w, "audio", &[("id", "1"), ("type", "none")])?;
    parent(w, "video", &[], |w| empty(w, "model", &[("type", "none")]))?;
    empty(w, "memballoon", &[("model", "none")])
}

fn card(w: &mut Xml, kind: &str, mac: Option<&str>) -> Written {
    parent(w, "interface", &[("type", kind)], |w| {
        if let Some(mac) = mac {
            empty(w, "mac", &[("address", mac)])?;
        }
        if kind == "network" {
            empty(w, "source", &[("network", POOL)])?;
        }
        empty(w, "model", &[("type", "virtio")])
    })
}

/// The node's pool: a folder.
pub fn pool(path: &Path) -> String {
    document("pool", &[("type", "dir")], |w| {
        text(w, "name", POOL)?;
        parent(w, "target", &[], |w| text(w, "path", &path.to_string_lossy()))
    })
}

/// The node's network: a bridge that is there already.
pub fn network(bridge: &str) -> String {
    document("network", &[], |w| {
        text(w, "name", POOL)?;
        empty(w, "forward", &[("mode", "bridge")])?;
        empty(w, "bridge", &[("name", bridge)])
    })
}

fn document(
    name: &str,
    attributes: &[(&str, &str)],
    inner: impl FnOnce(&mut Xml) -> Written,
) -> String {
    let mut writer = Writer::new_with_indent(Vec::new(), b' ', 2);
    parent(&mut writer, name, attributes, inner).expect("memory takes all that is written");
    let mut bytes = writer.into_inner();
    bytes.push(b'\n');
    String::from_utf8(bytes).expect("what is written is text")
}

fn parent(
    w: &mut Xml,
    name: &str,
    attributes: &[(&str, &str)],
    inner: impl FnOnce(&mut Xml) -> Written,
) -> Written {
    let element = w.create_element(name).with_attributes(attributes.iter().copied());
    element.write_inner_content(inner)?;
    Ok(())
}

fn empty(w: &mut Xml, name: &str, attributes: &[(&str, &str)]) -> Written {
    w.create_element(name).with_attributes(attributes.iter().copied()).write_empty()?;
    Ok(())
}

fn text(w: &mut Xml, name: &str, content: &str) -> Written {
    text_with(w, name, &[], content)
}

fn text_with(w: &mut Xml, name: &str, attributes: &[(&str, &str)], content: &str) -> Written {
    let element = w.create_element(name).with_attributes(attributes.iter().copied());
    element.write_text_content(BytesText::new(content))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::tests::web;
    use crate::guest::GuestRequest;

    #[test]
    fn split_stands_in_the_domain_as_it_was_asked_for() {
        let request = GuestRequest {
            memory: "1G".to_owned(),
            split: Some("main=256M,node2=128M,b/node0=rest".to_owned()),
            kernel: Some("/boot/vmlinuz".to_owned()),
            disk: Some("/disk".to_owned()),
            ..GuestRequest::new("big")
        };
        let guest = request.on(&web()).unwrap();
        let xml = domain(&guest);
        assert_eq!(Split::of_domain(&xml).unwrap(), guest.split);
        assert!(xml.contains("<timer name=\"hpet\" present=\"no\"/>"), "{xml}");
        assert!(
            xml.contains("<source type=\"file\"/>") && xml.contains("<access mode=\"shared\"/>")
        );
    }

    #[test]
    fn pool_path_is_escaped() {
        assert!(pool(Path::new("/a&<b>")).contains("<path>/a&amp;&lt;b&gt;</path>"));
    }
}
