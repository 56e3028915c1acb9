# SPDX-License-Identifier: Apache-2.0
"""Cores and PCI functions move between running nodes; one request is all or nothing. Of memory: test_memory."""

import re

import pytest

from rig.functions import addressed, driver_of, mac_of
from rig.guest import Guest
from rig.mintctl import REFUSED, Mintctl, MintctlError
from rig.node import Node
from rig.server import CARD0, CARD1, CARD2_E1000E, DISK2_NVME, ONE, TWO, Server

# Of the one NVMe disk that there is, the file system that it has from the image.
NVME_PART = "/dev/nvme0n1p2"


def online(node: Node) -> int:
    """Cores that the node's kernel schedules on."""
    return int(node.out("nproc"))


def test_core_moves_from_node0_to_node2_and_back(pair: Server):
    """node resize two --cpus +1: the core works there, and again here when it is back."""
    zero, two = online(pair.zero), online(pair.two)
    pair.mintctl("node", "resize", TWO.name, "--cpus", "+1")
    assert (online(pair.zero), online(pair.two)) == (zero - 1, two + 1)
    # Each core does some work of its own.
    cores = pair.two.read("/sys/devices/system/cpu/online").strip()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", cores):
        for core in range(int(first), int(last or first) + 1):
            pair.two.run(f"taskset -c {core} sha256sum /proc/cpuinfo")
    pair.mintctl("node", "resize", TWO.name, "--cpus", "-1")
    assert (online(pair.zero), online(pair.two)) == (zero, two)


@pytest.mark.parametrize("asked", [0, 1, 2], ids=["node0", "node1", "node2"])
def test_core_moves_between_node1_and_node2(pair: Server, asked: int):
    """From node 1 to node 2 and back, asked for on any node; both nodes run on."""
    mintctl = Mintctl(pair.node(asked))
    core = ONE.cpus[-1]
    mine = f"{TWO.cpus[0]},{core}"
    mintctl("node", "resize", TWO.name, "--cpus", mine, "--from", ONE.name)
    assert (online(pair.one), online(pair.two)) == (len(ONE.cpus) - 1, 2)
    assert pair.ledger().resources["cpu", str(core)] == ("owned", 2)
    mintctl("node", "resize", ONE.name, "--cpus", "+1", "--from", TWO.name)
    assert (online(pair.one), online(pair.two)) == (len(ONE.cpus), 1)


def test_core_is_on_its_own_numa_node_whatever_comes_first(pair: Server):
    """Two cores of NUMA node 1 come to node 2, one before any memory of it: both are there, and it goes with them."""
    nodes = "/sys/devices/system/node"
    before = pair.two.out(f"ls -d {nodes}/node*")
    assert "node1" not in before
    late, early = ONE.cpus[-1], ONE.cpus[-1] + 1  # the second is node 0's
    pair.mintctl("node", "resize", TWO.name, "--cpus", f"{TWO.cpus[0]},{early}")
    first = pair.two.read(f"{nodes}/node1/cpulist").strip()
    assert first.isdigit(), f"CPUs of NUMA node 1: {first!r}"
    pair.mintctl("node", "resize", TWO.name, "--memory", "+128M@numa1")
    pair.mintctl("node", "resize", TWO.name, "--cpus", f"{TWO.cpus[0]},{late},{early}", "--from", ONE.name)
    count = pair.two.out(f"ls -d {nodes}/node1/cpu[0-9]* | wc -l").strip()
    assert (online(pair.two), count) == (3, "2")
    pair.mintctl("node", "resize", ONE.name, "--cpus", ",".join(map(str, ONE.cpus)), "--from", TWO.name)
    pair.mintctl("node", "resize", TWO.name, "--memory", f"{TWO.memory_mib}M")
    assert pair.two.read(f"{nodes}/node1/cpulist").strip() == first
    pair.mintctl("node", "resize", TWO.name, "--cpus", str(TWO.cpus[0]))
    assert pair.two.out(f"ls -d {nodes}/node*") == before


def test_device_moves_from_node0_to_node1_and_back(pair: Server):
    """device move: lspci shows it where it is, its driver binds there; a card's MAC address goes with it, and frames
    come and go."""
    mac = mac_of(pair.zero, CARD2_E1000E)
    for node, other, name in ((pair.one, pair.zero, ONE.name), (pair.zero, pair.one, "node0")):
        pair.mintctl("device", "move", CARD2_E1000E, "--to", name)
        assert CARD2_E1000E in node.out("lspci -D")
        assert CARD2_E1000E not in other.out("lspci -D")
        assert driver_of(node, CARD2_E1000E) == "e1000e"
        assert mac_of(node, CARD2_E1000E) == mac
        # All cards are on one wire: to the other node's own.
        far = CARD0 if other is pair.zero else CARD1
        with addressed(node, CARD2_E1000E, "192.0.2.1/24"), addressed(other, far, "192.0.2.2/24"):
            node.wait("its card's link", "ping -c 1 -W 1 192.0.2.2 >/dev/null")
            node.run("ping -c 20 -i 0.05 -W 5 -s 1400 192.0.2.2")
            assert mac in other.out("ip neigh show 192.0.2.1")


