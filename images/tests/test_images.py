# SPDX-License-Identifier: Apache-2.0
"""The images: reproducible, within their budgets, with what nodes need."""

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

IMAGES = Path(__file__).resolve().parents[1]
SCRIPTS = IMAGES / "scripts"
BUILD = Path(os.environ.get("BUILD", IMAGES.parent / "build"))
OUT = BUILD / "images"


def digest(path):
    """SHA-256 of a file."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def run(*command, **options):
    """Run a command that must succeed; gives its standard output."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def node_files():
    """{path: (mode, owner, size)} of the node image."""
    files = {}
    for line in run("unsquashfs", "-lln", OUT / "node.squashfs").splitlines():
        words = line.split(None, 5)
        if len(words) == 6 and words[5].startswith("squashfs-root"):
            path = words[5].removeprefix("squashfs-root").split(" -> ")[0]
            files[path] = (words[0], words[1], words[2])
    return files


def test_initrds_are_the_same_bytes_when_built_again(tmp_path):
    run(SCRIPTS / "build-initrd", OUT / "busybox", tmp_path / "node.initrd")
    assert digest(tmp_path / "node.initrd") == digest(OUT / "node.initrd")
    run(SCRIPTS / "build-guest", OUT / "busybox", OUT / "fio", OUT / "load", tmp_path / "guest.initrd")
    assert digest(tmp_path / "guest.initrd") == digest(OUT / "guest.initrd")


def layers(folder: Path) -> list[Path]:
    """A disk's three, packed: each has one file, which is called as the layer is."""
    for name in ("node", "tools", "rig"):
        (folder / f"{name}.d").mkdir()
        (folder / f"{name}.d" / name).write_bytes(name.encode() * 100_000)
        run("mksquashfs", folder / f"{name}.d", folder / name, "-quiet", "-no-progress", "-comp", "zstd", "-all-root")
    return [folder / name for name in ("node", "tools", "rig")]


def test_disk_is_the_same_bytes_when_built_again(tmp_path):
    parts = layers(tmp_path)
    env = {**os.environ, "MINT_UPPER_MIB": "64"}
    for number in (1, 2):
        run(SCRIPTS / "build-disk", *parts, tmp_path / f"disk{number}", env=env)
    assert digest(tmp_path / "disk1") == digest(tmp_path / "disk2")


def test_rigs_disk_has_four_labels_and_what_they_hold(tmp_path):
    packed = layers(tmp_path)
    disk = tmp_path / "disk"
    run(SCRIPTS / "build-disk", *packed, disk, env={**os.environ, "MINT_UPPER_MIB": "64"})
    parts = {}
    sfdisk = "/usr/sbin/sfdisk" if Path("/usr/sbin/sfdisk").exists() else "/sbin/sfdisk"
    for line in run(sfdisk, "--dump", disk).splitlines():
        if line.startswith(str(disk)):
            fields = dict(f.strip().split("=", 1) for f in line.split(" : ", 1)[1].split(",") if "=" in f)
            parts[fields["name"].strip('"')] = (int(fields["start"]) * 512, int(fields["size"]) * 512)
    assert set(parts) == {"mint-node", "mint-tools", "mint-site", "mint-upper"}
    data = disk.read_bytes()
    for label, name in (("mint-node", "node"), ("mint-tools", "tools"), ("mint-site", "rig")):
        start, size = parts[label]
        layer = tmp_path / label
        layer.write_bytes(data[start:start + size])
        assert "Data is uncompressed" in run("unsquashfs", "-s", layer), label
        assert run("unsquashfs", "-cat", layer, name) == name * 100_000
    upper = parts["mint-upper"][0]
    assert data[upper + 1024 + 56:][:2] == b"\x53\xef", "ext4's magic number"
    assert data[upper + 1024 + 120:][:10] == b"mint-upper"


def test_node_has_every_uefi_that_qemu_knows_of(node_files):
    """Each of the descriptions names files that are there."""
    descriptions = [path for path in node_files if path.startswith("/usr/share/qemu/firmware/")]
    named = set()
    for path in descriptions:
        text = run("unsquashfs", "-cat", OUT / "node.squashfs", path.removeprefix("/"))
        named |= {value["filename"] for value in json.loads(text)["mapping"].values() if isinstance(value, dict)}
    assert "/usr/share/OVMF/OVMF_CODE_4M.fd" in named and len(descriptions) == 3, named
    assert named <= set(node_files), named - set(node_files)


def test_guest_image_is_within_its_budget():
    assert (OUT / "guest.initrd").stat().st_size < 20_000_000


def test_guest_build_over_budget_fails_and_leaves_nothing(tmp_path):
    big = tmp_path / "fio"
    with open(big, "wb") as file:
        file.truncate(21_000_000)
    done = subprocess.run([SCRIPTS / "build-guest", OUT / "busybox", big, OUT / "load", tmp_path / "guest.initrd"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "budget" in done.stderr
    assert not (tmp_path / "guest.initrd").exists()


def test_node_initrd_ends_where_another_cpio_may_follow():
    assert (OUT / "node.initrd").stat().st_size % 512 == 0


@pytest.mark.parametrize("path", [
    "/usr/sbin/libvirtd", "/usr/sbin/virtlogd", "/usr/bin/virsh", "/usr/bin/virt-host-validate",
    "/usr/bin/qemu-system-x86_64", "/usr/bin/qemu-img", "/usr/sbin/sshd", "/usr/bin/ssh",
    "/usr/lib/openssh/sftp-server", "/usr/bin/lspci", "/usr/bin/numactl", "/usr/bin/iperf3",
    "/usr/bin/curl", "/usr/bin/grep", "/usr/bin/awk", "/etc/ld.so.cache",
])
def test_node_image_has(node_files, path):
    assert path in node_files


@pytest.mark.parametrize("path", ["/usr/bin/dbus-daemon", "/usr/lib/systemd/systemd", "/usr/bin/pkttyagent-helper",
                                  "/usr/bin/python3", "/usr/bin/perl", "/etc/machine-id",
                                  "/etc/ssh/ssh_host_ed25519_key", "/root/.ssh"])
def test_node_image_has_no(node_files, path):
    assert path not in node_files


def test_node_image_gives_libvirts_directories_to_its_user(node_files):
    assert node_files["/var/lib/libvirt/qemu"][:2] == ("drwxr-x---", "64055/104")
    assert node_files["/etc/shadow"][:2] == ("-rw-r-----", "0/42")


def test_missing_library_is_found(tmp_path):
    root = tmp_path / "root"
    for directory in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "usr/libexec"):
        (root / directory).mkdir(parents=True)
    program = root / "usr/bin/true"
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o755)
    check = SCRIPTS / "check-libraries"
    done = subprocess.run([check, root], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "/usr/bin/true: libc.so.6\n"
    (root / "usr/lib/libc.so.6").touch()
    run(check, root)
