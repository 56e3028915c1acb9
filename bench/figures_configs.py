# SPDX-License-Identifier: Apache-2.0
"""Group "configs" of make report: the Mint paper's evaluation (sections 4 and 5), its program in its seven configurations.

1 Linux             the stock kernel
2 Mint0             node 0
3 Mint0,1           nodes 0 and 1, both at once
4 Linux/G1          a KVM guest on Linux
5 Mint0/G1          a guest on node 0
6 Mint0/G1,Mint1/G2 a guest on each of nodes 0 and 1, both at once
7 Linux/G1,G2       two guests on one Linux of two working cores, both at once

A kernel has for each of its places (itself, or guests) one core that works, and one core
that does all else: the emulator runs no guest on the boot core. Memory of a configuration
is the same on Linux and with Mint (memory_mib()), and each place has a disk of its own:
two equal ones whose back end takes a fixed time for each request, with an I/O thread each.

At once: while one place is measured, the other does the same without a pause; each is
measured in its turn.

A machine of this group is a run of all configurations by all their clocks, each on an emulated
server of its own, in an order by chance. Node 0 and guests on two nodes take part twice, as null comparisons.

On a real server (on_pass) a boot without Mint has those of Linux, a boot with it the others.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Protocol

from figures_programs import FOLDER, TMP, build, function_disk, initrd_with, put
from report.figure import Figure
from report.goals import EMULATOR, SERVER, Goal
from report.passes import WHOLE_GROUP
from report.recorder import Recorder, Taker
from report.turns import turns
from rig import accel
from rig.errors import RigError
from rig.evaluation import Evaluation, read
from rig.guest import Guest, start_command
from rig.inventory import LINUX as LINUX_BOOT
from rig.inventory import MINT as MINT_BOOT
from rig.machine import APIC_IDS, MEMORY_PER_NUMA_MIB, MINT, SOCKETS, MachineConfig, port
from rig.markers import Stretch
from rig.node import Node
from rig.pinned import Pinned
from rig.remote import Remote
from rig.server import DISK1, NodePlan, Server

GROUP = "configs"
MACHINES, QUICK_MACHINES = 5, 1
WALL, PINNED, COUNTED, OWN = "wall", "pinned", "counted", "own"
# Counts of instructions hardly differ between repeats.
REPEATS, QUICK_REPEATS = {WALL: 10, PINNED: 10, COUNTED: 5, OWN: 5}, 3

# Of what node 0 and its kernels get with Mint (rig.machine.MINT): 1 GiB and 1792 MiB are in the pool.
POOL_MIB = 1024 + 1792
NODE1_MIB, GUEST_MIB = 1024, 256
DATA_BYTES, LATENCY_NS = 1 << 30, 2_000_000
DATA_BUSES = (8, 9, 10)
DATA_FUNCTIONS = tuple(f"0000:{bus:02x}:00.0" for bus in DATA_BUSES)
NODE1 = NodePlan("one", (3, 4), NODE1_MIB, 1, (DISK1, DATA_FUNCTIONS[1]))
# The cores that work, as the machine numbers them: of the first place, and of the second.
WORKERS = (1, 4)
# And those that do all else there.
OTHERS = (0, 3)
PROGRAM = f"{FOLDER}/eval"
IN_GUEST = "/bin/eval"  # by its path: a shell has an eval of its own
LIMIT_S = 1200
MEASURED, OTHER = 0, 1  # labels of the markers
KIB = 1024


@dataclass(frozen=True)
class Config:
    """One of the seven; nodes: whose kernels run, guests: on which of them; both in the order of places."""

    number: int
    side: str
    mint: bool
    nodes: tuple[int, ...]
    guests: tuple[int, ...] = ()

    @property
    def places(self) -> int:
        """How many run the program."""
        return len(self.guests or self.nodes)

    @property
    def cores(self) -> dict[int, tuple[int, ...]]:
        """By node: its cores that are online, as the emulated server numbers them."""
        return self.cores_of(WORKERS, OTHERS)

    def cores_of(self, workers: tuple[int, ...], others: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
        """By node: its cores that are online; those that work, and one that does all else for each."""
        if self.mint:
            return {node: (others[node], workers[node]) for node in self.nodes}
        return {0: (others[0], *workers[: self.places], *others[1 : self.places])}

    @property
    def memory_mib(self) -> int:
        """Of all its kernels, guests' included."""
        return SOCKETS * MEMORY_PER_NUMA_MIB - POOL_MIB + NODE1_MIB * (self.places - 1)


