# SPDX-License-Identifier: Apache-2.0
"""Which interrupts a CPU got, by two looks at /proc/interrupts: pure."""

import re
from collections.abc import Iterable

from rig.errors import RigError

# The CPU's own timer.
TIMER = "LOC"


def of_cpu(text: str, cpu: int) -> dict[str, int]:
    """Of each row, by its name and what it says of itself: the count of a CPU, as the kernel numbers it.

    Raises RigError if the CPU is not there.
    """
    header, *lines = text.splitlines()
    cpus = [int(number) for number in re.findall(r"CPU(\d+)", header)]
    if cpu not in cpus:
        raise RigError(f"/proc/interrupts has no CPU {cpu}, but {cpus}")
    found = {}
    for line in lines:
        name, _, rest = line.partition(":")
        words = rest.split()
        counts = words[: len(cpus)]
        # Rows of errors have one number for all CPUs.
        if len(counts) == len(cpus) and all(word.isdigit() for word in counts):
            found[" ".join([name.strip(), *words[len(cpus) :]])] = int(counts[cpus.index(cpu)])
    return found


def between(before: str, after: str, cpu: int, own: Iterable[str] = ()) -> dict[str, int]:
    """Those rows that have grown, but for the CPU's timer and those that have a pattern of own in them.

    A row that is new began with 0.
    """
    first, last = of_cpu(before, cpu), of_cpu(after, cpu)
    patterns = [rf"^{TIMER}\b", *own]
    return {
        row: count - first.get(row, 0)
        for row, count in last.items()
        if count > first.get(row, 0) and not any(re.search(pattern, row) for pattern in patterns)
    }
