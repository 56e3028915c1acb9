# SPDX-License-Identifier: Apache-2.0
"""Group "moves" of make bench: what it takes to move things between running nodes, and to come back.

core       node 0 <-> node 1 by mintctl node resize; in turns with it a vCPU that comes to
           a KVM guest of node 0 and goes (figures_guests.py); the kernel's part alone
memory     1 GiB given to node 1 (add, online), and given back by it (offline, zero); in
           turns with it the same by that guest's virtio-mem; the kernel's parts one by one
disk       an NVMe disk from node 0 to node 1: unbind there -> first read here
panic      of node 1 -> known on node 0; its memory dumped; its services up again
"""

import json
from statistics import median, quantiles

from figures_guests import PlugGuest
from figures_programs import build, put, seconds, spread
from rig.errors import RigError
from rig.machine import MachineConfig
from rig.server import DISK2_NVME, ONE, NodePlan, Server

# Room for a GiB more on NUMA node 0.
MINT_ROOMY = "mint=on,mem=1792M@0,mem=1792M@1"
# Cores of node 0 that the guest is pinned to; the one that moves is another, and none is
# the boot core.
GUEST_CPUS = (1, 2)
MOVING_CPU = 5
CORE_ROUNDS = 50
MEMORY_ROUNDS = 10
DISK_ROUNDS = 5
PANIC_ROUNDS = 3

STAMP = "stamp() { date +%s%N; }; took() { echo \"$1 $(( ($(stamp) - begin) / 1000 ))\"; }; set -e;"


def timed(server: Server, rounds: int, *steps: tuple[str, str]) -> dict[str, list[float]]:
    """Each step's command by a shell of node 0, rounds times in turns; its seconds."""
    lines = " ".join(f"begin=$(stamp); {command} >/dev/null 2>&1; took {what};" for what, command in steps)
    text = server.zero.out(f"{STAMP} for i in $(seq {rounds}); do {lines} done", 1800)
    return {what: seconds(text, what) for what, _ in steps}


def panics(server: Server) -> dict[str, list[float]]:
    """What follows a panic of node 1."""
    taken: dict[str, list[float]] = {"known": [], "dump": [], "start": []}
    for _ in range(PANIC_ROUNDS):
        server.wait_ready(server.one)
        last = [json.loads(line) for line in server.zero.out("mintctl events --json").splitlines()][-1]["seq"]
        server.one.start("echo c >/proc/sysrq-trigger", limit_s=30)
        server.wait_state(1, "crashed")
        events = server.zero.out(f"mintctl events --json --since {last}").splitlines()
        (crash,) = (event for event in map(json.loads, events) if event["new"] == "crashed")
        taken["known"].append((crash["seen_ns"] - crash["time_ns"]) / 1e9)
        steps = (
            ("dump", f"mintctl node dump {ONE.name} -o /tmp/vmcore --force"),
            ("start", f"mintctl node start {ONE.name}"),
        )
        for what, values in timed(server, 1, *steps).items():
            taken[what] += values
        server.zero.run("rm /tmp/vmcore")
    return taken


def beside_a_guest(server: Server) -> dict[str, list[float]]:
    """A core and 1 GiB between nodes, each in turns with the same for a guest of node 0."""
    taken: dict[str, list[float]] = {}

    def note(found: dict[str, list[float]]) -> None:
        for what, values in found.items():
            taken.setdefault(what, []).extend(values)

    own = ",".join(map(str, ONE.cpus))
    with PlugGuest(server.zero, GUEST_CPUS) as guest:
        for _ in range(CORE_ROUNDS):
            steps = (
                ("core_out", f"mintctl node resize {ONE.name} --cpus {own},{MOVING_CPU} --from node0"),
                ("core_back", f"mintctl node resize {ONE.name} --cpus {own}"),
            )
            note(timed(server, 1, *steps))
            note({"vcpu_in": [guest.plug_vcpu()]})
            note({"vcpu_out": [guest.unplug_vcpu()]})
        for number in range(1 + MEMORY_ROUNDS):
            steps = (
                ("memory_add", f"mintctl node resize {ONE.name} --memory +1G@numa0"),
                ("memory_back", f"mintctl node resize {ONE.name} --memory -1G"),
            )
            found = timed(server, 1, *steps)
            found |= {"virtio_mem_in": [guest.plug_memory()], "virtio_mem_out": [guest.unplug_memory()]}
            if number > 0:  # in the first, the emulator gets the memory from its host
                note(found)
    return taken


# Has no part in it but to be stopped: blocks that it has had are only zeroed on their way out.
STOPPED = NodePlan("stopped", (MOVING_CPU,), 128, 0)
BLOCKS = 8


