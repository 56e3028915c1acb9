# SPDX-License-Identifier: Apache-2.0
"""Group "split_moves" of make report: a guest goes to a node with memory for half of what it uses (S-memV, 5-1).

idle       figure 8: it does nothing
busy       figure 9: it rewrites half of what it uses, slower than its links
link       figure 10: a smaller guest, over links of a tenth of the rate, and of the rate

Each is a part of a machine, with a boot of its own.
"""

from dataclasses import dataclass

from figures_split_scarce import AGAIN, ENOUGH, HDD, SPLIT, SSD, WHOLE, Scale, Way, booted, shaped, ways
from figures_split_scarce import SIDES as ALL_SIDES
from report.figure import Figure
from report.goals import EMULATOR, Goal, equal
from report.recorder import Recorder, Taker
from report.turns import turns
from rig.server import Server

GROUP = "split_moves"
NOT_AT = "its guest is the rig's own"
MACHINES, QUICK_MACHINES = 5, 1
ROUNDS = 1
SMALL = Scale(96, 32)
SLOW, FAST = "slow", "fast"
# The guest rewrites so many MB/s: less than its links carry, so that the last round comes.
BUSY_MB_S = 6
SIDES = {side: ALL_SIDES[side] for side in (ENOUGH, AGAIN, SPLIT, SSD, HDD)}
BUSY_SIDES = {side: ALL_SIDES[side] for side in (ENOUGH, SPLIT, SSD, HDD)}
# Of a small guest: how it goes, and over which link.
LINKS = {f"{side} {rate}": (side, rate) for side in (SPLIT, SSD) for rate in (SLOW, FAST)}


@dataclass(frozen=True)
class Kind:
    """A guest that moves. used_mib: what it has filled; busy_mib: of that, what it rewrites all the time."""

    scale: Scale
    used_mib: int
    busy_mib: int = 0
    sides: tuple[str, ...] = tuple(SIDES)

    @property
    def line(self) -> str:
        """What it does first."""
        size = f"size={self.used_mib + 8}M"
        fill = f"mkdir -p /used && mount -t tmpfs -o {size} used /used && dd if=/dev/urandom of=/used/all bs=1M count={self.used_mib} 2>/dev/null"
        if not self.busy_mib:
            return fill
        job = f"--filename=/used/all --size={self.busy_mib}m --bs=64k --rw=write --rate={BUSY_MB_S}m --time_based --runtime=1d"
        return f"{fill} && {{ fio --name=busy {job} --ioengine=psync --thread --output=/tmp/busy >/dev/null 2>&1 & }}"


IDLE, BUSY, LINK = Kind(WHOLE, 272), Kind(WHOLE, 272, 136, tuple(BUSY_SIDES)), Kind(SMALL, 40)
CASES = ("total", "downtime")


def _note(kind: Kind) -> str:
    scale = kind.scale
    return (
        f"A guest of {scale.memory_mib} MiB, of which {kind.used_mib} are filled, without a disk; its next host has {scale.main_mib}"
        f" for it where memory is scarce. Links of {scale.rate_mbit} Mbit/s."
    )


BUSY_NOTE = f"{_note(BUSY)} It rewrites {BUSY.busy_mib} MiB at {BUSY_MB_S} MiB/s."
LINK_SIDES = {name: f"{SIDES[side]}; {rate} link" for name, (side, rate) in LINKS.items()}
LINK_NOTE = f"{_note(LINK)} On the slower ones: {LINK.scale.rate_mbit / 10:g} Mbit/s."
FIGURES = (
    Figure(GROUP, "idle_total", "An idle guest goes to a host with less room", "s", SIDES, note=_note(IDLE)),
    Figure(GROUP, "idle_downtime", "An idle guest stands still", "s", SIDES, note=_note(IDLE)),
    Figure(GROUP, "busy_total", "A busy guest goes to a host with less room", "s", BUSY_SIDES, note=BUSY_NOTE),
    Figure(GROUP, "busy_downtime", "A busy guest stands still", "s", BUSY_SIDES, note=BUSY_NOTE),
    Figure(GROUP, "link_total", "A small guest goes, over slow and fast links", "s", LINK_SIDES, note=LINK_NOTE),
    Figure(GROUP, "link_downtime", "A small guest stands still, over slow and fast links", "s", LINK_SIDES, note=LINK_NOTE),
)


