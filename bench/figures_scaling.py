# SPDX-License-Identifier: Apache-2.0
"""Group "scaling" of make report: what it is good for that cores do not share a kernel, and what each kernel costs.

calls      files made and unlinked, mappings, page faults, TCP connections over loopback, by a
           thread on each of 2k cores of one kernel; and of two nodes with k cores each
           (micro/scale.c). On the emulator by what these cores executed for a call, on a
           server by calls a second. The one kernel is a node, too: with the cores, memory and
           services that the two have.
starts     one node after the other, until there is no core left: how long each start takes,
           how much memory no kernel can use then, how large the control area is.

A machine of the calls is one emulated server, on which these kernels take turns, in an order by
chance. The one kernel of four cores takes part twice, as a null comparison.
"""

import contextlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from figures_configs import EMULATED, numbering
from figures_moves import timed
from figures_programs import FOLDER, build, put
from report.figure import Figure
from report.goals import EMULATOR, SERVER, Goal, equal
from report.passes import WHOLE_GROUP
from report.recorder import Recorder, Taker
from report.turns import turns
from rig import accel
from rig.area import Area
from rig.channel import Job
from rig.errors import RigError
from rig.inventory import MINT as BOOT
from rig.machine import CPUS, CPUS_PER_SOCKET, MEMORY_PER_NUMA_MIB, MINT, SOCKETS, MachineConfig
from rig.node import Node
from rig.ram import Ram, area_of
from rig.remote import Remote
from rig.roles import Roles
from rig.scaling import Scaling, own_instructions, rates, read
from rig.server import DISK1, DISK2_NVME, SPARE, NodePlan, Server
from rig.wait import wait_until

GROUP = "scaling"
MACHINES, QUICK_MACHINES = 5, 1
# Of each call, after one that does not count: slabs and page tables are there then.
REPEATS, QUICK_REPEATS = 3, 1
FILL_ROUNDS, QUICK_FILL_ROUNDS = 2, 1
OWN, WALL, SIZE = "own", "wall", "size"
PROGRAM = f"{FOLDER}/scale"
LABEL = 0
LIMIT_S = 600
MIB = 1 << 20
MACHINE_MIB = SOCKETS * MEMORY_PER_NUMA_MIB


# -- calls: kernels ---------------------------------------------------------------

# Cores that work; each half has its memory beside it. Node 0 keeps the boot core, and one more.
HALF_MIB = 768
LEFT = NodePlan("left", (1, 2), HALF_MIB, 0, (DISK2_NVME,))
RIGHT = NodePlan("right", (3, 4), HALF_MIB, 1, (DISK1,))
ONE, AGAIN, NODES = "one kernel", "one kernel again", "two nodes"


