# SPDX-License-Identifier: Apache-2.0
"""Group "partition" of make report: what it costs node 0, alone, that its kernel runs with mint=on.

By instructions: QEMU's -icount makes a machine's clock go on by a fixed time for each
instruction that any of its CPUs executes, so a rate is a count of instructions, the same in
each run to some 0.1 %. It takes the emulator, and says nothing of caches. A "machine" is
three that are booted one after the other.

By time the emulator's noise (6 % between two machines without mint=) is larger than what is looked for.
On a real server time is measured, and the sides are boots.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace

from figures_programs import FOLDER, build, function_disk, number, put, written
from report.figure import Figure
from report.goals import EMULATOR, SERVER, equal
from report.recorder import Recorder, Taker
from report.turns import turns
from rig import accel, paths
from rig.inventory import LINUX
from rig.inventory import MINT as MINT_BOOT
from rig.machine import MINT, MachineConfig
from rig.remote import Remote
from rig.server import Server

GROUP = "partition"
JOB_S, QUICK_JOB_S = 12, 3
COUNTED_MACHINES, COUNTED_QUICK_MACHINES = 5, 1
COUNTED_ROUNDS, COUNTED_QUICK_ROUNDS = 2, 1
COUNTED_JOB_S, COUNTED_QUICK_JOB_S = 5, 2

ON, OFF, AGAIN = "on", "off", "off again"
WORDS = {ON: MINT, OFF: "", AGAIN: ""}
SIDES = {OFF: "without mint=", AGAIN: "the same again", ON: "mint=on"}
TITLES = {"cpu": "Integer work", "copy": "Memory copy", "fio": "fio, 4 KiB random reads and writes"}
UNITS = {"cpu": "M steps/s", "copy": "MB/s", "fio": "requests/s"}
COUNTED_UNITS = {**UNITS, "fio": "µs of CPU a request"}
FIGURES = (
    *(
        Figure(GROUP, job, f"{title}, by count of instructions", COUNTED_UNITS[job], SIDES, "counted",
               "Instructions of all CPUs count, those of daemons on other cores, too; caches and TLBs do not."
               + (" fio waits for the host's disk: its CPU time for a request is compared." if job == "fio" else ""))
        for job, title in TITLES.items()
    ),
    *(
        Figure(GROUP, job, f"{title}, by time", UNITS[job], SIDES, "wall",
               "Each side is a boot.", (SERVER,))
        for job, title in TITLES.items()
    ),
)  # fmt: skip
GOALS = (
    # No server tells counts.
    *(
        replace(equal(f"{title}: mint=on costs nothing", GROUP, job, ON, OFF, 0.02, "counted"), where=(EMULATOR,))
        for job, title in TITLES.items()
    ),
    # The emulator's noise is larger than the bounds.
    *(
        replace(equal(f"{title}: mint=on costs nothing", GROUP, job, ON, OFF, 0.02), where=(SERVER,))
        for job, title in TITLES.items()
    ),
    *(
        replace(equal(f"{title}, and again", GROUP, job, AGAIN, OFF, 0.01, "counted", null=True), where=(EMULATOR,))
        for job, title in TITLES.items()
    ),
    *(
        replace(equal(f"{title}, and again", GROUP, job, AGAIN, OFF, 0.1, null=True), where=(SERVER,))
        for job, title in TITLES.items()
    ),
)

# The file is written before: allocating its clusters is no part of the job.
FIO_MIB = 64
FIO = f"cd /var/lib/libvirt/images && fio --name=j --filename=f --bs=4k --size={FIO_MIB}m --direct=1 --ioengine=psync"
LAY_OUT = f"{FIO} --rw=write --bs=1m"


def per_request_us(text: str) -> float:
    """CPU time of fio's process for one request, microseconds; from its JSON."""
    job = json.loads(text)["jobs"][0]
    requests = job["read"]["total_ios"] + job["write"]["total_ios"]
    return (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] * 1000 / requests


