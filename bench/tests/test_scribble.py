# SPDX-License-Identifier: Apache-2.0
"""Kernels read the control area as if a madman wrote there: one does, from outside, while they work."""

import random

import pytest

from rig import kerneltext
from rig.scribble import ASKED, SHUTDOWN, Area, Scribbler
from rig.node import Node
from rig.ram import Ram
from rig.reports import reports_in
from rig.server import Server
from rig.wait import wait_until

QUIET = "/dev/shm/quiet"
TURNS = "/tmp/turns"
STOP = "/tmp/scribbled"
# Whatever makes a kernel read the area, again and again: answers do not matter, going on does. A core goes to the
# park loop and comes back, where the node has a second one.
READER = f"""
exec >/dev/null 2>&1
turns=0
while ! [ -e {STOP} ]; do
    timeout 5 mintctl node list
    timeout 5 mintctl cpu list
    timeout 5 mintctl memory list
    timeout 5 mintctl device list
    timeout 5 mintctl doctor
    cat /sys/kernel/mint/nodes/*/*
    lspci -v
    for peer in 0 1 2; do timeout 2 ping -c 1 node$peer; done
    for core in /sys/devices/system/cpu/cpu1/online; do
        echo 0 >$core
        echo 1 >$core
    done
    turns=$((turns + 1))
    echo $turns >{TURNS}
done
"""


def begin(node: Node) -> tuple[str, str]:
    """Known bytes in the node's memory, and a reader that needs nobody; gives the bytes' digest and the boot's id."""
    node.run(f"rm -f {STOP} {TURNS}; head -c 67108864 /dev/urandom >{QUIET}", 180)
    node.run("cat >/tmp/reader", stdin=READER.encode())
    node.run("setsid sh /tmp/reader </dev/null >/dev/null 2>&1 & :")
    node.wait("its reader", f"[ -s {TURNS} ]", 120)
    return node.out(f"sha256sum <{QUIET}", 180), node.read("/proc/sys/kernel/random/boot_id")


@pytest.mark.soak
@pytest.mark.soak_only
def test_node_powers_off_only_if_it_is_meant(worn: Server):
    """Not for bytes that look like a request, nor for one to a former kernel of the node, or to another node."""
    boots, boot_id = worn.nodes()[1].boots, worn.one.read("/proc/sys/kernel/random/boot_id")
    with Ram(worn.machine) as ram:
        area = Area(worn.zero, ram)
        machine = area.header["boot_id"]
        nobody = area.header["node_max"] - 1
        assert nobody not in worn.nodes()
        for payload in (
            b"",
            ASKED.pack(machine, 1, boots - 1),
            ASKED.pack(machine, 2, boots),
            ASKED.pack(machine ^ 2, 1, boots),
            ASKED.pack(machine, 1, boots)[:-1],
        ):
            area.put_in_control_ring(nobody, 1, SHUTDOWN, payload)
    # The doorbell is for all of its rings.
    worn.zero.run("printf x | mintctl node console 1 --write")
    refused = f"node {nobody} asks another kernel for a poweroff, refused"
    worn.one.wait("it has refused each", f"[ $(dmesg | grep -c '{refused}') = 5 ]")
    assert worn.state(1) == "running" and worn.one.read("/proc/sys/kernel/random/boot_id") == boot_id


@pytest.mark.soak
def test_kernels_outlive_a_scribbler_over_the_control_area(worn: Server, request: pytest.FixtureRequest):
    """--scribble-s seconds: every part of the area that is not trusted is written over, at random; all three kernels
    work on, touch nothing of the others, and talk to each other again when it is over."""
    rng = random.Random(request.config.getoption("--seed"))
    nodes = [worn.zero, worn.one, worn.two]
    ledger = worn.ledger()
    before = [begin(node) for node in nodes]
    turns = [int(node.read(TURNS)) for node in nodes]
    with Ram(worn.machine) as ram:
        scribbler = Scribbler(Area(worn.zero, ram), rng)
        scribbler.run(request.config.getoption("--scribble-s"))
        print("writes:", scribbler.writes)
        assert all(scribbler.writes.values()), scribbler.writes
        assert worn.machine.alive(), "the machine was reset"
        for node, (digest, boot), had in zip(nodes, before, turns, strict=True):
            # over mint0: its rings have found their way back
            node.wait("its mintd, after the scribbling", "true", 120)
            assert node.read("/proc/sys/kernel/random/boot_id") == boot, f"node {node.number} booted anew"
            done = int(node.read(TURNS))
            assert done > had, f"node {node.number}'s reader stood still"
            node.run(f"touch {STOP}")
            assert node.out(f"sha256sum <{QUIET}", 180) == digest, f"memory of node {node.number} changed"
            node.run(f"rm {QUIET}")
            assert not reports_in(node.out("dmesg")), f"node {node.number} complained"
            assert not kerneltext.check(node, ram)
    changed = wait_until("the ledger as it was", lambda: not ledger.difference(worn.ledger()) or None)
    assert changed
