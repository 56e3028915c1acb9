# SPDX-License-Identifier: Apache-2.0
"""Samples, and the head that says what they were measured on, as lines of JSON: pure.

A data set is one file of lines:

{"header": …}    first, and again by each run that goes on with it
{"begin": …}     a machine of a group starts: what that machine gave before counts no more. A part of
                 it, where it takes several boots: what that part gave
{"sample": …}    one value
{"end": …}       the machine has given all of it; only then its samples count
{"failed": …}    it has not, and why
{"absent": …}    something that is not measured here, and why; no reason: it is, now
"""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace

# The plan of what no plan is needed for.
EMULATED = "emulator"


class SampleError(ValueError):
    """A value that cannot be one, or lines that are no data set."""


@dataclass(frozen=True)
class Sample:
    """One value.

    machine names what was booted for it, or booted together; samples of one round were taken
    one after the other and may be paired; order is the side's place in the round's turns.
    """

    group: str
    case: str
    side: str
    value: float
    unit: str
    clock: str
    machine: str
    round: int
    order: int

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise SampleError(f"{self}: its value is no number")

    def __str__(self) -> str:
        return (
            f"{self.group}, {self.case}, {self.side}, machine {self.machine}, round {self.round}: {self.value} {self.unit}"
        )


@dataclass(frozen=True)
class Header:
    """What samples were measured on."""

    commit: str
    dirty: str  # "", or a digest of what the tree has beside the commit
    qemu: str  # "" on a real server
    kernels: dict[str, str]  # digests of the images, by flavour; of a real server what was booted, by boot
    host: str
    plan: str  # of what is measured: EMULATED, or a server's
    quick: bool
    seed: int  # of the order of turns
    load: float  # of the host, when the run began

    def differences(self, other: "Header") -> list[str]:
        """What keeps samples of one from being compared with the other's, as words; load may differ."""
        return [
            f"{name} was {getattr(self, name)!r}, is {getattr(other, name)!r}"
            for name in (field.name for field in fields(self))
            if name != "load" and self._differs(other, name)
        ]

    def _differs(self, other: "Header", name: str) -> bool:
        mine, others = getattr(self, name), getattr(other, name)
        if name == "kernels" and not self.qemu:
            # A real server runs one at a time: each boot adds its own.
            return any(mine[boot] != others[boot] for boot in mine.keys() & others.keys())
        return mine != others

    def with_kernels_of(self, other: "Header") -> "Header":
        """With what the other has booted, too."""
        return replace(self, kernels={**other.kernels, **self.kernels})

    def command(self, group: str) -> str:
        """What measures a group so; the plan's file may be called anything."""
        server = "" if self.plan == EMULATED else f" AT={self.plan.partition(',')[0]} PLAN=FILE"
        return f"make report G={group}{' QUICK=1' if self.quick else ''}{server}"

    @property
    def cpus(self) -> int:
        """Of who measures; 1 if the header does not say."""
        found = re.match(r"(\d+) ×", self.host)
        return int(found[1]) if found else 1

    @property
    def tree(self) -> str:
        """The commit in short, with a + where the tree had changes."""
        return self.commit[:12] + ("+" if self.dirty else "")


@dataclass
class DataSet:
    """What a file of lines holds: samples of whole machines."""

    header: Header
    samples: list[Sample] = field(default_factory=list)
    ended: set[tuple[str, str]] = field(default_factory=set)  # (group, machine)
    cut: dict[tuple[str, str], str] = field(default_factory=dict)  # those that are not whole, and why
    absent: dict[tuple[str, str], str] = field(default_factory=dict)  # (group, what is not measured here), and why

    def groups(self) -> list[str]:
        """Groups with samples or failures, in the order of the file."""
        return list(dict.fromkeys([*(sample.group for sample in self.samples), *(group for group, _ in self.cut)]))


def part_name(machine: str, part: str) -> str:
    """What a part of a machine is called among those that have ended or were cut; "" is all of it."""
    return f"{machine}, {part}" if part else machine


def line(kind: str, what: Sample | Header | dict) -> str:
    """A line of the file."""
    return json.dumps({kind: what if isinstance(what, dict) else asdict(what)}, ensure_ascii=False, allow_nan=False) + "\n"


def parse(lines: Iterable[str]) -> DataSet:
    """The data set of these lines. Raises SampleError that names the line."""
    reader = _Reader()
    for number, text in enumerate(lines, 1):
        try:
            ((kind, what),) = json.loads(text).items()
            reader.take(kind, what)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SampleError(f"line {number}: {error}: {text.strip()[:200]}") from error
    return reader.data()


class _Reader:
    """What has been read until now."""

    def __init__(self) -> None:
        self._header: Header | None = None
        self._ended: dict[tuple[str, str], list[Sample]] = {}
        # By machine: the part that gives samples now.
        self._open: dict[tuple[str, str], tuple[str, dict[tuple, Sample]]] = {}
        self._cut: dict[tuple[str, str], str] = {}
        self._absent: dict[tuple[str, str], str] = {}

    def take(self, kind: str, what: dict) -> None:
        """One line."""
        if kind == "header":
            self._head(Header(**what))
        elif self._header is None:
            raise SampleError("no header before it")
        elif kind == "sample":
            self._sample(Sample(**what))
        elif kind == "absent":
            self._absent.pop((what["group"], what["what"]), None)
            if what["why"]:
                self._absent[what["group"], what["what"]] = what["why"]
        else:
            self._machine(kind, what["group"], what["machine"], what.get("part", ""), what)

    def _machine(self, kind: str, group: str, machine: str, part: str, what: dict) -> None:
        key = group, part_name(machine, part)
        if kind == "begin":
            self._cut[key] = "cut short"
            self._ended.pop(key, None)
            self._open[group, machine] = part, {}
        elif kind == "end":
            begun, taken = self._open.pop((group, machine))
            if begun != part:
                raise SampleError(f"{machine}: {part!r} ends, and {begun!r} had begun")
            self._cut.pop(key)
            self._ended[key] = list(taken.values())
        elif kind == "failed":
            self._cut[key] = what["why"]
        else:
            raise SampleError(f"unknown kind {kind!r}")

    def _head(self, header: Header) -> None:
        if self._header is None:
            self._header = header
        elif different := self._header.differences(header):
            raise SampleError(f"samples of different things are in one file: {'; '.join(different)}")
        else:
            self._header = self._header.with_kernels_of(header)

    def _sample(self, sample: Sample) -> None:
        _, taken = self._open.get((sample.group, sample.machine), ("", None))
        if taken is None:
            raise SampleError(f"{sample}: that machine has not begun")
        key = sample.case, sample.side, sample.clock, sample.round
        if key in taken:
            raise SampleError(f"{sample}: it is there twice")
        taken[key] = sample

    def data(self) -> DataSet:
        """All of it."""
        if self._header is None:
            raise SampleError("there is no header: this is no data of a report")
        samples = [sample for taken in self._ended.values() for sample in taken]
        return DataSet(self._header, samples, set(self._ended), self._cut, self._absent)
