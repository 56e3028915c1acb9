# SPDX-License-Identifier: Apache-2.0
"""What a group says of its pictures, and how numbers are written: pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from report.goals import EMULATOR, SERVER
from report.stats import Interval


@dataclass(frozen=True)
class Figure:
    """One case by one clock: its sides beside each other."""

    group: str
    case: str
    title: str
    unit: str
    sides: dict[str, str] = field(default_factory=dict)  # what they are called in words; their order
    clock: str = "wall"
    note: str = ""
    where: tuple[str, ...] = (EMULATOR, SERVER)  # the places whose samples it is drawn of

    @property
    def key(self) -> tuple[str, str, str]:
        """What its samples have in common."""
        return self.group, self.case, self.clock

    @property
    def name(self) -> str:
        """Of its files."""
        return "-".join(self.key).replace(" ", "-")

    def label(self, side: str) -> str:
        """A side, in words."""
        return self.sides.get(side, side)


@dataclass(frozen=True)
class HeatMap:
    """Many comparisons at once, as a grid: a cell is side ÷ to of a case, or, without to, the side's values.

    A column is a pair: the head that it shares with its neighbours, and its own name.
    """

    group: str
    case: str  # what it is called among the group's
    title: str
    rows: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    cells: Mapping[tuple[str, tuple[str, str]], tuple[str, str]]  # by row and column: case and side
    to: str | None
    clock: str = "wall"
    unit: str = ""
    note: str = ""

    @property
    def name(self) -> str:
        """Of its files."""
        return "-".join((self.group, self.case, self.clock, "map")).replace(" ", "-")


def number(value: float | None) -> str:
    """Three digits at least; "–" if there is none."""
    if value is None:
        return "–"
    size = abs(value)
    if size == 0 or size >= 100:
        return f"{value:.0f}"
    if size < 0.001:
        return f"{value:.1e}"
    return f"{value:.{2 if size >= 10 else 3 if size >= 0.1 else 4}f}".rstrip("0").rstrip(".")


def short(value: float | None) -> str:
    """Three digits at most before they are whole numbers: of a grid's cell."""
    if value is None:
        return "–"
    size = abs(value)
    return f"{value:.{0 if size >= 100 or value == 0 else 1 if size >= 10 else 2}f}"


def written(found: Interval | None) -> str:
    """The middle, and its interval."""
    if found is None:
        return "–"
    if found.low is None:
        return number(found.middle)
    # As many decimals as the interval is known by.
    width = found.high - found.low
    digits = min(max(0, 1 - math.floor(math.log10(width))), 6) if width > 0 else None
    low, middle, high = (number(v) if digits is None else f"{v:.{digits}f}" for v in (found.low, found.middle, found.high))
    return f"{middle} [{low} … {high}]"
