# SPDX-License-Identifier: Apache-2.0
"""Victims and aggressors on nodes and in guests, for the group "isolation" of make report.

node 0    core 0           answers the echoes, moves resources, starts who crashed
node 1    cores 3, 4, 5    victims on core 4, or in a guest there; aggressors on core 5, or in a guest there
node 2    cores 1, 2       aggressors on core 2: another node

The first core of node 1 does all else that it has to do: programs that run there anyway are moved
to it. The same aggressor is on another core of the victim's kernel, in another guest of that
kernel, or on another node. What takes more than one core (tlb) also has that kernel's first
one; the other guest has two vCPUs, both on core 5. Victims, aggressors of their kernel and of
node 2 have data disks of their own, as those of the group "configs". A guest that takes no part
in what is measured is suspended: one that runs sends its node's other cores some ten interrupts a second.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from figures_configs import DATA_FUNCTIONS, data_disk, data_disk_arguments, numbering, with_disk
from figures_programs import initrd_with, put
from rig.errors import RigError
from rig.guest import Guest, start_command
from rig.interrupts import between
from rig.machine import MachineConfig
from rig.node import Node
from rig.server import DISK1, DISK2_NVME, NodePlan, Server
from rig.victim import Suffered, done, one

ONE = NodePlan("one", (3, 4, 5), 1536, 1, (DISK1, *DATA_FUNCTIONS[:2]))
TWO = NodePlan("two", (1, 2), 768, 0, (DISK2_NVME, DATA_FUNCTIONS[2]))
VICTIMS_CORE, AGGRESSORS_CORE, OTHERS_CORE = 4, 5, 2
GUEST_MIB = 256
DISK_LATENCY_NS, DISK_BYTES = 200_000, 16 << 30  # more than any memory here
PEER, PORT = "10.77.0.10", 5998  # node 0, on mint0
LIMIT_S, BEGIN_LIMIT_S = 600, 180
FOLDER = "/root"  # of the programs, on a node

NODE, IN_GUEST = "on a node", "in a guest"
SAME, GUEST, OTHER = "same node", "other guest", "other node"
PLACEMENTS = (SAME, GUEST, OTHER)

# What the program says when it is at work, or why it is not.
SAID = "^aggressor( begun|:)"
OUT, STOP = "/tmp/aggressor.out", "/tmp/aggressor.stop"
CUT = "--- cut ---"
ONLINE = "/sys/devices/system/cpu/cpu{cpu}/online"
# A static key: the kernel patches its text where that is used, if it has jump labels.
STATIC_KEY = "/proc/sys/kernel/bpf_stats_enabled"
# By the place that each has a word for; the rest are the program's own.
PROGRAM_WORDS = {
    "cpu": "cpu", "memory": "memory", "disk": "disk file=DISK", "fork": "fork", "reclaim": "reclaim file=DISK",
    "unlink": "unlink dir=/tmp", "tlb": "tlb", "text": f"toggle file={STATIC_KEY}", "hotplug": f"toggle file={ONLINE}",
}  # fmt: skip

# Rounds of commands until a file is there: each ends whole, so that all is as it was.
LOOP = """
rm -f {stop}; n=0
while [ ! -e {stop} ]; do
	{commands}
	n=$((n + 1))
	[ $n -gt 1 ] || echo 'aggressor begun'
done
echo "aggressor done count=$n"
"""
RESIZE = f"""
	mintctl node resize {TWO.name} --cpus {TWO.cpus[0]} --memory +128M@numa0 >/dev/null || exit
	mintctl node resize {TWO.name} --cpus {",".join(map(str, TWO.cpus))} --memory -128M >/dev/null || exit
"""
CRASH_NODE = f"""
	timeout 20 mintctl node exec {TWO.name} -- sh -c 'echo c >/proc/sysrq-trigger' >/dev/null 2>&1
	for look in $(seq 200); do mintctl node list | grep -Eq ' {TWO.name} +crashed' && break; sleep 0.1; done
	mintctl node start {TWO.name} >/dev/null || exit
