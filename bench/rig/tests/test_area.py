# SPDX-License-Identifier: Apache-2.0
"""The control area is read as its header says, also where entries have grown."""

import ctypes

import pytest

from rig.area import (
    ALIGNMENT,
    MAGIC,
    NOBODY,
    VERSION,
    Area,
    ConsoleEntry,
    CpuEntry,
    Header,
    MemEntry,
    NodeEntry,
    PciEntry,
    find_area,
)
from rig.errors import RigError

PHYS = 3 * ALIGNMENT
BLOCK = 128 << 20
RING = 64


def word(state: int, owner: int = NOBODY, changes: int = 1) -> int:
    """A ledger word."""
    return state | owner << 8 | NOBODY << 16 | changes << 32


class Played:
    """RAM of 16 MiB with a control area; each entry is `more` bytes longer than what the rig knows."""

    def __init__(self, more: int = 0) -> None:
        self.ram = bytearray(16 << 20)
        self.header = Header(magic=MAGIC, version=VERSION, boot_id=7, mem_block_bytes=BLOCK, console_bytes=RING)
        offset = 4096
        for name, kind, count, extra in (
            ("node", NodeEntry, 3, 0), ("cpu", CpuEntry, 2, 0), ("mem", MemEntry, 4, 0), ("pci", PciEntry, 8, 0),
            ("console", ConsoleEntry, 3, RING),
        ):  # fmt: skip
            stride = ctypes.sizeof(kind) + extra + more
            setattr(self.header, f"{name}_offset", offset)
            setattr(self.header, f"{name}_stride", stride)
            if name != "console":
                setattr(self.header, f"{name}_max", count)
            offset += stride * count
        self.header.area_bytes = ALIGNMENT
        self.put_header()

    def put_header(self) -> None:
        self.put(0, self.header)

    def put(self, offset: int, data) -> None:
        self.ram[PHYS + offset : PHYS + offset + len(bytes(data))] = bytes(data)

    def entry(self, name: str, index: int, data) -> None:
        """One entry of a table."""
        self.put(getattr(self.header, f"{name}_offset") + index * getattr(self.header, f"{name}_stride"), data)

    def read(self, address: int, count: int) -> bytes:
        return bytes(self.ram[address : address + count])

    def find(self) -> Area | None:
        return find_area(self.read, [(0, len(self.ram))])


@pytest.mark.parametrize("more", [0, 8, 24])
def test_ledger_and_nodes_are_read_by_the_headers_strides(more: int):
    played = Played(more)
    played.entry("node", 0, NodeEntry(word=1 << 32 | 4, name=b"node0"))
    played.entry("node", 2, NodeEntry(word=3 << 32 | 7, name=b"two", reason=b"Oops"))
    played.entry("cpu", 0, CpuEntry(word=word(2, 0), apicid=0))
    played.entry("cpu", 1, CpuEntry(word=word(1), apicid=4, numa=1))
    played.entry("mem", 1, MemEntry(word=word(2, 2), numa=1))
    played.entry("mem", 3, MemEntry(word=word(3, 2), numa=NOBODY))
    played.entry("pci", 0, PciEntry(word=word(2, 2), id=0x0208))
    played.entry("pci", 1, PciEntry(word=word(2, 0), id=0x10000))  # not counted yet
    played.header.pci_count = 1
    played.put_header()
    area = played.find()
    assert area.phys == PHYS
    assert {n: (node.state, node.boots, node.name, node.reason) for n, node in area.nodes().items()} == {
        0: ("running", 1, "node0", ""),
        2: ("crashed", 3, "two", "Oops"),
    }
    ledger = area.ledger()
    assert ledger.resources == {
        ("cpu", "0"): ("owned", 0),
        ("cpu", "1"): ("free", None),
        ("memory", "1"): ("owned", 2),
        ("memory", "3"): ("moving", 2),
        ("device", "0000:02:01.0"): ("owned", 2),
    }
    assert ledger.moving() == [("memory", "3")]
    assert ledger.details["memory"][0] == {
        "id": 1, "state": "owned", "owner": 2, "numa": 1, "changes": 1, "phys": BLOCK, "bytes": BLOCK,
    }  # fmt: skip
    assert [(cpu["apic_id"], cpu["numa"]) for cpu in ledger.details["cpu"]] == [(0, 0), (4, 1)]


def test_console_goes_round_and_starts_anew():
    played = Played()
    area = played.find()

    def printed(text: bytes, total: int) -> None:
        """text is the last that was printed, total how much it was in this boot."""
        data = bytearray(RING)
        for number, byte in enumerate(text, total - len(text)):
            data[number % RING] = byte
        played.entry("console", 1, bytes(ConsoleEntry(head=total)) + data)

    printed(b"first\n", 6)
    assert area.console(1, 0) == (b"first\n", 6)
    assert area.console(1, 6) == (b"", 6)
    printed(b"x" * 60 + b"end\n", 100)
    assert area.console(1, 90) == (b"x" * 6 + b"end\n", 100), "over the ring's end"
    assert area.console(1, 6) == (b"x" * 60 + b"end\n", 100), "what was overwritten is gone"
    printed(b"anew\n", 5)
    assert area.console(1, 100) == (b"anew\n", 5)


def test_area_that_is_not_there_twice_there_or_of_another_version():
    played = Played()
    area = played.find()
    assert area.is_there()
    played.header.boot_id = 8
    played.put_header()
    assert not area.is_there()
    played.header.version = VERSION + 1
    played.put_header()
    with pytest.raises(RigError, match=f"version {VERSION + 1}"):
        played.find()
    played.header.version = VERSION
    played.put_header()
    played.put(ALIGNMENT, played.header)
    with pytest.raises(RigError, match="more than one"):
        played.find()
    assert find_area(played.read, [(0, ALIGNMENT)]) is None


def test_entries_that_have_shrunk_are_an_error():
    played = Played()
    played.header.mem_stride = 8
    played.put_header()
    with pytest.raises(RigError, match="MemEntry"):
        played.find().ledger()
