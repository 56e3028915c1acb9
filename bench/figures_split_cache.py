# SPDX-License-Identifier: Apache-2.0
"""Group "split_cache" of make report: memcached in a guest that has come to a node with memory for half of what it uses
(S-memV, 5-2, figure 12). It has filled its memory, memcaslap asks it for a while, the guest moves, memcaslap asks again."""

import re
from dataclasses import dataclass

from figures_split_scarce import (
    AGAIN, ENOUGH, HDD, MOUNT, PREPARED, SPLIT, SSD, WHOLE, WITH_PROGRAMS, Scale, Way, booted, bring, did, shaped, ways,
)  # fmt: skip
from figures_split_scarce import SIDES as ALL_SIDES
from report.figure import Figure
from report.goals import EMULATOR, Goal, equal
from report.recorder import Recorder, Taker
from report.turns import turns
from rig.errors import RigError
from rig.guest import Guest
from rig.server import Server

GROUP = "split_cache"
NOT_AT = "its guest is the rig's own"
MACHINES, QUICK_MACHINES = 5, 1
ROUNDS = 1
SIDES = {side: ALL_SIDES[side] for side in (ENOUGH, AGAIN, PREPARED, SPLIT, SSD, HDD)}
# Why a goal may be missed; the side "prepared" shows it.
SLOW_PAGES = "a guest that can be split has pages of 4 KiB alone, each of which costs the emulator a nested page fault after a move"
BEGIN_S = 5  # the paper's figure 12 has a value for as long


@dataclass(frozen=True)
class Work:
    """How much there is to do, and what the guest's shell is told.

    cache_mib, idle_mib         the cache has; that lie idle beside it
    fill_s, before_s, after_s   it is filled; it is asked before the move, and after it
    """

    scale: Scale = WHOLE
    cache_mib: int = 192
    idle_mib: int = 64
    fill_s: int = 30
    before_s: int = 10
    after_s: int = 45

    @property
    def ready(self) -> str:
        """What memcaslap is to do."""
        values = "key\\n64 64 1\\nvalue\\n4096 4096 1\\ncmd\\n"
        return (
            f"{MOUNT} && dd if=/dev/urandom of=all bs=1M count={self.idle_mib} 2>/dev/null"
            f" && printf '{values}0 1.0\\n' >fill && printf '{values}0 0.1\\n1 0.9\\n' >ask"
        )

    @property
    def begin(self) -> str:
        """memcached begins."""
        return f"/usr/bin/memcached -d -u root -m {self.cache_mib} -t 1 -l 127.0.0.1 -P /tmp/cache.pid; sleep 3"


WORK = Work()
END = "kill $(cat /tmp/cache.pid); while kill -0 $(cat /tmp/cache.pid) 2>/dev/null; do sleep 0.2; done"
NOTE = (
    f"A guest of {WORK.scale.memory_mib} MiB; its node has {WORK.scale.main_mib} for it where memory is scarce. Links of"
    f" {WORK.scale.rate_mbit} Mbit/s. memcached has {WORK.cache_mib} MiB, which are full; memcaslap asks from inside the guest, one of"
    " ten times to set."
)
FIGURES = (
    Figure(GROUP, "cache", f"memcached after a move, for {WORK.after_s} s", "1/s", SIDES, note=NOTE),
    Figure(GROUP, "cache_begin", f"memcached after a move, its first {BEGIN_S} s", "1/s", SIDES, note=NOTE),
    Figure(GROUP, "cache_came", "Pages that come back to it", "pages", SIDES, note=NOTE),
)
GOALS = (
    Goal("Fig. 12: memcached loses 7 % by a split", GROUP, "cache", SPLIT, ENOUGH, where=(EMULATOR,), reason=SLOW_PAGES, low=0.93),
    Goal("Fig. 12: memcached does four fifths in its first seconds", GROUP, "cache_begin", SPLIT, ENOUGH, where=(EMULATOR,),
         reason=SLOW_PAGES, low=0.8),
    Goal("Fig. 12: memcached loses less by a split than by swap on an SSD", GROUP, "cache", SPLIT, SSD, where=(EMULATOR,),
         reason=SLOW_PAGES, low=1.0),
    equal("memcached after a move, and again", GROUP, "cache", AGAIN, ENOUGH, 0.25, null=True),
)  # fmt: skip


def asked(how: str, seconds: int) -> str:
    """A line that asks the cache for so long, and says what it got done."""
    return (
        f"/usr/bin/memcaslap -s 127.0.0.1 -T 1 -c 4 -w 10k -F /used/{how} -t {seconds}s -S 1s >/tmp/said;"
        " grep -A 2 '^Total Stat' /tmp/said | grep Period; :"
    )


def caching(taker: Taker, server: Server, seed: int, rounds: int) -> None:
    """All sides, in turns."""
    bring(server)
    with ways(server, WORK.scale, "cache", tuple(SIDES), WITH_PROGRAMS, WORK.ready) as by_side:
        for count, order in enumerate(turns(seed, f"cache {taker.name}", list(SIDES), rounds)):
            for place, side in enumerate(order):
                seconds, pages = one_cache(server, by_side[side])
                for case, value in (("cache", mean(seconds)), ("cache_begin", mean(seconds[:BEGIN_S]))):
                    taker.add(case, side, value, "1/s", round=count, order=place)
                taker.add("cache_came", side, pages, "pages", round=count, order=place)


def mean(values: list[int]) -> float:
    """Of what is there."""
    return sum(values) / len(values)


def one_cache(server: Server, way: Way) -> tuple[list[int], int]:
    """Answers in each second after the move, and the pages that came meanwhile. Raises RigError."""
    here, there = Guest(server.one, way.name), Guest(server.two, way.name)
    did(here, WORK.begin)
    did(here, asked("fill", WORK.fill_s))
    did(here, asked("ask", WORK.before_s))
    with way.ready(), shaped([server.zero, server.one, server.two], WORK.scale.rate_mbit):
        way.there()
        came = way.came()
        text = did(there, asked("ask", WORK.after_s))
        came = way.came() - came
    way.back()
    did(here, END)
    return answers(text), came


def answers(text: str) -> list[int]:
    """How many there were in each second, by what memcaslap says. Raises RigError."""
    seconds = [int(ops) for ops in re.findall(r"(?m)^Period +\d+ +(\d+) ", text)]
    if len(seconds) < WORK.after_s // 2:
        raise RigError(f"memcaslap speaks of {len(seconds)} seconds, not of {WORK.after_s}:\n{text}")
    return seconds


def run(recorder: Recorder) -> None:
    """Measure what is missing, one machine after the other."""
    booted(recorder, GROUP, recorder.pick(MACHINES, QUICK_MACHINES), ROUNDS, {"cache": caching})
