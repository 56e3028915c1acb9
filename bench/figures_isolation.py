# SPDX-License-Identifier: Apache-2.0
"""Group "isolation" of make report: what a victim notices of an aggressor.

victims      wake up each millisecond; read 4 KiB; ask over the network; on a node, and in a guest
aggressors   work, memory, disk, processes, reclaim, files, TLB shootdowns, patched text, a core that
             goes and comes, a node that is resized, a crash
placements   another core of the victim's kernel, another guest of that kernel, another node

Latency and interrupts are told by the clock "pinned", the victim's own instructions by "own", each on
a server of its own, which together are a machine. On each the sides (an aggressor in a placement;
idle; idle again) take their turns, and all victims suffer from a side before the next begins.
An aggressor has one turn a machine; both idles have one in each of a few parts, and an
aggressor is compared with the idle of its part.

The null comparison is of all victims together: of one, p99.9 differs between two idle turns by tens of
percent on an emulator, which its intervals tell.
"""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

from figures_neighbours import GUEST, IN_GUEST, NODE, OTHER, PEER, PLACEMENTS, PORT, VICTIMS_CORE
from figures_neighbours import Neighbours, Told, machine_config, neighbours
from figures_programs import build
from report.figure import Figure, HeatMap
from report.goals import EMULATOR, SERVER, Goal
from report.recorder import Recorder, Taker
from report.turns import turns
from rig import accel
from rig.errors import RigError
from rig.pinned import Pinned
from rig.server import Server

GROUP = "isolation"
MACHINES, QUICK_MACHINES = 3, 1
PINNED, OWN = "pinned", "own"
# Of the own instructions: their median is what is told, so few rounds do. The mean moves with the ticks in
# the longer waits, by up to half between idle turns.
OWN_ROUNDS = 300
LABEL = 0
# In so many parts of a machine's time both idles have a turn.
PARTS, QUICK_PARTS = 6, 1

LATENCY, INTERRUPTS, INSTRUCTIONS = "latency", "interrupts", "instructions"
CLOCKS = {LATENCY: PINNED, INTERRUPTS: PINNED, INSTRUCTIONS: OWN}
UNITS = {LATENCY: "µs", INTERRUPTS: "interrupts/s", INSTRUCTIONS: "instructions"}
EVERYWHERE, HERE, ELSEWHERE = (EMULATOR, SERVER), (EMULATOR,), (SERVER,)
IDLE, AGAIN = "idle", "idle again"
IDLES = (IDLE, AGAIN)
ALL = "all victims"


@dataclass(frozen=True)
class Victim:
    """What suffers; words: of the program, but for how often."""

    kind: str
    place: str
    words: str
    rounds: int
    per_mille: int  # the percentile of its latency

    @property
    def name(self) -> str:
        """In words, and in the names of its cases."""
        return f"{self.kind} {self.place}"

    @property
    def percentile(self) -> str:
        """As people write it."""
        return f"p{self.per_mille / 10:g}"

    def case(self, what: str) -> str:
        """Of what is measured of it."""
        return f"{self.name} {what}"


KINDS = {
    "wake": "period_us=1000",
    "read": "bytes=4096 file=DISK seed=7",
    "echo": f"to={PEER} port={PORT}",
}
# How many, and the percentile that so many allow: no more than a side has time for.
ROUNDS = {("wake", NODE): (10_000, 999), ("read", NODE): (3_000, 990), ("echo", NODE): (3_000, 990)}
FEWER = (1_000, 990)  # in a guest
VICTIMS = tuple(
    Victim(kind, place, words, *ROUNDS.get((kind, place), FEWER))
    for place in (NODE, IN_GUEST)
    for kind, words in KINDS.items()
)


@dataclass(frozen=True)
class Aggressor:
    """What disturbs; where: the places that can show it."""

    name: str
    title: str
    placements: tuple[str, ...] = PLACEMENTS
    where: tuple[str, ...] = EVERYWHERE


