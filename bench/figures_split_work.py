# SPDX-License-Identifier: Apache-2.0
"""Work of group "split": what a guest gets done after it has come to a node with memory for half of what it uses
(S-memV, 5-2).

sort       figure 11: GNU sort reads, stops, the guest moves, sort goes on to its end; and one that begins there, so that
           nothing is known of what it uses when the guest is split
cache      figure 12: memcached has filled its memory, memcaslap asks it for a while, the guest moves, memcaslap asks again
"""

import re
from dataclasses import dataclass

from figures_split_scarce import AGAIN, ENOUGH, HDD, PREPARED, SIDES, SPLIT, SSD, WHOLE, Scale, Way, did, shaped, ways
from report.figure import Figure
from report.goals import EMULATOR, Goal, equal
from report.recorder import Taker
from report.turns import turns
from rig import paths
from rig.errors import RigError
from rig.guest import Guest
from rig.server import Server

PROGRAMS = "/boot/programs.initrd"
SORT_SIDES = SIDES
NEW_SIDES = {side: SIDES[side] for side in (ENOUGH, SPLIT, SSD, HDD)}
CACHE_SIDES = {side: SIDES[side] for side in (ENOUGH, PREPARED, SPLIT, SSD, HDD)}
BEGIN_S = 5  # the paper's figure 12 has a value for as long


@dataclass(frozen=True)
class Work:
    """How much there is to do, and what the guest's shell is told.

    data_mib, buffer_mib, fill_mib   that are sorted; that sort has for it; that lie idle beside it
    cache_mib, cache_fill_mib        the cache has; that lie idle beside it
    fill_s, before_s, after_s        it is filled; it is asked before the move, and after it
    """

    scale: Scale = WHOLE
    data_mib: int = 40
    buffer_mib: int = 64
    fill_mib: int = 136
    cache_mib: int = 192
    cache_fill_mib: int = 64
    fill_s: int = 30
    before_s: int = 20
    after_s: int = 60

    @property
    def sort_ready(self) -> str:
        """Files to leave alone, and to sort: what lies idle is older."""
        return (
            f"{MOUNT} && dd if=/dev/urandom of=all bs=1M count={self.fill_mib} 2>/dev/null"
            f" && dd if=/dev/urandom bs=1M count={self.data_mib * 3 // 4} 2>/dev/null | base64 -w 60 >data"
        )

    @property
    def sort(self) -> str:
        """Begins."""
        sort = f"/usr/bin/sort --parallel=1 -S {self.buffer_mib}M -T /used -o out <data"
        return f"rm -f out /tmp/sorted; ({sort}; s=$?; read b x </proc/uptime; echo $b $s >/tmp/sorted) & "

    @property
    def stop(self) -> str:
        """When it has read all, as each host is as fast as it is. Fails if it has ended by then."""
        has_read = "read x at </proc/$(pidof sort)/fdinfo/0 && [ $at = $(wc -c <data) ]"
        return f"until {has_read} || [ -e /tmp/sorted ]; do sleep 0.05; done; killall -STOP sort && sleep 0.2 && [ ! -e /tmp/sorted ]"

    @property
    def cache_ready(self) -> str:
        """What memcaslap is to do."""
        values = "key\\n64 64 1\\nvalue\\n4096 4096 1\\ncmd\\n"
        return (
            f"{MOUNT} && dd if=/dev/urandom of=all bs=1M count={self.cache_fill_mib} 2>/dev/null"
            f" && printf '{values}0 1.0\\n' >fill && printf '{values}0 0.1\\n1 0.9\\n' >ask"
        )

    @property
    def cache(self) -> str:
        """Begins."""
        return f"/usr/bin/memcached -d -u root -m {self.cache_mib} -t 1 -l 127.0.0.1 -P /tmp/cache.pid; sleep 3"


WORK = Work()
# The side "prepared" shows it.
REASON = "a guest that can be split has pages of 4 KiB alone, each of which costs the emulator a nested page fault after a move"
MOUNT = "mkdir -p /used && mount -t tmpfs -o size=90% used /used && cd /used"
FINISH = (
    "read a x </proc/uptime; killall -CONT sort; until [ -s /tmp/sorted ]; do sleep 0.2; done;"
    " read b s </tmp/sorted; [ $s = 0 ] && echo sorted from $a to $b"
)
SORTED = "/usr/bin/sort -c out && [ $(wc -c <out) = $(wc -c <data) ]; s=$?; rm out; [ $s = 0 ]"
CACHE_END = "kill $(cat /tmp/cache.pid); while kill -0 $(cat /tmp/cache.pid) 2>/dev/null; do sleep 0.2; done"


def asked(how: str, seconds: int) -> str:
    """A line that asks the cache for so long, and says what it got done."""
    return (
        f"/usr/bin/memcaslap -s 127.0.0.1 -T 1 -c 4 -w 10k -F /used/{how} -t {seconds}s -S 1s >/tmp/said;"
        " grep -A 2 '^Total Stat' /tmp/said | grep Period; :"
    )


@dataclass(frozen=True)
class Sorts:
    """One of both cases. is_before: sort has begun before the guest moves."""

    case: str
    sides: dict[str, str]
    is_before: bool


SORTS = (Sorts("sort", SORT_SIDES, True), Sorts("sort_new", NEW_SIDES, False))


