# SPDX-License-Identifier: Apache-2.0
"""Guests of other systems, as they are (the Mint paper, 3.2 (4)): Debian 12's stock kernels of 64 and of 32 bits,
memtest86+, a UEFI without an operating system."""

from collections.abc import Iterator

import pytest

from rig import paths
from rig.guest import Guest
from rig.node import Node
from rig.server import Server

LIMIT_S = 600
FOLDER = "/srv/other"  # QEMU, which is not root, reads it


def put(node: Node, name: str) -> str:
    """A file for guests to boot; gives its path there."""
    path = f"{FOLDER}/{name}"
    node.run(f"mkdir -p {FOLDER} && cat >{path}", stdin=(paths.need(paths.OTHER_SYSTEMS) / name).read_bytes())
    return path


def boot(node: Node, name: str) -> str:
    """mint-guest's options for a kernel and its initrd."""
    return f"--kernel {put(node, f'{name}.vmlinuz')} --initrd {put(node, f'{name}.initrd')}"


@pytest.fixture
def node(pair: Server) -> Iterator[Node]:
    """Node 1; the files are gone at the end."""
    pair.wait_ready(pair.one)
    yield pair.one
    pair.one.run(f"rm -rf {FOLDER}")


@pytest.mark.soak
@pytest.mark.soak_only
def test_stock_kernel_of_debian_12_has_disk_and_network(node: Node):
    with Guest(node, "stock") as guest:
        guest.start(f"{boot(node, 'amd64')} --disk 8M --disk-test 2 --net-test node")
        assert guest.passed("disk") and guest.passed("net")
        shown, status = guest.shell("uname -rm")
        assert status == 0 and "6.1.0-" in shown and "-cloud-amd64 x86_64" in shown, shown


@pytest.mark.soak
@pytest.mark.soak_only
def test_kernel_of_32_bits_has_network(node: Node):
    with Guest(node, "narrow") as guest:
        guest.start(f"{boot(node, 'i386')} --no-disk --net-test node")
        assert guest.passed("net")
        shown, status = guest.shell("uname -rm")
        assert status == 0 and "-686 i686" in shown, shown


@pytest.mark.soak
@pytest.mark.soak_only
def test_memtest_counts_its_passes(node: Node):
    with Guest(node, "memtest") as guest:
        path = put(node, "memtest.bin")
        node.run(f"mint-guest memtest --kernel {path} --memory 32M --no-disk --no-network --append console=ttyS0,115200")
        node.wait("memtest86+", f"grep -aq 'Memtest86+' {guest.log_path}", LIMIT_S)
        node.wait("a pass", f"grep -aq 'Pass: *[1-9]' {guest.log_path}", LIMIT_S)


@pytest.mark.soak
@pytest.mark.soak_only
def test_uefi_without_a_system_gives_its_shell(node: Node):
    with Guest(node, "uefi") as guest:
        node.run(
            "virsh -q vol-create-as mint uefi.raw 8M --format raw && mint-kvm-config domain uefi --uefi"
            f" --disk /var/lib/libvirt/images/uefi.raw >{FOLDER}.xml && virsh -q define --validate {FOLDER}.xml &&"
            f" rm {FOLDER}.xml && virsh -q start uefi",
        )
        node.wait("the shell", f"grep -aq 'UEFI Interactive Shell' {guest.log_path}", LIMIT_S)
