# SPDX-License-Identifier: Apache-2.0
"""A kernel's memory dump, opened with drgn.

Types come from the flavour's types.o, one object file with debug information
(kernel/scripts/build); addresses from its System.map and the dump's own
vmcoreinfo, which says how far KASLR moved the kernel.
"""

import re
import struct
from pathlib import Path

import drgn
from drgn.helpers.linux.printk import get_dmesg

PT_NOTE = 4
NT_PRSTATUS = 1


def notes(path: Path) -> list[tuple[str, int, bytes]]:
    """Name, type and content of every note of an ELF core file."""
    with path.open("rb") as file:
        header = file.read(64)
        assert header[:4] == b"\x7fELF", f"{path} is no ELF file"
        (offset,) = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        data = b""
        for index in range(count):
            file.seek(offset + index * size)
            kind, _, at, _, _, length = struct.unpack("<IIQQQQ", file.read(40))
            if kind == PT_NOTE:
                file.seek(at)
                data += file.read(length)
    found, at = [], 0
    while at + 12 <= len(data):
        name_bytes, length, kind = struct.unpack_from("<III", data, at)
        name_at = at + 12
        content_at = name_at + (name_bytes + 3 & ~3)
        name = data[name_at : name_at + name_bytes].rstrip(b"\0").decode()
        found.append((name, kind, data[content_at : content_at + length]))
        at = content_at + (length + 3 & ~3)
    return found


class Vmcore:
    """A dump of a kernel that was built into folder (build/kernel/FLAVOUR)."""

    def __init__(self, path: Path, folder: Path) -> None:
        found = notes(path)
        self.threads = sum(1 for name, kind, _ in found if (name, kind) == ("CORE", NT_PRSTATUS))
        (info,) = (content for name, _, content in found if name == "VMCOREINFO")
        moved = int(re.search(rb"KERNELOFFSET=([0-9a-f]+)", info)[1], 16)
        self._addresses = {}
        for line in (folder / "System.map").read_text().splitlines():
            address, _, name = line.split()
            # Variables of each CPU are offsets, which do not move.
            self._addresses[name] = int(address, 16) + (moved if int(address, 16) >> 63 else 0)
        self._program = drgn.Program()
        self._program.set_core_dump(path)
        module = self._program.extra_module("types", create=True)
        module.try_file(folder / "types.o", force=True)
        self._program.register_object_finder("mint", self._find, enable_index=0)

    def _find(self, program: drgn.Program, name: str, _flags, _file) -> drgn.Object | None:
        kind = {"prb": "struct printk_ringbuffer *"}.get(name)
        return self._at(kind, self._addresses[name]) if kind else None

    def _at(self, kind: str, address: int) -> drgn.Object:
        return drgn.Object(self._program, kind, address=address)

    def messages(self) -> str:
        """Its kernel log."""
        return get_dmesg(self._program).decode(errors="replace")

    def panicking_task(self) -> tuple[str, int]:
        """Name and process id of what ran on the core that panicked."""
        cpu = self._at("int", self._addresses["panic_cpu"]).value_()
        offset = self._at("unsigned long", self._addresses["__per_cpu_offset"] + 8 * cpu).value_()
        task = self._at("struct pcpu_hot", self._addresses["pcpu_hot"] + offset).current_task
        return task.comm.string_().decode(), task.pid.value_()