LINUX, NODE0, NODES = "Linux", "Mint0", "Mint0,1"
LINUX_GUEST, NODE0_GUEST, NODES_GUESTS, LINUX_GUESTS = "Linux/G1", "Mint0/G1", "Mint0/G1,Mint1/G2", "Linux/G1,G2"
AGAIN, GUESTS_AGAIN = "Mint0 again", "Mint0/G1,Mint1/G2 again"
CONFIGS = (
    Config(1, LINUX, False, (0,)),
    Config(2, NODE0, True, (0,)),
    Config(3, NODES, True, (0, 1)),
    Config(4, LINUX_GUEST, False, (0,), (0,)),
    Config(5, NODE0_GUEST, True, (0,), (0,)),
    Config(6, NODES_GUESTS, True, (0, 1), (0, 1)),
    Config(7, LINUX_GUESTS, False, (0,), (0, 0)),
)
QUICK_SIDES = (LINUX, NODE0, AGAIN)
# All that is measured, by what it is called.
RUNS = {config.side: config for config in CONFIGS} | {
    AGAIN: Config(2, AGAIN, True, (0,)),
    GUESTS_AGAIN: Config(6, GUESTS_AGAIN, True, (0, 1), (0, 1)),
}


@dataclass(frozen=True)
class Case:
    """One of the paper's figures, or a size of it; words: of the evaluation program; paper: what that found."""

    name: str
    title: str
    words: str
    configs: tuple[int, ...]
    paper: str


ALONE, AT_ONCE = (1, 2, 4, 5), (3, 6, 7)
SIZES_KIB = (256, 512, 1024)
REGISTER = "register=50000000"


def _copy(size_kib: int) -> str:
    # As many bytes, whatever the size.
    return f"copy={1024 * 256 // size_kib} bytes={size_kib * KIB}"


def _reads(size_kib: int) -> str:
    return f"io=50 bytes={size_kib * KIB} file=DISK"


CASES = (
    Case("fig 5 register", "Figure 5: counting in a register", REGISTER, ALONE, "all alike"),
    *(
        Case(f"fig 6 copy {n} KB", f"Figure 6: copying {n} KB", _copy(n), ALONE, "a guest takes 20 % longer for 1024 KB")
        for n in SIZES_KIB
    ),
    *(
        Case(f"fig 7 read {n} KB", f"Figure 7: reading {n} KB from a disk", _reads(n), ALONE, "a guest takes 16 % longer")
        for n in SIZES_KIB
    ),
    Case("fig 8 register", "Figure 8: counting in a register, at once", REGISTER, AT_ONCE, "all alike"),
    Case(
        "fig 9 copy 256 KB", "Figure 9: copying 256 KB, alone and at once", _copy(256), (2, 4, 5, *AT_ONCE),
        "at once takes 67 to 71 % longer",
    ),
    *(
        Case(
            f"fig 10 read {n} KB", f"Figure 10: reading {n} KB from a disk, at once", _reads(n), AT_ONCE,
            "two guests on one Linux take 8 % longer",
        )
        for n in SIZES_KIB
    ),
)  # fmt: skip


UNITS = {OWN: "instructions", COUNTED: "s", PINNED: "s", WALL: "s"}
NOTES = {
    OWN: "Instructions of the core that works, its guest's included: no other core has a part in it.",
    COUNTED: "4 ns for each instruction that is executed: caches and memory have no part in it.",
    PINNED: "The core that works and QEMU's main loop have a core of the host. Disks answer after 2 ms.",
    WALL: "",
}
# What is judged by it; the rest is told by instructions, which cost less time.
BY_PINNED = tuple(case for case in CASES if case.name.startswith("fig 10"))


def emulated_clocks(config: Config) -> tuple[str, ...]:
    """By which it is measured on the emulator: counted has one clock for all CPUs, so only for one kernel alone."""
    if config.side == GUESTS_AGAIN:
        return (PINNED,)
    if any(config.number in case.configs for case in BY_PINNED):
        return (OWN, PINNED)
    return (COUNTED, OWN) if not config.guests else (OWN,)


def cases_of(config: Config, clock: str) -> tuple[Case, ...]:
    """What of a configuration is measured by a clock."""
    return tuple(case for case in (BY_PINNED if clock == PINNED else CASES) if config.number in case.configs)


