# SPDX-License-Identifier: Apache-2.0
"""Machines of other sizes: the control area's layout, and NUMA where there is much memory; what a node reads of its
cores and leaves alone."""

import re
from dataclasses import replace

from rig.machine import Machine, MachineConfig
from rig.server import SPARE, Server

# More than 128 blocks, as many as a kernel for 64 NUMA nodes keeps ranges: 17.5 GiB.
LARGE_MIB = 12 * 1024
OF_EACH_MIB = 8960


def test_a_control_area_of_4_gib_is_refused():
    """144 rings of 32 MiB: its 32-bit offsets would begin anew at 0, and parts of it lie on top of others."""
    with Machine(MachineConfig("wrap", mint="mint=on,nodes=12,ring=32M", numa_mib=4096)) as machine:
        said = machine.console[0].wait_for(r"mint: .*Mint stays off.*|mint-init: node 0 init").group()
        assert "nodes=12 with ring=32M" in said, said
        # what it would be: the rings and little more
        mib = int(re.search(r"(\d+) MiB, it must be less than 4096", said).group(1))
        assert 12 * 12 * 32 < mib < 12 * 12 * 32 + 64, said
        machine.console[0].wait_for(r"mint-init: node 0 init")


def test_a_node_of_more_than_16_gib_keeps_numa(own_machine):
    """Its kernel knows both NUMA nodes, each with its memory and cores, as it says at its boot; it stays in its initrd."""
    server = own_machine(
        MachineConfig("large", mint=f"mint=on,mem={OF_EACH_MIB}M@0,mem={OF_EACH_MIB}M@1", numa_mib=LARGE_MIB)
    )
    plan = replace(SPARE, cpus=(2, 5), devices=(), memory_mib=OF_EACH_MIB)
    server.add(plan, "--memory", f"{OF_EACH_MIB}M@numa0")
    console = server.node(1).console
    console.wait_for("mint-init: node 1 init")
    text = console.text()
    assert "Faking a node" not in text
    assert "Brought up 2 nodes, 2 CPUs" in text
    found: dict[int, int] = {}
    for numa, first, last in re.findall(r"node +(\d+): \[mem 0x(\w+)-0x(\w+)\]", text):
        found[int(numa)] = found.get(int(numa), 0) + int(last, 16) + 1 - int(first, 16)
    assert found == dict.fromkeys((0, 1), OF_EACH_MIB << 20), found


def test_mtrrs_of_a_node_cannot_be_written(pair: Server):
    """They are node 0's, and shared by the threads of a core: another node reads them, and its writes are refused."""
    assert "uncachable" in pair.zero.read("/proc/mtrr")
    for node in (pair.one, pair.two):
        assert "they are Mint node 0's" in node.out("dmesg")
        change = "echo 'base=0xf0000000 size=0x1000000 type=uncachable' >/proc/mtrr"
        assert node.run(f"sh -c \"{change}\"", check=False).status != 0
