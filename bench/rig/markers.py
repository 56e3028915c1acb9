# SPDX-License-Identifier: Apache-2.0
"""How many instructions each emulated CPU executed between two markers of a program.

QEMU loads count.c as a plugin, which writes a line when a CPU comes to a marker (marker.h).
A program puts a pair of them around what is to be counted, and is pinned to a core: what
the core did in between is counted, interrupts and other programs included, and nothing
that any other core did.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rig import paths, plugin
from rig.errors import RigError

LINE = re.compile(r"(\d+) (\d+) (\d+)")


@dataclass(frozen=True)
class Marker:
    """One line of the plugin: count is that of vcpu, QEMU's number of it, since the machine began."""

    vcpu: int
    number: int
    count: int

    @property
    def label(self) -> int:
        """Which pair it is of."""
        return self.number // 2

    @property
    def is_end(self) -> bool:
        """Or the begin of its pair."""
        return self.number % 2 == 1


@dataclass(frozen=True)
class Stretch:
    """What was between the two markers of a pair."""

    vcpu: int
    label: int
    instructions: int


def plugin_arguments(file: Path) -> list[str]:
    """Of QEMU: the plugin, which writes to this file. Raises RigError if nothing is emulated, or a comma is in the way."""
    return plugin.arguments(paths.QEMU_COUNT, out=file)


def parse(text: str) -> list[Marker]:
    """The plugin's whole lines, in their order; the last may be half written. Raises RigError for any other."""
    markers = []
    for line in text.split("\n")[:-1]:
        found = LINE.fullmatch(line)
        if not found:
            raise RigError(f"no line of bench/rig/count.c: {line!r}")
        markers.append(Marker(*map(int, found.groups())))
    return markers


@dataclass(frozen=True)
class Paired:
    """Stretches in the order of their ends; begins whose end may still come; markers that have lost the other."""

    stretches: list[Stretch]
    begun: list[Marker]
    alone: list[Marker]


def pair(markers: Iterable[Marker]) -> Paired:
    """A begin and the next end of the same label on the same CPU are a pair.

    A program that changes its core in between leaves an end alone, and a begin.
    """
    found = Paired([], [], [])
    open_now: dict[tuple[int, int], Marker] = {}
    for marker in markers:
        place = (marker.vcpu, marker.label)
        before = open_now.pop(place, None)
        if marker.is_end and before:
            found.stretches.append(Stretch(*place, marker.count - before.count))
            continue
        if before:
            found.alone.append(before)
        if marker.is_end:
            found.alone.append(marker)
        else:
            open_now[place] = marker
    found.begun.extend(open_now.values())
    return found


def stretches(text: str, label: int) -> list[Stretch]:
    """All of a label that have ended, of the plugin's text. Raises RigError if one has lost its begin or its end."""
    found = pair(marker for marker in parse(text) if marker.label == label)
    if found.alone:
        raise RigError(
            f"{len(found.alone)} markers of label {label} have no other on their CPU, the first of them "
            f"{found.alone[0]}: pin the program to one core, and let it end"
        )
    return found.stretches