def test_disk_with_a_file_system_moves_with_its_data(bare: Server):
    """What node 0 wrote is read on node 1, which runs, and the other way; a disk that is mounted stays."""
    bare.add(ONE)

    def mounted(node: Node, command: str) -> str:
        """A command's output in the root of the disk's file system."""
        node.wait("its disk", f"[ -b {NVME_PART} ]")
        node.run(f"mkdir -p /tmp/disk && mount {NVME_PART} /tmp/disk")
        out = node.out(f"cd /tmp/disk && {command}")
        with pytest.raises(MintctlError, match="is mounted on /tmp/disk") as caught:
            bare.mintctl("device", "move", DISK2_NVME, "--to", "node0" if node.number else ONE.name)
        assert (caught.value.status, "device_busy" in caught.value.codes) == (REFUSED, True), caught.value
        node.run("umount /tmp/disk")
        return out

    write = "dd if=/dev/urandom bs=1M count=64 of={0} status=none && sha256sum {0}"
    first = mounted(bare.zero, write.format("first"))
    bare.mintctl("device", "move", DISK2_NVME, "--to", ONE.name)
    assert mounted(bare.one, "sha256sum first") == first
    second = mounted(bare.one, write.format("second"))
    bare.mintctl("device", "move", DISK2_NVME, "--to", "node0")
    assert mounted(bare.zero, "sha256sum first second && rm first second") == f"{first}\n{second}"
    bare.remove_all()


def test_reset_of_a_moved_device_leaves_error_reporting_as_it_was(pair: Server):
    """SERR# and the PCIe device control register, which a function level reset clears."""

    def registers(node: Node) -> tuple[int, str]:
        command, control = node.out(f"setpci -s {CARD0} COMMAND CAP_EXP+8.w").split()
        return int(command, 16) & 0x100, control

    was = registers(pair.zero)
    pair.zero.run(f"setpci -s {CARD0} COMMAND=100:100 CAP_EXP+8.w=f:f")
    wanted = registers(pair.zero)
    assert wanted[0] == 0x100
    pair.mintctl("device", "move", CARD0, "--to", ONE.name)
    assert registers(pair.one) == wanted
    pair.mintctl("device", "move", CARD0, "--to", "node0")
    assert registers(pair.zero) == wanted
    pair.zero.run(f"setpci -s {CARD0} COMMAND={was[0]:x}:100 CAP_EXP+8.w={was[1]}")


def test_core_with_a_pinned_guest_stays(pair: Server):
    """Refused with the guest's name: on node 1 a vCPU is pinned to the only core besides the boot core."""
    with Guest(pair.one, "pinned") as guest:
        guest.start("--no-disk")
        with pytest.raises(MintctlError, match="guest pinned") as caught:
            pair.mintctl("node", "resize", ONE.name, "--cpus", "-1")
        assert caught.value.status == REFUSED
        assert "cpu_pinned" in caught.value.codes


def test_dry_run_of_a_resize_changes_nothing(pair: Server):
    """--dry-run says the steps."""
    answer = pair.mintctl("node", "resize", TWO.name, "--cpus", "+1", "--memory", "+128M", "--dry-run")
    assert answer["dry_run"]
    assert any(step.startswith("claim cpu") for step in answer["steps"]), answer


REFUSALS = {
    "boot core": (("resize", TWO.name, "--cpus", "5"), "cpu_boot"),
    "more cores than there are": (("resize", TWO.name, "--cpus", "+9"), "cpu_short"),
    "last cores": (("resize", ONE.name, "--cpus", "-2"), "cpu_last"),
    "core of a node that is not named": (("resize", TWO.name, "--cpus", f"2,{ONE.cpus[-1]}"), "cpu_owned"),
    "more memory than there is": (("resize", TWO.name, "--memory", "+64G"), "memory_short"),
    "all of its memory": (("resize", TWO.name, "--memory", f"-{TWO.memory_mib}M"), "memory_short"),
    "a function that is not its own": (("resize", TWO.name, "--drop-device", CARD2_E1000E), "device_owned"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_resize_is_refused(pair: Server, what: str):
    """Each with its code, and the ledger as it was (the fixture compares it)."""
    words, code = REFUSALS[what]
    with pytest.raises(MintctlError) as caught:
        pair.mintctl("node", *words)
    assert caught.value.status == REFUSED
    assert code in caught.value.codes, caught.value
