# SPDX-License-Identifier: Apache-2.0
"""The control area's layout on machines of other sizes; what a node reads of its cores and leaves alone."""

import re

from rig.machine import Machine, MachineConfig
from rig.server import Server


def test_a_control_area_of_4_gib_is_refused():
    """144 rings of 32 MiB: its 32-bit offsets would begin anew at 0, and parts of it lie on top of others."""
    with Machine(MachineConfig("wrap", mint="mint=on,nodes=12,ring=32M", numa_mib=4096)) as machine:
        said = machine.console[0].wait_for(r"mint: .*Mint stays off.*|mint-init: node 0 init").group()
        assert "nodes=12 with ring=32M" in said, said
        # what it would be: the rings and little more
        mib = int(re.search(r"(\d+) MiB, it must be less than 4096", said).group(1))
        assert 12 * 12 * 32 < mib < 12 * 12 * 32 + 64, said
        machine.console[0].wait_for(r"mint-init: node 0 init")


def test_mtrrs_of_a_node_cannot_be_written(pair: Server):
    """They are node 0's, and shared by the threads of a core: another node reads them, and its writes are refused."""
    assert "uncachable" in pair.zero.read("/proc/mtrr")
    for node in (pair.one, pair.two):
        assert "they are Mint node 0's" in node.out("dmesg")
        change = "echo 'base=0xf0000000 size=0x1000000 type=uncachable' >/proc/mtrr"
        assert node.run(f"sh -c \"{change}\"", check=False).status != 0