def runs_by(case: Case, clock: str) -> list[str]:
    """What of a case is measured by a clock, in order."""
    by = {side: (WALL,) if clock == WALL else emulated_clocks(config) for side, config in RUNS.items()}
    return [side for side, config in RUNS.items() if clock in by[side] and case in cases_of(config, clock)]


FIGURES = tuple(
    Figure(
        GROUP, case.name, case.title, UNITS[clock], {side: side for side in sides}, clock,
        f"{NOTES[clock]} The paper: {case.paper}.".lstrip(), where,
    )
    for case in CASES
    for clock, where in ((OWN, (EMULATOR,)), (PINNED, (EMULATOR,)), (COUNTED, (EMULATOR,)), (WALL, (SERVER,)))
    if (sides := runs_by(case, clock))
)  # fmt: skip


def _goals() -> Iterator[Goal]:
    """What the paper found, in ratios of the time that the same work takes."""
    here, there = (EMULATOR,), (SERVER,)
    for case in CASES:
        name = case.name
        for clock, where in ((COUNTED, here), (OWN, here), (WALL, there)):
            if set(ALONE) <= set(case.configs):
                yield Goal(f"{name}: node 0 as Linux", GROUP, name, NODE0, LINUX, 0.98, 1.02, clock, where=where)
                if clock != COUNTED:
                    as_linux = f"{name}: a guest on node 0 as on Linux"
                    yield Goal(as_linux, GROUP, name, NODE0_GUEST, LINUX_GUEST, 0.98, 1.02, clock, where=where)
            if 2 in case.configs:
                within = 0.1 if clock == WALL else 0.02
                again = f"{name}: node 0, and again"
                yield Goal(again, GROUP, name, AGAIN, NODE0, 1 - within, 1 + within, clock, where=where, null=True)
    # All of these need what an emulator has not: caches, a memory bus that cores share.
    for host, guest in ((LINUX, LINUX_GUEST), (NODE0, NODE0_GUEST)):
        name = f"fig 6: {guest} copies 1024 KB slower than {host}, as in the paper"
        yield Goal(name, GROUP, "fig 6 copy 1024 KB", guest, host, 0.9 * 1.20, 1.1 * 1.20, WALL, where=there)
    for alone, at_once, by in ((NODE0, NODES, 1.70), (LINUX_GUEST, LINUX_GUESTS, 1.67), (NODE0_GUEST, NODES_GUESTS, 1.71)):
        name = f"fig 9: {at_once} copy slower than {alone}, as in the paper"
        yield Goal(name, GROUP, "fig 9 copy 256 KB", at_once, alone, 0.9 * by, 1.1 * by, WALL, where=there)
    for other, text in ((LINUX_GUESTS, "on one Linux"), (NODES, "their kernels themselves")):
        for clock, within, where in ((OWN, 0.01, here), (WALL, 0.02, there)):
            name = f"fig 8: guests on two nodes as {text}"
            yield Goal(name, GROUP, "fig 8 register", NODES_GUESTS, other, 1 - within, 1 + within, clock, where=where)
    for case in BY_PINNED:
        for clock, where in ((PINNED, here), (WALL, there)):
            name = f"{case.name}: two nodes at least 8 % before two guests on one Linux"
            yield Goal(name, GROUP, case.name, NODES_GUESTS, LINUX_GUESTS, high=1 / 1.08, clock=clock, where=where)
            name = f"{case.name}: two nodes, and again"
            yield Goal(name, GROUP, case.name, GUESTS_AGAIN, NODES_GUESTS, 0.95, 1.05, clock, where=where, null=True)


GOALS = tuple(_goals())


def clocks_of(config: Config) -> tuple[str, ...]:
    """By which a configuration is measured here."""
    return (WALL,) if accel.use_kvm() else emulated_clocks(config)


def data_disk_arguments(index: int, latency_ns: int = LATENCY_NS, size_bytes: int = DATA_BYTES) -> list[str]:
    """A data disk behind its own root port: reads give zeroes after a fixed time, whatever the host's disk does."""
    name = f"data{index}"
    return [
        *port(DATA_BUSES[index]),
        "-object", f"iothread,id={name}-thread",
        "-blockdev", f"driver=null-co,node-name={name},size={size_bytes},latency-ns={latency_ns},read-zeroes=on",
        "-device", f"virtio-blk-pci,drive={name},bus=rp{DATA_BUSES[index]},iothread={name}-thread,serial={serial(index)}",
    ]  # fmt: skip


