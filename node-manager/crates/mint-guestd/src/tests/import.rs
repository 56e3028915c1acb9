// SPDX-License-Identifier: Apache-2.0
//! Disk images that become guests, with the real `qemu-img`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::*;

const MIB: u64 = 1 << 20;

impl Machine {
    /// Of node 1.
    fn file(&self, path: &str) -> PathBuf {
        let path = self.folder.path().join("root1").join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    /// A qcow2 of a disk of 8 MiB, whose second MiB is written.
    fn image(&self, path: &str) -> PathBuf {
        fs::create_dir_all(self.file("/var/lib/libvirt/images/x").parent().unwrap()).unwrap();
        let raw = self.file("/tmp/raw");
        let mut disk = vec![0; 8 << 20];
        disk[1 << 20..2 << 20].fill(7);
        fs::write(&raw, disk).unwrap();
        let image = self.file(path);
        qemu_img(&["convert", "-O", "qcow2", raw.to_str().unwrap(), image.to_str().unwrap()]);
        image
    }

    /// Names of what is in the pool.
    fn pool(&self) -> Vec<String> {
        let entries = fs::read_dir(self.file("/var/lib/libvirt/images/x").parent().unwrap());
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        let mut names: Vec<String> = entries.unwrap().map(|entry| name(entry.unwrap())).collect();
        names.sort();
        names
    }

    async fn import(&self, change: Value) -> Result<VmView, ErrorBody> {
        let mut request = json!({ "name": "web", "image": "/i/web.qcow2", "vcpus": 1, "memory_bytes": 256 * MIB });
        for (key, value) in change.as_object().unwrap() {
            request[key] = value.clone();
        }
        self.client().operate("/v1/local/vms", &request, |_: &str| ()).await.map_err(body)
    }
}

fn qemu_img(words: &[&str]) {
    let done = Command::new("qemu-img").args(words).output().unwrap();
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn image_becomes_a_guest_with_its_content_and_what_cloud_init_is_told() {
    test(async |machine| {
        let image = machine.image("/i/web.qcow2");
        let asked = json!({ "disk_bytes": 16 * MIB, "user_data": "#cloud-config\n" });
        let made = machine.import(asked).await.unwrap();
        assert_eq!((made.name.as_str(), made.state.as_str()), ("web", "shut off"));
        assert_eq!(machine.pool(), ["web-seed.img", "web.raw"]);
        let disk = fs::read(machine.file("/var/lib/libvirt/images/web.raw")).unwrap();
        assert_eq!(disk.len() as u64, 16 * MIB);
        assert!(disk.iter().enumerate().all(|(at, &byte)| byte == 7 * u8::from(at >> 20 == 1)));
        assert!(image.exists(), "only copied");
        let (_, xml) = machine.fakes[0].guests.lock().unwrap()["web"].clone();
        assert!(!xml.contains("firmware"), "{xml}");
        for part in [
            "<target type=\"virtio\" name=\"org.qemu.guest_agent.0\"/>",
            "/var/lib/libvirt/images/web.raw",
            "/var/lib/libvirt/images/web-seed.img",
            "<source network=\"mint\"/>",
            "<vcpu placement=\"static\">1</vcpu>",
        ] {
            assert!(xml.contains(part), "{part}:\n{xml}");
        }
    });
}

#[test]
fn image_for_uefi_is_started_by_it() {
    test(async |machine| {
        machine.image("/i/web.qcow2");
        machine.import(json!({ "uefi": true })).await.unwrap();
        let (_, xml) = machine.fakes[0].guests.lock().unwrap()["web"].clone();
        assert!(xml.contains("<os firmware=\"efi\">"), "{xml}");
        assert!(xml.contains("<feature enabled=\"no\" name=\"secure-boot\"/>"), "{xml}");
    });
}

#[test]
fn every_reason_against_an_import_is_told_and_nothing_is_made() {
    test(async |machine| {
        let image = machine.image("/i/web.qcow2");
        let codes = async |change: Value| {
            let refused = machine.import(change).await.unwrap_err();
            refused.refusals.iter().map(|refusal| refusal.code).collect::<Vec<_>>()
        };
        let greedy = json!({ "vcpus": 3, "memory_bytes": 1024 * MIB, "disk_bytes": 4 * MIB });
        let all = [RefusalCode::CpuShort, RefusalCode::MemoryShort, RefusalCode::VmDiskShort];
        assert_eq!(codes(greedy).await, all);
        assert_eq!(codes(json!({ "image": "/i/gone" })).await, [RefusalCode::VmDiskMissing]);
        let part = machine.file("/i/part.qcow2");
        let (base, top) = (image.to_str().unwrap(), part.to_str().unwrap());
        qemu_img(&["create", "-f", "qcow2", "-b", base, "-F", "qcow2", top]);
        assert_eq!(codes(json!({ "image": "/i/part.qcow2" })).await, [RefusalCode::VmDiskMissing]);
        machine.fakes[0].define("web", false, &xml("web"));
        assert_eq!(codes(json!({})).await, [RefusalCode::VmNameTaken]);
        fs::write(machine.file("/var/lib/libvirt/images/db.raw"), "theirs").unwrap();
        assert_eq!(codes(json!({ "name": "db" })).await, [RefusalCode::VmDiskTaken]);
        assert_eq!(machine.pool(), ["db.raw"]);
        for bad in [
            json!({ "name": "../web" }),
            json!({ "image": "i/web.qcow2" }),
            json!({ "is_upload": true }),
            json!({ "image": "/var/lib/mint/uploads/../../../i/web.qcow2", "is_upload": true }),
        ] {
            let error = machine.import(bad.clone()).await.unwrap_err();
            assert_eq!(error.code, ErrorCode::BadRequest, "{bad}: {error}");
        }
        assert!(image.exists(), "it was not sent");
    });
}

#[test]
fn image_that_was_sent_goes_and_what_was_not_finished_is_tidied() {
    test(async |machine| {
        let sent = machine.image("/var/lib/mint/uploads/1-2");
        let asked = json!({ "image": "/var/lib/mint/uploads/1-2", "is_upload": true });
        machine.import(asked.clone()).await.unwrap();
        assert!(!sent.exists());
        // also when it is refused
        machine.image("/var/lib/mint/uploads/1-2");
        assert!(machine.import(asked).await.is_err() && !sent.exists());
        let left = machine.file("/var/lib/libvirt/images/.mint-import-db");
        fs::write(&left, "half").unwrap();
        let coming = machine.image("/var/lib/mint/uploads/3-4");
        crate::import::tidy(&machine.apps[0].host);
        assert!(!left.exists() && coming.exists(), "that one is being sent");
    });
}