def parts(server: Server) -> dict[str, list[float]]:
    """What the kernel's own calls take of these, made on node 1 by hand: each round's sum."""
    put(server.one, "/root/moves", build("moves"))
    text = server.one.out(f"/root/moves core 1 {ONE.cpus[-1]} {CORE_ROUNDS}", 600)
    taken = {f"part_{what}": seconds(text, what) for what in ("release", "claim")}
    stopped = server.add(STOPPED, "--no-start")["node"]["id"]
    blocks = server.ledger().owned("memory", None)[:BLOCKS]
    for number in range(1 + MEMORY_ROUNDS):
        text = server.one.out(f"/root/moves memory 1 {stopped} {' '.join(blocks)}", 600)
        sums = {what: sum(seconds(text, what)) for what in ("add", "online", "offline", "remove", "zero")}
        sums["remove"] -= sums["zero"]
        for what, value in sums.items() if number > 0 else ():
            taken.setdefault(f"part_{what}", []).append(value)
    server.mintctl("node", "remove", STOPPED.name)
    return taken


def row(what: str, values: list[float]) -> str:
    """A line of the table."""
    if not values:
        raise RigError(f"{what}: nothing was measured")
    p99 = quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else values[0]
    return f"| {what} | {len(values)} | {median(values):.3f} | {p99:.3f} | {min(values):.3f} … {max(values):.3f} |"


def ratio(what: str, ours: list[float], theirs: list[float], goal: str) -> str:
    """A line of the second table."""
    return f"| {what} | {spread(ours, '{:.3f}')} | {spread(theirs, '{:.3f}')} | {median(ours) / median(theirs):.2f} | {goal} |"


def print_tables(taken: dict[str, list[float]]) -> None:
    """All that was measured."""
    cores, vcpus = taken["core_out"] + taken["core_back"], taken["vcpu_in"] + taken["vcpu_out"]
    print("\n| seconds | times | median | p99 | lowest … highest |")
    print("|---|---|---|---|---|")
    for what, values in (
        ("core between running nodes, `mintctl` and plan included", cores),
        ("vCPU of a running guest, in or out", vcpus),
        ("1 GiB given to a running node (add, online)", taken["memory_add"]),
        ("1 GiB plugged into a running guest", taken["virtio_mem_in"]),
        ("1 GiB given back (offline, remove, zero)", taken["memory_back"]),
        ("1 GiB unplugged from it", taken["virtio_mem_out"]),
        ("NVMe disk: move and first read", taken["disk"]),
        ("panic → known on a peer", taken["known"]),
        ("dead node's 1 GiB dumped", taken["dump"]),
        ("dead node's services answer again", taken["start"]),
    ):
        print(row(what, values))

    print("\n| seconds, in turns | between nodes | KVM guest of node 0 | ratio | goal |")
    print("|---|---|---|---|---|")
    for what, ours, theirs, goal in (
        ("core comes / vCPU plugged in", "core_out", "vcpu_in", "≤ 0.5"),
        ("core goes / vCPU unplugged", "core_back", "vcpu_out", "≤ 0.5"),
        ("1 GiB comes / virtio-mem plugged", "memory_add", "virtio_mem_in", "≤ 1.0"),
        ("1 GiB goes / virtio-mem unplugged", "memory_back", "virtio_mem_out", "≤ 1.0"),
    ):
        print(ratio(what, taken[ours], taken[theirs], goal))

    print("\n| the kernel's part | seconds |")
    print("|---|---|")
    for what, name in (
        ("core: offline, park", "part_release"),
        ("core: wake, online", "part_claim"),
        ("1 GiB: add", "part_add"),
        ("1 GiB: online", "part_online"),
        ("1 GiB: offline", "part_offline"),
        ("1 GiB: remove", "part_remove"),
        ("1 GiB: zero", "part_zero"),
    ):
        print(f"| {what} | {spread(taken[name], '{:.3f}')} |")


def figure_moves() -> dict:
    """Group 4."""
    with Server(MachineConfig("figures-moves", mint=MINT_ROOMY)) as server:
        server.add(ONE)
        server.wait_ready(server.one)
        taken = beside_a_guest(server)
        taken |= parts(server)
        there = "until [ -b /dev/nvme0n1 ]; do sleep 0.01; done"
        first = "dd if=/dev/nvme0n1 of=/dev/null bs=4k count=1 iflag=direct"
        read = f"mintctl node exec {ONE.name} -- sh -c '{there}; {first}'"
        taken |= timed(
            server, DISK_ROUNDS,
            ("disk", f"mintctl device move {DISK2_NVME} --to {ONE.name} && {read}"),
            ("disk_back", f"mintctl device move {DISK2_NVME} --to node0"),
        )  # fmt: skip
        taken |= panics(server)
    print_tables(taken)
    return {"moves_s": taken}
