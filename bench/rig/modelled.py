# SPDX-License-Identifier: Apache-2.0
"""How fast a guest would be, by what counters of modelled caches tell of it (rig/pmu.c): pure.

A CPU executes an instruction in each cycle in which it does not wait, and waits for each line that comes from memory. What
a guest gets done is the part of cycles in which it does not wait. How long a near line takes is what the simulation of L is
fitted to (`make sim`), and a far one takes twice as long.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

NEAR_CYCLES, FAR_CYCLES = 52.6, 105.2
# As good as in the end; that is so many seconds.
WITHIN, END_S, FIRST_S = 0.02, 5, 10


class Second(NamedTuple):
    """What a vCPU did in one: near and far are lines from memory of its CPU's NUMA node, and of others."""

    span_ms: int
    instructions: int
    near: int
    far: int

    @property
    def done(self) -> float:
        """The part of cycles in which it did not wait."""
        return self.instructions / (self.instructions + NEAR_CYCLES * self.near + FAR_CYCLES * self.far)


def done_in(several: Iterable[Second]) -> float:
    """The same of some seconds, each by as much as was done in it."""
    found = list(several)
    total = Second(*(sum(numbers) for numbers in zip(*found, strict=True)))
    return total.done


def seconds(vcpu: dict, least: int = 1) -> list[Second]:
    """Those in which it worked, of a vCPU as `mintctl layout show` has it, the oldest first; least: instructions
    of one. Lines of each NUMA node are near or far by the CPU that it runs on now; of a node that has one NUMA node, all
    are near."""
    found = []
    for sample in vcpu["samples"]:
        if (sample.get("instructions") or 0) < least or sample.get("misses") is None:
            continue
        fills = sample.get("fills") or [sample["misses"]]
        near = fills[vcpu["numa"]] if len(fills) > 1 else fills[0]
        found.append(Second(sample["span_ms"], sample["instructions"], near, sum(fills) - near))
    return found


@dataclass
class Watched:
    """Seconds of a guest as looks tell them, each of which has the last ten. before: of a guest's last node, which its next
    one is told, too."""

    before: Iterable[Second] = ()
    seen: list[Second] = field(default_factory=list)

    def add(self, look: list[Second]) -> int:
        """One more look; gives how many seconds were seen by now. No two seconds have the same numbers."""
        known = {(one.instructions, one.near + one.far) for one in (*self.before, *self.seen)}
        self.seen += [one for one in look if (one.instructions, one.near + one.far) not in known]
        return len(self.seen)


@dataclass(frozen=True)
class Course:
    """What a guest got done on its node and, since it came, on the next one; a resident there before and at the end."""

    before: list[Second]
    after: list[Second]
    resident_before: list[Second]
    resident_after: list[Second]

    def told(self) -> dict[str, tuple[float, str]]:
        """What pictures have of it, with units. Raises ValueError if too few seconds were seen."""
        if len(self.after) < 2 * END_S or not self.before or not self.resident_before or not self.resident_after:
            raise ValueError(f"too few seconds were seen: {self}")
        was, end = done_in(self.before), done_in(self.after[-END_S:])
        late = [number for number, one in enumerate(self.after, 1) if one.done < (1 - WITHIN) * end]
        return {
            "loss": (100 * (1 - done_in(self.after[:FIRST_S]) / was), "%"),
            "first": (self.after[0].done / was, ""),
            "recovery": (sum(one.span_ms for one in self.after[: late[-1]]) / 1000 if late else 0.0, "s"),
            "end": (100 * (1 - end / was), "%"),
            "resident": (100 * (1 - done_in(self.resident_after) / done_in(self.resident_before)), "%"),
        }
