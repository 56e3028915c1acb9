# SPDX-License-Identifier: Apache-2.0
"""Group "layout" of make report: what a guest gets done that comes to a node of two NUMA nodes (L, "Resource layout
optimization for live migration", section 5), with a place before it comes, arranged anew after it has come, and neither.

Memory of the emulated machine is as fast everywhere. So what is measured is what counters of modelled caches tell
(rig/pmu.c) of what the guests did: instructions, and cache lines from near and far memory. How long that takes is
modelled, too (rig.modelled): a part of the instructions that the CPU would execute if it never waited.

Each case has the modes of `mintctl vm migrate --layout` in turns, on one boot. Guests are L's, at 1/16. The next node
has a resident on each NUMA node, which its owner keeps to a CPU there; where memory is short on the first NUMA node,
others have it. Without a place the guest runs on the other CPU of the first NUMA node, as a hook of libvirt's says.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from figures_programs import initrd_with
from report.figure import Figure
from report.goals import EMULATOR, Goal, equal
from report.recorder import Recorder, Taker
from report.turns import turns
from rig import modelled, paths
from rig.errors import RigError
from rig.guest import Guest
from rig.machine import MachineConfig
from rig.numa import MEMFD, Filler, Numa, define_with_memfd, free_mib
from rig.roles import NodePlan
from rig.server import CARD1, DISK1, DISK2_NVME, Server
from rig.wait import wait_until

GROUP = "layout"
NOT_AT = "its guests are the rig's own, and what they miss is modelled"
MACHINES, QUICK_MACHINES = 5, 1
ROUNDS = 1

MINT = "mint=on,mem=1408M@0,mem=2176M@1"
SOURCE = NodePlan("one", (5,), 768, 1, (DISK1, CARD1))
# A core of each NUMA node for a resident, and one that is left; the last one comes with resize.
NEXT = NodePlan("two", (1, 2, 3), 1280, 0, (DISK2_NVME,), ("--memory", "1280M@numa1"))
NEXT_CPUS = "1,2,3,4"
# Of these, by the node's own numbers: the residents', and the one that is left at first.
RESIDENTS_CPUS, LEFT_CPU = (0, 2), 1
# A core of a server executes so many times as much in a second: a plan weighs what a guest waits against what copying
# its memory takes.
SPEED, CACHE_BYTES = 64, 1 << 20
MIB = 1 << 20
# L: 5 GB, of which a program uses 2. A program that its cache serves in part has a hot part of so many KiB.
MEMORY_MIB, USED_MIB, HOT_KIB = 320, 128, 512
ACCESS, SHARES, CUBIC = f"malloc_access {USED_MIB}", f"malloc_access {USED_MIB} {HOT_KIB}", f"cubic_calc {USED_MIB} 8"
# A second in which it executes less, of the emulator's instructions, is none in which it works: a guest that has just come
# waits for the host to find each of its pages anew, which an emulator takes ten seconds for, and ticks are most of what it
# does.
LEAST = {ACCESS: 3_000_000, SHARES: 3_000_000, CUBIC: 300_000}
# Of the first NUMA node, where memory is short: less than the guest uses, and a reserve.
FREE_MIB = 128
OPTIONS = f"--memory {MEMORY_MIB}M --no-start --no-network --no-disk --append mint.tick=0"
BANDWIDTH = "6M"  # of a move: 20 s and more
# So many seconds are seen of a guest: on its node, of the ten that a place is found by; on the next one; and there where it
# is arranged after it has come.
BEFORE_S, AFTER_S, ARRANGED_S, EVERY_S = 9, 14, 40, 2
LIMIT_S = 600
HOOK = "/etc/libvirt/hooks/qemu.d/zz-figures"
# QEMU's threads, and those that it starts later, are on the CPU that is left; a kernel's among them takes no orders.
BY_DEFAULT = f"""#!/bin/sh
cat >/dev/null
[ $1-$2 = guest-started ] || exit 0
cd /proc/$(pgrep -f guest=guest,)/task && for thread in *; do taskset -cp {LEFT_CPU} $thread; done >/dev/null 2>&1
exit 0
"""

NONE, AGAIN, AFTER, BEFORE = "none", "none again", "after", "before"
SIDES = {
    NONE: "default: it comes to where it comes",
    AGAIN: "the same again",
    AFTER: "existing method: measured there, and arranged then",
    BEFORE: "proposal: its place is ready",
}


@dataclass(frozen=True)
class Case:
    """One of L's. policy: of the modes; guest, first, second: programs of the guest and of the residents of either NUMA node;
    is_short: memory of the first NUMA node; wide: the next node has a CPU more on the second one; section: L's."""

    name: str
    section: str
    policy: str
    guest: str
    first: str
    second: str
    is_short: bool
    wide: bool
    sides: dict[str, str] = field(default_factory=lambda: SIDES)


