# SPDX-License-Identifier: Apache-2.0
"""What operators install, apart from what only the rig's disks carry."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SCRIPTS = PROJECT / "images" / "scripts"
BUILD = Path(os.environ.get("BUILD", PROJECT / "build"))
NODE = BUILD / "images" / "node.squashfs"
HOST_KEYS = PROJECT / "images" / "layer" / "usr" / "lib" / "mint" / "host-keys"
HASH = "$6$saltsalt$" + "x" * 86


def run(*command, **options):
    """Run a command that must succeed; gives its standard output."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def files(squashfs):
    """{path: mode} of a squashfs."""
    lines = [line.split(None, 5) for line in run("unsquashfs", "-lln", squashfs).splitlines()]
    return {w[5].removeprefix("squashfs-root").split(" -> ")[0]: w[0] for w in lines if len(w) == 6 and "squashfs-root" in w[5]}


def text(squashfs, path):
    """A file's text in a squashfs."""
    return run("unsquashfs", "-cat", squashfs, path)


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """A build folder with all that layers are made of, test kernels included, and both layers."""
    build = tmp_path_factory.mktemp("build")
    for name in ("images/fio", "images/node.initrd", "images/guest.initrd", "images/node.squashfs", "layer"):
        assert (BUILD / name).exists(), f"{BUILD / name} is not there; run 'make images-check'"
        (build / name).parent.mkdir(exist_ok=True)
        (build / name).symlink_to(BUILD / name)
    for name in ("bin/mintd", "bin/mint-guestd", "bin/mintctl", "bin/mint-kvm-config", "bin/mint-guest", "bin/mint-libvirt-hook", "kexec/kexec",
                 "bin/mint-store", "bin/mint-pager", "bin/mint-keeper",
                 *(f"kernel/{flavour}/bzImage" for flavour in ("mint", "rt", "off", "stock", "kasan"))):  # fmt: skip
        (build / name).parent.mkdir(parents=True, exist_ok=True)
        (build / name).write_text(name)
    run(SCRIPTS / "build-tools-layer", build, build / "images" / "mint.squashfs")
    run(SCRIPTS / "build-rig-layer", build, build / "images" / "rig.squashfs")
    return build


@pytest.fixture(scope="session")
def product(built):
    """Mint's layer, as operators install it."""
    return built / "images" / "mint.squashfs"


@pytest.fixture(scope="session")
def rig(built):
    """The rig's layer."""
    return built / "images" / "rig.squashfs"


RIGS_OWN = ("/usr/lib/mint/rig-agent", "/etc/mint/rc.d/rig")


def test_rigs_layer_has_agent_and_settings(rig):
    have = files(rig)
    assert have.keys() >= set(RIGS_OWN)
    assert have["/usr/lib/mint/rig-agent"] == have["/etc/mint/rc.d/rig"] == "-rwxr-xr-x"
    assert "oops=panic" in tomllib.loads(text(rig, "etc/mint/mint.toml"))["node"]["cmdline"]


def test_product_has_nothing_of_the_rigs_layer(product, rig):
    in_node = files(NODE)
    have = files(product)
    assert have.keys() >= {
        "/usr/sbin/mintd", "/usr/sbin/mint-guestd", "/usr/bin/mintctl", "/usr/sbin/mint-guest", "/boot/vmlinuz-mint",
        "/boot/vmlinuz-mint-rt", "/etc/libvirt/hooks/qemu",
    }  # fmt: skip
    shared = {path for path, mode in files(rig).items() if not mode.startswith("d")} & (have.keys() | in_node.keys())
    # The rig's settings lie over the product's.
    assert shared == {"/etc/mint/mint.toml"}
    assert not [path for path in have if re.search(r"/etc/mint/rc\.d/|agent|vmlinuz-(off|stock|kasan|lockdep)", path)]


def test_product_has_no_test_settings(product):
    """No command line of its own: what mintd's default is (docs/config.md), without nowatchdog and oops=panic."""
    settings = tomllib.loads(text(product, "etc/mint/mint.toml"))
    assert settings == {"commands": {"leave": ["mint-leave"]}}


def test_no_account_of_the_product_has_a_password_or_key(product):
    entries = [line.split(":") for line in text(NODE, "etc/shadow").splitlines()]
    assert "root" in [entry[0] for entry in entries]
    assert {entry[1] for entry in entries} == {"*"}
    for squashfs in (NODE, product):
        have = files(squashfs)
        assert not [path for path in have if "authorized_keys" in path or "ssh_host_" in path or path == "/root/.ssh"]
    assert "/etc/shadow" not in files(product)