def serial(index: int) -> str:
    """By which a kernel finds the data disk of a place."""
    return f"mint-data{index}"


def data_disk(node: Node, index: int) -> str:
    """What a node calls it. Raises RigError if it does not have it."""
    return node.disk(serial(index))


def machine_config(config: Config, clock: str) -> MachineConfig:
    """The machine of a configuration. With Mint it has memory for others, too; Linux gets what it is to have."""
    disks = [word for index in range(2) for word in data_disk_arguments(index)]
    return MachineConfig(
        f"configs-{config.number}-{clock}",
        mint=MINT if config.mint else "",
        flavour="mint" if config.mint else "stock",
        counted=clock == COUNTED,
        markers=clock == OWN,
        extra=tuple(disks),
        numa_mib=MEMORY_PER_NUMA_MIB if config.mint else config.memory_mib // SOCKETS,
    )


def with_disk(xml: str, device: str) -> str:
    """A domain without a disk, with this block device of its node as the first one."""
    if xml.count("<memballoon") != 1 or "<disk" in xml:
        raise RigError(f"no domain without a disk:\n{xml}")
    disk = (
        "<disk type='block' device='disk'><driver name='qemu' type='raw' cache='none'/>"
        f"<source dev='{device}'/><target dev='vda' bus='virtio'/></disk>"
    )
    return xml.replace("<memballoon", f"{disk}\n    <memballoon")


def values(evaluation: Evaluation, stretches: list[Stretch], core: int, clock: str) -> list[tuple[float, str]]:
    """Of each repeat, with its unit. Raises RigError if one was not whole on its core."""
    if clock != OWN:
        if moved := [repeat.number for repeat in evaluation.repeats if repeat.moved]:
            raise RigError(f"repeats {moved} ended on another CPU than they began on")
        return [(repeat.ns / 1e9, "s") for repeat in evaluation.repeats]
    own = [stretch.instructions for stretch in stretches if stretch.vcpu == core]
    if len(own) != len(evaluation.repeats):
        raise RigError(f"core {core} has counted {len(own)} of {len(evaluation.repeats)} repeats: {stretches[-20:]}")
    return [(count, "instructions") for count in own]


class Place(Protocol):
    """Where the program runs: alone on a core of a kernel, or in a guest that is."""

    core: int

    def run(self, words: str) -> Evaluation:
        """Once, to its end."""

    def busy(self, words: str) -> contextlib.AbstractContextManager[None]:
        """Without a pause, from the first repeat's end on."""


OUT = f"{TMP}/eval.busy"
# Of the one that does the same without a pause: until it is killed.
BUSY = f"repeats=1000000 label={OTHER} >{OUT}"


@dataclass(frozen=True)
class OnNode:
    """A node's own kernel."""

    node: Node
    core: int
    cpu: int  # the core, as that kernel numbers it
    disk: str | None

    def _words(self, words: str) -> str:
        return words.replace("DISK", self.disk or "")

    def run(self, words: str) -> Evaluation:
        """Once, to its end."""
        return read(self.node.out(f"taskset -c {self.cpu} {PROGRAM} {self._words(words)} label={MEASURED}", LIMIT_S))

    @contextlib.contextmanager
    def busy(self, words: str) -> Iterator[None]:
        """Without a pause. Raises RigError if it ended before it was to."""
        self.node.run(f"rm -f {OUT}")
        job = self.node.start(f"exec taskset -c {self.cpu} {PROGRAM} {self._words(words)} {BUSY}", limit_s=0)
        try:
            self.node.wait("a repeat of the other program", f"grep -q repeat {OUT}", LIMIT_S)
            yield
        finally:
            ended = job.done()
            job.kill(9)
        if ended:
            raise RigError(f"node {self.node.number}: its program had ended: {job.result}")


@dataclass(frozen=True)
class InGuest:
    """A guest of one vCPU, pinned to that core; its disk is the node's data disk."""

    guest: Guest
    core: int

    def run(self, words: str) -> Evaluation:
        """Once, to its end; printed when all is done: its console is slow."""
        words = words.replace("DISK", "/dev/vda")
        line = f"{IN_GUEST} {words} label={MEASURED} >/tmp/eval.out; cat /tmp/eval.out"
        return read(self.guest.shell(line, LIMIT_S)[0])

    @contextlib.contextmanager
    def busy(self, words: str) -> Iterator[None]:
        """Without a pause. Raises RigError if it ended before it was to."""
        words = words.replace("DISK", "/dev/vda")
        line = f"rm -f {OUT}; {IN_GUEST} {words} {BUSY} & until grep -qs repeat {OUT}; do sleep 0.1; done"
        self.guest.shell(line, LIMIT_S)
        try:
            yield
        finally:
            text, status = self.guest.shell("killall eval", LIMIT_S)
        if status:
            raise RigError(f"{self.guest}: its program had ended:\n{text}")


