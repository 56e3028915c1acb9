// SPDX-License-Identifier: Apache-2.0
//! What libvirt and QEMU of this node need for TLS: the authorities that they believe, a
//! certificate of this node, its key. They are in memory only; where libvirt and QEMU look for
//! theirs, links lead there, unless somebody has put files of their own.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

use mint_node::files::write_atomic;
use tracing::{info, warn};

use crate::network::host_names;
use crate::pki::{Authority, RENEW, SKEW};

/// Where the files are.
const FOLDER: &str = "run/mint/tls";
const AUTHORITIES: &str = "authorities.pem";
const CERTIFICATE: &str = "node.pem";
const KEY: &str = "node.key";
/// Where libvirt (libvirt.org, "TLS certificates") and QEMU (qemu.conf,
/// `default_tls_x509_cert_dir`) look, and for which file.
const LINKS: [(&str, &str); 10] = [
    ("etc/pki/CA/cacert.pem", AUTHORITIES),
    ("etc/pki/libvirt/servercert.pem", CERTIFICATE),
    ("etc/pki/libvirt/clientcert.pem", CERTIFICATE),
    ("etc/pki/libvirt/private/serverkey.pem", KEY),
    ("etc/pki/libvirt/private/clientkey.pem", KEY),
    ("etc/pki/qemu/ca-cert.pem", AUTHORITIES),
    ("etc/pki/qemu/server-cert.pem", CERTIFICATE),
    ("etc/pki/qemu/client-cert.pem", CERTIFICATE),
    ("etc/pki/qemu/server-key.pem", KEY),
    ("etc/pki/qemu/client-key.pem", KEY),
];
/// Who has this may run QEMU.
const KVM: &str = "dev/kvm";

/// Whose certificate it is.
pub(crate) struct Node<'a> {
    pub status: &'a mint_types::NodeStatus,
    /// Its address on `mint0`.
    pub address: IpAddr,
}

/// Writes what is not there, is old, or is another than it was. `linked` are the authorities of
/// linked machines. Gives whether something was written.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn install(
    root: &Path,
    authority: &Authority,
    node: &Node<'_>,
    linked: &[&str],
    now: SystemTime,
) -> io::Result<bool> {
    let folder = root.join(FOLDER);
    fs::create_dir_all(&folder)?;
    let mut is_news = false;
    if !is_young(&folder.join(CERTIFICATE), now) {
        let issued = authority
            .issue(node.status.id, &host_names(node.status), node.address, now)
            .map_err(io::Error::other)?;
        // the key is QEMU's, too, which is not root
        let path = folder.join(KEY);
        write_atomic(&path, issued.key.as_bytes(), 0o600)?;
        if let Ok(kvm) = fs::metadata(root.join(KVM)) {
            chown(&path, None, Some(kvm.gid()))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o640))?;
        }
        // last: a key without it is made anew
        write_atomic(&folder.join(CERTIFICATE), issued.certificate.as_bytes(), 0o644)?;
        is_news = true;
    }
    let all: Vec<&str> = std::iter::once(authority.certificate())
        .chain(linked.iter().copied())
        .map(str::trim_end)
        .collect();
    let all = format!("{}\n", all.join("\n"));
    let path = folder.join(AUTHORITIES);
    if fs::read_to_string(&path).ok().as_deref() != Some(&all) {
        write_atomic(&path, all.as_bytes(), 0o644)?;
        is_news = true;
    }
    if is_news {
        for (link, file) in LINKS {
            let target = Path::new("/").join(FOLDER).join(file);
            place(&root.join(link), &target)?;
        }
    }
    Ok(is_news)
}

fn is_young(certificate: &Path, now: SystemTime) -> bool {
    let written = fs::metadata(certificate).and_then(|found| found.modified());
    written.is_ok_and(|written| match now.duration_since(written) {
        Ok(age) => age < RENEW,
        // just now, or the clock was set
        Err(early) => early.duration() < SKEW / 2,
    })
}

/// A link, unless something of somebody else's is there.
fn place(link: &Path, target: &Path) -> io::Result<()> {
    match fs::symlink_metadata(link) {
        Ok(_) => {
            if fs::read_link(link).ok().as_deref() != Some(target) {
                warn!(path = %link.display(), "libvirt's or QEMU's TLS has a file that is not ours, which stays");
            }
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(folder) = link.parent() {
                fs::create_dir_all(folder)?;
            }
            symlink(target, link)
        }
        Err(error) => Err(error),
    }
}

/// libvirtd reads its files when it starts, and when it is told to.
pub(crate) fn tell_libvirtd() {
    let words = ["-c", "libvirtd:///system", "server-update-tls", "libvirtd"];
    match Command::new("virt-admin").args(words).output() {
        Ok(told) if told.status.success() => info!("libvirtd has read its certificates"),
        // it does not run, or has no TLS: it reads them when it starts
        Ok(_) | Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssh::tests::node;
    use mint_types::{MachineId, NodeId, PeerId};
    use std::time::Duration;

    #[test]
    fn files_are_where_libvirt_and_qemu_look_and_are_written_when_they_are_news() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("etc/pki/qemu")).unwrap();
        fs::write(root.join("etc/pki/qemu/server-key.pem"), "the owner's").unwrap();
        let here = PeerId { machine: MachineId::from_random([7; 16]).unwrap(), node: NodeId::ZERO };
        let now = SystemTime::now();
        let authority = Authority::open(here, root, root, now).unwrap().unwrap();
        let status = node(0, "");
        let here_node = Node { status: &status, address: "10.77.0.10".parse().unwrap() };
        let write =
            |linked: &[&str], now| install(root, &authority, &here_node, linked, now).unwrap();
        assert!(write(&[], now));
        assert!(!write(&[], now), "nothing is news");
        let path = root.join(FOLDER).join(CERTIFICATE);
        let first = fs::read_to_string(&path).unwrap();
        assert!(write(&["-----BEGIN CERTIFICATE-----\nb\n"], now));
        let all = fs::read_to_string(root.join(FOLDER).join(AUTHORITIES)).unwrap();
        assert_eq!(all, format!("{}-----BEGIN CERTIFICATE-----\nb\n", authority.certificate()));
        assert_eq!(fs::read_to_string(&path).unwrap(), first, "the node's own stays");
        assert!(write(&[], now + RENEW + Duration::from_secs(1)), "one that is old is renewed");
        assert_ne!(fs::read_to_string(&path).unwrap(), first);
        let link = fs::read_link(root.join("etc/pki/libvirt/private/serverkey.pem")).unwrap();
        assert_eq!(link, Path::new("/run/mint/tls/node.key"));
        let kept = fs::read_to_string(root.join("etc/pki/qemu/server-key.pem")).unwrap();
        assert_eq!(kept, "the owner's", "what is somebody's stays");
        let mode = fs::metadata(root.join(FOLDER).join(KEY)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