def _goal(name: str, case: str, side: str, to: str, **bound: float) -> Goal:
    return Goal(name, GROUP, case, side, to, where=(EMULATOR,), **bound)


# The paper's section 5-1, figures 8 to 10.
GOALS = (
    _goal("Fig. 8: a split on its way costs an idle guest's move 2 %", "idle_total", SPLIT, ENOUGH, high=1.02),
    _goal("Fig. 8: an idle guest that is split stands still no longer", "idle_downtime", SPLIT, ENOUGH, high=1.05),
    _goal("Fig. 8: an idle guest's split is quicker than swap on an SSD", "idle_total", SPLIT, SSD, high=1.0),
    _goal("Fig. 9: a split on its way costs a busy guest's move nothing", "busy_total", SPLIT, ENOUGH, high=1.0),
    _goal("Fig. 10: a split guest goes 7 times as fast over a link that is 10 times as fast", "link_total", f"{SPLIT} {SLOW}",
          f"{SPLIT} {FAST}", low=7),
    equal("An idle guest goes to another host, and again", GROUP, "idle_total", AGAIN, ENOUGH, 0.15, null=True),
)  # fmt: skip


def one_move(server: Server, way: Way, rate_mbit: int) -> dict[str, float]:
    """There, which is measured, and back."""
    with way.ready(), shaped([server.zero, server.one, server.two], rate_mbit):
        found = way.there()
    way.back()
    return found


def moved(name: str, kind: Kind, taker: Taker, server: Server, seed: int, rounds: int) -> None:
    """Moves of an idle guest, or of a busy one."""
    with ways(server, kind.scale, name, kind.sides, "", kind.line) as by_side:
        # a first one of each guest: connections are there then
        for side in (ENOUGH, SPLIT):
            one_move(server, by_side[side], kind.scale.rate_mbit)
        for count, order in enumerate(turns(seed, f"moves {name} {taker.name}", list(kind.sides), rounds)):
            for place, side in enumerate(order):
                found = one_move(server, by_side[side], kind.scale.rate_mbit)
                for case in CASES:
                    taker.add(f"{name}_{case}", side, found[case], "s", round=count, order=place)


def idle(taker: Taker, server: Server, seed: int, rounds: int) -> None:
    """Those of an idle one."""
    moved("idle", IDLE, taker, server, seed, rounds)


def busy(taker: Taker, server: Server, seed: int, rounds: int) -> None:
    """Those of a busy one."""
    moved("busy", BUSY, taker, server, seed, rounds)


def linked(taker: Taker, server: Server, seed: int, rounds: int) -> None:
    """Moves over slow and fast links."""
    rates = {SLOW: LINK.scale.rate_mbit // 10, FAST: LINK.scale.rate_mbit}
    with ways(server, LINK.scale, "link", tuple(SIDES), "", LINK.line) as by_side:
        for count, order in enumerate(turns(seed, f"moves link {taker.name}", list(LINKS), rounds)):
            for place, name in enumerate(order):
                side, rate = LINKS[name]
                found = one_move(server, by_side[side], rates[rate])
                for case in CASES:
                    taker.add(f"link_{case}", name, found[case], "s", round=count, order=place)


PARTS = {"idle": idle, "busy": busy, "link": linked}


def run(recorder: Recorder) -> None:
    """Measure what is missing, one machine after the other."""
    booted(recorder, GROUP, recorder.pick(MACHINES, QUICK_MACHINES), ROUNDS, PARTS)
