# SPDX-License-Identifier: Apache-2.0
"""Access trace: QEMU's record of every access to a device, a port, the
configuration space and the local APICs, by CPU; checked against the ledger.

QEMU writes a line for each access into a FIFO before the access is done, so
the record is complete up to now whenever the FIFO is empty. RAM is not in it.
A Recorder counts equal accesses; Recorder.cut() takes what came since the last
cut. What one step of a test did is then judged with the ledger before and the
ledger after it: within a step, a core or a function changes its owner at most
once, so all it does must split into a first part that the first owner may do
and a second part that the second one may.
"""

import array
import fcntl
import os
import select
import termios
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rig.errors import RigError
from rig.ledger import Ledger

ECAM_BASE = 0xB0000000  # q35
APIC_BASE = 0xFEE00000
APIC_ICR, APIC_ICR_HIGH = APIC_BASE + 0x300, APIC_BASE + 0x310
DOORBELL_VECTOR = 0xF5  # asm/irq_vectors.h: MINT_DOORBELL_VECTOR
FIXED, NMI, INIT, STARTUP = 0, 4, 5, 6
SHORTHAND_NONE, SHORTHAND_SELF = 0, 1
NODE0 = 0


class Access(NamedTuple):
    """A kind of access by one CPU. what depends on kind:

    config  (BDF as number, "cf8" | "ecam")
    memory  (name of QEMU's region, address of its 4-KiB page or port)
    vector  (address of an MSI-X entry, APIC id that it is to interrupt)
    apic    () its own
    ipi     (mode, shorthand, APIC id, vector, logical)
    """

    cpu: int
    kind: str
    what: tuple
    write: bool


@dataclass
class Count:
    """When, in the order of all accesses, the first and the last of a kind came."""

    first: int
    last: int
    times: int


class Recorder(threading.Thread):
    """Reads QEMU's trace from a FIFO for as long as QEMU lives."""

    def __init__(self, fifo: Path) -> None:
        super().__init__(daemon=True, name="trace")
        os.mkfifo(fifo)
        # Both ends: opening one alone would wait for QEMU.
        self._file = os.open(fifo, os.O_RDWR)
        self._lock = threading.Lock()
        self._counts: dict[Access, Count] = {}
        self._number = 0
        self._icr_high: dict[int, int] = {}
        self._cf8 = 0
        self._over = False
        self.start()

    def run(self) -> None:
        rest = b""
        while not self._over:
            select.select([self._file], [], [])
            # Read under the lock: who holds it and finds the FIFO empty knows
            # that all is counted.
            with self._lock:
                *lines, rest = (rest + os.read(self._file, 1 << 16)).split(b"\n")
                for line in lines:
                    if line.startswith(b"memory_region_ops_"):
                        self._note(line)

    def _note(self, line: bytes) -> None:
        words = line.split(b" ", 12)
        cpu = int(words[2])
        if cpu < 0:
            return  # a device: DMA, its interrupts
        write = words[0].endswith(b"write")
        self._number += 1
        for access in self.classify(
            cpu, write, int(words[6], 16), int(words[8], 16), words[12].strip(b"'").decode()
        ):
            count = self._counts.get(access)
            if count is None:
                self._counts[access] = Count(self._number, self._number, 1)
            else:
                count.last = self._number
                count.times += 1

    def classify(self, cpu: int, write: bool, address: int, value: int, name: str) -> list[Access]:
        """What an access is; [] for the half of one that its other half completes."""
        if name == "pci-conf-idx":
            self._cf8 = value if write else self._cf8
            return [Access(cpu, "memory", (name, address), write)]
        if name == "pci-conf-data":
            return [Access(cpu, "config", (self._cf8 >> 8 & 0xFFFF, "cf8"), write)]
        if name == "pcie-mmcfg-mmio":
            return [Access(cpu, "config", ((address - ECAM_BASE) >> 12, "ecam"), write)]
        if name == "apic-msi":
            return self._classify_apic(cpu, write, address, value)
        place = address if address < 0x10000 else address & ~0xFFF
        found = [Access(cpu, "memory", (name, place), write)]
        if name == "msix-table" and write and address % 16 == 0 and value >> 20 == APIC_BASE >> 20:
            found.append(Access(cpu, "vector", (address, value >> 12 & 0xFF), True))
        return found

    def _classify_apic(self, cpu: int, write: bool, address: int, value: int) -> list[Access]:
        if address == APIC_ICR_HIGH and write:
            self._icr_high[cpu] = value
            return []
        if address == APIC_ICR and write:
            high = self._icr_high.get(cpu, 0)
            what = (value >> 8 & 7, value >> 18 & 3, high >> 24, value & 0xFF, bool(value & 0x800))
            return [Access(cpu, "ipi", what, True)]
        if address == APIC_BASE or address >= APIC_BASE + 0x1000:
            return []  # an interrupt message that a device sent while this CPU worked on it
        return [Access(cpu, "apic", (), write)]

    def cut(self, limit_s: float = 60) -> dict[Access, Count]:
        """All accesses since the last cut, and up to now."""
        pending = array.array("i", [0])
        end = time.monotonic() + limit_s
        while True:
            with self._lock:
                fcntl.ioctl(self._file, termios.FIONREAD, pending)
                # A busy machine never falls silent: a page of lines, some
                # milliseconds, may be counted to the next step then.
                if pending[0] < 4096 and (pending[0] == 0 or time.monotonic() > end):
                    counts, self._counts = self._counts, {}
                    return counts
            if time.monotonic() > end + limit_s:
                raise RigError(f"the trace's reader lags behind: {pending[0]} bytes wait")
            time.sleep(0.001)

    def close(self) -> None:
        """Stop reading, after QEMU's end."""
        self._over = True
        os.write(self._file, b"\n")