@dataclass(frozen=True)
class Layout:
    """So many cores that work, by the nodes that have them."""

    cores: int
    side: str
    left: NodePlan = LEFT
    right: NodePlan = RIGHT

    @property
    def plans(self) -> tuple[NodePlan, ...]:
        """Its nodes. On both sides as many cores and as much memory on each NUMA node."""
        left, right = (replace(half, cpus=half.cpus[: self.cores // 2]) for half in (self.left, self.right))
        if self.side == NODES:
            return left, right
        both = replace(right, name="both", cpus=left.cpus + right.cpus)
        if left.numa == right.numa:
            return (replace(both, memory_mib=left.memory_mib + right.memory_mib),)
        return (replace(both, more=("--memory", f"{left.memory_mib}M@numa{left.numa}")),)


# All that take turns on a machine, by what they are called there.
LAYOUTS = {
    f"{cores} cores, {side}": Layout(cores, side) for cores, side in ((2, ONE), (2, NODES), (4, ONE), (4, AGAIN), (4, NODES))
}
CORES = (2, 4)
QUICK_LAYOUTS = tuple(name for name, layout in LAYOUTS.items() if layout.cores == CORES[-1])


@dataclass(frozen=True)
class Op:
    """What the program does; calls: of each thread in a repeat on the emulator, for a second or two there."""

    name: str
    title: str
    words: str
    calls: int


OPS = (
    Op("unlink", "Make and unlink a file, all in one folder", "op=unlink", 2000),
    Op("unlink apart", "Make and unlink a file, a folder for each thread", "op=unlink apart=1", 2000),
    Op("mmap", "Map memory and unmap it", "op=mmap", 5000),
    Op("fault", "Page fault", "op=fault", 10000),
    Op("connect", "TCP connection over loopback", "op=connect", 400),
)
# Where time is measured, for a second or two as well.
SERVER_TIMES = 200
UNITS = {OWN: "instructions a call", WALL: "calls/s"}
CALL_NOTES = {
    OWN: "What all cores that work executed, divided by the calls: what they executed while they waited for one another"
    " is in it, and interrupts, and the node's daemons.",
    WALL: "Of all threads together.",
}


def case(op: Op, cores: int) -> str:
    """An operation on so many cores."""
    return f"{op.name} {cores}"


def sides(cores: int) -> dict[str, str]:
    """What is compared on so many cores, in words."""
    words = {
        ONE: f"one kernel, {cores} cores",
        AGAIN: "the same again",
        NODES: f"two nodes, {cores // 2} core{'s' if cores > 2 else ''} each",
    }
    there = {layout.side for layout in LAYOUTS.values() if layout.cores == cores}
    return {side: text for side, text in words.items() if side in there}


# -- starts -----------------------------------------------------------------------

# One core each, in their initrd: no disk is wanted, and no daemon takes time from the next one's start.
FILL_MIB = 384
FILL = tuple(
    NodePlan(f"more{core}", (core,), FILL_MIB, core // CPUS_PER_SOCKET, (), SPARE.more) for core in range(1, CPUS)
)
ALL, ALL_AGAIN = "all", "all again"
AREA_IDS = (2, 8, 16)
STARTS = {f"node {number}": f"node {number}" for number in range(1, len(FILL) + 1)}
COUNTS = {f"{count} nodes": f"node 0 and {count} more" for count in range(len(FILL) + 1)}


# -- figures and goals ------------------------------------------------------------

FIGURES = (
    *(
        Figure(
            GROUP, case(op, cores), f"{op.title}: {cores} cores", UNITS[clock], sides(cores), clock, CALL_NOTES[clock],
            (where,),
        )
        for clock, where in ((OWN, EMULATOR), (WALL, SERVER))
        for op in OPS
        for cores in CORES
    ),
    Figure(
        GROUP, "start", "Each further node: mintctl node add until its kernel runs", "s", STARTS,
        note=f"By the clock of node 0, around the command. One core and {FILL_MIB} MiB each; all before it run, too.",
    ),
    Figure(
        GROUP, "all started", f"All {len(FILL)} of them, one after the other", "s",
        {ALL: "all", ALL_AGAIN: "the same again"},
    ),
    Figure(
        GROUP, "kept", "Memory that no kernel can use", "MiB", COUNTS, SIZE,
        f"{MACHINE_MIB} MiB, less MemTotal of all kernels, less free blocks. The control area is in it.",
    ),
    Figure(
        GROUP, "each costs", "What each further node adds to that", "MiB", STARTS, SIZE,
        f"Its {FILL_MIB} MiB less its MemTotal: its kernel, and a struct page for each page.",
    ),
    Figure(
        GROUP, "control area", "Size of the control area", "MiB",
        {f"nodes={ids}": f"up to {ids} nodes (nodes={ids})" for ids in AREA_IDS}, SIZE,
        "The kernel reserves it when it boots, for as many nodes as there may be.",
    ),
)  # fmt: skip


def _goals() -> Iterator[Goal]:
    unlink = OPS[0]
    for cores in CORES:
        yield Goal(
            f"two nodes vs one kernel, unlink on {cores} cores: instructions a call",
            GROUP, case(unlink, cores), NODES, ONE, high=1.0, clock=OWN,
        )  # fmt: skip
        yield Goal(
            f"two nodes vs one kernel, unlink on {cores} cores: rate",
            GROUP, case(unlink, cores), NODES, ONE, low=1.0, clock=WALL, where=(SERVER,),
        )  # fmt: skip
    # Cores that wait for one another wait longer where the host takes one of them from the emulator.
    for op in OPS:
        name = f"{op.name} on {CORES[-1]} cores, and again"
        yield equal(f"{name}: instructions", GROUP, case(op, CORES[-1]), AGAIN, ONE, 0.25, OWN, null=True)
        yield replace(equal(f"{name}: rate", GROUP, case(op, CORES[-1]), AGAIN, ONE, 0.15, WALL, null=True), where=(SERVER,))
    yield equal("all further nodes started, and again", GROUP, "all started", ALL_AGAIN, ALL, 0.15, null=True)


GOALS = tuple(_goals())


# -- calls: measuring -------------------------------------------------------------

# What has nothing to do here but would do it on cores that are measured; mintd stays: it is what makes a node.
QUIET = "mint-service stop libvirtd virtlogd sshd"


@dataclass(frozen=True)
class Place:
    """A node that runs the program; cores as the machine numbers them, cpus as its kernel does, both in order."""

    node: Node
    cores: tuple[int, ...]
    cpus: tuple[int, ...]

    def start(self, words: str) -> Job:
        """A thread on each core, as soon as a line comes."""
        command = f"exec {PROGRAM} {words} at=stdin cpus={','.join(map(str, self.cpus))}"
        return self.node.channel.start(command, LIMIT_S, keep_input=True)


@contextlib.contextmanager
def kernels(
    server: Server | Remote, layout: Layout, program: bytes, apics: Mapping[int, int] = EMULATED.apics
) -> Iterator[list[Place]]:
    """The nodes of a layout, with the program, and quiet; node 0 alone at the end."""
    try:
        nodes = [server.node(server.add(plan, "--wait", "running")["node"]["id"]) for plan in layout.plans]
        places = []
        for node, plan in zip(nodes, layout.plans, strict=True):
            server.wait_ready(node)
            node.run(QUIET)
            put(node, PROGRAM, program)
            numbers = numbering(node.read("/proc/cpuinfo"), apics)
            if set(numbers) != set(plan.cpus):
                raise RigError(f"node {node.number} has cores {sorted(numbers)}, not {plan.cpus}")
            places.append(Place(node, plan.cpus, tuple(numbers[core] for core in plan.cpus)))
        yield places
    finally:
        server.remove_all()


def together(places: Sequence[Place], words: str) -> list[Scaling]:
    """One run in each place: they begin when all of them are ready."""
    jobs = [place.start(words) for place in places]
    for job in jobs:
        if not (said := next(job.lines(LIMIT_S), "")).startswith("scale setting"):
            raise RigError(f"{job.command} did not begin: {said}{job.result.err if job.result else ''}")
    for job in jobs:
        job.input(b"go\n")
    results = [job.wait() for job in jobs]
    if failed := [result.err for result in results if result.status]:
        raise RigError(f"{words}: {failed}")
    return [read(result.out) for result in results]


def measure(
    taker: Taker, server: Server | Remote, layout: Layout, places: Sequence[Place], clock: str, order: int, repeats: int
) -> None:
    """All calls on kernels that run."""
    cores = [core for place in places for core in place.cores]
    for op in OPS:
        before = len(server.machine.stretches(LABEL)) if clock == OWN else 0
        calls = op.calls * (SERVER_TIMES if clock == WALL else 1)
        runs = together(places, f"{op.words} calls={calls} repeats={1 + repeats} label={LABEL}")
        if clock == OWN:
            values = own_instructions(runs, server.machine.stretches(LABEL)[before:], cores)
        else:
            values = rates(runs)
        for number, value in enumerate(values[1:]):
            taker.add(case(op, layout.cores), layout.side, value, UNITS[clock], clock, number, order)


def calls(taker: Taker, seed: int, repeats: int, layouts: Sequence[str], program: bytes) -> None:
    """All kernels of one machine, in turns."""
    clock = WALL if accel.use_kvm() else OWN
    with Server(MachineConfig("figures-scaling", markers=clock == OWN)) as server:
        (order,) = turns(seed, f"{GROUP} {taker.name}", layouts, 1)
        for place, name in enumerate(order):
            with kernels(server, LAYOUTS[name], program) as places:
                measure(taker, server, LAYOUTS[name], places, clock, place, repeats)


# -- starts: measuring ------------------------------------------------------------


def fill(server: Server) -> list[float]:
    """Seconds of each further node's start; node 0 is alone again at the end."""
    found = [timed(server, ("start", shlex.join(["mintctl", "node", "add", *plan.words()])))["start"] for plan in FILL]
    server.remove_all()
    return found


def mem_total_mib(server: Server, number: int, mark: int = 0) -> float:
    """MemTotal of a node's kernel. Nodes but node 0 stay in their initrd: the shell on their console is asked, which
    has said nothing before mark."""
    if number == 0:
        text = server.zero.out("grep MemTotal /proc/meminfo")
        return int(re.search(r"MemTotal:\s+(\d+) kB", text)[1]) / 1024
    console = server.node(number).console
    console.wait_for("stays in its initrd", mark)
    # The last key is there before the connection ends.
    keys = r"(printf 'grep MemTotal /proc/meminfo\n'; sleep 1)"
    server.zero.run(f"{keys} | mintctl node console {number} --write >/dev/null")
    return int(console.wait_for(r"MemTotal:\s+(\d+) kB", mark)[1]) / 1024


def free_mib(server: Server) -> float:
    """Blocks that nobody has."""
    ledger = server.ledger()
    return sum(ledger.memory_bytes(None, numa) for numa in range(SOCKETS)) / MIB


def memory(taker: Taker, server: Server) -> None:
    """What no kernel can use, with one node more and one more; node 0 is alone again at the end."""
    marks = {number: server.node(number).console.mark() for number in range(1, len(FILL) + 1)}
    totals = mem_total_mib(server, 0)
    before = MACHINE_MIB - totals - free_mib(server)
    taker.add("kept", "0 nodes", before, "MiB", SIZE)
    for count, plan in enumerate(FILL, 1):
        number = server.add(plan)["node"]["id"]
        totals += mem_total_mib(server, number, marks[number])
        kept = MACHINE_MIB - totals - free_mib(server)
        taker.add("kept", f"{count} nodes", kept, "MiB", SIZE)
        taker.add("each costs", f"node {count}", kept - before, "MiB", SIZE)
        before = kept
    server.remove_all()


def whole_area(ram: Ram) -> Area | None:
    """The control area, once it is made."""
    with contextlib.suppress(RigError):
        return area_of(ram)
    return None


def area_mib(ids: int) -> float:
    """Size of the control area for so many nodes: node 0's kernel boots until it is there."""
    config = MachineConfig("figures-area", mint=f"{MINT},nodes={ids}")
    with Server(config).machine as machine, Ram(machine) as ram:

        def made() -> Area | None:
            machine.check_alive()
            return whole_area(ram)

        return wait_until("the control area", made, LIMIT_S).header.area_bytes / MIB


def starts(taker: Taker, seed: int, rounds: int) -> None:
    """All of one machine; a fill that does not count is the one of which memory is looked at."""
    for ids in AREA_IDS:
        taker.add("control area", f"nodes={ids}", area_mib(ids), "MiB", SIZE)
    with Server(MachineConfig("figures-starts")) as server:
        memory(taker, server)
        for number, order in enumerate(turns(seed, f"{GROUP} {taker.name}", [ALL, ALL_AGAIN], rounds)):
            for place, side in enumerate(order):
                found = fill(server)
                taker.add("all started", side, sum(found), "s", round=number, order=place)
                for which, seconds in zip(STARTS, found, strict=True):
                    taker.add("start", which, seconds, "s", round=2 * number + place)


# -- on a real server -------------------------------------------------------------

AT_BOOTS = (BOOT,)


def layouts_at(roles: Roles) -> dict[str, Layout]:
    """Those that the plan's nodes have cores for; each half has as much memory as the smaller one."""
    memory_mib = min(roles.one.memory_mib, roles.two.memory_mib)
    left, right = (
        replace(node, name=name, memory_mib=memory_mib) for node, name in ((roles.two, "left"), (roles.one, "right"))
    )
    has = 2 * min(len(left.cpus), len(right.cpus))
    return {
        name: replace(layout, left=left, right=right) for name, layout in LAYOUTS.items() if layout.cores <= has
    }


def absent_at(remote: Remote) -> Mapping[str, str]:
    """What is not measured on a server."""
    roles = remote.roles
    if roles.two is None:
        return {WHOLE_GROUP: "the plan has no [two]"}
    why = "a plan names two nodes, and what no kernel can use is read in the emulator's RAM"
    found = {"further nodes: their starts, memory": why}
    if len(layouts_at(roles)) < len(LAYOUTS):
        found["4 cores"] = "one.cores or two.cores of the plan has less than two"
    return found


def on_pass(taker: Taker, remote: Remote, recorder: Recorder) -> None:
    """All kernels, in turns."""
    program, layouts = build("scale"), layouts_at(remote.roles)
    (order,) = turns(recorder.header.seed, f"{GROUP} {taker.name}", list(layouts), 1)
    for place, name in enumerate(order):
        with kernels(remote, layouts[name], program, remote.has.apics) as places:
            measure(taker, remote, layouts[name], places, WALL, place, recorder.pick(REPEATS, QUICK_REPEATS))


# -- on the emulated server -------------------------------------------------------


def run(recorder: Recorder) -> None:
    """Measure what is missing."""
    seed, machines = recorder.header.seed, recorder.pick(MACHINES, QUICK_MACHINES)
    program = build("scale")
    for name in recorder.to_do(GROUP, "machine", machines):
        with recorder.machine(GROUP, name) as taker:
            layouts = QUICK_LAYOUTS if recorder.header.quick else tuple(LAYOUTS)
            calls(taker, seed, recorder.pick(REPEATS, QUICK_REPEATS), layouts, program)
    for name in recorder.to_do(GROUP, "starts", machines):
        with recorder.machine(GROUP, name) as taker:
            starts(taker, seed, recorder.pick(FILL_ROUNDS, QUICK_FILL_ROUNDS))