AGGRESSORS = (
    Aggressor("cpu", "integer work"),
    Aggressor("memory", "memory stream"),
    Aggressor("disk", "disk reads"),
    Aggressor("fork", "fork storm"),
    Aggressor("reclaim", "page reclaim"),
    Aggressor("unlink", "files made, removed"),
    Aggressor("tlb", "TLB shootdowns"),
    # Kernels of the rig have no jump labels; Debian's do.
    Aggressor("text", "kernel text patched", where=ELSEWHERE),
    Aggressor("hotplug", "core off and on"),
    # Of a third node: neither the victim's, nor who asks for it. No guest resizes its kernel, and a
    # victim does not outlive a crash of its own.
    Aggressor("resize", "a node is resized", (OTHER,)),
    Aggressor("crash", "crash, start again", (GUEST, OTHER)),
)
QUICK_VICTIMS = VICTIMS[:1]
QUICK_AGGRESSORS = ("cpu",)


def side(aggressor: Aggressor, placement: str) -> str:
    """What an aggressor in a placement is called."""
    return f"{aggressor.name}, {placement}"


DISTURBED = {side(one, placement): (one, placement) for one in AGGRESSORS for placement in one.placements}
SIDES = {IDLE: "idle", AGAIN: "the same again"} | {
    name: f"{one.title}, {placement}" for name, (one, placement) in DISTURBED.items()
}
NOTES = {
    LATENCY: "The victim's core and QEMU's main loop have a core of the host, all other cores share the rest: what answers a read or an"
    " echo is among them, and slower beside an aggressor wherever that is.",
    INTERRUPTS: "What the victim's core got in a second beyond what it got idle, but for its timer and"
    " its device's interrupts. A guest's core is that of its node.",
    INSTRUCTIONS: "Of the victim's core between two points of the program, the median round: what others make it do"
    " in most rounds is in it, as is the kernel below a guest.",
}


def _title(victim: Victim, what: str) -> str:
    told = {LATENCY: f"{victim.percentile} of the latency", INTERRUPTS: "interrupts of others"}
    return f"{victim.name}: {told.get(what, 'own instructions')}"


def _sides(what: str) -> dict[str, str]:
    """Interrupts are what differs from idle, so idle itself has none."""
    return {name: text for name, text in SIDES.items() if what != INTERRUPTS or name != IDLE}


FIGURES = tuple(
    Figure(GROUP, victim.case(what), _title(victim, what), UNITS[what], _sides(what), CLOCKS[what], NOTES[what])
    for victim in VICTIMS
    for what in CLOCKS
)
FIGURES += tuple(
    Figure(
        GROUP, f"{ALL} {what}", f"all victims, idle: geometric mean of their {told}", UNITS[what],
        {IDLE: SIDES[IDLE], AGAIN: SIDES[AGAIN]}, CLOCKS[what],
    )
    for what, told in ((LATENCY, "latencies' percentiles"), (INSTRUCTIONS, "own instructions"))
)  # fmt: skip
# How much more an aggressor on another node may be, and how far idle may be from idle again.
MOST = {LATENCY: 1.10, INSTRUCTIONS: 1.02}
# As finely as an emulator tells the latter: two idle turns of all victims together differ by 3 to 40 % in the
# tails of latency, and by up to 5 % in instructions, of which guests have most.
WITHIN = {LATENCY: 0.30, INSTRUCTIONS: 0.05}
# Interrupts a second that idle itself has more or less: 0 is not told more finely.
FEW = 1.0
# Whose interrupts are judged. All others' cores get some of their own in each round, whose number is by chance.
QUIET = VICTIMS[0]


def _nulls() -> list[Goal]:
    found = [
        Goal(
            f"{what} of all victims, idle and again", GROUP, f"{ALL} {what}", AGAIN, IDLE, 1 - within, 1 + within,
            CLOCKS[what], where=EVERYWHERE if CLOCKS[what] == PINNED else HERE, null=True,
        )
        for what, within in WITHIN.items()
    ]  # fmt: skip
    name, case = f"{_title(QUIET, INTERRUPTS)}, idle and again", QUIET.case(INTERRUPTS)
    unit, clock = UNITS[INTERRUPTS], CLOCKS[INTERRUPTS]
    return [*found, Goal(name, GROUP, case, AGAIN, None, -FEW, FEW, clock, unit, EVERYWHERE, null=True)]