def counted(taker: Taker, side: str, place: int, rounds: int, job_s: int) -> None:
    """The same jobs on one machine, by count of instructions."""
    program = build("measure")
    config = MachineConfig(f"figures-counted-{side.replace(' ', '-')}", mint=WORDS[side], counted=True)
    with Server(config) as server:
        put(server.zero, f"{FOLDER}/measure", program)
        server.zero.run(LAY_OUT)
        # The first copy meets memory that the kernel has not zeroed yet.
        server.zero.run(f"{FOLDER}/measure copy {job_s}", 600)
        for count in range(rounds):
            for job in ("cpu", "copy"):
                command = f"taskset -c 0 {FOLDER}/measure {job} {job_s}"
                value = number(server.zero.out(command, 600), job)
                taker.add(job, side, value, COUNTED_UNITS[job], "counted", count, place)
            # fio waits for the host's disk: what counts is what a request takes.
            command = f"{FIO} --rw=randrw --io_size=32m --norandommap --output-format=json"
            value = per_request_us(server.zero.out(command, 600))
            taker.add("fio", side, value, COUNTED_UNITS["fio"], "counted", count, place)


AT_BOOTS = (LINUX, MINT_BOOT)
TERSE = "--output-format=terse --terse-version=3 | awk -F';' '{ print \"measure fio\", $8 + $49 }'"


def absent_at(remote: Remote) -> Mapping[str, str]:
    """What is not measured on a server."""
    found = {"counts of instructions": "a real server does not tell them for all cores together; time is measured"}
    if not remote.roles.data[0]:
        found[TITLES["fio"]] = "the plan has no [data0]"
    return found


def on_pass(taker: Taker, remote: Remote, recorder: Recorder) -> None:
    """The jobs, by time, on node 0 or on Linux, which takes part twice; fio writes to the plan's data disk."""
    core = remote.roles.guests[0] if remote.roles.guests else remote.roles.one.cpus[0]
    job_s = recorder.pick(JOB_S, QUICK_JOB_S)
    jobs = {job: f"taskset -c {core} {FOLDER}/measure {job} {job_s}" for job in ("cpu", "copy")}
    put(remote.zero, f"{FOLDER}/measure", build("measure"))
    sides = [ON] if remote.boot == MINT_BOOT else [OFF, AGAIN]
    with contextlib.ExitStack() as stack:
        if remote.roles.data[0]:
            put(remote.zero, f"{FOLDER}/fio", paths.need(paths.BUILD / "images" / "fio").read_bytes())
            disk = function_disk(remote.zero, remote.roles.data[0])
            words = f"--name=j --bs=4k --size={FIO_MIB}m --direct=1 --ioengine=psync --rw=randrw --time_based"
            jobs["fio"] = f"taskset -c {core} {FOLDER}/fio {words} --filename={disk} --runtime={job_s} {TERSE}"
            # Or the next boot's plan would be refused: the disk holds something.
            stack.enter_context(written(remote.zero, disk, FIO_MIB))
        for job, order in zip(jobs, turns(recorder.header.seed, f"{GROUP} {taker.name}", sides, len(jobs)), strict=True):
            for place, side in enumerate(order):
                taker.add(job, side, number(remote.zero.out(jobs[job], 600), job), UNITS[job], order=place)


def run(recorder: Recorder) -> None:
    """Measure what is missing."""
    seed = recorder.header.seed
    machines = 0 if accel.use_kvm() else recorder.pick(COUNTED_MACHINES, COUNTED_QUICK_MACHINES)
    for name in recorder.to_do(GROUP, "counted", machines):
        with recorder.machine(GROUP, name) as taker:
            (order,) = turns(seed, f"{GROUP} {name}", list(SIDES), 1)
            rounds = recorder.pick(COUNTED_ROUNDS, COUNTED_QUICK_ROUNDS)
            job_s = recorder.pick(COUNTED_JOB_S, COUNTED_QUICK_JOB_S)
            for place, side in enumerate(order):
                counted(taker, side, place, rounds, job_s)