def test_console_asks_who_is_there(product):
    """The init gives the console to getty; no shell is started on it."""
    init = text(product, "usr/lib/mint/init")
    console = init[init.index("console=$(cat /sys/class/tty/console/active)"):]
    assert "getty -L 0 \"$console\"" in console
    assert not re.search(r"setsid -c|bash -l|sh -l", init)
    assert "/usr/bin/login" in files(product)
    applets = run(BUILD / "images" / "busybox", "--list").split()
    assert {"getty", "login"} <= set(applets)


# -- installed disks ---------------------------------------------------------------


@pytest.fixture
def key(tmp_path):
    """A public key."""
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "operator", "-f", tmp_path / "id")
    return tmp_path / "id.pub"


@pytest.fixture
def install(built, tmp_path):
    """Run install-disk with options; gives the finished process. The disk is tmp_path/NAME."""

    def call(*options, name="disk", env=None):
        inherited = {name: value for name, value in os.environ.items() if name != "MINT_AUTHORIZED_KEYS"}
        environment = {**inherited, "BUILD": str(built), **(env or {})}
        return subprocess.run([SCRIPTS / "install-disk", *map(str, options), tmp_path / name],
                              env=environment, capture_output=True, text=True, check=False)

    return call


def read_at(disk, start, size):
    """Bytes of a disk."""
    with open(disk, "rb") as file:
        file.seek(start)
        return file.read(size)