SHARED = "an emulator's cores share the host's: what answers, and what rings a timer, waits for the aggressor's"


def _goals_of(victim: Victim) -> list[Goal]:
    found = []
    for what, clock in CLOCKS.items():
        if what == INTERRUPTS and victim != QUIET:
            continue
        case, place = victim.case(what), EVERYWHERE if clock == PINNED else HERE
        for one in AGGRESSORS:
            name = f"{_title(victim, what)}, {one.title} on another node"
            where = tuple(here for here in place if here in one.where)
            to, high, unit = (None, FEW, UNITS[what]) if what == INTERRUPTS else (IDLE, MOST[what], "")
            if where:
                reason = SHARED if what == LATENCY else ""
                found.append(Goal(name, GROUP, case, side(one, OTHER), to, None, high, clock, unit, where, reason=reason))
    return found


GOALS = (*_nulls(), *(goal for victim in VICTIMS for goal in _goals_of(victim)))


def _heatmap(what: str, title: str, to: str | None) -> HeatMap:
    columns = tuple((victim.name, placement) for victim in VICTIMS for placement in PLACEMENTS)
    cells = {
        (one.title, (victim.name, placement)): (victim.case(what), side(one, placement))
        for one in AGGRESSORS
        for victim in VICTIMS
        for placement in one.placements
    }
    rows = tuple(one.title for one in AGGRESSORS)
    return HeatMap(GROUP, what, title, rows, columns, cells, to, CLOCKS[what], UNITS[what], NOTES[what])


HEATMAPS = (
    _heatmap(LATENCY, "Latency beside an aggressor, ÷ idle (p99.9 of wake on a node, of others p99)", IDLE),
    _heatmap(INTERRUPTS, "Interrupts a second that come to the victim's core because of an aggressor", None),
    _heatmap(INSTRUCTIONS, "Own instructions a round beside an aggressor, ÷ idle", IDLE),
)


def rates(told: Told) -> dict[str, float]:
    """Interrupts a second, by row."""
    return {row: count / (told.run.took_ns / 1e9) for row, count in told.interrupts.items()}


def more_a_second(told: Told, idle: Told) -> float:
    """Interrupts beyond those when idle. By time: what comes with each round is left out already, and a run that is
    disturbed may take longer."""
    return sum(rates(told).values()) - sum(rates(idle).values())


def rows_beyond(told: Told, idle: Told) -> dict[str, float]:
    """Which interrupts those are: by row, how many more a second."""
    usual = rates(idle)
    return {row: round(more, 1) for row, rate in rates(told).items() if (more := rate - usual.get(row, 0)) > 0}


def instructions_a_round(server: Server, rig: Neighbours, victim: Victim) -> float:
    """The median of the rounds of a run. Raises RigError if the plugin has not seen all of them on the victim's core."""
    before = len(server.machine.stretches(LABEL))
    rig.suffer(victim.place, f"{victim.kind}={OWN_ROUNDS} {victim.words} label={LABEL}")
    counts = [one.instructions for one in server.machine.stretches(LABEL)[before:] if one.vcpu == VICTIMS_CORE]
    if len(counts) != OWN_ROUNDS:
        raise RigError(f"core {VICTIMS_CORE} has counted {len(counts)} of {OWN_ROUNDS} rounds of {victim.name}")
    return float(median(counts))


def clocks() -> tuple[str, ...]:
    """By which it is measured here: only the emulator counts instructions."""
    return (PINNED,) if accel.use_kvm() else (PINNED, OWN)


QUICK_CLOCKS = (PINNED,)


@dataclass(frozen=True)
class Extent:
    """How much is measured; aggressors: sides beside the two idles."""

    victims: tuple[Victim, ...]
    aggressors: tuple[str, ...]
    parts: int


WHOLE = Extent(VICTIMS, tuple(DISTURBED), PARTS)
# Few combinations, one machine.
QUICK = Extent(QUICK_VICTIMS, tuple(name for name, (one, _) in DISTURBED.items() if one.name in QUICK_AGGRESSORS), QUICK_PARTS)


