# SPDX-License-Identifier: Apache-2.0
"""Random bytes over all of the control area that kernels must not believe (arch/x86/include/asm/mint_area.h): read and
written by the rig from outside; rig.area reads what it means."""

import random
import struct
import time
from dataclasses import dataclass

from rig.node import Node
from rig.ram import Ram

MAGIC = 0x61657261544E494D
VERSIONS = (1, 2)  # of the header, whose fields are the same in both
RING_HEAD_BYTES = 128
RECORD = struct.Struct("<IHH")  # of a ring: length of the payload, type, flags; a multiple of 8 bytes with it
SHUTDOWN = 3
ASKED = struct.Struct("<QII")  # payload of SHUTDOWN: the machine's boot id, the node, its boots

# struct mint_area_header up to park_pml4_entries, and bp_offset with bp_bytes at the end of its first form. Where the
# slots for intents are follows; older areas end before it.
FIRST = struct.Struct("<QIIQQ8IQ24I")
LAST = struct.Struct("<II")
INTENTS = struct.Struct("<4I")
NAMES = (
    "magic version header_bytes area_bytes boot_id node_max cpu_max mem_max pci_max pci_count ring_bytes ctrl_ring_bytes "
    "console_bytes mem_block_bytes node_offset node_stride cpu_offset cpu_stride mem_offset mem_stride pci_offset "
    "pci_stride console_offset console_stride ring_head_offset ring_head_stride ctrl_ring_offset ring_offset park_offset "
    "park_bytes stack_offset stack_stride park_entry park_cr3_offset park_pml4_entries state_seq tsc_khz numa_nodes"
).split()
# lapic_hz, ecam_count, init_page, 8 ECAM windows, 16 * 16 NUMA distances lie between the two.
LAST_AT = FIRST.size + 8 + 8 + 8 * 16 + 16 * 16


@dataclass(frozen=True)
class Part:
    """Some of the area: a name and its ranges (offset in the area, bytes)."""

    name: str
    ranges: tuple[tuple[int, int], ...]


