# SPDX-License-Identifier: Apache-2.0
"""How long the host kept threads of the emulated server waiting for a core.

A guest that stood still because the host had no core for the emulator is no fault of
the machine. The host says of each thread how long it was ready and did not run
(schedstat, in the kernel's Documentation/scheduler/sched-stats.rst), and of each core,
where the host is a virtual machine itself, how long its hypervisor ran something else
on it (steal in /proc/stat, proc(5)): its scheduler takes a thread for running then.
Samples of both tell it for any time between two moments.
"""

import bisect
import os
import re
import threading
import time
from collections.abc import Iterable
from pathlib import Path

EVERY_S = 0.5
# An interval is known by other clocks than ours only so well.
MARGIN_S = 1.0
# Of a core's row in /proc/stat, its name counted.
STEAL_COLUMN = 8
# What is shorter than this is no stall, and is not looked up.
SHORT_S = 1.0


def waiting_of(pid: int) -> dict[str, float]:
    """Of each thread of a process, by id: seconds it has been ready without a core. Nothing for those that end."""
    found = {}
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            found[task.parent.name] = int(task.read_text().split()[1]) / 1e9
        except (OSError, IndexError):
            continue
    return found


def stolen_of(stat: str) -> dict[str, float]:
    """Of each core of the host, by its name in the text of /proc/stat: seconds that its hypervisor did not run it."""
    rows = (line.split() for line in stat.splitlines() if re.match(r"cpu\d", line))
    return {row[0]: int(row[STEAL_COLUMN]) / os.sysconf("SC_CLK_TCK") for row in rows}


class Delays:
    """Samples of waiting_of() and stolen_of() over time, in the host's monotonic seconds."""

    def __init__(self) -> None:
        self._times_s: list[float] = []
        self._samples: list[tuple[dict[str, float], dict[str, float]]] = []

    def add(self, at_s: float, waiting_s: dict[str, float], stolen_s: dict[str, float] | None = None) -> None:
        """A sample, later than all before."""
        self._samples.append((waiting_s, stolen_s or {}))
        self._times_s.append(at_s)

    def kept_waiting_s(self, begin_s: float, end_s: float) -> float:
        """How long the thread that waited longest was kept waiting between two moments, and the core that was stolen
        most did not run; 0 without samples."""
        times_s = self._times_s[:]
        if not times_s:
            return 0.0
        first = max(0, bisect.bisect_right(times_s, begin_s) - 1)
        last = min(len(times_s) - 1, bisect.bisect_left(times_s, end_s))
        pairs = zip(self._samples[first], self._samples[last], strict=True)
        return sum(max((after[each] - before.get(each, 0.0) for each in after), default=0.0) for before, after in pairs)

    def own_s(self, begin_s: float, end_s: float) -> float:
        """Length of an interval, without what the host kept a thread waiting in it."""
        length_s = end_s - begin_s
        if length_s <= SHORT_S:
            return length_s
        return max(0.0, length_s - self.kept_waiting_s(begin_s - MARGIN_S, end_s + MARGIN_S))

    def longest_own_s(self, intervals: Iterable[tuple[float, float]]) -> float:
        """The longest of intervals, each without what the host kept a thread waiting in it."""
        return max((self.own_s(begin_s, end_s) for begin_s, end_s in intervals), default=0.0)


def sample(delays: Delays, pid: int, ended: threading.Event) -> None:
    """Sample a process until ended is set, in a thread."""

    def run() -> None:
        while not ended.wait(EVERY_S):
            delays.add(time.monotonic(), waiting_of(pid), stolen_of(Path("/proc/stat").read_text()))

    threading.Thread(target=run, name="delay", daemon=True).start()