@dataclass(frozen=True)
class Site:
    """Where configurations run: cores that work, of the first place and the second, others that do all else there,
    the cores by their APIC ids, and how a node finds a place's disk; None: it has none."""

    workers: tuple[int, ...]
    others: tuple[int, ...]
    apics: Mapping[int, int]
    disk: Callable[[Node, int], str | None]


EMULATED = Site(WORKERS, OTHERS, {apic: core for core, apic in enumerate(APIC_IDS)}, data_disk)


@dataclass
class Prepared:
    """A configuration that runs, with its places; as a context. What it takes offline is online at its end."""

    server: Server | Remote
    config: Config
    program: bytes
    site: Site = EMULATED
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> list[Place]:
        with contextlib.ExitStack() as stack:
            places = list(self._places(stack))
            self._stack = stack.pop_all()
        return places

    def __exit__(self, *exception) -> None:
        self._stack.close()

    def _places(self, stack: contextlib.ExitStack) -> Iterator[Place]:
        cpus = {number: self._cpus(stack, number) for number in self.config.nodes}
        for index, number in enumerate(self.config.guests or self.config.nodes):
            node, core = self.server.node(number), self.site.workers[index]
            disk = self.site.disk(node, index)
            cpu = cpus[number][core]
            if self.config.guests:
                yield InGuest(self._guest(stack, node, f"eval{index + 1}", cpu, disk), core)
            else:
                put(node, PROGRAM, self.program)
                yield OnNode(node, core, cpu, disk)

    def _cpus(self, stack: contextlib.ExitStack, number: int) -> dict[int, int]:
        """Of a node, how its kernel numbers its cores; those that the configuration has not go offline."""
        node, wanted = self.server.node(number), self.config.cores_of(self.site.workers, self.site.others)[number]
        numbers = numbering(node.read("/proc/cpuinfo"), self.site.apics)
        if missing := set(wanted) - set(numbers):
            raise RigError(f"node {number} has cores {sorted(numbers)}, not {sorted(missing)}")
        for core, cpu in numbers.items():
            if core not in wanted:
                online = f"/sys/devices/system/cpu/cpu{cpu}/online"
                node.run(f"echo 0 >{online}")
                stack.callback(node.run, f"echo 1 >{online}")
        return numbers

    def _guest(self, stack: contextlib.ExitStack, node: Node, name: str, cpu: int, disk: str | None) -> Guest:
        guest = stack.enter_context(Guest(node, name))
        options = (
            f"--no-disk --no-network --vcpus 1 --memory {GUEST_MIB}M --pin {cpu} "
            f"--initrd {initrd_with(node, {'eval': self.program})} --append mint.tick=0 --print"
        )
        xml = node.out(start_command(node, name, options))
        node.run(f"cat >{TMP}/{name}.xml", stdin=(with_disk(xml, disk) if disk else xml).encode())
        node.run(f"virsh -q define --validate {TMP}/{name}.xml && virsh -q start {name}")
        guest.wait_line("mint-guest: up")
        return guest


def numbering(cpuinfo: str, apics: Mapping[int, int] = EMULATED.apics) -> dict[int, int]:
    """By core of the machine: how a kernel numbers those that are online."""
    found = re.findall(r"^processor\s*: (\d+)$(?:\n.+)*?\napicid\s*: (\d+)$", cpuinfo, re.MULTILINE)
    return {apics[int(apic)]: int(cpu) for cpu, apic in found}


