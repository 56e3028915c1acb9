# SPDX-License-Identifier: Apache-2.0
"""Merge of group "split": all of a guest's memory comes to one host, from two hosts at once or from one, over links of the
same rate.

merge      an idle guest of 128 MiB comes to node 2: half of what it uses from node 1, where it runs, and the rest from
           node 0, which keeps it (mintctl vm merge); or all of it from node 1 (mintctl vm migrate). What leaves a node
           on mint0 leaves by its own link. Back it goes, and is split anew, which is not counted. The emulated server has
           disks for three nodes: two sub hosts beside main and next host would be four
"""

import contextlib
from collections.abc import Iterator
from typing import Protocol

from figures_migrate import timed
from figures_split_scarce import shaped
from report.figure import Figure
from report.goals import EMULATOR, Goal, equal
from report.recorder import Taker
from report.turns import turns
from rig.errors import RigError
from rig.guest import Guest
from rig.server import Server

RATE_MBIT = 30
USED_MIB, PART_MIB = 40, 36  # what it has filled; half of what it uses
NAME, LIMIT_S = "merged", 600
START = "--memory 128M --no-disk --no-network --no-start"
USE = f"mkdir -p /used && mount -t tmpfs used /used && dd if=/dev/urandom of=/used/all bs=1M count={USED_MIB} 2>/dev/null"
APART = f"--split main={PART_MIB}M,node0=rest"
ALONE, AGAIN, PARTS = "one host", "one host again", "two hosts"
SIDES = {
    ALONE: "all of it from one host",
    AGAIN: "the same again",
    PARTS: "from its main host and a sub host",
}
CASE = "merge_total"


def merge_figures(group: str) -> tuple[Figure, ...]:
    """Of the group."""
    note = f"A guest of 128 MiB, of which {USED_MIB} are filled, without a disk. What a node sends on mint0: {RATE_MBIT} Mbit/s."
    return (Figure(group, CASE, "All of a guest's memory comes to one host", "s", SIDES, note=note),)


def merge_goals(group: str) -> tuple[Goal, ...]:
    """The paper's section 3-2: all hosts send at the same time."""
    return (
        Goal("From two hosts a guest comes 1.6 times as fast", group, CASE, ALONE, PARTS, low=1.6, where=(EMULATOR,)),
        equal("A guest comes from one host, and again", group, CASE, AGAIN, ALONE, 0.15, null=True),
    )


class Merger(Protocol):
    """A side."""

    def merge(self) -> float:
        """Seconds until all of the guest is at node 2; then it is as before."""


class Alone:
    """All of it is at node 1."""

    verb, apart = "vm migrate", ""

    def __init__(self, server: Server) -> None:
        self._server = server

    def merge(self) -> float:
        """By mintctl, which waits for the end."""
        if self.apart:
            self._server.one.run(f"mintctl vm migrate {NAME} --to node1 {self.apart}", LIMIT_S)
        view = self._server.mintctl("vm", "memory", NAME)
        if len(view["hosts"]) != (1 if self.apart else 0):
            raise RigError(f"it is not split as it was to be: {view}")
        took_s, _ = timed(self._server.one, f"mintctl {self.verb} {NAME} --to node2 --json")
        view = self._server.mintctl("vm", "memory", NAME)
        if view["node"] != 2 or view["elsewhere_bytes"] or view["hosts"]:
            raise RigError(f"not all of it has come: {view}")
        self._server.two.run(f"mintctl vm migrate {NAME} --to node1", LIMIT_S)
        return took_s


class Parts(Alone):
    """Another node keeps half of it."""

    verb, apart = "vm merge", APART


@contextlib.contextmanager
def mergers(server: Server) -> Iterator[dict[str, Merger]]:
    """The guest, by side; ended at the end."""
    with Guest(server.one, NAME) as guest, Guest(server.two, NAME):
        guest.start(START)
        server.mintctl("vm", "prepare", NAME)
        server.one.run(f"virsh -q start {NAME}", LIMIT_S)
        guest.wait_line("mint-guest: up")
        text, status = guest.shell(USE, LIMIT_S)
        if status:
            raise RigError(f"{guest} does not fill its memory:\n{text}")
        alone = Alone(server)
        with shaped([server.zero, server.one], RATE_MBIT):
            yield {ALONE: alone, AGAIN: alone, PARTS: Parts(server)}


def merged(taker: Taker, server: Server, seed: int, rounds: int) -> None:
    """All merges of a machine."""
    with mergers(server) as by_side:
        for count, order in enumerate(turns(seed, f"merge {taker.name}", list(SIDES), rounds)):
            for place, side in enumerate(order):
                taker.add(CASE, side, by_side[side].merge(), "s", round=count, order=place)
