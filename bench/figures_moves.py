# SPDX-License-Identifier: Apache-2.0
"""Group "moves" of make report: what it takes to move things between running nodes, and to come back.

core       node 0 <-> node 1 by mintctl node resize; in turns with it a vCPU that comes to
           a KVM guest of node 0 and goes (figures_guests.py); the kernel's part alone
memory     1 GiB given to node 1 (add, online), and given back by it (offline, zero); in
           turns with it the same by that guest's virtio-mem; the kernel's parts one by one
disk       an NVMe disk from node 0 to node 1: unbind there -> first read here
panic      of node 1 -> known on node 0; its memory dumped; its services up again
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace

from figures_guests import PlugGuest
from figures_programs import FOLDER, GUESTS_TAKE, TMP, build, put, seconds
from report.figure import Figure
from report.goals import Goal, equal
from report.passes import WHOLE_GROUP
from report.recorder import Recorder, Taker
from report.turns import turns
from rig.errors import RigError
from rig.inventory import DISKS_OF, MINT
from rig.machine import MachineConfig
from rig.plan import BLOCK_MIB, MOVED_MIB, STOPPED_MIB
from rig.remote import Remote
from rig.server import EMULATED, ONE, NodePlan, Server

GROUP = "moves"
MACHINES, QUICK_MACHINES = 5, 1
CORE_ROUNDS, QUICK_CORE_ROUNDS = 20, 1
MEMORY_ROUNDS, QUICK_MEMORY_ROUNDS = 8, 1
DISK_ROUNDS, QUICK_DISK_ROUNDS = 3, 1
PANIC_ROUNDS, QUICK_PANIC_ROUNDS = 2, 1

# Room for a GiB more on NUMA node 0.
MINT_ROOMY = "mint=on,mem=1792M@0,mem=1792M@1"
# Cores of node 0 that the guest is pinned to; the one that moves is another, and none is
# the boot core.
ROLES = replace(EMULATED, guests=(1, 2))
# A node that has no part in it but to be stopped: blocks that it has had are only zeroed on their way out.
STOPPED = "stopped"
BLOCKS = MOVED_MIB // BLOCK_MIB
# Of a dump, beside the node's memory: its head, and what it says of the node.
DUMP_MORE_MIB = 64

NODES, AGAIN, GUEST = "nodes", "nodes again", "guest"
CORE_SIDES = {NODES: "core, between nodes", AGAIN: "the same again", GUEST: "vCPU, KVM guest of node 0"}
MEMORY_SIDES = {NODES: "between nodes", AGAIN: "the same again", GUEST: "virtio-mem, KVM guest of node 0"}
PARTS = {
    "release": "core: offline, park",
    "claim": "core: wake, online",
    "add": "1 GiB: add",
    "online": "1 GiB: online",
    "offline": "1 GiB: offline",
    "remove": "1 GiB: remove",
    "zero": "1 GiB: zero",
}
AROUND = "By the clock of node 0, around the command that a user gives: its start, the plan and both daemons are in it."
FIGURES = (
    Figure(GROUP, "core comes", "A core comes to a running node", "s", CORE_SIDES, note=AROUND),
    Figure(GROUP, "core goes", "A core goes from a running node", "s", CORE_SIDES, note=AROUND),
    Figure(GROUP, "memory comes", "1 GiB comes to a running node", "s", MEMORY_SIDES, note=AROUND),
    Figure(GROUP, "memory goes", "1 GiB goes from a running node", "s", MEMORY_SIDES,
           note=f"{AROUND} Mint zeroes it on the way; virtio-mem leaves that to the next user."),
    Figure(GROUP, "kernel", "The kernels' part of a move", "s", PARTS, note="The daemons' calls, made by hand on node 1."),
    Figure(GROUP, "disk", "NVMe disk: unbind there → first read here", "s", {NODES: "disk, between nodes"}, note=AROUND),
    Figure(GROUP, "panic", "After a panic of node 1", "s",
           {"known": "known on node 0", "dump": "its memory dumped", "start": "started → its services answer"}),
)  # fmt: skip
PROGRAMS = "the kernels take a twentieth of it (figure below); mintctl's start, plan, journal and requests the rest"
ZEROED = "half of it offlines, half zeroes (figure below); virtio-mem zeroes nothing"
GOALS = (
    Goal("a core comes in half of the time of a vCPU", GROUP, "core comes", NODES, GUEST, high=0.5),
    Goal("a core goes in half of the time of a vCPU", GROUP, "core goes", NODES, GUEST, high=0.5),
    Goal("memory comes as quickly as by virtio-mem", GROUP, "memory comes", NODES, GUEST, high=1.0),
    Goal("memory goes as quickly as by virtio-mem", GROUP, "memory goes", NODES, GUEST, high=1.0, reason=ZEROED),
    Goal("a core comes, the whole command", GROUP, "core comes", NODES, high=0.05, unit="s", reason=PROGRAMS),
    Goal("a core goes, the whole command", GROUP, "core goes", NODES, high=0.05, unit="s", reason=PROGRAMS),
    equal("a core comes, and again", GROUP, "core comes", AGAIN, NODES, within=0.15, null=True),
    equal("a core goes, and again", GROUP, "core goes", AGAIN, NODES, within=0.15, null=True),
    equal("memory comes, and again", GROUP, "memory comes", AGAIN, NODES, within=0.15, null=True),
    equal("memory goes, and again", GROUP, "memory goes", AGAIN, NODES, within=0.15, null=True),
)

STAMP = 'stamp() { date +%s%N; }; took() { echo "$1 $(( ($(stamp) - begin) / 1000 ))"; }; set -e;'


def timed(server: Server | Remote, *steps: tuple[str, str]) -> dict[str, float]:
    """Each step's command, once, by a shell of node 0; its seconds."""
    lines = " ".join(f"begin=$(stamp); {command} >/dev/null 2>&1; took {what};" for what, command in steps)
    text = server.zero.out(f"{STAMP} {lines}", 300)
    found = {what: seconds(text, what) for what, _ in steps}
    if lost := [what for what, values in found.items() if len(values) != 1]:
        raise RigError(f"{', '.join(lost)}: no time was said:\n{text}")
    return {what: values[0] for what, values in found.items()}


