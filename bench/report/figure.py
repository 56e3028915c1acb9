# SPDX-License-Identifier: Apache-2.0
"""What a group says of its pictures, and how numbers are written: pure."""

from dataclasses import dataclass, field


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
