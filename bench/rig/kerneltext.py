# SPDX-License-Identifier: Apache-2.0
"""Is a running kernel's text and read-only data still what its image says?

Another kernel that writes where it should not shows here, long before it
shows as a crash. A running kernel differs from its vmlinux only

* by KASLR: 32-bit words (and low halves of 64-bit ones) that moved with it,
* where it patches itself: alternatives, jump labels, static calls, lock
  prefixes, run-time constants. Each such place is listed in vmlinux.
* in data that is read-only only after its init.

Anything else is damage.
"""

import functools
import re
import struct
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

from rig import paths
from rig.node import Node
from rig.ram import Ram, kernel_place

# Sections of relative addresses (le32, from the entry itself) of text that the
# kernel patches: bytes an entry has, bytes that may change there.
SITE_TABLES = {
    ".altinstructions": (14, None),  # length is in the entry
    ".smp_locks": (4, 1),
    ".return_sites": (4, 6),
    ".retpoline_sites": (4, 6),
    ".call_sites": (4, 5),
    ".ibt_endbr_seal": (4, 4),
}
# The same between two symbols, inside .rodata.
SITE_RANGES = {
    ("__start___jump_table", "__stop___jump_table"): (16, 5),
    ("__start_static_call_sites", "__stop_static_call_sites"): (8, 6),
}
TRAMPOLINE_BYTES = 8  # of a static call, symbols __SCT__*


@dataclass(frozen=True)
class Image:
    """What vmlinux says of the parts that must not change."""

    release: str
    base: int  # address of _text as linked
    parts: tuple[tuple[str, int, bytes], ...]  # name, address, bytes
    site_starts: tuple[int, ...]  # merged ranges that may change, sorted
    site_ends: tuple[int, ...]

    def patched_until(self, address: int) -> int:
        """End of the range around address that the kernel patches itself; 0 if there is none."""
        index = bisect_right(self.site_starts, address) - 1
        return self.site_ends[index] if index >= 0 and address < self.site_ends[index] else 0


class Elf:
    """As much of a 64-bit ELF file as is needed here."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        assert self.data[:5] == b"\x7fELF\x02", f"{path} is not a 64-bit ELF file"
        (table,) = struct.unpack_from("<Q", self.data, 0x28)
        size, count, names_index = struct.unpack_from("<HHH", self.data, 0x3A)
        rows = [struct.unpack_from("<IIQQQQ", self.data, table + i * size) for i in range(count)]
        names = rows[names_index][4]
        # name -> address, bytes in the file
        self.sections: dict[str, tuple[int, int, int]] = {}
        for name, kind, _flags, address, offset, length in rows:
            end = self.data.index(b"\0", names + name)
            if kind == 1:  # PROGBITS
                self.sections[self.data[names + name : end].decode()] = (address, offset, length)

    def read(self, address: int, count: int) -> bytes:
        """Bytes of the image at a linked address."""
        for start, offset, length in self.sections.values():
            if start and start <= address and address + count <= start + length:
                return self.data[offset + address - start : offset + address - start + count]
        raise KeyError(f"{address:#x} is in no section")


def read_map(path: Path) -> dict[str, int]:
    """System.map: symbol -> address."""
    found = {}
    for line in path.read_text().splitlines():
        address, _, name = line.split()
        found[name] = int(address, 16)
    return found


def relative_sites(data: bytes, address: int, entry_bytes: int, patched: int | None) -> list[tuple[int, int]]:
    """Ranges that a table of relative addresses names."""
    sites = []
    for at in range(0, len(data) - entry_bytes + 1, entry_bytes):
        (offset,) = struct.unpack_from("<i", data, at)
        length = data[at + 12] if patched is None else patched
        sites.append((address + at + offset, address + at + offset + length))
    return sites


def merge(sites: list[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sorted, disjoint ranges as starts and ends."""
    starts: list[int] = []
    ends: list[int] = []
    for begin, end in sorted(sites):
        if ends and begin <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(begin)
            ends.append(end)
    return tuple(starts), tuple(ends)


