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
    """Both NUMA nodes, each with its memory and the distances of the machine."""
    server = own_machine(
        MachineConfig("large", mint=f"mint=on,mem={OF_EACH_MIB}M@0,mem={OF_EACH_MIB}M@1", numa_mib=LARGE_MIB)
    )
    plan = replace(SPARE, cpus=(2, 5), devices=(), memory_mib=OF_EACH_MIB)
    server.add(plan, "--memory", f"{OF_EACH_MIB}M@numa0")
    node = server.node(1)
    assert "Faking a node" not in node.out("dmesg")
    assert node.read("/sys/devices/system/node/online") == "0-1"
    for numa in (0, 1):
        folder = f"/sys/devices/system/node/node{numa}"
        total_kib = int(re.search(r"MemTotal:\s+(\d+) kB", node.read(f"{folder}/meminfo"))[1])
        # struct pages, and what the kernel keeps from its start
        assert OF_EACH_MIB * 0.97 < total_kib / 1024 <= OF_EACH_MIB, f"NUMA node {numa}: {total_kib} KiB"
        assert node.read(f"{folder}/distance") == server.zero.read(f"{folder}/distance")
        assert node.out(f"ls -d {folder}/cpu{numa}")


def test_mtrrs_of_a_node_cannot_be_written(pair: Server):
    """They are node 0's, and shared by the threads of a core: another node reads them and has no /proc/mtrr."""
    assert "uncachable" in pair.zero.read("/proc/mtrr")
    for node in (pair.one, pair.two):
        assert node.run("ls /proc/mtrr", check=False).status != 0
        assert "they are Mint node 0's" in node.out("dmesg")