def move_core(server: Server | Remote) -> dict[str, float]:
    """A core to node 1, and back."""
    own = ",".join(map(str, server.roles.one.cpus))
    found = timed(
        server,
        ("comes", f"mintctl node resize {ONE.name} --cpus {own},{server.roles.moving} --from node0"),
        ("goes", f"mintctl node resize {ONE.name} --cpus {own}"),
    )
    return {f"core {way}": value for way, value in found.items()}


def move_memory(server: Server | Remote) -> dict[str, float]:
    """1 GiB to node 1, and back."""
    found = timed(
        server,
        ("comes", f"mintctl node resize {ONE.name} --memory +1G@numa{server.roles.moving_numa}"),
        ("goes", f"mintctl node resize {ONE.name} --memory -1G"),
    )
    return {f"memory {way}": value for way, value in found.items()}


def beside_a_guest(server: Server | Remote, taker: Taker, seed: int, core_rounds: int, memory_rounds: int) -> None:
    """A core and 1 GiB between nodes, each in turns with the same for a guest of node 0."""
    with PlugGuest(server.zero, server.roles.guests[:2]) as guest:
        for count, order in enumerate(turns(seed, f"core {taker.name}", list(CORE_SIDES), core_rounds)):
            for place, side in enumerate(order):
                if side == GUEST:
                    found = {"core comes": guest.plug_vcpu(), "core goes": guest.unplug_vcpu()}
                else:
                    found = move_core(server)
                for case, value in found.items():
                    taker.add(case, side, value, "s", round=count, order=place)
        for count, order in enumerate(turns(seed, f"memory {taker.name}", list(MEMORY_SIDES), 1 + memory_rounds)):
            for place, side in enumerate(order):
                if side == GUEST:
                    found = {"memory comes": guest.plug_memory(), "memory goes": guest.unplug_memory()}
                else:
                    found = move_memory(server)
                for case, value in found.items() if count > 0 else ():  # in the first, the emulator gets it from its host
                    taker.add(case, side, value, "s", round=count, order=place)


def parts(server: Server | Remote, taker: Taker, core_rounds: int, memory_rounds: int) -> None:
    """What the kernel's own calls take of these, made on node 1 by hand: each round's sum."""
    roles = server.roles
    put(server.one, f"{FOLDER}/moves", build("moves"))
    text = server.one.out(f"{FOLDER}/moves core 1 {roles.one.cpus[-1]} {core_rounds}", 600)
    for what in ("release", "claim"):
        for count, value in enumerate(seconds(text, what)):
            taker.add("kernel", what, value, "s", round=count)
    stopped = server.add(NodePlan(STOPPED, (roles.moving,), STOPPED_MIB, roles.moving_numa), "--no-start")["node"]["id"]
    blocks = server.ledger().free_blocks(roles.moving_numa)[:BLOCKS]
    if len(blocks) < BLOCKS:
        raise RigError(
            f"{len(blocks)} blocks of NUMA node {roles.moving_numa} are free, and 1 GiB takes {BLOCKS}: boot with a larger"
            f" pool (mint=on,mem=…@{roles.moving_numa})"
        )
    for count in range(1 + memory_rounds):
        text = server.one.out(f"{FOLDER}/moves memory 1 {stopped} {' '.join(blocks)}", 600)
        sums = {what: sum(seconds(text, what)) for what in ("add", "online", "offline", "remove", "zero")}
        sums["remove"] -= sums["zero"]
        for what, value in sums.items() if count > 0 else ():
            taker.add("kernel", what, value, "s", round=count)
    server.mintctl("node", "remove", STOPPED)


