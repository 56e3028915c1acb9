# SPDX-License-Identifier: Apache-2.0
"""Kernels of other versions share a machine: in those of flavour "grown", each record that kernels share is longer by
a field that the others do not know (kernel/config/grown.config)."""

import re
import struct

import pytest

from rig import paths
from rig.scribble import Area
from rig.ledger import read_ledger
from rig.machine import MachineConfig
from rig.mintctl import Mintctl
from rig.node import Node
from rig.ram import Ram
from rig.server import ONE, TWO, NodePlan, Server

GROWN = "/boot/vmlinuz-mint-grown"
# MINT_ADDED, and struct mint_area_node without the field
ADDED = 0x6E776F7267
NODE_BYTES, CPU_BYTES, MEM_BYTES, PCI_BYTES = 432, 128, 16, 80
FIELD_BYTES = 8


def with_kernel(plan: NodePlan, kernel: str) -> NodePlan:
    """The plan, with another kernel than node 0's."""
    return NodePlan(plan.name, plan.cpus, plan.memory_mib, plan.numa, plan.devices, ("--kernel", kernel))


def put_grown(node: Node) -> None:
    """The kernel of tomorrow, to start nodes with."""
    node.run(f"cat >{GROWN} && sync", stdin=paths.need(paths.kernel("grown")).read_bytes())


def strides(area: Area) -> dict[str, int]:
    """Bytes of one record of each table."""
    return {table: area.header[f"{table}_stride"] for table in ("node", "cpu", "mem", "pci")}


def added(area: Area, node: int) -> int:
    """The field that is new, in a node's record."""
    offset, _ = area.entries("node")[node]
    return struct.unpack("<Q", area.read(offset + NODE_BYTES, 8))[0]


def says_grown(node: Node) -> str:
    """What a grown kernel found in header, boot facts and its record."""
    return re.search(r"mint: grown: (.*)", node.out("dmesg"))[1]


def work_together(server: Server) -> None:
    """All three nodes' kernels are up, see the same ledger, and reach each other."""
    for node in (server.zero, server.one, server.two):
        server.wait_mintd(node)
    seen = [read_ledger(Mintctl(node)) for node in (server.zero, server.one, server.two)]
    assert [seen[0].difference(other) for other in seen] == [[]] * 3
    for node, peer in ((server.zero, 1), (server.one, 2), (server.two, 0)):
        text = node.out(f"ping -c 5 -i 0.2 -W 10 node{peer}")
        assert re.search(r"\b0% packet loss", text), text


@pytest.mark.soak
@pytest.mark.soak_only
def test_older_kernels_run_beside_a_newer_node0(own_machine):
    """Node 0 is the newer one; node 1 is older, node 2 as new as node 0."""
    server = own_machine(MachineConfig("grown", flavour="grown"))
    put_grown(server.zero)
    server.add(ONE)
    server.add(with_kernel(TWO, GROWN))
    work_together(server)
    assert [node.out("uname -r").endswith("-grown") for node in (server.zero, server.one, server.two)] == [True, False, True]
    with Ram(server.machine) as ram:
        area = Area(server.zero, ram)
        assert strides(area) == {
            "node": NODE_BYTES + FIELD_BYTES, "cpu": CPU_BYTES + FIELD_BYTES,
            "mem": MEM_BYTES + FIELD_BYTES, "pci": PCI_BYTES + FIELD_BYTES,
        }  # fmt: skip
        assert [added(area, number) for number in (0, 1, 2)] == [ADDED, 0, ADDED]
    assert says_grown(server.two) == "header 1, facts 1, record 1"


def test_newer_kernels_run_beside_an_older_node0(bare: Server):
    """Node 1 is newer than node 0, and starts node 2, which is as old as node 0, with boot facts of its own."""
    put_grown(bare.zero)
    bare.add(with_kernel(ONE, GROWN))
    bare.wait_mintd(bare.one)
    assert says_grown(bare.one) == "header 0, facts 0, record 0"
    with Ram(bare.machine) as ram:
        area = Area(bare.zero, ram)
        assert strides(area) == {"node": NODE_BYTES, "cpu": CPU_BYTES, "mem": MEM_BYTES, "pci": PCI_BYTES}
        before = area.read(*area.entries("node")[3])
        bare.one.run(f"mintctl node add {' '.join(TWO.words())} --from node0", 240)
        work_together(bare)
        # Node 1's image has the ordinary kernel, whichever node 0 runs.
        assert [node.out("uname -r").endswith("-grown") for node in (bare.zero, bare.one, bare.two)] == [False, True, False]
        # nobody wrote behind a record's end
        assert area.read(*area.entries("node")[3]) == before
    bare.remove_all()
    bare.zero.run(f"rm {GROWN}")
