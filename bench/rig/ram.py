# SPDX-License-Identifier: Apache-2.0
"""The machine's RAM, read (and for faults, written) by the rig while nodes run.

Each NUMA node's RAM is a memfd of QEMU's, which we open through /proc/PID/fd. It is
not mapped: a look at a page that the machine has not used yet would take host memory.
"""

import os
import re
import struct
from dataclasses import dataclass

from rig import paths
from rig.area import Area, find_area
from rig.ledger import Ledger
from rig.machine import DEFAULT_FLAVOUR, SOCKETS, Machine
from rig.node import Node
from rig.physical import HIGH_BASE, LOW_BYTES

# arch/x86/include/asm/mint_area.h: node_offset of the header, text_vaddr of a node
AREA_NODE_OFFSET, NODE_TEXT_OFFSET = 72, 312


class Ram:
    """Physical memory of a running machine; close() it, or use as a context."""

    def __init__(self, machine: Machine) -> None:
        self._numa_bytes = machine.config.numa_mib << 20
        folder = f"/proc/{machine.process.pid}/fd"
        # Both are called the same; QEMU opened them in the order of NUMA nodes.
        found = []
        for name in sorted(os.listdir(folder), key=int):
            path = f"{folder}/{name}"
            try:
                if os.readlink(path).startswith("/memfd:") and os.stat(path).st_size == self._numa_bytes:
                    found.append(path)
            except FileNotFoundError:
                continue  # closed meanwhile
        assert len(found) == SOCKETS, f"QEMU's memory files: {found}"
        self._files = [os.open(path, os.O_RDWR | os.O_CLOEXEC) for path in found]

    @property
    def bytes(self) -> int:
        """How much there is."""
        return self._numa_bytes * SOCKETS

    def _place(self, address: int) -> tuple[int, int, int]:
        """File, offset in it, bytes that follow without a break."""
        offset = address if address < LOW_BYTES else address - HIGH_BASE + LOW_BYTES
        room = LOW_BYTES - address if address < LOW_BYTES else self.bytes - offset
        if address < 0 or LOW_BYTES <= address < HIGH_BASE or room <= 0:
            raise ValueError(f"{address:#x} is not RAM of the machine")
        number, inner = divmod(offset, self._numa_bytes)
        return self._files[number], inner, min(room, self._numa_bytes - inner)

    def read(self, address: int, count: int) -> bytes:
        """count bytes from a physical address."""
        parts = []
        while count:
            file, offset, room = self._place(address)
            parts.append(os.pread(file, min(count, room), offset))
            address, count = address + len(parts[-1]), count - len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, address: int, data: bytes) -> None:
        """Change RAM under the nodes' feet, for tests of faults."""
        file, offset, room = self._place(address)
        assert len(data) <= room
        written = os.pwrite(file, data, offset)
        assert written == len(data), f"{written} of {len(data)} bytes at {address:#x}"

    def close(self) -> None:
        """Close; QEMU keeps its own."""
        for file in self._files:
            os.close(file)
        self._files = []

    def __enter__(self) -> "Ram":
        return self

    def __exit__(self, *exception) -> None:
        self.close()


def area_of(ram: Ram) -> Area | None:
    """The machine's control area; None before node 0's kernel has made it, or without Mint."""
    return find_area(ram.read, [(0, LOW_BYTES), (HIGH_BASE, HIGH_BASE + ram.bytes - LOW_BYTES)])


@dataclass(frozen=True)
class KernelPlace:
    """Where a running kernel is: of its text, and what moves between the two views."""

    text_virtual: int
    text_physical: int

    def physical(self, virtual: int) -> int:
        """Physical address of an address inside the kernel image."""
        return virtual - self.text_virtual + self.text_physical


def kernel_place(node: Node) -> KernelPlace:
    """Ask a node's kernel where it is (root sees true addresses)."""
    virtual = int(node.out("grep -w _text /proc/kallsyms").split()[0], 16)
    physical = int(node.out("grep -w 'Kernel code' /proc/iomem").split("-")[0], 16)
    assert virtual and physical, "the node hides its kernel's addresses"
    return KernelPlace(virtual, physical)


def dead_place(node: Node, area: int) -> KernelPlace:
    """Where the kernel of a node said that it is, in the control area at that physical address: for one that has no
    daemon to ask."""
    with Ram(node.machine) as ram:
        offset, stride = struct.unpack("<II", ram.read(area + AREA_NODE_OFFSET, 8))
        record = area + offset + node.number * stride
        _, physical = struct.unpack("<QQ", ram.read(record + NODE_TEXT_OFFSET, 16))
    assert physical, "no kernel of the node has said where it is"
    return KernelPlace(built_symbol("_text"), physical)


def built_symbol(name: str) -> int:
    """Virtual address of a symbol, as the rig's kernel was linked."""
    for line in paths.need(paths.kernel(DEFAULT_FLAVOUR).parent / "System.map").read_text().splitlines():
        address, _, symbol_name = line.split()
        if symbol_name == name:
            return int(address, 16)
    raise LookupError(name)


def symbol(node: Node, name: str) -> int:
    """Virtual address of a kernel symbol on a node."""
    return int(node.out(f"grep -w {name} /proc/kallsyms").split()[0], 16)


def own_ram_bytes(node: Node, ledger: Ledger) -> int:
    """RAM of a node's kernel, by its /proc/iomem, in blocks that the ledger says it owns; asserts that it has none
    elsewhere, but node 0 in blocks that nobody can have: with holes, firmware's tables, the control area."""
    blocks = [block for block in ledger.details["memory"] if block["owner"] == node.number or node.number == 0]
    spans = [(block["phys"], block["phys"] + block["bytes"], block["owner"]) for block in blocks]
    owned = [(start, stop) for start, stop, owner in spans if owner == node.number]
    others = [(start, stop) for start, stop, owner in spans if owner != node.number]
    iomem = node.read("/proc/iomem")
    ranges = re.findall(r"^ *([0-9a-f]+)-([0-9a-f]+) : System RAM", iomem, re.MULTILINE)
    assert ranges, iomem
    total = 0
    for begin, end in ((int(first, 16), int(last, 16) + 1) for first, last in ranges):
        covered, foreign = (
            sum(max(0, min(end, stop) - max(begin, start)) for start, stop in some) for some in (owned, others)
        )
        whole = covered == end - begin if node.number else not foreign
        assert whole, f"{begin:#x} to {end:#x} is not node {node.number}'s\n{iomem}"
        total += covered
    return total
