# SPDX-License-Identifier: Apache-2.0
"""One emulated CPU alone on a host core, for wall time that other emulated CPUs do not take part in.

QEMU's main loop runs beside it: that rings each CPU's timer, and a CPU whose timer rings when the
loop has got a core from other CPUs wakes up milliseconds too late.

    with Pinned(machine.process.pid, machine.monitor, vcpu=3, others=[peer.process.pid]) as pinned:
        ...
        print(pinned, pinned.waited_s())

All other threads of these processes, and this program with all that it starts meanwhile, run
on the rest of the cores. At the end every thread may run where it could before.
"""

import contextlib
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rig.delay import waiting_of
from rig.errors import RigError
from rig.qmp import Monitor

# Threads are born with the cores of who starts them: the victim's, too, are looked for.
EVERY_S = 0.2


@dataclass(frozen=True)
class Plan:
    """Where threads are to run; victim and loop: the only ones on core."""

    victim: int
    loop: int
    core: int
    rest: frozenset[int]

    def cores(self, thread: int) -> frozenset[int]:
        """Of one thread, by its id."""
        return frozenset([self.core]) if thread in (self.victim, self.loop) else self.rest


def plan(victim: int, loop: int, allowed: Iterable[int], core: int | None = None) -> Plan:
    """The victim and the main loop on core (default: the last of those allowed), others on the rest. Raises RigError if
    there is none."""
    cores = frozenset(allowed)
    if core is None:
        core = max(cores)
    if core not in cores:
        raise RigError(f"host core {core} is not among those that this program may use: {spell(cores)}")
    if len(cores) < 2:
        raise RigError(f"a host core for one CPU alone takes two, and this program may use {spell(cores)} only")
    return Plan(victim, loop, core, cores - {core})


def spell(cores: Iterable[int]) -> str:
    """As people write them."""
    return ",".join(map(str, sorted(cores)))


def vcpu_thread(cpus: list[dict], vcpu: int) -> int:
    """The thread of a vCPU, in what query-cpus-fast says. Raises RigError if it is not there, or not its own."""
    threads = {cpu["cpu-index"]: cpu["thread-id"] for cpu in cpus}
    if vcpu not in threads:
        raise RigError(f"there is no vCPU {vcpu}, but {spell(threads)}")
    if sharing := [cpu for cpu, thread in threads.items() if thread == threads[vcpu] and cpu != vcpu]:
        raise RigError(
            f"vCPU {vcpu} shares its thread with vCPU {spell(sharing)}: QEMU runs one after the other (-icount, "
            "thread=single), and none can be alone on a core"
        )
    return threads[vcpu]


def threads_of(process: int) -> list[int]:
    """The threads of a process, by id; none if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return sorted(int(task.name) for task in Path(f"/proc/{process}/task").iterdir())
    return []


def move(thread: int, cores: Iterable[int]) -> None:
    """Let a thread run on these cores only; one that has ended is let be."""
    with contextlib.suppress(ProcessLookupError):
        os.sched_setaffinity(thread, cores)


class Pinned:
    """A vCPU of a QEMU process alone on a core, as a context; others: further QEMU processes."""

    def __init__(
        self, process: int, monitor: Monitor, vcpu: int, others: Iterable[int] = (), core: int | None = None
    ) -> None:
        self.vcpu, self.process = vcpu, process
        self._usual = os.sched_getaffinity(0)
        # The loop is QEMU's first thread.
        self.plan = plan(vcpu_thread(monitor.execute("query-cpus-fast"), vcpu), process, self._usual, core)
        # Of each process which cores its threads are to get back, by thread.
        self._before: dict[int, dict[int, set[int]]] = {}
        self._processes = [process, *others, os.getpid()]
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="pinned", daemon=True)
        self._waited_s = 0.0

    def __str__(self) -> str:
        there = [thread for process in self._before for thread in threads_of(process)]
        count = sum(self.plan.cores(thread) == self.plan.rest for thread in there)
        return (
            f"vCPU {self.vcpu} (thread {self.plan.victim}) and its QEMU's main loop alone on host core {self.plan.core}; "
            f"{count} other threads of {len(self._before)} processes on {spell(self.plan.rest)}"
        )

    def add(self, process: int) -> None:
        """Another QEMU process, which somebody else has started."""
        with self._lock:
            if process not in self._processes:
                self._processes.append(process)
        self.look()

    def look(self) -> None:
        """Move all threads that are there now; __enter__ does, and goes on doing it."""
        with self._lock:
            for process in self._processes:
                known = self._before.setdefault(process, {})
                # Until no more come: the last look finds only threads of those that are moved.
                while new := [thread for thread in threads_of(process) if thread not in known]:
                    born_here = bool(known) or self._keeper.is_alive()
                    for thread in new:
                        known[thread] = self._cores_before(thread, born_here)
                        move(thread, self.plan.cores(thread))

    def _cores_before(self, thread: int, born_here: bool) -> set[int]:
        """born_here: it may have from its parent what this has given that, and never had more."""
        try:
            cores = os.sched_getaffinity(thread)
        except ProcessLookupError:
            return self._usual
        return self._usual if born_here and cores in (self.plan.rest, {self.plan.core}) else cores

    def waited_s(self) -> float:
        """How long the victim was ready and had no core since __enter__: other work of the host is on it then."""
        return self._waited() - self._waited_s

    def _waited(self) -> float:
        return waiting_of(self.process).get(str(self.plan.victim), 0.0)

    def _keep(self) -> None:
        while not self._ended.wait(EVERY_S):
            self.look()

    def __enter__(self) -> "Pinned":
        try:
            self.look()
        except BaseException:
            self._restore()
            raise
        self._waited_s = self._waited()
        self._keeper.start()
        return self

    def __exit__(self, *exception) -> None:
        self._ended.set()
        self._keeper.join()
        self._restore()

    def _restore(self) -> None:
        for process, known in self._before.items():
            for thread in threads_of(process):
                move(thread, known.get(thread, self._usual))