def partitions(disk):
    """{label: (start, bytes, uuid)} of a disk, and its own id as ""."""
    sfdisk = shutil.which("sfdisk", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    found = {}
    for line in run(sfdisk, "--dump", disk).splitlines():
        if line.startswith("label-id:"):
            found[""] = line.split()[1]
        elif line.startswith(str(disk)):
            fields = dict(f.strip().split("=", 1) for f in line.split(" : ", 1)[1].split(",") if "=" in f)
            found[fields["name"].strip('"')] = int(fields["start"]) * 512, int(fields["size"]) * 512, fields["uuid"]
    return found


def file_system_uuid(disk, start):
    """UUID of the ext4 at that byte of a disk."""
    block = read_at(disk, start + 1024, 1024)
    assert block[56:58] == b"\x53\xef", "ext4's magic number"
    return block[0x68:0x78].hex()


def site_layer(disk, tmp_path):
    """The site layer of a disk, as a file."""
    start, size, _ = partitions(disk)["mint-site"]
    layer = tmp_path / "site.squashfs"
    layer.write_bytes(read_at(disk, start, size))
    return layer


def test_no_two_installed_disks_share_an_id(install, tmp_path):
    seen = []
    for name in ("one", "two"):
        done = install("--size", "2G", name=name)
        assert done.returncode == 0, done.stderr
        parts = partitions(tmp_path / name)
        assert parts.keys() == {"", "mint-node", "mint-tools", "mint-upper"}
        disk_id = parts.pop("")
        seen += [disk_id, *(uuid for _, _, uuid in parts.values()), file_system_uuid(tmp_path / name, parts["mint-upper"][0])]
    assert len(seen) == 10
    assert len(set(seen)) == len(seen), seen
    assert not [one for one in seen if one.upper().startswith("4D494E54")], "an id of the rig's disk"


def test_installed_disk_holds_the_image_and_uses_all_of_the_disk(install, built, tmp_path):
    done = install("--size", "2G")
    assert done.returncode == 0, done.stderr
    disk = tmp_path / "disk"
    parts = partitions(disk)
    assert disk.stat().st_size == 2 << 30
    for label, name in (("mint-node", "node"), ("mint-tools", "mint")):
        image = (built / "images" / f"{name}.squashfs").read_bytes()
        assert read_at(disk, parts[label][0], len(image)) == image
    start, size, _ = parts["mint-upper"]
    assert start + size == (2 << 30) - (1 << 20)
    assert "only the machine's other nodes can log in" in done.stderr


@pytest.mark.parametrize("by", ["option", "environment"])
def test_operators_key_and_password_are_in_the_site_layer_alone(install, key, tmp_path, by):
    (tmp_path / "hash").write_text(HASH + "\n")
    words = ["--root-password-hash", tmp_path / "hash", "--size", "2G"]
    if by == "option":
        done = install("--authorized-keys", key, *words)
    else:
        done = install(*words, env={"MINT_AUTHORIZED_KEYS": str(key)})
    assert done.returncode == 0, done.stderr
    layer = site_layer(tmp_path / "disk", tmp_path)
    assert text(layer, "etc/ssh/authorized_keys") == key.read_text()
    entries = dict(line.split(":")[:2] for line in text(layer, "etc/shadow").splitlines())
    assert entries.pop("root") == HASH
    assert set(entries.values()) == {"*"}
    # login looks into shadow for those alone who have an x here.
    fields = dict(line.split(":")[:2] for line in text(layer, "etc/passwd").splitlines())
    assert fields.pop("root") == "x"
    assert fields.keys() == entries.keys()
    have = files(layer)
    assert have["/etc/shadow"] == "-rw-------"
    assert have["/etc/passwd"] == have["/etc/ssh/authorized_keys"] == "-rw-r--r--"
    assert have.keys() == {"", "/etc", "/etc/ssh", "/etc/passwd", "/etc/shadow", "/etc/ssh/authorized_keys"}


def test_sites_own_files_are_laid_over_the_image(install, tmp_path):
    tree = tmp_path / "tree"
    (tree / "etc" / "mint").mkdir(parents=True)
    (tree / "etc" / "mint" / "kvm.toml").write_text('uplink = "eth1"\n')
    done = install("--site", tree, "--size", "2G")
    assert done.returncode == 0, done.stderr
    assert text(site_layer(tmp_path / "disk", tmp_path), "etc/mint/kvm.toml") == 'uplink = "eth1"\n'


def test_tree_that_would_hide_the_images_programs_is_not_installed(install, tmp_path):
    (tmp_path / "tree" / "lib" / "modules").mkdir(parents=True)
    done = install("--site", tmp_path / "tree", "--size", "2G")
    assert done.returncode == 1
    assert "put it below usr/" in done.stderr
    assert not (tmp_path / "disk").exists()


def test_disk_that_holds_something_is_refused_until_forced(install, tmp_path):
    assert install("--size", "2G").returncode == 0
    before = partitions(tmp_path / "disk")
    done = install("--size", "2G")
    assert done.returncode == 3, done.stderr
    assert "holds" in done.stderr and "--force" in done.stderr
    assert partitions(tmp_path / "disk") == before
    assert install("--size", "2G", "--force").returncode == 0
    assert partitions(tmp_path / "disk")[""] != before[""]


@pytest.mark.parametrize(("options", "status", "words"), [
    ((), 2, "--size"),
    (("--size", "much"), 2, "--size must be"),
    (("--size", "300M"), 3, "the image needs"),
    (("--authorized-keys", "/etc/hostname", "--size", "2G"), 2, "no public key"),
    (("--authorized-keys", "/nowhere", "--size", "2G"), 2, "no public key"),
    (("--root-password-hash", "/etc/hostname", "--size", "2G"), 2, "openssl passwd -6"),
    (("--colour", "--size", "2G"), 2, "usage"),
])  # fmt: skip
def test_bad_words_write_nothing(install, tmp_path, options, status, words):
    done = install(*options)
    assert done.returncode == status, done.stderr
    assert words in done.stderr
    assert not (tmp_path / "disk").exists()


def test_private_key_is_not_installed(install, key, tmp_path):
    done = install("--authorized-keys", key.with_suffix(""), "--size", "2G")
    assert done.returncode == 2
    assert "private key" in done.stderr
    assert not (tmp_path / "disk").exists()


# -- the key of a node's sshd ------------------------------------------------------


def host_key(etc):
    """Public part of a node's host key; the private one must belong to it and be root's alone."""
    private = etc / "ssh_host_ed25519_key"
    assert private.stat().st_mode & 0o777 == 0o600
    public = (etc / "ssh_host_ed25519_key.pub").read_text().split()[:2]
    assert run("ssh-keygen", "-y", "-f", private).split()[:2] == public
    return public


def bundle(folder):
    """A bundle with a new host key, as each start brings one."""
    folder.mkdir()
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "ssh_host_ed25519_key")
    return folder, (folder / "ssh_host_ed25519_key.pub").read_text().split()[:2]


@pytest.mark.parametrize("broken", [b"", b"half a key"])
def test_host_key_of_a_node_stays_over_its_starts(tmp_path, broken):
    etc = tmp_path / "etc"
    etc.mkdir()
    first, first_key = bundle(tmp_path / "first")
    run(HOST_KEYS, first, etc)
    assert host_key(etc) == first_key
    second, second_key = bundle(tmp_path / "second")
    run(HOST_KEYS, second, etc)
    assert host_key(etc) == first_key != second_key
    assert not list(second.iterdir()), "peers would be told of a key that sshd does not have"
    (etc / "ssh_host_ed25519_key").write_bytes(broken)
    third, third_key = bundle(tmp_path / "third")
    run(HOST_KEYS, third, etc)
    assert host_key(etc) == third_key


def test_node_without_a_bundle_makes_its_own_key_once(tmp_path):
    etc = tmp_path / "etc"
    etc.mkdir()
    run(HOST_KEYS, tmp_path / "none", etc)
    key = host_key(etc)
    run(HOST_KEYS, tmp_path / "none", etc)
    assert host_key(etc) == key
