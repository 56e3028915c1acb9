# SPDX-License-Identifier: Apache-2.0
"""Group "split" of make report: a guest whose memory is split over two nodes.

policies   what comes back from the other node while the guest goes on, by what its pager knows of the pages that
           the guest uses. It compares 20 MiB again and again, and reads 2 of 24 MiB more each two seconds; its main
           host has 48 MiB of the 80 that it has touched.
merge      see figures_split_merge.py

Each is a part of a machine, with a boot of its own. Groups split_moves, split_sort and split_cache are a guest's moves
to a node that has not enough for it, and its work there.
"""

import contextlib
import time
from collections.abc import Iterator

from figures_split_merge import merge_figures, merge_goals, merged
from figures_split_scarce import booted
from report.figure import Figure
from report.goals import EMULATOR, Goal, equal
from report.recorder import Recorder, Taker
from report.turns import turns
from rig.errors import RigError
from rig.guest import Guest, counted_versions
from rig.server import Server

GROUP = "split"
NOT_AT = "its guest is the rig's own"
MACHINES, QUICK_MACHINES = 5, 1
ROUNDS, QUICK_ROUNDS = 2, 1
# Until what came before has no part in what is counted; that it is counted for.
SETTLE_S, COUNT_S = 20, 30

NAME, NODE, LOAD_KIB, COLD_MIB, READ_MIB = "paged", "one", 20 << 10, 24, 2
START = f"--memory 128M --split main=96M,two=rest --no-network --memory-load {LOAD_KIB} --disk 8M"
SPLIT = "main=48M,two=rest"
COMPARED = "tick [0-9]* at .*, [1-9][0-9]* versions"
WRITE = f"dd if=/dev/urandom of=/tmp/cold bs=1M count={COLD_MIB} 2>/dev/null"
PARTS = COLD_MIB // READ_MIB
READ = (
    f"{{ (i=0; while sleep 2; do i=$(((i + 5) % {PARTS})); "
    f"dd if=/tmp/cold of=/dev/null bs=1M count={READ_MIB} skip=$((i * {READ_MIB})) 2>/dev/null; done) & }}"
)
LIMIT_S = 600

AGING, AGAIN, CLOCK, FIFO, RANDOM, ADDRESS = (
    "aging",
    "aging again",
    "clock",
    "fifo",
    "random",
    "address",
)
SIDES = {
    AGING: "aging: what was used longest ago",
    AGAIN: "the same again",
    CLOCK: "clock: not used since the hand passed",
    FIFO: "fifo: what came first",
    RANDOM: "random: any",
    ADDRESS: "address: the highest",
}
NOTE = (
    f"A guest of 128 MiB that compares {LOAD_KIB >> 10} MiB again and again, and reads {READ_MIB} of {COLD_MIB} MiB more"
    f" each two seconds; its main host has 48 MiB. Counted for {COUNT_S} s."
)
FIGURES = (
    Figure(GROUP, "came", "Pages that come back from the other node", "pages/s", SIDES, note=NOTE),
    Figure(GROUP, "work", "What the guest gets done meanwhile", "versions/s", SIDES,
           note=f"{NOTE} A version is all of what it compares, written and read back."),
    *merge_figures(GROUP),
)  # fmt: skip
GOALS = (
    *(
        Goal(f"{name}: fewer pages come back than by {other}", GROUP, "came", side, other, high=0.8, where=(EMULATOR,))
        for name, side in (("Aging", AGING), ("Clock", CLOCK))
        for other in (FIFO, RANDOM, ADDRESS)
    ),
    Goal("Aging: the guest gets more done than by fifo", GROUP, "work", AGING, FIFO, low=1.25, where=(EMULATOR,)),
    equal("Pages that come back: aging, and again", GROUP, "came", AGAIN, AGING, 0.5, null=True),
    *merge_goals(GROUP),
)  # fmt: skip


class Paged:
    """A guest that runs, whose pager chooses as it is told."""

    def __init__(self, server: Server, guest: Guest) -> None:
        self._server, self._guest = server, guest

    def _now(self) -> tuple[float, int, int]:
        """When, and how many pages and versions until then. Raises RigError if pages were lost."""
        view = self._server.mintctl("vm", "memory", NAME)
        if view["lost_bytes"]:
            raise RigError(f"pages are lost: {view}")
        return (
            time.monotonic(),
            view["page_ins"],
            counted_versions(self._guest.log())[-1],
        )

    def by(self, policy: str) -> dict[str, float]:
        """Pages and versions a second by a policy."""
        name = AGING if policy == AGAIN else policy
        self._server.mintctl(
            "vm", "migrate", NAME, "--to", NODE, "--split", SPLIT, "--policy", name
        )
        time.sleep(SETTLE_S)
        (begin, pages, versions), _ = self._now(), time.sleep(COUNT_S)
        end, more_pages, more_versions = self._now()
        return {
            "came": (more_pages - pages) / (end - begin),
            "work": (more_versions - versions) / (end - begin),
        }


@contextlib.contextmanager
def paged(server: Server) -> Iterator[Paged]:
    """The guest, on node 1; ended at the end."""
    with Guest(server.one, NAME) as guest:
        guest.start(START)
        guest.wait_line(COMPARED, LIMIT_S)
        for line in (WRITE, READ):
            text, status = guest.shell(line, LIMIT_S)
            if status:
                raise RigError(f"{guest} does not say that it did this: {line}\n{text}")
        yield Paged(server, guest)


def policies(taker: Taker, server: Server, seed: int, rounds: int) -> None:
    """All policies of a machine."""
    with paged(server) as guest:
        measured(taker, guest, seed, rounds)


# Each of a machine's boots.
PARTS_OF = {"policies": policies, "merge": merged}


def run(recorder: Recorder) -> None:
    """Measure what is missing, one machine after the other."""
    booted(recorder, GROUP, recorder.pick(MACHINES, QUICK_MACHINES), recorder.pick(ROUNDS, QUICK_ROUNDS), PARTS_OF)


def measured(taker: Taker, guest: Paged, seed: int, rounds: int) -> None:
    """All policies, in turns."""
    units = {figure.case: figure.unit for figure in FIGURES}
    for count, order in enumerate(
        turns(seed, f"{GROUP} {taker.name}", list(SIDES), rounds)
    ):
        for place, side in enumerate(order):
            for case, value in guest.by(side).items():
                taker.add(case, side, value, units[case], round=count, order=place)
