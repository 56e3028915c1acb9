# SPDX-License-Identifier: Apache-2.0
"""The control area as it lies in the machine's RAM: ledger, nodes, consoles, read by the rig itself.

No kernel and no daemon is asked. All that is known here of the layout is the first
part of this file, from the kernel's <asm/mint_area.h>; sizes of entries come from
the area's header, so fields that are added at the end of one change nothing.
"""

import ctypes
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rig.errors import RigError
from rig.ledger import Ledger

# -- layout: <asm/mint_area.h>, <uapi/linux/mint.h> ------------------------------

MAGIC = 0x61657261544E494D
VERSION = 2
# Where it may begin: its maker aligns it so.
ALIGNMENT = 2 << 20
RESOURCE_STATES = ("absent", "free", "owned", "moving")
# "absent" is what the rig calls a node that there is not (Server.wait_state).
NODE_STATES = (
    "absent", "stopped", "loaded", "starting", "running", "halted", "reboot", "crashed", "killed", "loading",
)  # fmt: skip
NOBODY = 0xFF
VIRTUAL_FUNCTION = 1 << 7  # MINT_RESF_VF


def _u32(*names: str) -> list[tuple[str, type]]:
    return [(name, ctypes.c_uint32) for name in names]


def _u64(*names: str) -> list[tuple[str, type]]:
    return [(name, ctypes.c_uint64) for name in names]


class Header(ctypes.LittleEndianStructure):
    """struct mint_area_header, as far as the rig wants it."""

    _fields_ = [
        *_u64("magic"), *_u32("version", "header_bytes"), *_u64("area_bytes", "boot_id"),
        *_u32("node_max", "cpu_max", "mem_max", "pci_max", "pci_count"),
        *_u32("ring_bytes", "ctrl_ring_bytes", "console_bytes"), *_u64("mem_block_bytes"),
        *_u32("node_offset", "node_stride", "cpu_offset", "cpu_stride", "mem_offset", "mem_stride"),
        *_u32("pci_offset", "pci_stride", "console_offset", "console_stride"),
    ]  # fmt: skip


class NodeEntry(ctypes.LittleEndianStructure):
    """struct mint_area_node."""

    _fields_ = [
        *_u64("word", "heartbeat", "state_change_ns"),
        *_u32("cpus_online", "boot_cpu", "doorbell_apicid", "pad2"),
        *_u64("entry", "boot_params", "image_crc", "vmcoreinfo_phys"), *_u32("vmcoreinfo_bytes", "pad0"),
        ("name", ctypes.c_char * 32), ("release", ctypes.c_char * 64), ("reason", ctypes.c_char * 128),
    ]  # fmt: skip


class CpuEntry(ctypes.LittleEndianStructure):
    """struct mint_area_cpu."""

    _fields_ = [
        *_u32("park", "apicid"), *_u64("entry", "arg", "cr3", "stack", "faults", "word"),
        *_u32("numa", "package_core"),
    ]  # fmt: skip


class MemEntry(ctypes.LittleEndianStructure):
    """struct mint_area_mem."""

    _fields_ = [*_u64("word"), *_u32("numa", "pad")]


class PciEntry(ctypes.LittleEndianStructure):
    """struct mint_area_pci."""

    _fields_ = [*_u64("word"), *_u32("id", "hw_id", "hw_class", "flags", "numa")]


class ConsoleEntry(ctypes.LittleEndianStructure):
    """struct mint_area_console; its data follow."""

    _fields_ = [*_u64("head"), *_u32("boots", "pad"), ("pad1", ctypes.c_uint8 * 48)]


def node_state(entry: NodeEntry) -> tuple[str, int]:
    """State and number of boots of a node, by its word."""
    number = entry.word & 0xFF
    return NODE_STATES[number] if number < len(NODE_STATES) else f"state {number}", entry.word >> 32


def owner_of(word: int) -> tuple[str, int | None]:
    """State and owner by a ledger word."""
    state, owner = RESOURCE_STATES[word & 3] if word & 0xFF < 4 else f"state {word & 0xFF}", word >> 8 & 0xFF
    return state, None if owner == NOBODY else owner


# -- reading ---------------------------------------------------------------------


@dataclass(frozen=True)
class NodeNow:
    """A node, at one moment."""

    state: str
    boots: int
    heartbeat: int
    name: str
    reason: str