FEWER = {side: SIDES[side] for side in (NONE, AFTER, BEFORE)}
CASES = (
    Case("simple", "5.3, case 1-1", "simple", ACCESS, CUBIC, CUBIC, True, False),
    Case("swapped", "5.3, case 1-2", "simple", CUBIC, ACCESS, ACCESS, True, False, FEWER),
    Case("dino", "5.4", "dino", SHARES, ACCESS, CUBIC, False, True, FEWER),
    Case("dino_cubic", "5.4, cubic_calc", "dino", CUBIC, ACCESS, CUBIC, False, True, FEWER),
    Case("asymsched", "5.5", "asymsched", ACCESS, CUBIC, CUBIC, True, True, FEWER),
    Case("asymsched_cubic", "5.5, cubic_calc", "asymsched", CUBIC, CUBIC, CUBIC, True, True, FEWER),
)
NOTE = (
    f"Modelled: {modelled.NEAR_CYCLES} cycles for a line of near memory, {modelled.FAR_CYCLES} of far, caches of"
    f" {CACHE_BYTES >> 20} MiB. Guests of {MEMORY_MIB} MiB that use {USED_MIB}."
)


def metrics(case: Case) -> Iterator[Figure]:
    """Pictures of a case."""
    about = f"L, {case.section}: {case.guest}, by {case.policy}"
    for name, title, unit in (
        ("loss", "What the guest loses in its first ten seconds there", "%"),
        ("first", "Its first second there, of what it got done before", ""),
        ("recovery", "Until it gets done what it will", "s"),
        ("end", "What it loses in the end", "%"),
        ("resident", "What the resident of the first NUMA node loses in the end", "%"),
    ):
        yield Figure(GROUP, f"{case.name}_{name}", f"{title} ({about})", unit, case.sides, clock="modelled", note=NOTE)


FIGURES = tuple(figure for case in CASES for figure in metrics(case))


def goal(name: str, case: str, side: str, **bounds: float) -> Goal:
    """Of one side's values."""
    return Goal(name, GROUP, case, side, clock="modelled", where=(EMULATOR,), **bounds)


GOALS = (
    *(
        goal(f"{case.name}: with a place before it comes, its first second is as good as before", f"{case.name}_first", BEFORE,
             low=0.98)
        for case in CASES
    ),
    *(
        goal(f"{name}: without, it loses what L's loses, within 5 points", f"{name}_loss", NONE, low=loss - 5, high=loss + 5)
        for name, loss in (("simple", 40.4), ("dino", 30.8), ("asymsched", 39.0))
    ),
    *(
        goal(f"{case.name}: without, it loses 2 % at most", f"{case.name}_loss", NONE, high=2)
        for case in CASES if case.guest == CUBIC
    ),
    goal("dino: a resident pays 10 % at most", "dino_resident", BEFORE, high=10),
    equal("simple: what is lost without a place, and again", GROUP, "simple_loss", AGAIN, NONE, 0.1, clock="modelled", null=True),
)  # fmt: skip


def config() -> MachineConfig:
    """A machine with modelled caches, whose nodes have the memory that the cases want."""
    return MachineConfig("figures-layout", mint=MINT, pmu=True, pmu_speed=SPEED, cache_bytes=CACHE_BYTES)