def disks(server: Server | Remote, taker: Taker, rounds: int) -> None:
    """A disk to node 1, until it has read there; and back."""
    function = server.roles.moving_disk
    there = f"until disk=$({DISKS_OF.format(function=function)} | head -n 1) && [ -b /dev/$disk ]; do sleep 0.01; done"
    first = "dd if=/dev/$disk of=/dev/null bs=4k count=1 iflag=direct"
    read = f"mintctl node exec {ONE.name} -- sh -c {shlex.quote(f'{there}; {first}')}"
    for count in range(rounds):
        found = timed(
            server,
            ("disk", f"mintctl device move {function} --to {ONE.name} && {read}"),
            ("back", f"mintctl device move {function} --to node0"),
        )
        taker.add("disk", NODES, found["disk"], "s", round=count)


def no_dump(server: Server | Remote) -> str:
    """Why node 1's memory cannot be dumped on node 0; "" if it can. A dump in memory would end what runs there."""
    found = server.zero.out(f"stat -f -c %T {TMP}; df -P -m {TMP} | awk 'END {{ print $4 }}'").split()
    kind, free_mib, wanted_mib = found[0], int(found[1]), server.roles.one.memory_mib + DUMP_MORE_MIB
    if kind in ("tmpfs", "ramfs", "overlayfs"):
        return f"node 0's folder for it is a {kind}, which may be memory"
    return "" if free_mib >= wanted_mib else f"node 0's folder for it has {free_mib} MiB, and it may take {wanted_mib}"


def panics(server: Server | Remote, taker: Taker, rounds: int, dump: bool = True) -> None:
    """What follows a panic of node 1."""
    for count in range(rounds):
        server.wait_ready(server.one)
        last = [json.loads(line) for line in server.zero.out("mintctl events --json").splitlines()][-1]["seq"]
        server.one.start("echo c >/proc/sysrq-trigger", limit_s=30)
        server.wait_state(1, "crashed")
        events = server.zero.out(f"mintctl events --json --since {last}").splitlines()
        (crash,) = (event for event in map(json.loads, events) if event["new"] == "crashed")
        found = {"known": (crash["seen_ns"] - crash["time_ns"]) / 1e9}
        dumped = ("dump", f"mintctl node dump {ONE.name} -o {TMP}/vmcore --force")
        found |= timed(server, *([dumped] if dump else []), ("start", f"mintctl node start {ONE.name}"))
        for what, value in found.items():
            taker.add("panic", what, value, "s", round=count)
        server.zero.run(f"rm -f {TMP}/vmcore")


def all_of_it(taker: Taker, server: Server | Remote, recorder: Recorder, dump: bool = True) -> None:
    """On a machine, whose node 1 is made for it."""
    cores = recorder.pick(CORE_ROUNDS, QUICK_CORE_ROUNDS)
    memory = recorder.pick(MEMORY_ROUNDS, QUICK_MEMORY_ROUNDS)
    server.add(server.roles.one)
    server.wait_ready(server.one)
    beside_a_guest(server, taker, recorder.header.seed, cores, memory)
    parts(server, taker, cores, memory)
    if server.roles.moving_disk:
        disks(server, taker, recorder.pick(DISK_ROUNDS, QUICK_DISK_ROUNDS))
    panics(server, taker, recorder.pick(PANIC_ROUNDS, QUICK_PANIC_ROUNDS), dump)


AT_BOOTS = (MINT,)


def absent_at(remote: Remote) -> Mapping[str, str]:
    """What is not measured on a server."""
    roles = remote.roles
    if len(roles.guests) < 2 or roles.moving is None or roles.moving_numa is None:
        return {WHOLE_GROUP: "the plan has no [guests] with two cores, no moving.core or no moving.numa"}
    if lost := remote.has.lacks_in_mint(GUESTS_TAKE):
        return {WHOLE_GROUP: lost}
    found = {} if roles.moving_disk else {"a disk's move": "the plan has no moving.disk"}
    if remote.boot == MINT and (why := no_dump(remote)):
        found["a dump of a node's memory"] = why
    return found


def on_pass(taker: Taker, remote: Remote, recorder: Recorder) -> None:
    """A pass on a server."""
    all_of_it(taker, remote, recorder, not no_dump(remote))


def run(recorder: Recorder) -> None:
    """Measure what is missing."""
    for name in recorder.to_do(GROUP, "machine", recorder.pick(MACHINES, QUICK_MACHINES)):
        with (
            recorder.machine(GROUP, name) as taker,
            Server(MachineConfig("figures-moves", mint=MINT_ROOMY), ROLES) as server,
        ):
            all_of_it(taker, server, recorder)
