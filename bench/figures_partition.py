# SPDX-License-Identifier: Apache-2.0
"""What it costs node 0, alone, that its kernel runs with mint=on.

By time: two machines, of which only one runs at a time, in short turns. The
emulator's noise is larger than what is looked for.

By instructions: QEMU's -icount makes a machine's clock go on by a fixed time
for each instruction that any of its CPUs executes, so a rate is a count of
instructions, the same in each run to some 0.1 %. It takes the emulator, and
says nothing of caches.
"""

import contextlib
import json
import sys
import time
from statistics import median

from figures_programs import build, number, put, spread
from rig import accel
from rig.machine import MINT, MachineConfig
from rig.server import Server

PAIRS = 5
JOB_S = 12
SLICE_S = 0.1
COUNTED_MACHINES = 2  # of each kind
COUNTED_JOBS = 3
COUNTED_JOB_S = 5
WORDS = {"with": MINT, "without": ""}

# The file is written before: allocating its clusters is no part of the job.
FIO = "cd /var/lib/libvirt/images && fio --name=j --filename=f --bs=4k --size=64m --direct=1 --ioengine=psync"
LAY_OUT = f"{FIO} --rw=write --bs=1m"
JOBS = {
    "cpu": f"taskset -c 0 /root/measure cpu {JOB_S}",
    "copy": f"taskset -c 0 /root/measure copy {JOB_S}",
    "fio": (
        f"{FIO} --rw=randrw --time_based --runtime={JOB_S} --output-format=terse --terse-version=3 | "
        "awk -F';' '{ print \"measure fio\", $8 + $49 }'"
    ),
}


def in_turns(pair: dict[str, Server], job: str) -> dict[str, float]:
    """One job on both machines: only one of them runs at a time, SLICE_S each.

    A paused machine's clock stands still. What the host does beside it (and
    what it did to a job that ran whole before the other was +-15 %) hits both
    alike, as long as it lasts longer than a slice.
    """
    running = {name: server.zero.start(JOBS[job], limit_s=600) for name, server in pair.items()}
    turns = 0
    while not all(work.done() for work in running.values()):
        for name in ("with", "without") if turns % 2 else ("without", "with"):
            pair[name].machine.monitor.execute("cont")
            time.sleep(SLICE_S)
            pair[name].machine.monitor.execute("stop")
        turns += 1
    return {name: number(work.result.out, job) for name, work in running.items()}


def timed() -> dict:
    """A machine with mint=on beside one without, in turns; several such pairs."""
    program = build("measure")
    taken: dict[str, dict[str, list[float]]] = {job: {"with": [], "without": []} for job in JOBS}
    for number_of_pair in range(PAIRS):
        # Which of them is started first changes sides, too: it gets other memory of the host.
        order = sorted(WORDS, reverse=bool(number_of_pair % 2))
        with contextlib.ExitStack() as stack:
            configs = {name: MachineConfig(f"figures-{name}", mint=WORDS[name]) for name in order}
            pair = {name: stack.enter_context(Server(config)) for name, config in configs.items()}
            for server in pair.values():
                put(server.zero, "/root/measure", program)
                server.zero.run(LAY_OUT)
                server.machine.monitor.execute("stop")
            for job in JOBS:
                for name, value in in_turns(pair, job).items():
                    taken[job][name].append(value)
        print(f"partition: pair {number_of_pair + 1} of {PAIRS} done", file=sys.stderr, flush=True)
    print("\n| node 0 alone | without mint= | mint=on | ratio, by pair of machines | goal |")
    print("|---|---|---|---|---|")
    units = {"cpu": "integer work, M steps/s", "copy": "memory copy, MB/s", "fio": "fio 4k random read/write, IOPS"}
    for job, sides in taken.items():
        ratios = [one / other for one, other in zip(sides["with"], sides["without"], strict=True)]
        print(
            f"| {units[job]} | {spread(sides['without'], '{:.0f}')} | {spread(sides['with'], '{:.0f}')} "
            f"| {spread(ratios, '{:.3f}')} | 1.00 ± 0.02 |"
        )
    return taken


def per_request_us(text: str) -> float:
    """CPU time of fio's process for one request, microseconds; from its JSON."""
    job = json.loads(text)["jobs"][0]
    requests = job["read"]["total_ios"] + job["write"]["total_ios"]
    return (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] * 1000 / requests


def counted() -> dict:
    """The same jobs by count of instructions. fio waits for the host's disk: what counts is what a request takes."""
    program = build("measure")
    taken: dict[str, dict[str, list[float]]] = {job: {"with": [], "without": []} for job in JOBS}
    for number_of_machine in range(COUNTED_MACHINES):
        for name, mint in WORDS.items():
            config = MachineConfig(f"figures-counted-{name}", mint=mint, counted=True)
            with Server(config) as server:
                put(server.zero, "/root/measure", program)
                server.zero.run(LAY_OUT)
                # The first copy meets memory that the kernel has not zeroed yet.
                server.zero.run(f"/root/measure copy {COUNTED_JOB_S}", 600)
                for _ in range(COUNTED_JOBS):
                    for job in ("cpu", "copy"):
                        command = f"taskset -c 0 /root/measure {job} {COUNTED_JOB_S}"
                        taken[job][name].append(number(server.zero.out(command, 600), job))
                    command = f"{FIO} --rw=randrw --io_size=32m --norandommap --output-format=json"
                    taken["fio"][name].append(per_request_us(server.zero.out(command, 600)))
        print(f"partition: {number_of_machine + 1} of {COUNTED_MACHINES} counted", file=sys.stderr, flush=True)
    print("\n| node 0 alone, time by count of instructions | without mint= | mint=on | ratio of medians | goal |")
    print("|---|---|---|---|---|")
    units = {
        "cpu": "integer work, M steps/s",
        "copy": "memory copy, MB/s",
        "fio": "fio 4k random read/write, µs of CPU a request",
    }
    for job, sides in taken.items():
        ratio = median(sides["with"]) / median(sides["without"])
        # A rate, but for fio's cost: more is worse.
        ratio = 1 / ratio if job == "fio" else ratio
        print(
            f"| {units[job]} | {spread(sides['without'], '{:.1f}')} | {spread(sides['with'], '{:.1f}')} "
            f"| {ratio:.4f} | 1.00 ± 0.02 |"
        )
    return taken


def figure_partition() -> dict:
    """Group 2."""
    found = {} if accel.use_kvm() else {"partition_counted": counted()}
    return {**found, "partition": timed()}