@functools.cache
def load(flavour: str) -> Image:
    """The image of a built kernel flavour."""
    folder = paths.KERNELS / flavour
    elf, symbols = Elf(paths.need(folder / "vmlinux")), read_map(folder / "System.map")
    sites: list[tuple[int, int]] = []
    for name, (address, offset, length) in elf.sections.items():
        data = elf.data[offset : offset + length]
        if name in SITE_TABLES:
            sites += relative_sites(data, address, *SITE_TABLES[name])
    for (start, stop), shape in SITE_RANGES.items():
        if start in symbols:
            address = symbols[start]
            sites += relative_sites(elf.read(address, symbols[stop] - address), address, *shape)
    for name, address in symbols.items():
        # runtime_ptr_X, runtime_shift_X: constants put into the code at boot.
        if match := re.fullmatch(r"__start_runtime_(ptr|shift)_(\w+)", name):
            data = elf.read(address, symbols[f"__stop_runtime_{match[1]}_{match[2]}"] - address)
            sites += relative_sites(data, address, 4, 8 if match[1] == "ptr" else 1)
        elif name.startswith("__SCT__"):
            sites.append((address, address + TRAMPOLINE_BYTES))
    sites.append((symbols["__start_ro_after_init"], symbols["__end_ro_after_init"]))
    starts, ends = merge(sites)
    parts = tuple(
        (name, symbols[begin], elf.read(symbols[begin], symbols[end] - symbols[begin]))
        for name, begin, end in (
            ("text", "_text", "_etext"),
            ("read-only data", "__start_rodata", "__start_ro_after_init"),
        )
    )
    banner = elf.read(symbols["linux_banner"], 200)
    release = re.match(rb"Linux version (\S+)", banner)[1].decode()
    return Image(release, symbols["_text"], parts, starts, ends)


def moved_word(linked: bytes, running: bytes, begin: int, moved: int) -> int | None:
    """End of the 32-bit word around byte begin that differs just by KASLR; None if there is none.

    moved is a multiple of 2 MiB: the word's lower bytes are equal, so it may
    begin up to three bytes earlier.
    """
    for at in range(max(0, begin - 3), min(begin, len(linked) - 4) + 1):
        before, after = struct.unpack_from("<I", linked, at)[0], struct.unpack_from("<I", running, at)[0]
        if (after - before) & 0xFFFFFFFF in (moved & 0xFFFFFFFF, -moved & 0xFFFFFFFF):
            return at + 4
    return None


def differences(image: Image, name: str, address: int, linked: bytes, running: bytes, moved: int) -> list[str]:
    """What of one part is neither linked so, nor moved by KASLR, nor a site of patching."""
    size = len(linked)
    pattern = (int.from_bytes(linked, "little") ^ int.from_bytes(running, "little")).to_bytes(size, "little")
    wrong = []
    for run in re.finditer(rb"[^\0]+", pattern):
        at, end = run.span()
        while at < end:
            known = image.patched_until(address + at) - address
            if known <= at:
                known = moved_word(linked, running, at, moved) or 0
            if known <= at:
                break
            at = known
        if at < end:
            wrong.append(
                f"{name} {address + at:#x}, {end - at} bytes: "
                f"{linked[at:end][:16].hex()} is now {running[at:end][:16].hex()}"
            )
    return wrong


def flavour_of(release: str) -> str:
    """Which built flavour a `uname -r` is."""
    return release.split("-", 1)[1].removeprefix("mint-")


def check(node: Node, ram: Ram) -> list[str]:
    """Differences of a node's running kernel from its image; none is good."""
    image = load(flavour_of(node.out("uname -r")))
    place = kernel_place(node)
    moved = place.text_virtual - image.base
    wrong = []
    for name, address, linked in image.parts:
        running = ram.read(place.physical(address + moved), len(linked))
        wrong += differences(image, f"node {node.number}, {name}", address, linked, running, moved)
    return wrong