"""
CRASH_GUEST = """
	virsh -q destroy {name} && virsh -q start {name} || exit
	had=$(grep -c 'mint-guest: up' {log})
	for look in $(seq 600); do [ $(grep -c 'mint-guest: up' {log}) -eq $had ] || break; sleep 0.2; done
"""
# Programs, not the kernel's threads: those are part of what a kernel does to its users.
MOVE_ALL = """
for t in /proc/[0-9]*; do
	[ -z "$(tr -d '\\0' <$t/cmdline 2>/dev/null)" ] || taskset -apc {cpu} ${{t##*/}} >/dev/null 2>&1
done; :
"""


def machine_config(clock: str, markers: bool) -> MachineConfig:
    """The machine of a clock."""
    disks = [word for index in range(3) for word in data_disk_arguments(index, DISK_LATENCY_NS, DISK_BYTES)]
    return MachineConfig(f"isolation-{clock}", markers=markers, extra=tuple(disks))


@dataclass(frozen=True)
class Told:
    """What a victim says, and which interrupts its core got meanwhile, but for its timer and its device's."""

    run: Suffered
    interrupts: dict[str, int]


def must_have_begun(text: str) -> None:
    """Raises RigError with what an aggressor says instead."""
    if not re.search(r"(?m)^aggressor begun", text):
        raise RigError(f"the aggressor is not at work: {text[-2000:]}")


class Place(Protocol):
    """Where victims and aggressors run."""

    def suffer(self, words: str) -> str:
        """What the victim prints, once."""

    def aggress(self, name: str) -> contextlib.AbstractContextManager[None]:
        """An aggressor that is at work, until the end. Raises RigError if it did nothing."""


@dataclass(frozen=True)
class OnNode:
    """A node's own kernel; cpu and first: its numbers of the core that works and of its first one."""

    node: Node
    cpu: int
    first: int
    disk: str

    def suffer(self, words: str) -> str:
        """What the victim prints, once."""
        return self.node.out(f"taskset -c {self.cpu} {FOLDER}/victim {words.replace('DISK', self.disk)}", LIMIT_S)

    @contextlib.contextmanager
    def aggress(self, name: str) -> Iterator[None]:
        """An aggressor that is at work, until the end."""
        # A core that goes is not where the program is; to tell another CPU takes two.
        cpus = {"hotplug": f"{self.first}", "tlb": f"{self.first},{self.cpu}"}.get(name, f"{self.cpu}")
        words = PROGRAM_WORDS[name].replace("DISK", self.disk).format(cpu=self.cpu)
        self.node.run(f"rm -f {OUT}")
        job = self.node.start(f"exec taskset -c {cpus} {FOLDER}/aggressor {words} >{OUT} 2>&1", limit_s=0)
        try:
            self.node.wait(f"{name} is at work", f"grep -Eq '{SAID}' {OUT}", BEGIN_LIMIT_S)
            must_have_begun(self.node.read(OUT))
            yield
        except BaseException:
            job.kill(9)
            raise
        job.kill(15)
        job.wait(LIMIT_S)
        done(self.node.read(OUT))


@dataclass(frozen=True)
class InGuest:
    """A guest, by its shell; its disk is its node's data disk."""

    guest: Guest

    def _say(self, line: str) -> str:
        """Its shell does this; the text. Raises RigError if that fails."""
        text, status = self.guest.shell(line, LIMIT_S)
        if status:
            raise RigError(f"{self.guest}: {line}:\n{text}")
        return text

    def suffer(self, words: str) -> str:
        """What the victim prints, once; when all is done: its console is slow."""
        return self._say(f"victim {words.replace('DISK', '/dev/vda')} >/tmp/victim.out; cat /tmp/victim.out")

    @contextlib.contextmanager
    def aggress(self, name: str) -> Iterator[None]:
        """An aggressor that is at work, until the end."""
        words = PROGRAM_WORDS[name].replace("DISK", "/dev/vda").format(cpu=1)
        looks = f"for look in $(seq {5 * BEGIN_LIMIT_S}); do grep -Eqs '{SAID}' {OUT} && break; sleep 0.2; done"
        self._say(f"rm -f {OUT}; aggressor {words} >{OUT} 2>&1 & {looks}; grep -q '^aggressor begun' {OUT}")
        try:
            yield
        except BaseException:
            with contextlib.suppress(RigError):
                self._say("killall -9 aggressor; :")
            raise
        done(self._say(f"killall aggressor; wait; cat {OUT}"))


@contextlib.contextmanager
def looped(node: Node, what: str, commands: str) -> Iterator[None]:
    """Rounds of commands on a node that are under way, until the end; the last one is finished."""
    node.run(f"rm -f {OUT}")
    job = node.start(f"({LOOP.format(stop=STOP, commands=commands)}) >{OUT} 2>&1", limit_s=0)
    try:
        node.wait(f"{what} is at work", f"grep -q '^aggressor begun' {OUT}", BEGIN_LIMIT_S)
        yield
    finally:
        node.run(f"touch {STOP}")
        job.wait(LIMIT_S)
    done(node.read(OUT))


@dataclass
class Neighbours:
    """All of them on one server, as they are while it is measured."""

    server: Server
    programs: dict[str, bytes]
    victims: dict[str, Place] = field(default_factory=dict)  # by NODE, IN_GUEST
    aggressors: dict[str, Place] = field(default_factory=dict)  # by placement
    cpu: int = -1  # the victims' core, as node 1 numbers it
    own: dict[str, tuple[str, ...]] = field(default_factory=dict)  # rows of the victims' own devices
    patches_text: bool = False
    _victim: Guest | None = None
    _other: Guest | None = None
    _aggressors_cpu: int = -1

    def suffer(self, place: str, words: str) -> Told:
        """A victim, once, with what its core got meanwhile."""
        node = self.server.one
        with contextlib.nullcontext() if place == NODE else awake(self._victim):
            before = node.read("/proc/interrupts")
            text = self.victims[place].suffer(words)
            after = node.read("/proc/interrupts")
        run = one(text)
        if run.moved:
            raise RigError(f"{run.moved} rounds of {words!r} {place} ended on another CPU than they began on")
        return Told(run, between(before, after, self.cpu, self.own[run.kind]))

    @contextlib.contextmanager
    def disturbed(self, name: str, placement: str) -> Iterator[None]:
        """An aggressor that is at work, until the end; then all is as it was."""
        with contextlib.nullcontext() if placement != GUEST else awake(self._other), self._at_work(name, placement):
            yield

    @contextlib.contextmanager
    def _at_work(self, name: str, placement: str) -> Iterator[None]:
        if name == "resize":
            with looped(self.server.zero, name, RESIZE):
                yield
            self.aggressors[OTHER] = self._on_two()
        elif name == "crash" and placement == OTHER:
            with looped(self.server.zero, name, CRASH_NODE):
                yield
            self.server.wait_mintd(self.server.two, LIMIT_S)
            self._put(self.server.two)  # what was written shortly before a crash may be lost
            self.aggressors[OTHER] = self._on_two()
        elif name == "crash":
            log, guest = self._other.log_path, self._other.name
            with looped(self.server.one, name, CRASH_GUEST.format(log=log, name=guest)):
                yield
        else:
            with self.aggressors[placement].aggress(name):
                yield
            if (name, placement) == ("hotplug", SAME):
                self._pin_again()

    def _pin_again(self) -> None:
        """The other guest: its vCPUs went elsewhere when their core did."""
        for vcpu in range(2):
            self.server.one.run(f"virsh -q vcpupin {self._other.name} {vcpu} {self._aggressors_cpu} --live")

    def _on_two(self) -> Place:
        """Node 2, with the numbers that its kernel has for cores and disks now."""
        numbers = numbering(self.server.two.read("/proc/cpuinfo"))
        return OnNode(self.server.two, numbers[OTHERS_CORE], numbers[TWO.cpus[0]], data_disk(self.server.two, 2))

    def _put(self, node: Node) -> None:
        for name, program in self.programs.items():
            put(node, f"{FOLDER}/{name}", program)

    def begin(self, stack: contextlib.ExitStack) -> None:
        """Nodes, programs and guests."""
        server = self.server
        for plan, node in ((ONE, server.one), (TWO, server.two)):
            server.add(plan)
            server.wait_ready(node)
        for node in (server.zero, server.one, server.two):
            self._put(node)
        # Before all else that its core has to do, which also is to move resources and to start nodes.
        job = server.zero.start(f"exec chrt -f 10 {FOLDER}/victim answer=1 port={PORT}", limit_s=0)
        stack.callback(job.kill, 9)
        numbers = numbering(server.one.read("/proc/cpuinfo"))
        disks = [data_disk(server.one, index) for index in range(2)]
        self.cpu, self._aggressors_cpu, first = (numbers[core] for core in (VICTIMS_CORE, AGGRESSORS_CORE, ONE.cpus[0]))
        device = server.one.out(f"basename $(readlink /sys/block/{disks[0].removeprefix('/dev/')}/device)")
        self.own = {"wake": (), "read": (rf"\b{device}-",), "echo": (r"^DBL\b",)}
        self.patches_text = "yes" in server.one.out(
            f"! grep -q ' arch_jump_label_transform_apply$' /proc/kallsyms || [ ! -e {STATIC_KEY} ] || echo yes"
        )
        server.one.run(MOVE_ALL.format(cpu=first))
        initrd = initrd_with(server.one, self.programs)
        self._victim = self._guest(stack, "victim", initrd, f"{self.cpu}", disks[0], first)
        self._other = self._guest(stack, "other", initrd, f"{self._aggressors_cpu},{self._aggressors_cpu}", disks[1], first)
        self.victims = {NODE: OnNode(server.one, self.cpu, first, disks[0]), IN_GUEST: InGuest(self._victim)}
        self.aggressors = {
            SAME: OnNode(server.one, self._aggressors_cpu, first, disks[1]),
            GUEST: InGuest(self._other),
            OTHER: self._on_two(),
        }

    def _guest(self, stack: contextlib.ExitStack, name: str, initrd: str, pin: str, disk: str, first: int) -> Guest:
        """One that is up, suspended: a vCPU for each of the CPUs in pin; QEMU's other threads are on the first."""
        node = self.server.one
        guest = stack.enter_context(Guest(node, name))
        options = (
            f"--no-disk --vcpus {len(pin.split(','))} --memory {GUEST_MIB}M --pin {pin} --initrd {initrd}"
            " --append mint.tick=0 --print"
        )
        xml = emulator_on(with_disk(node.out(start_command(node, name, options)), disk), first)
        node.run(f"cat >/tmp/{name}.xml", stdin=xml.encode())
        node.run(f"virsh -q define --validate /tmp/{name}.xml && virsh -q start {name}")
        guest.wait_line("mint-guest: eth0")
        node.run(f"virsh -q suspend {name}")
        return guest


@contextlib.contextmanager
def awake(guest: Guest) -> Iterator[None]:
    """A guest that is suspended runs, until the end."""
    guest.node.run(f"virsh -q resume {guest.name}")
    try:
        yield
    finally:
        guest.node.run(f"virsh -q suspend {guest.name}")


def emulator_on(xml: str, cpu: int) -> str:
    """A domain with QEMU's own threads on that CPU: not on those that are measured."""
    found, count = re.subn(r"<emulatorpin cpuset=(['\"])[^'\"]*\1/>", f"<emulatorpin cpuset='{cpu}'/>", xml)
    if count != 1:
        raise RigError(f"the domain says {count} times where QEMU's threads are to run:\n{xml}")
    return found


@contextlib.contextmanager
def neighbours(server: Server, programs: dict[str, bytes]) -> Iterator[Neighbours]:
    """On a server that has started; programs: victim and aggressor."""
    with contextlib.ExitStack() as stack:
        found = Neighbours(server, programs)
        found.begin(stack)
        yield found
