# SPDX-License-Identifier: Apache-2.0
"""Group "moves" of make bench: what it takes to move things between running nodes, and to come back.

core       node 0 <-> node 1 by mintctl node resize
memory     1 GiB given to node 1 (add, online), and given back by it (offline, zero)
disk       an NVMe disk from node 0 to node 1: unbind there -> first read here
panic      of node 1 -> known on node 0; its memory dumped; its services up again
"""

import json
import re
from statistics import median, quantiles

from rig.errors import RigError
from rig.machine import MachineConfig
from rig.server import DISK2_NVME, ONE, Server

# Room for a GiB more on NUMA node 0.
MINT_ROOMY = "mint=on,mem=1792M@0,mem=1792M@1"
CORE_ROUNDS = 50
MEMORY_ROUNDS = 5
DISK_ROUNDS = 5
PANIC_ROUNDS = 3

STAMP = "stamp() { date +%s%N; }; took() { echo \"$1 $(( ($(stamp) - begin) / 1000 ))\"; }; set -e;"


def seconds(text: str, what: str) -> list[float]:
    """Of lines "WHAT MICROSECONDS"."""
    return [int(us) / 1e6 for us in re.findall(rf"^{what} (\d+)", text, re.MULTILINE)]


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


def row(what: str, values: list[float]) -> str:
    """A line of the table."""
    if not values:
        raise RigError(f"{what}: nothing was measured")
    p99 = quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else values[0]
    return f"| {what} | {len(values)} | {median(values):.3f} | {p99:.3f} | {min(values):.3f} … {max(values):.3f} |"


def figure_moves() -> dict:
    """Group 4."""
    with Server(MachineConfig("figures-moves", mint=MINT_ROOMY)) as server:
        server.add(ONE)
        server.wait_ready(server.one)
        taken = timed(
            server, CORE_ROUNDS,
            ("core_out", f"mintctl node resize {ONE.name} --cpus +1"),
            ("core_back", f"mintctl node resize {ONE.name} --cpus -1"),
        )  # fmt: skip
        taken |= timed(
            server, MEMORY_ROUNDS,
            ("memory_add", f"mintctl node resize {ONE.name} --memory +1G@numa0"),
            ("memory_back", f"mintctl node resize {ONE.name} --memory -1G"),
        )  # fmt: skip
        there = "until [ -b /dev/nvme0n1 ]; do sleep 0.01; done"
        first = "dd if=/dev/nvme0n1 of=/dev/null bs=4k count=1 iflag=direct"
        read = f"mintctl node exec {ONE.name} -- sh -c '{there}; {first}'"
        taken |= timed(
            server, DISK_ROUNDS,
            ("disk", f"mintctl device move {DISK2_NVME} --to {ONE.name} && {read}"),
            ("disk_back", f"mintctl device move {DISK2_NVME} --to node0"),
        )  # fmt: skip
        taken |= panics(server)
    cores = taken["core_out"] + taken["core_back"]
    print("\n| seconds | times | median | p99 | lowest … highest |")
    print("|---|---|---|---|---|")
    for what, values in (
        ("core between running nodes, `mintctl` and plan included", cores),
        ("1 GiB given to a running node (add, online)", taken["memory_add"]),
        ("1 GiB given back (offline, remove, zero)", taken["memory_back"]),
        ("NVMe disk: move and first read", taken["disk"]),
        ("panic → known on a peer", taken["known"]),
        ("dead node's 1 GiB dumped", taken["dump"]),
        ("dead node's services answer again", taken["start"]),
    ):
        print(row(what, values))
    return {"moves_s": taken}
