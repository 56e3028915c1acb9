# SPDX-License-Identifier: Apache-2.0
"""What a node's kernel holds that a leak would eat: memory, cores, vectors, PCI state."""

import re

from rig.node import Node

MIB = 1 << 20
# Of a function's Command: decoding of I/O, which none of them has, and SERR#. The
# firmware sets both; they do not come back after the reset of the first hand-over.
FIRMWARES = 0x101
MSI, MSIX = 0x05, 0x11  # ids of capabilities
PAGE_BYTES = 4096
# What describes the pages of a block: 64 bytes each (struct page).
DESCRIPTORS_BYTES = (128 * MIB // PAGE_BYTES) * 64


def message_controls(config: bytes) -> dict[int, int]:
    """The control words of a function's MSI and MSI-X capabilities, by id, from its 256 bytes of configuration."""
    found, at = {}, config[0x34] & 0xFC
    # Each capability has four bytes at least: no list is longer.
    for _ in range(len(config) // 4):
        if not at:
            break
        if config[at] in (MSI, MSIX):
            found[config[at]] = int.from_bytes(config[at + 2 : at + 4], "little")
        at = config[at + 1] & 0xFC
    return found


def functions_of(text: str) -> dict[str, tuple]:
    """Of each function in `lspci -D -xxx`: command, BARs, control of MSI and MSI-X. Status bits of errors may come and go."""
    found = {}
    for block in text.strip().split("\n\n"):
        name, *lines = block.splitlines()
        config = bytes.fromhex("".join(line.split(": ")[1] for line in lines).replace(" ", ""))
        command = int.from_bytes(config[4:6], "little") & ~FIRMWARES
        controls = {f"{key:#x}": f"{value:#x}" for key, value in message_controls(config).items()}
        found[name.split()[0]] = (f"{command:#x}", config[16:40].hex(), controls)
    return found


def vectors_of(text: str) -> list[str]:
    """Who has an interrupt vector, by /proc/interrupts: the chip and the users of each, whatever its number is."""
    header, *lines = text.splitlines()
    cpus = len(header.split())
    return sorted(" ".join(line.split()[1 + cpus :]) for line in lines if re.match(r" *\d+:", line))


def pages_of(zoneinfo: str, field: str) -> int:
    """The sum of a field of all zones ("present", "managed") in /proc/zoneinfo, in pages."""
    counts = re.findall(rf"^ +{field} +(\d+)$", zoneinfo, re.MULTILINE)
    assert counts
    return sum(map(int, counts))


class Resources:
    """What a node holds now."""

    def __init__(self, node: Node) -> None:
        node.run("echo 3 >/proc/sys/vm/drop_caches")
        # KASAN keeps freed objects, up to a 32nd of all memory, until their cache is shrunk.
        node.run("for file in /sys/kernel/slab/*/shrink; do [ ! -e $file ] || echo 1 >$file; done", limit_s=300)
        # At once: what a CPU keeps for itself is free for all a moment later.
        zones, _, memory = node.out("cat /proc/zoneinfo; echo ==; cat /proc/meminfo").partition("\n==\n")
        self.present_bytes = pages_of(zones, "present") * PAGE_BYTES
        # What the kernel never gives to anyone: its own image, and what describes the pages it booted with.
        self.reserved_bytes = self.present_bytes - pages_of(zones, "managed") * PAGE_BYTES
        # Where it is, to tell who has what is gone.
        self.places_kib = {name: int(kib) for name, kib in re.findall(r"(?m)^(\S+): +(\d+) kB$", memory)}
        available = re.search(r"^MemAvailable: +(\d+)", memory, re.MULTILINE)
        # Free pages that each CPU keeps for itself: tens of MiB more or less, and not in MemAvailable.
        counts = re.findall(r"^ +count: +(\d+)", zones, re.MULTILINE)
        assert available and counts
        self.free_bytes = (int(available[1]) << 10) + sum(map(int, counts)) * PAGE_BYTES
        self.cores = node.read("/sys/devices/system/cpu/online")
        self.vectors = vectors_of(node.read("/proc/interrupts"))
        self.functions = functions_of(node.out("lspci -D -xxx"))

    def lost_bytes(self, later: "Resources") -> int:
        """How much less free memory there is at a later moment."""
        return self.free_bytes - later.free_bytes

    def moved(self, later: "Resources") -> str:
        """In which lines of /proc/meminfo there is 1 MiB more, or less, at a later moment."""
        differences = {name: later.places_kib.get(name, 0) - kib for name, kib in self.places_kib.items()}
        return ", ".join(f"{name} {kib:+} kB" for name, kib in differences.items() if abs(kib) >= 1024)

    def check(self, later: "Resources", slack_bytes: int) -> None:
        """Asserts that nothing was lost from this moment to a later one: of free memory no more than slack_bytes."""
        lost_bytes = self.lost_bytes(later)
        print(f"free memory: {lost_bytes / MIB:.1f} MiB less than before, {slack_bytes / MIB:.1f} may be")
        assert later.present_bytes == self.present_bytes
        # A block that the kernel booted with has left: what described it is ordinary memory for good.
        freed_bytes = self.reserved_bytes - later.reserved_bytes
        assert freed_bytes >= 0 and freed_bytes % DESCRIPTORS_BYTES == 0, f"{freed_bytes} bytes less are reserved"
        assert later.cores == self.cores
        assert later.vectors == self.vectors
        assert later.functions == self.functions
        assert lost_bytes <= slack_bytes, f"{lost_bytes / MIB:.1f} MiB are gone: {self.moved(later)}"