class Area:
    """The control area of a machine; read(address, count) gives its RAM.

    Give the physical address, or use find_area().
    """

    def __init__(self, read: Callable[[int, int], bytes], phys: int) -> None:
        self._read, self.phys = read, phys
        self.header = Header.from_buffer_copy(read(phys, ctypes.sizeof(Header)))
        if self.header.magic != MAGIC or self.header.version != VERSION:
            raise RigError(
                f"the control area at {phys:#x} has magic {self.header.magic:#x}, version {self.header.version};"
                f" bench/rig/area.py knows version {VERSION}"
            )

    def is_there(self) -> bool:
        """Whether it still is what it was: a reset of the machine makes another."""
        now = Header.from_buffer_copy(self._read(self.phys, ctypes.sizeof(Header)))
        return (now.magic, now.boot_id) == (MAGIC, self.header.boot_id)

    def _table(self, kind: type, offset: int, stride: int, count: int) -> Iterator:
        if stride < ctypes.sizeof(kind):
            raise RigError(f"{kind.__name__} of {stride} bytes: bench/rig/area.py wants {ctypes.sizeof(kind)}")
        data = self._read(self.phys + offset, stride * count)
        for index in range(count):
            yield kind.from_buffer_copy(data, index * stride)

    def nodes(self) -> dict[int, NodeNow]:
        """All nodes that there are, by id."""
        header = self.header
        found = {}
        for number, entry in enumerate(self._table(NodeEntry, header.node_offset, header.node_stride, header.node_max)):
            state, boots = node_state(entry)
            if state != "absent":
                name, reason = (text.decode(errors="replace") for text in (entry.name, entry.reason))
                found[number] = NodeNow(state, boots, entry.heartbeat, name or f"node{number}", reason)
        return found

    def ledger(self) -> Ledger:
        """Who owns what now."""
        header = self.header
        # Grows while the machine runs.
        pci_count = Header.from_buffer_copy(self._read(self.phys, ctypes.sizeof(Header))).pci_count
        details: dict[str, list[dict]] = {"cpu": [], "memory": [], "device": []}

        def add(kind: str, entry, number: int, **more) -> None:
            state, owner = owner_of(entry.word)
            if state != "absent":
                numa = entry.numa if entry.numa < NOBODY else None
                found = {"id": number, "state": state, "owner": owner, "numa": numa, "changes": entry.word >> 32}
                details[kind].append(found | more)

        for number, cpu in enumerate(self._table(CpuEntry, header.cpu_offset, header.cpu_stride, header.cpu_max)):
            add("cpu", cpu, number, apic_id=cpu.apicid)
        size = header.mem_block_bytes
        for number, block in enumerate(self._table(MemEntry, header.mem_offset, header.mem_stride, header.mem_max)):
            add("memory", block, number, phys=number * size, bytes=size)
        for function in self._table(PciEntry, header.pci_offset, header.pci_stride, min(pci_count, header.pci_max)):
            add("device", function, function.id, bdf=bdf(function.id))
        resources = {
            (kind, str(entry.get("bdf", entry["id"]))): (entry["state"], entry["owner"])
            for kind, entries in details.items()
            for entry in entries
        }
        return Ledger(resources, {number: node.name for number, node in self.nodes().items()}, details)

    def console(self, node: int, position: int) -> tuple[bytes, int]:
        """What a node printed from byte number position of its boot on, and where the next is.

        A position beyond what there is: the node was started anew, and all of it comes. Older
        bytes than the ring holds are gone.
        """
        header = self.header
        start = self.phys + header.console_offset + node * header.console_stride
        size = header.console_bytes
        head = ConsoleEntry.from_buffer_copy(self._read(start, ctypes.sizeof(ConsoleEntry))).head
        if position > head:
            position = 0
        position = max(position, head - size)
        data = start + ctypes.sizeof(ConsoleEntry)
        text = b""
        while position < head:
            offset = position % size
            part = self._read(data + offset, min(head - position, size - offset))
            text, position = text + part, position + len(part)
        return text, head


def bdf(number: int) -> str:
    """A function's address, by its id."""
    return f"{number >> 16:04x}:{number >> 8 & 0xFF:02x}:{number >> 3 & 0x1F:02x}.{number & 7}"


def find_area(read: Callable[[int, int], bytes], ranges: list[tuple[int, int]]) -> Area | None:
    """Look for it in ranges of physical addresses (begin, end); None: it is not there (yet).

    Raises RigError if there are two, or if it is of another version.
    """
    wanted = struct.pack("<Q", MAGIC)
    found = [
        address
        for begin, end in ranges
        for address in range(-begin // ALIGNMENT * -ALIGNMENT, end, ALIGNMENT)
        if read(address, len(wanted)) == wanted
    ]
    if len(found) > 1:
        raise RigError(f"more than one control area in RAM: {[hex(address) for address in found]}")
    return Area(read, found[0]) if found else None