class Area:
    """The control area of a running machine."""

    def __init__(self, node: Node, ram: Ram) -> None:
        first, last = (int(word, 16) for word in node.read("/sys/kernel/mint/control_area").split("-"))
        self.ram, self.address, self.bytes = ram, first, last + 1 - first
        self.header = dict(zip(NAMES, FIRST.unpack(ram.read(first, FIRST.size)), strict=True))
        assert self.header["magic"] == MAGIC and self.header["version"] in VERSIONS, self.header
        assert self.header["area_bytes"] == self.bytes, self.header
        self.header["bp_offset"], self.header["bp_bytes"] = LAST.unpack(ram.read(first + LAST_AT, LAST.size))
        at = LAST_AT + LAST.size
        has_intents = self.header["header_bytes"] >= at + INTENTS.size
        found = INTENTS.unpack(ram.read(first + at, INTENTS.size)) if has_intents else (0, 0, 0, 0)
        names = ("intent_offset", "intent_stride", "intent_slots", "intent_bytes")
        self.header |= dict(zip(names, found, strict=True))

    def entries(self, table: str, begin: int = 0, end: int | None = None) -> tuple[tuple[int, int], ...]:
        """Bytes begin to end of every entry of a table ("node", "cpu", "mem", "pci", "console")."""
        h = self.header
        stride = h[f"{table}_stride"]
        count = h["node_max" if table == "console" else f"{table}_max"]
        return tuple(
            (h[f"{table}_offset"] + i * stride + begin, (stride if end is None else end) - begin) for i in range(count)
        )

    def read(self, offset: int, count: int) -> bytes:
        """Bytes of the area."""
        return self.ram.read(self.address + offset, count)

    def write(self, offset: int, data: bytes) -> None:
        """Change it under the nodes' feet."""
        self.ram.write(self.address + offset, data)

    def put_in_control_ring(self, source: int, target: int, kind: int, payload: bytes) -> None:
        """A record to node target that node source never sent; source is not there, or sends nothing now. kind and payload
        as in docs/kernel-abi.md, "Rings and doorbell"."""
        h = self.header
        ring = source * h["node_max"] + target
        head_at = h["ring_head_offset"] + ring * h["ring_head_stride"]
        (head,) = struct.unpack("<I", self.read(head_at, 4))
        record = RECORD.pack(len(payload), kind, 0) + payload
        record = record.ljust(-(-len(record) // 8) * 8, b"\0")
        place = head % h["ctrl_ring_bytes"]
        assert place + len(record) <= h["ctrl_ring_bytes"], "no record lies over the end of its ring"
        self.write(h["ctrl_ring_offset"] + ring * h["ctrl_ring_bytes"] + place, record)
        self.write(head_at, struct.pack("<I", head + len(record)))

    def parts(self) -> list[Part]:
        """All that a kernel reads and must not believe.

        What is not here is trusted (docs/threat-model.md): the park code with its IDT and stacks, the identity map,
        and of a core's mailbox the fields by which it is parked and sent on.
        """
        h = self.header
        pairs = h["node_max"] ** 2
        return [
            Part("header", ((0, h["header_bytes"]),)),
            Part("nodes", self.entries("node")),
            # park 0, apicid 4, entry 8, arg 16, cr3 24, stack 32; from faults on
            Part("APIC ids", self.entries("cpu", 4, 8)),
            Part("cores", self.entries("cpu", 40)),
            Part("memory", self.entries("mem")),
            Part("PCI functions", self.entries("pci")),
            Part("consoles", self.entries("console")),
            Part("heads of control rings", ((h["ring_head_offset"], pairs * h["ring_head_stride"]),)),
            Part("control rings", ((h["ctrl_ring_offset"], pairs * h["ctrl_ring_bytes"]),)),
            Part(
                "heads of mint0's rings",
                ((h["ring_head_offset"] + pairs * h["ring_head_stride"], pairs * h["ring_head_stride"]),),
            ),
            Part("mint0's rings", ((h["ring_offset"], pairs * h["ring_bytes"]),)),
            Part("boot parameters", ((h["bp_offset"], h["bp_bytes"]),)),
            # The word, and the heads of both copies, as well as all of a slot.
            Part("holders of intents", self.intents(0, 8)),
            Part("heads of intents", self.intents(64, 80) + self.intents(64 + h["intent_bytes"], 80 + h["intent_bytes"])),
            Part("intents", self.intents(0, h["intent_stride"])),
        ]

    def intents(self, begin: int, end: int) -> tuple[tuple[int, int], ...]:
        """Bytes begin to end of every node's slots for intents."""
        h = self.header
        count = h["node_max"] * h["intent_slots"]
        assert count, "the control area has no room for intents"
        return tuple((h["intent_offset"] + i * h["intent_stride"] + begin, end - begin) for i in range(count))


# What no kernel writes again, or not before the next change: put back when the scribbling is over.
KEPT = ("header", "nodes", "APIC ids", "cores", "memory", "PCI functions", "boot parameters")


class Scribbler:
    """Writes random bytes over every part of the area; rng decides what and where, the clock how often."""

    def __init__(self, area: Area, rng: random.Random) -> None:
        self.area, self.rng = area, rng
        self.parts = area.parts()
        self.writes = {part.name: 0 for part in self.parts}
        self.kept = [
            (offset, area.read(offset, count))
            for part in self.parts
            if part.name in KEPT
            for offset, count in part.ranges
        ]

    def write_once(self) -> None:
        """Some bytes at some place of some part: random ones, or those that limits are tested with."""
        rng = self.rng
        part = rng.choice(self.parts)
        offset, room = rng.choice(part.ranges)
        count = min(room, rng.choice((1, 4, 4, 8, 8, 64)))
        at = rng.randrange(0, room - count + 1)
        if count in (4, 8):
            at -= at % count if at % count <= at else 0  # a whole field, most often
        data = rng.choice((rng.randbytes(count), b"\x00" * count, b"\xff" * count, rng.randbytes(1).ljust(count, b"\0")))
        self.area.write(offset + at, data)
        self.writes[part.name] += 1

    def run(self, seconds: float) -> None:
        """Scribble for so long; then what nobody would write again is as it was."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(100):
                self.write_once()
            time.sleep(0.001)  # the nodes want the host's cores, too
        self.restore()

    def restore(self) -> None:
        """Put back what no kernel writes again."""
        for offset, data in self.kept:
            self.area.write(offset, data)
