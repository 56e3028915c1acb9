# SPDX-License-Identifier: Apache-2.0
"""Moves of group "split": a guest whose next host has half of what it uses, and another node the rest, beside one whose
next host has room for all of it.

moves      an idle guest of 128 MiB, and one that changes a part of its memory all the time, from node 1 to node 2:
           all of it by QEMU's stream; split on its way, 32 MiB to node 2 and the rest straight to node 0. Back it
           comes by mintctl vm merge, which is not counted
"""

import contextlib
import json
from collections.abc import Iterator
from typing import Protocol

from figures_migrate import figures, timed
from report.figure import Figure
from report.goals import EMULATOR, Goal, equal
from report.recorder import Taker
from report.turns import turns
from rig.errors import RigError
from rig.guest import Guest
from rig.server import Server

MEMORY_MIB, MAIN_MIB, USED_MIB, LOAD_KIB = 128, 32, 40, 10 << 10
LIMIT_S = 300
START = f"--memory {MEMORY_MIB}M --no-disk --no-network --no-start"
USE = f"mkdir -p /used && mount -t tmpfs used /used && dd if=/dev/urandom of=/used/all bs=1M count={USED_MIB} 2>/dev/null"

ENOUGH, AGAIN, SPLIT = "enough", "enough again", "split"
SIDES = {
    ENOUGH: "room for all of it, QEMU's stream",
    AGAIN: "the same again",
    SPLIT: f"{MAIN_MIB} MiB there, the rest straight to another node",
}
KINDS = {"idle": "", "busy": f"--memory-load {LOAD_KIB} "}
NOTE = f"A guest of {MEMORY_MIB} MiB, of which {USED_MIB} are filled, without a disk."
BUSY = f"{NOTE} It writes and compares {LOAD_KIB >> 10} MiB more all the time."


def move_figures(group: str) -> tuple[Figure, ...]:
    """Of the group."""
    return (
        Figure(group, "idle_total", "An idle guest goes to a host with less room", "s", SIDES, note=NOTE),
        Figure(group, "idle_downtime", "An idle guest stands still", "s", SIDES, note=NOTE),
        Figure(group, "busy_total", "A busy guest goes to a host with less room", "s", SIDES, note=BUSY),
        Figure(group, "busy_downtime", "A busy guest stands still", "s", SIDES, note=BUSY),
    )  # fmt: skip


def move_goals(group: str) -> tuple[Goal, ...]:
    """The paper's section 5-1, figures 8 and 9: a split costs a move little."""
    return (
        Goal("A split on its way costs an idle guest's move 2 %", group, "idle_total", SPLIT, ENOUGH, high=1.02, where=(EMULATOR,)),
        Goal("An idle guest that is split stands still no longer", group, "idle_downtime", SPLIT, ENOUGH, high=1.05, where=(EMULATOR,)),
        Goal("A split on its way costs a busy guest's move nothing", group, "busy_total", SPLIT, ENOUGH, high=1.0, where=(EMULATOR,)),
        equal("An idle guest goes to another host, and again", group, "idle_total", AGAIN, ENOUGH, 0.15, null=True),
    )  # fmt: skip


class Mover(Protocol):
    """A side of the moves."""

    def move(self) -> dict[str, float]:
        """There and back; the way there."""


class Whole:
    """Node 1 to node 2 and back."""

    options, back = "", "vm migrate"

    def __init__(self, server: Server, name: str) -> None:
        self._server, self._name = server, name

    def move(self) -> dict[str, float]:
        """By mintctl."""
        total_s, said = timed(self._server.one, f"mintctl vm migrate {self._name} --to node2 {self.options} --json")
        found = figures(total_s, json.loads(said))
        self.arrived()
        self._server.two.run(f"mintctl {self.back} {self._name} --to node1", LIMIT_S)
        return found

    def arrived(self) -> None:
        """Raises RigError if it is not as it was to be."""


class Parted(Whole):
    """The same, with a part on node 0."""

    options, back = f"--split main={MAIN_MIB}M,node0=rest", "vm merge"

    def arrived(self) -> None:
        """Node 2 has no more than it was to have."""
        view = self._server.mintctl("vm", "memory", self._name)
        most = (MAIN_MIB << 20) + view["chunk_bytes"]
        if view["here_bytes"] > most or not view["elsewhere_bytes"]:
            raise RigError(f"it was not split as it was to be: {view}")


@contextlib.contextmanager
def movers(server: Server, kind: str) -> Iterator[dict[str, Mover]]:
    """The guests, by side; ended at the end, wherever they are."""
    names = {ENOUGH: f"whole-{kind}", SPLIT: f"parted-{kind}"}
    with contextlib.ExitStack() as ends:
        for name in names.values():
            for node in (server.one, server.two):
                ends.enter_context(Guest(node, name))
            guest = Guest(server.one, name).start(f"{KINDS[kind]}{START}")
            if name == names[SPLIT]:
                server.mintctl("vm", "prepare", name)
            server.one.run(f"virsh -q start {name}", LIMIT_S)
            guest.wait_line("mint-guest: up")
            text, status = guest.shell(USE, LIMIT_S)
            if status:
                raise RigError(f"{guest} does not fill its memory:\n{text}")
        whole = Whole(server, names[ENOUGH])
        yield {ENOUGH: whole, AGAIN: whole, SPLIT: Parted(server, names[SPLIT])}


def moved(taker: Taker, server: Server, seed: int, rounds: int) -> None:
    """All moves of a machine."""
    for kind in KINDS:
        with movers(server, kind) as by_side:
            # a first one of each: connections are there then
            for side in (ENOUGH, SPLIT):
                by_side[side].move()
            for count, order in enumerate(turns(seed, f"moves {kind} {taker.name}", list(SIDES), rounds)):
                for place, side in enumerate(order):
                    for case, value in by_side[side].move().items():
                        taker.add(f"{kind}_{case}", side, value, "s", round=count, order=place)