def measure(
    taker: Taker,
    server: Server | Remote,
    config: Config,
    places: list[Place],
    clock: str,
    order: int,
    repeats: int,
    disks: bool = True,
) -> None:
    """All cases of a configuration that runs, without disks those that read none; of two places each repeat is the mean
    of both."""
    for case in cases_of(config, clock):
        if not disks and "DISK" in case.words:
            continue
        taken: list[list[tuple[float, str]]] = []
        for place in places:
            with contextlib.ExitStack() as stack:
                for other in places:
                    if other is not place:
                        stack.enter_context(other.busy(case.words))
                before = len(server.machine.stretches(MEASURED)) if clock == OWN else 0
                if clock == PINNED:
                    machine = server.machine
                    stack.enter_context(Pinned(machine.process.pid, machine.monitor, place.core))
                evaluation = place.run(f"{case.words} repeats={repeats}")
                stretches = server.machine.stretches(MEASURED)[before:] if clock == OWN else []
            taken.append(values(evaluation, stretches, place.core, clock))
        for number, repeat in enumerate(zip(*taken, strict=True)):
            value, (_, unit) = fmean(value for value, _ in repeat), repeat[0]
            taker.add(case.name, config.side, value, unit, clock, number, order)


# -- on a real server -------------------------------------------------------------

AT_BOOTS = (LINUX_BOOT, MINT_BOOT)
GUESTS_TAKE = ("mint-guest", "virsh")


def site_at(remote: Remote) -> Site:
    """Where they run there: node 0's first core for guests works, and of node one's the last."""
    roles = remote.roles

    def disk(node: Node, index: int) -> str | None:
        return function_disk(node, roles.data[index]) if all(roles.data) else None

    return Site((roles.guests[0], roles.one.cpus[-1]), (0, roles.one.cpus[0]), remote.has.apics, disk)


def absent_at(remote: Remote) -> Mapping[str, str]:
    """What is not measured on a server."""
    roles = remote.roles
    if not roles.guests or len(roles.one.cpus) < 2:
        return {WHOLE_GROUP: "the plan has no [guests] with a core, or one.cores has less than two"}
    found = {"the same memory for all": "that of Linux is the server's, that of nodes the plan's"}
    if not all(roles.data):
        found["figures 7 and 10 (reads)"] = "the plan has no [data0] and [data1]"
    if missing := [tool for tool in GUESTS_TAKE if tool not in remote.has.tools]:
        found["guests"] = f"the server has no {', no '.join(missing)}"
    return found


def runs_at(remote: Remote) -> dict[str, Config]:
    """What this boot of a server allows."""
    guests = all(tool in remote.has.tools for tool in GUESTS_TAKE)
    return {
        side: config
        for side, config in RUNS.items()
        if config.mint == (remote.boot == MINT_BOOT) and (guests or not config.guests)
    }


def on_pass(taker: Taker, remote: Remote, recorder: Recorder) -> None:
    """All that this boot allows, once each, in an order by chance."""
    program, site, runs = build("eval"), site_at(remote), runs_at(remote)
    disks = all(remote.roles.data)
    one = remote.roles.one
    if disks:
        one = replace(one, devices=(*one.devices, remote.roles.data[1]))
    for place, side in enumerate(turns(recorder.header.seed, f"{GROUP} {taker.name}", list(runs), 1)[0]):
        config = runs[side]
        if 1 in config.nodes:
            remote.add(one)
            remote.wait_ready(remote.one)
        with Prepared(remote, config, program, site) as places:
            measure(taker, remote, config, places, WALL, place, recorder.pick(REPEATS[WALL], QUICK_REPEATS), disks)
        if 1 in config.nodes:
            remote.remove_all()


# -- on the emulated server -------------------------------------------------------


def on_server(taker: Taker, program: bytes, config: Config, clock: str, order: int, repeats: int) -> None:
    """A configuration by a clock, on an emulated server of its own."""
    with Server(machine_config(config, clock)) as server:
        if 1 in config.nodes:
            server.add(NODE1)
            server.wait_ready(server.one)
        with Prepared(server, config, program) as places:
            measure(taker, server, config, places, clock, order, repeats)


def run(recorder: Recorder) -> None:
    """Measure what is missing; a quick run few configurations, by each core's own instructions."""
    program = build("eval")
    boots = {f"{side}, {clock}": (config, clock) for side, config in RUNS.items() for clock in clocks_of(config)}
    if recorder.header.quick:
        boots = {
            name: (config, clock)
            for name, (config, clock) in boots.items()
            if config.side in QUICK_SIDES and clock in (OWN, WALL)
        }
    for name in recorder.to_do(GROUP, "machine", recorder.pick(MACHINES, QUICK_MACHINES)):
        with recorder.machine(GROUP, name) as taker:
            for place, boot in enumerate(turns(recorder.header.seed, f"{GROUP} {name}", list(boots), 1)[0]):
                repeats = recorder.pick(REPEATS[boots[boot][1]], QUICK_REPEATS)
                on_server(taker, program, *boots[boot], place, repeats)