# -- what is where -------------------------------------------------------------


@dataclass(frozen=True)
class Bars:
    """Address ranges of PCI functions: (begin, end, BDF)."""

    ranges: tuple[tuple[int, int, str], ...]

    def find(self, address: int) -> str | None:
        """The function that an address or port belongs to."""
        for begin, end, function in self.ranges:
            if begin <= address < end:
                return function
        return None


def read_bars(query_pci: list[dict]) -> Bars:
    """From QMP's query-pci; a function's BARs, not the windows of bridges."""
    ranges = []

    def walk(devices: list[dict]) -> None:
        for device in devices:
            function = f"0000:{device['bus']:02x}:{device['slot']:02x}.{device['function']}"
            for region in device["regions"]:
                address = region["address"]
                if 0 < address < 1 << 63:
                    ranges.append((address, address + region["size"], function))
            walk(device.get("pci_bridge", {}).get("devices", []))

    for bus in query_pci:
        walk(bus["devices"])
    return Bars(tuple(sorted(ranges)))


def function_name(number: int) -> str:
    """BDF of bus << 8 | devfn."""
    return f"0000:{number >> 8:02x}:{number >> 3 & 31:02x}.{number & 7}"


# -- judgement -----------------------------------------------------------------


@dataclass
class Step:
    """One step of a test and what it may do beyond owning things.

    interrupts: nodes whose cores get NMIs from others (a start or an end of them).
    buries: nodes that ended or end; any node may quieten their functions
    through configuration space.
    """

    name: str
    before: Ledger
    after: Ledger
    accesses: dict[Access, Count]
    interrupts: frozenset[int] = frozenset()
    buries: frozenset[int] = frozenset()
    faults: list[str] = field(default_factory=list)


class Judge:
    """Applies the ledger to accesses."""

    def __init__(self, bars: Bars, step: Step) -> None:
        self._bars, self._step = bars, step
        self._cpu_of_apic = {
            entry["apic_id"]: str(entry["id"]) for entry in step.before.details["cpu"]
        }

    def _owners(self, kind: str, name: str) -> list[int | None]:
        """Owner before and after, one if it did not change; None: free. [] if the ledger has no such thing."""
        found: list[int | None] = []
        for ledger in (self._step.before, self._step.after):
            if (kind, name) in ledger.resources:
                owner = ledger.resources[kind, name][1]
                if not found or found[-1] != owner:
                    found.append(owner)
        return found

    def _function_allowed(self, node: int, function: str, config: bool) -> bool:
        owners = self._owners("device", function)
        if not owners:
            return node == NODE0  # not in the ledger: an empty slot, or the platform's
        if node in owners:
            return True
        return config and any(owner in self._step.buries for owner in owners)

    def _ipi_allowed(self, node: int, what: tuple) -> bool:
        mode, shorthand, apic, vector, logical = what
        if shorthand != SHORTHAND_NONE:
            return shorthand == SHORTHAND_SELF
        if logical or apic not in self._cpu_of_apic:
            return False  # logical destinations and 0xff reach whoever listens
        owners = self._owners("cpu", self._cpu_of_apic[apic])
        if node in owners:
            return True
        if mode == FIXED:
            return vector == DOORBELL_VECTOR
        moves = len(owners) > 1 or None in owners or set(owners) & self._step.interrupts
        return mode in (NMI, INIT, STARTUP) and bool(moves)

    def allowed(self, node: int | None, access: Access) -> bool:
        """Whether a CPU of node may do this in this step."""
        if access.kind == "apic":
            return True
        if node is None:
            return False  # a parked core touches nothing but its APIC
        if access.kind == "ipi":
            return self._ipi_allowed(node, access.what)
        if access.kind == "config":
            number, way = access.what
            if way == "cf8" and node != NODE0:
                return False
            return self._function_allowed(node, function_name(number), config=True)
        if access.kind == "vector":
            _, apic = access.what
            return apic in self._cpu_of_apic and node in self._owners("cpu", self._cpu_of_apic[apic])
        function = self._bars.find(access.what[1])
        if function is None:
            return node == NODE0
        return self._function_allowed(node, function, config=False)

    def tell(self, access: Access, count: Count) -> str:
        """An access in words."""
        what = access.what
        if access.kind == "config":
            what = (function_name(what[0]), what[1])
        elif access.kind == "memory":
            what = (what[0], hex(what[1]), self._bars.find(what[1]) or "platform")
        return f"{'write' if access.write else 'read'} {access.kind} {what}, {count.times} times"

    def _judge_cpu(self, cpu: int, accesses: dict[Access, Count]) -> list[str]:
        owners = self._owners("cpu", str(cpu))
        named = " then ".join("nobody" if owner is None else f"node {owner}" for owner in owners)
        wrong = [access for access in accesses if not any(self.allowed(owner, access) for owner in owners)]
        faults = [f"cpu {cpu} ({named}): {self.tell(access, accesses[access])}" for access in wrong]
        if len(owners) == 2 and not wrong:
            only_first = [c.last for a, c in accesses.items() if not self.allowed(owners[1], a)]
            only_second = [c.first for a, c in accesses.items() if not self.allowed(owners[0], a)]
            if only_first and only_second and max(only_first) > min(only_second):
                faults.append(f"cpu {cpu} ({named}): did what only the first may after what only the second may")
        return faults

    def faults(self) -> list[str]:
        """Every access that its CPU's node had no right to."""
        per_cpu: dict[int, dict[Access, Count]] = {}
        for access, count in self._step.accesses.items():
            per_cpu.setdefault(access.cpu, {})[access] = count
        found = []
        for cpu, accesses in sorted(per_cpu.items()):
            found += self._judge_cpu(cpu, accesses)
        return [f"{self._step.name}: {fault}" for fault in found]