def work_figures(group: str) -> tuple[Figure, ...]:
    """Of the group."""
    scarce = f"A guest of {WORK.scale.memory_mib} MiB; its node has {WORK.scale.main_mib} for it where memory is scarce. Links of {WORK.scale.rate_mbit} Mbit/s."
    sort = f"{scarce} GNU sort of {WORK.data_mib} MiB with a buffer of {WORK.buffer_mib} MiB, all in memory."
    cache = f"{scarce} memcached has {WORK.cache_mib} MiB, which are full; memcaslap asks from inside the guest, one of ten times to set."
    return (
        Figure(group, "sort", "What is left of a sort, after a move", "s", SORT_SIDES, note=sort),
        Figure(group, "sort_came", "Pages that come back meanwhile", "pages", SORT_SIDES, note=sort),
        Figure(group, "sort_new", "A sort that begins after a move", "s", NEW_SIDES, note=sort),
        Figure(group, "sort_new_came", "Pages that come back meanwhile, to one that has begun there", "pages", NEW_SIDES, note=sort),
        Figure(group, "cache", f"memcached after a move, for {WORK.after_s} s", "1/s", CACHE_SIDES, note=cache),
        Figure(group, "cache_begin", f"memcached after a move, its first {BEGIN_S} s", "1/s", CACHE_SIDES, note=cache),
        Figure(group, "cache_came", "Pages that come back to it", "pages", CACHE_SIDES, note=cache),
    )  # fmt: skip


def work_goals(group: str) -> tuple[Goal, ...]:
    """The paper's section 5-2, figures 11 and 12."""

    def goal(name: str, case: str, side: str, to: str, **bound: float) -> Goal:
        return Goal(name, group, case, side, to, where=(EMULATOR,), reason=REASON, **bound)

    return (
        goal("Fig. 11: a sort loses 8 % by a split", "sort", SPLIT, ENOUGH, high=1.08),
        goal("A sort that begins after a split ends sooner than with swap on an SSD", "sort_new", SPLIT, SSD, high=1.0),
        goal("Fig. 12: memcached loses 7 % by a split", "cache", SPLIT, ENOUGH, low=0.93),
        goal("Fig. 12: memcached does four fifths in its first seconds", "cache_begin", SPLIT, ENOUGH, low=0.8),
        equal("A sort after a move, and again", group, "sort", AGAIN, ENOUGH, 0.25, null=True),
    )


def bring(server: Server) -> None:
    """Both nodes get what the guests boot: QEMU looks for it where they come, too."""
    initrd = paths.GUEST_INITRD.read_bytes() + paths.need(paths.PROGRAMS).read_bytes()
    for node in (server.one, server.two):
        node.run(f"cat >{PROGRAMS}", stdin=initrd)


def worked(taker: Taker, server: Server, seed: int, rounds: int) -> None:
    """All work of a machine."""
    bring(server)
    options = f"--initrd {PROGRAMS}"
    with ways(server, WORK.scale, "sort", tuple(SORT_SIDES), options, WORK.sort_ready) as by_side:
        for sorts in SORTS:
            for count, order in enumerate(turns(seed, f"{sorts.case} {taker.name}", list(sorts.sides), rounds)):
                for place, side in enumerate(order):
                    took_s, pages = one_sort(server, by_side[side], sorts)
                    taker.add(sorts.case, side, took_s, "s", round=count, order=place)
                    taker.add(f"{sorts.case}_came", side, pages, "pages", round=count, order=place)
    with ways(server, WORK.scale, "cache", tuple(CACHE_SIDES), options, WORK.cache_ready) as by_side:
        for count, order in enumerate(turns(seed, f"cache {taker.name}", list(CACHE_SIDES), rounds)):
            for place, side in enumerate(order):
                seconds, pages = one_cache(server, by_side[side])
                for case, value in (("cache", mean(seconds)), ("cache_begin", mean(seconds[:BEGIN_S]))):
                    taker.add(case, side, value, "1/s", round=count, order=place)
                taker.add("cache_came", side, pages, "pages", round=count, order=place)


def mean(values: list[int]) -> float:
    """Of what is there."""
    return sum(values) / len(values)


def one_sort(server: Server, way: Way, sorts: Sorts) -> tuple[float, int]:
    """The guest's seconds from where sort goes on, or begins, to its end, and the pages that came meanwhile. Raises
    RigError if it did not sort."""
    here, there = Guest(server.one, way.name), Guest(server.two, way.name)
    if sorts.is_before:
        did(here, f"{WORK.sort}{WORK.stop}")
    with way.ready(), shaped([server.zero, server.one, server.two], WORK.scale.rate_mbit):
        way.there()
        came = way.came()
        text = did(there, FINISH if sorts.is_before else f"{WORK.sort}sleep 0.1; {FINISH}")
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


def one_cache(server: Server, way: Way) -> tuple[list[int], int]:
    """Answers in each second after the move, and the pages that came meanwhile. Raises RigError."""
    here, there = Guest(server.one, way.name), Guest(server.two, way.name)
    did(here, WORK.cache)
    did(here, asked("fill", WORK.fill_s))
    did(here, asked("ask", WORK.before_s))
    with way.ready(), shaped([server.zero, server.one, server.two], WORK.scale.rate_mbit):
        way.there()
        came = way.came()
        text = did(there, asked("ask", WORK.after_s))
        came = way.came() - came
    way.back()
    did(here, CACHE_END)
    return answers(text), came


def answers(text: str) -> list[int]:
    """How many there were in each second, by what memcaslap says. Raises RigError."""
    seconds = [int(ops) for ops in re.findall(r"(?m)^Period +\d+ +(\d+) ", text)]
    if len(seconds) < WORK.after_s // 2:
        raise RigError(f"memcaslap speaks of {len(seconds)} seconds, not of {WORK.after_s}:\n{text}")
    return seconds
