# SPDX-License-Identifier: Apache-2.0
"""The scribbler writes over every part that kernels must not believe, and over nothing else."""

import random

from rig.scribble import FIRST, INTENTS, LAST, LAST_AT, MAGIC, NAMES, Area, Scribbler

ADDRESS = 0x1000000
BYTES = 1 << 20
HEADER = {
    "magic": MAGIC, "version": 1, "header_bytes": LAST_AT + LAST.size + INTENTS.size, "area_bytes": BYTES, "boot_id": 1,
    "node_max": 2, "cpu_max": 4,
    "mem_max": 8, "pci_max": 16, "pci_count": 3, "ring_bytes": 65536, "ctrl_ring_bytes": 4096, "console_bytes": 4096,
    "mem_block_bytes": 1 << 27, "node_offset": 4096, "node_stride": 432, "cpu_offset": 8192, "cpu_stride": 128,
    "mem_offset": 12288, "mem_stride": 16, "pci_offset": 16384, "pci_stride": 80, "console_offset": 20480,
    "console_stride": 4160, "ring_head_offset": 32768, "ring_head_stride": 128, "ctrl_ring_offset": 65536,
    "ring_offset": 131072, "park_offset": 40960, "park_bytes": 8192, "stack_offset": 36864, "stack_stride": 1024,
    "park_entry": 0, "park_cr3_offset": 49152, "park_pml4_entries": 1, "state_seq": 0, "tsc_khz": 1, "numa_nodes": 1,
}  # fmt: skip
BP_OFFSET, BP_BYTES = 524288, 4096
INTENT_OFFSET, INTENT_STRIDE, INTENT_SLOTS, INTENT_BYTES = 532480, 8256, 2, 4096


class Memory:
    """RAM that is a bytearray."""

    def __init__(self) -> None:
        self.data = bytearray(BYTES)

    def read(self, address: int, count: int) -> bytes:
        return bytes(self.data[address - ADDRESS : address - ADDRESS + count])

    def write(self, address: int, data: bytes) -> None:
        assert ADDRESS <= address and address + len(data) <= ADDRESS + BYTES
        self.data[address - ADDRESS : address - ADDRESS + len(data)] = data


class Zero:
    """Node 0, as far as it is asked."""

    def read(self, path: str) -> str:
        assert path == "/sys/kernel/mint/control_area"
        return f"{ADDRESS:#x}-{ADDRESS + BYTES - 1:#x}"


def scribbler(seed: int) -> tuple[Memory, Scribbler]:
    """One over a made up area."""
    memory = Memory()
    memory.write(ADDRESS, FIRST.pack(*(HEADER[name] for name in NAMES)))
    memory.write(ADDRESS + LAST_AT, LAST.pack(BP_OFFSET, BP_BYTES))
    intents = INTENTS.pack(INTENT_OFFSET, INTENT_STRIDE, INTENT_SLOTS, INTENT_BYTES)
    memory.write(ADDRESS + LAST_AT + LAST.size, intents)
    return memory, Scribbler(Area(Zero(), memory), random.Random(seed))


def test_every_part_is_hit_and_nothing_that_is_trusted():
    memory, some = scribbler(1)
    for _ in range(20000):
        some.write_once()
    assert all(count > 1000 for count in some.writes.values()), some.writes
    trusted = [(36864, 4096), (40960, 8192), (49152, 8192)]
    trusted += [(8192 + core * 128 + at, count) for core in range(4) for at, count in ((0, 4), (8, 32))]
    for offset, count in trusted:
        assert not any(memory.data[offset : offset + count]), f"{offset:#x} was written"
    # nor what lies between parts
    assert not any(memory.data[4096 + 2 * 432 : 8192])
    assert not any(memory.data[BP_OFFSET + BP_BYTES : INTENT_OFFSET])
    assert not any(memory.data[INTENT_OFFSET + HEADER["node_max"] * INTENT_SLOTS * INTENT_STRIDE :])


def test_same_seed_same_writes():
    first, second = scribbler(7), scribbler(7)
    for _ in range(2000):
        first[1].write_once()
        second[1].write_once()
    assert first[0].data == second[0].data


def test_tables_are_put_back():
    memory, some = scribbler(3)
    before = bytes(memory.data[:20480])
    for _ in range(5000):
        some.write_once()
    assert memory.data[:20480] != before
    some.restore()
    assert memory.data[:20480] == before