def parts_of(seed: int, name: str, aggressors: Sequence[str], parts: int) -> list[list[str]]:
    """The sides of each part, in order: both idles, and its share of the aggressors."""
    (mixed,) = turns(seed, name, aggressors, 1)
    return [turns(seed, f"{name} {part}", [*IDLES, *mixed[part::parts]], 1)[0] for part in range(parts)]


def measure(taker: Taker, server: Server, rig: Neighbours, clock: str, seed: int, extent: Extent) -> None:
    """All sides by a clock, on a server where the neighbours are."""
    # What a kernel cannot do disturbs nobody: there is no such side.
    aggressors = [name for name in extent.aggressors if rig.patches_text or DISTURBED[name][0].name != "text"]
    order = 0
    for part, sides in enumerate(parts_of(seed, f"{GROUP} {clock} {taker.name}", aggressors, extent.parts)):
        told: dict[tuple[str, str], tuple[Told, int]] = {}
        for name in sides:
            with contextlib.nullcontext() if name in IDLES else disturbed(rig, name):
                values = []
                for victim in extent.victims:
                    if clock == OWN:
                        what, value = INSTRUCTIONS, instructions_a_round(server, rig, victim)
                    else:
                        what, found = LATENCY, rig.suffer(victim.place, f"{victim.kind}={victim.rounds} {victim.words}")
                        value = found.run.percentile_ns(victim.per_mille) / 1e3
                        told[victim.name, name] = found, order
                    taker.add(victim.case(what), name, value, UNITS[what], clock, round=part, order=order)
                    values.append(value)
            if name in IDLES:
                taker.add(f"{ALL} {what}", name, geometric_mean(values), UNITS[what], clock, round=part, order=order)
            order += 1
        _add_interrupts(taker, told, part)


def _add_interrupts(taker: Taker, told: Mapping[tuple[str, str], tuple[Told, int]], part: int) -> None:
    """Those beyond idle, which in a part has its turn by chance."""
    for (victim_name, name), (found, order) in told.items():
        if name != IDLE:
            case = f"{victim_name} {INTERRUPTS}"
            idle = told[victim_name, IDLE][0]
            value = more_a_second(found, idle)
            taker.add(case, name, value, UNITS[INTERRUPTS], PINNED, round=part, order=order)
            if value > FEW and name.endswith(OTHER):
                print(f"{taker.name}: {case}, {name}: {rows_beyond(found, idle)}", file=sys.stderr, flush=True)


def disturbed(rig: Neighbours, name: str) -> contextlib.AbstractContextManager[None]:
    """Its side's aggressor is at work, until the end."""
    one, placement = DISTURBED[name]
    return rig.disturbed(one.name, placement)


def on_server(taker: Taker, programs: dict[str, bytes], clock: str, seed: int, extent: Extent) -> None:
    """All of a clock, on a server of its own."""
    with (
        Server(machine_config(clock, markers=clock == OWN)) as server,
        neighbours(server, programs) as rig,
        contextlib.ExitStack() as stack,
    ):
        if clock == PINNED:
            stack.enter_context(Pinned(server.machine.process.pid, server.machine.monitor, VICTIMS_CORE))
        measure(taker, server, rig, clock, seed, extent)


# Of a real server (report.passes).
NOT_AT = "its victims and aggressors take more cores, disks and guests than a plan can name yet"


def run(recorder: Recorder) -> None:
    """Measure what is missing."""
    programs = {name: build(name) for name in ("victim", "aggressor")}
    extent, by = (QUICK, QUICK_CLOCKS) if recorder.header.quick else (WHOLE, clocks())
    for name in recorder.to_do(GROUP, "machine", recorder.pick(MACHINES, QUICK_MACHINES)):
        with recorder.machine(GROUP, name) as taker:
            for clock in turns(recorder.header.seed, f"{GROUP} {name}", by, 1)[0]:
                on_server(taker, programs, clock, recorder.header.seed, extent)