class Stage:
    """The nodes of a case, its residents, and how its guest goes there and back."""

    def __init__(self, server: Server, case: Case) -> None:
        self.server, self.case = server, case
        self.numa = Numa(server.two)
        self.residents = [Guest(server.two, f"resident{number}") for number in (0, 1)]
        self.here, self.there = Guest(server.one, "guest"), Guest(server.two, "guest")
        self._filler: Filler | None = None

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """All guests run; ended at the end."""
        with contextlib.ExitStack() as ends:
            for guest in (*self.residents, self.here, self.there):
                ends.enter_context(guest)
            for node in (self.server.one, self.server.two):
                initrd = initrd_with(node, {name: paths.need(path).read_bytes() for name, path in paths.LAYOUT_PROGRAMS.items()})
            cases = (self.case.first, self.case.second, self.case.guest)
            started = list(zip((*self.residents, self.here), cases, (*RESIDENTS_CPUS, None), strict=True))
            for guest, _, cpu in started:
                self._start(guest, initrd, cpu)
            for guest, program, _ in started:
                guest.wait_line("mint-guest: up", LIMIT_S)
                text, status = guest.shell(f"{program} >/tmp/said & until [ -s /tmp/said ]; do sleep 0.5; done", LIMIT_S)
                if status:
                    raise RigError(f"{guest} does not run {program}:\n{text}")
            self._residents_at_home()
            if self.case.is_short:
                self._filler = ends.enter_context(Filler(self.server.two, 0))
            yield

    def _start(self, guest: Guest, initrd: str, cpu: int | None) -> None:
        """Its owner keeps it to a CPU, or to none."""
        node, name = guest.node, guest.name
        define_with_memfd(guest, f"{OPTIONS} --initrd {initrd}")
        node.run(f"virsh dumpxml --inactive {name} | sed '/<vcpupin/d' >/tmp/free.xml && virsh -q define /tmp/free.xml")
        if cpu is not None:
            node.run(f"virsh -q vcpupin {name} 0 {cpu} --config")
        node.run(f"virsh -q start {name}", LIMIT_S)

    def _residents_at_home(self) -> None:
        """Each has all of its memory on the NUMA node of its CPU."""
        for number, guest in enumerate(self.residents):
            self.numa.move(guest.qemu(), MEMFD, 0, MEMORY_MIB * MIB, number)

    def squeeze(self) -> None:
        """Where memory is to be short, so much is left of the first NUMA node, now."""
        if self._filler and (more := free_mib(self.server.two, 0) - FREE_MIB) > 0:
            self._filler.add(more)

    def _look(self, node: str) -> dict[str, list[modelled.Second]]:
        """What a node tells of its guests' last seconds, by guest."""
        view = self.server.mintctl("layout", "show", "--node", node)
        programs = {"guest": self.case.guest, "resident0": self.case.first, "resident1": self.case.second}
        return {
            vm["name"]: modelled.seconds(vm["vcpus"][0], SPEED * LEAST[programs[vm["name"]]]) for vm in view["vms"]
        }

    def _by_default(self, side: str) -> contextlib.AbstractContextManager:
        two = self.server.two
        if side == BEFORE:
            return contextlib.nullcontext()
        two.run(f"mkdir -p $(dirname {HOOK}) && cat >{HOOK} && chmod 755 {HOOK}", stdin=BY_DEFAULT.encode())
        return two.undone("true", f"rm -f {HOOK}")

    def go(self, side: str) -> modelled.Course:
        """The guest goes there in a mode, and is watched. Raises RigError if there is nothing to be seen."""
        self.squeeze()

        def works() -> list[modelled.Second] | None:
            """What it did lately, if it worked all the time."""
            last = self._look("one")["guest"]
            return last if len(last) >= BEFORE_S else None

        before = wait_until("it works", works, LIMIT_S, every_s=EVERY_S)
        resident = self._look("two")["resident0"]
        mode = side.split()[0]
        policy = [] if mode == NONE else ["--policy", self.case.policy]
        with self._by_default(side):
            self.server.mintctl(
                "vm", "migrate", "guest", "--to", "two", "--layout", mode, *policy, "--bandwidth", BANDWIDTH, limit_s=LIMIT_S
            )
        landed, wanted = modelled.Watched(before), ARRANGED_S if mode == AFTER else AFTER_S
        wait_until("it is watched", lambda: landed.add(self._look("two")["guest"]) >= wanted, LIMIT_S, every_s=EVERY_S)
        return modelled.Course(before, landed.seen, resident, self._look("two")["resident0"])

    def back(self) -> None:
        """The guest goes to where it was, and all is as before."""
        self.server.mintctl("vm", "migrate", "guest", "--to", "one", "--layout", "none", limit_s=LIMIT_S)
        self._residents_at_home()


def measured(taker: Taker, stage: Stage, seed: int, rounds: int) -> None:
    """All modes of a case, in turns."""
    case = stage.case
    for count, order in enumerate(turns(seed, f"{case.name} {taker.name}", list(case.sides), rounds)):
        for place, side in enumerate(order):
            course = stage.go(side)
            stage.back()
            for name, (value, unit) in course.told().items():
                taker.add(f"{case.name}_{name}", side, value, unit, clock="modelled", round=count, order=place)


def add_nodes(server: Server) -> None:
    """The guest's node, and the next one."""
    server.add(SOURCE, "--wait", "running")
    server.add(NEXT)
    server.wait_ready(server.one)
    server.wait_ready(server.two)


def run(recorder: Recorder) -> None:
    """Measure what is missing, one machine after the other."""
    for number in range(1, recorder.pick(MACHINES, QUICK_MACHINES) + 1):
        name = f"machine {number}"
        if name not in recorder.to_do(GROUP, "machine", recorder.pick(MACHINES, QUICK_MACHINES)):
            continue
        with recorder.machine(GROUP, name) as taker, Server(config()) as server:
            add_nodes(server)
            is_wide = False
            for case in CASES:
                if case.wide and not is_wide:
                    server.mintctl("node", "resize", NEXT.name, "--cpus", NEXT_CPUS)
                    is_wide = True
                stage = Stage(server, case)
                with stage.ready():
                    measured(taker, stage, recorder.header.seed, ROUNDS)
