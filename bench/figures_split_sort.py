# SPDX-License-Identifier: Apache-2.0
"""Group "split_sort" of make report: GNU sort in a guest that has come to a node with memory for half of what it uses
(S-memV, 5-2, figure 11).

sort       it has read what its buffer takes, and stops; the guest moves; it goes on to its end
sort_new   it begins where the guest has come: nothing is known of what it uses when the guest is split
"""

import re
from dataclasses import dataclass

from figures_split_scarce import (
    AGAIN, ENOUGH, MOUNT, SIDES, SPLIT, SSD, WHOLE, WITH_PROGRAMS, Scale, Way, booted, bring, did, shaped, ways,
)  # fmt: skip
from report.figure import Figure
from report.goals import EMULATOR, Goal, equal
from report.recorder import Recorder, Taker
from report.turns import turns
from rig.errors import RigError
from rig.guest import Guest
from rig.server import Server

GROUP = "split_sort"
NOT_AT = "its guest is the rig's own"
MACHINES, QUICK_MACHINES = 5, 1
ROUNDS = 1
NEW_SIDES = {side: SIDES[side] for side in (ENOUGH, SPLIT, SSD)}


@dataclass(frozen=True)
class Work:
    """How much there is to do, and what the guest's shell is told.

    data_mib, buffer_mib, fill_mib   that are sorted; that sort has for it; that lie idle beside it
    """

    scale: Scale = WHOLE
    data_mib: int = 40
    buffer_mib: int = 64
    fill_mib: int = 136

    @property
    def ready(self) -> str:
        """Files to leave alone, and to sort: what lies idle is older."""
        return (
            f"{MOUNT} && dd if=/dev/urandom of=all bs=1M count={self.fill_mib} 2>/dev/null"
            f" && dd if=/dev/urandom bs=1M count={self.data_mib * 3 // 4} 2>/dev/null | base64 -w 60 >data"
        )

    @property
    def begin(self) -> str:
        """Sort begins."""
        sort = f"/usr/bin/sort --parallel=1 -S {self.buffer_mib}M -T /used -o out <data"
        return f"rm -f out /tmp/sorted; ({sort}; s=$?; read b x </proc/uptime; echo $b $s >/tmp/sorted) & "

    @property
    def stop(self) -> str:
        """When it has filled its buffer, as each host is as fast as it is. Fails if it has ended by then."""
        has_read = f"read x at 2>/dev/null </proc/$(pidof sort)/fdinfo/0 && [ $at -ge {self.data_mib << 19} ]"
        return f"until {has_read} || [ -e /tmp/sorted ]; do sleep 0.05; done; killall -STOP sort && sleep 0.2 && [ ! -e /tmp/sorted ]"


WORK = Work()
FINISH = (
    "read a x </proc/uptime; killall -CONT sort; until [ -s /tmp/sorted ]; do sleep 0.2; done;"
    " read b s </tmp/sorted; [ $s = 0 ] && echo sorted from $a to $b"
)
SORTED = "/usr/bin/sort -c out && [ $(wc -c <out) = $(wc -c <data) ]; s=$?; rm out; [ $s = 0 ]"


@dataclass(frozen=True)
class Sorts:
    """One of both cases. is_before: sort has begun before the guest moves."""

    case: str
    sides: dict[str, str]
    is_before: bool


SORTS = (Sorts("sort", SIDES, True), Sorts("sort_new", NEW_SIDES, False))
NOTE = (
    f"A guest of {WORK.scale.memory_mib} MiB; its node has {WORK.scale.main_mib} for it where memory is scarce. Links of"
    f" {WORK.scale.rate_mbit} Mbit/s. GNU sort of {WORK.data_mib} MiB with a buffer of {WORK.buffer_mib} MiB, all in memory."
)
FIGURES = (
    Figure(GROUP, "sort", "What is left of a sort, after a move", "s", SIDES, note=NOTE),
    Figure(GROUP, "sort_came", "Pages that come back meanwhile", "pages", SIDES, note=NOTE),
    Figure(GROUP, "sort_new", "A sort that begins after a move", "s", NEW_SIDES, note=NOTE),
    Figure(GROUP, "sort_new_came", "Pages that come back meanwhile, to one that has begun there", "pages", NEW_SIDES, note=NOTE),
)
GOALS = (
    Goal("Fig. 11: a sort loses 8 % by a split", GROUP, "sort", SPLIT, ENOUGH, where=(EMULATOR,), high=1.08),
    Goal("A sort that begins after a split ends sooner than with swap on an SSD", GROUP, "sort_new", SPLIT, SSD,
         where=(EMULATOR,), high=1.0),
    equal("A sort after a move, and again", GROUP, "sort", AGAIN, ENOUGH, 0.25, null=True),
)  # fmt: skip


def sorting(taker: Taker, server: Server, seed: int, rounds: int) -> None:
    """Both cases, in turns."""
    bring(server)
    with ways(server, WORK.scale, "sort", tuple(SIDES), WITH_PROGRAMS, WORK.ready) as by_side:
        for sorts in SORTS:
            for count, order in enumerate(turns(seed, f"{sorts.case} {taker.name}", list(sorts.sides), rounds)):
                for place, side in enumerate(order):
                    took_s, pages = one_sort(server, by_side[side], sorts)
                    taker.add(sorts.case, side, took_s, "s", round=count, order=place)
                    taker.add(f"{sorts.case}_came", side, pages, "pages", round=count, order=place)


def one_sort(server: Server, way: Way, sorts: Sorts) -> tuple[float, int]:
    """The guest's seconds from where sort goes on, or begins, to its end, and the pages that came meanwhile. Raises
    RigError if it did not sort."""
    here, there = Guest(server.one, way.name), Guest(server.two, way.name)
    if sorts.is_before:
        did(here, f"{WORK.begin}{WORK.stop}")
    with way.ready(), shaped([server.zero, server.one, server.two], WORK.scale.rate_mbit):
        way.there()
        came = way.came()
        text = did(there, FINISH if sorts.is_before else f"{WORK.begin}sleep 0.1; {FINISH}")
        came = way.came() - came
    way.back()
    did(here, SORTED)
    return sorted_s(text), came


def sorted_s(text: str) -> float:
    """How long it took, by what FINISH says. Raises RigError."""
    found = re.search(r"(?m)^sorted from ([\d.]+) to ([\d.]+)", text)
    if found is None:
        raise RigError(f"the guest does not say when it sorted:\n{text}")
    return float(found[2]) - float(found[1])


def run(recorder: Recorder) -> None:
    """Measure what is missing, one machine after the other."""
    booted(recorder, GROUP, recorder.pick(MACHINES, QUICK_MACHINES), ROUNDS, {"sort": sorting})
