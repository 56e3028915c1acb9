# SPDX-License-Identifier: Apache-2.0
"""One vCPU's thread is alone on a host core for a while, and nothing stays of it.

On two machines of two CPUs that do not run: their threads are there.
"""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from rig import emulator, paths
from rig.errors import RigError
from rig.pinned import Pinned, plan, threads_of, vcpu_thread
from rig.qmp import Monitor
from rig.wait import wait_until

two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a host of one core")


@dataclass(frozen=True)
class Small:
    """A QEMU without a kernel."""

    process: int
    monitor: Monitor

    def vcpu(self, number: int) -> int:
        """Its thread."""
        return vcpu_thread(self.monitor.execute("query-cpus-fast"), number)

    def cores(self) -> dict[int, set[int]]:
        """Where each of its threads may run."""
        return {thread: os.sched_getaffinity(thread) for thread in threads_of(self.process)}


@contextlib.contextmanager
def small(accel: str = "tcg,thread=multi") -> Iterator[Small]:
    """A machine of two CPUs, stopped."""
    qemu = emulator.choose()
    ours, theirs = socket.socketpair()
    command = [
        *qemu.command, "-no-user-config", "-nodefaults", "-display", "none", "-S", "-machine", "q35",
        "-accel", accel, "-smp", "2", "-m", "32M", "-kernel", str(paths.need(paths.COUNT_TEST)),
        "-chardev", f"socket,id=monitor,fd={theirs.fileno()}", "-mon", "chardev=monitor,mode=control",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, env=os.environ | qemu.environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
    )
    theirs.close()
    monitor = Monitor(ours)
    try:
        yield Small(process.pid, monitor)
    finally:
        monitor.close()
        process.kill()
        process.wait()


@two_cores
def test_vcpu_is_alone_on_its_core_and_all_is_undone():
    """Beside threads of its own QEMU, of another one, of a later one, and of this program."""
    usual = os.sched_getaffinity(0)
    with small() as victim, small() as peer:
        before = victim.cores() | peer.cores()
        thread = victim.vcpu(1)
        with Pinned(victim.process, victim.monitor, 1, [peer.process]) as pinned:
            core, rest = {pinned.plan.core}, set(pinned.plan.rest)
            assert core | rest == usual
            assert not core & rest
            assert victim.cores().pop(thread) == core
            alone = victim.cores() | peer.cores()
            assert all(cores == (core if one in (thread, victim.process) else rest) for one, cores in alone.items())
            said = f"vCPU 1 (thread {thread}) and its QEMU's main loop alone on host core {pinned.plan.core}; "
            assert said in str(pinned)
            with small() as later:
                pinned.add(later.process)
                assert set(map(frozenset, later.cores().values())) == {pinned.plan.rest}
            assert pinned.waited_s() >= 0
        after = victim.cores() | peer.cores()
    assert after == {thread: before.get(thread, usual) for thread in after}
    assert os.sched_getaffinity(0) == usual


@two_cores
def test_thread_that_comes_later_leaves_the_core():
    """A thread has the cores of who starts it: of the victim, that is the one that is to be its own."""
    usual = os.sched_getaffinity(0)
    with small() as victim:
        with Pinned(victim.process, victim.monitor, 0) as pinned:
            known = set(threads_of(victim.process))
            # QEMU's first thread starts it.
            os.sched_setaffinity(victim.process, {pinned.plan.core})
            victim.monitor.execute("object-add", **{"qom-type": "iothread", "id": "late"})
            [late] = set(threads_of(victim.process)) - known
            wait_until("moved away", lambda: os.sched_getaffinity(late) == pinned.plan.rest, 30)
        assert os.sched_getaffinity(late) == usual


@two_cores
def test_cores_come_back_after_an_error():
    """Also those of this program, and what was narrower before stays so."""
    usual = os.sched_getaffinity(0)
    with small() as victim:
        os.sched_setaffinity(victim.vcpu(0), {min(usual)})
        before = victim.cores()
        with pytest.raises(KeyError), Pinned(victim.process, victim.monitor, 1):
            raise KeyError
        assert victim.cores() == before
    assert os.sched_getaffinity(0) == usual


@two_cores
def test_program_that_starts_meanwhile_gets_the_rest():
    """As each QEMU that the rig starts."""
    tell = [sys.executable, "-c", "import os; print(*sorted(os.sched_getaffinity(0)))"]
    with small() as victim, Pinned(victim.process, victim.monitor, 0) as pinned:
        told = subprocess.run(tell, capture_output=True, text=True, check=True).stdout
        assert set(map(int, told.split())) == pinned.plan.rest


def test_cpus_that_share_a_thread_are_refused():
    """Nothing is moved."""
    with small("tcg,thread=single") as counted:
        before = counted.cores()
        with pytest.raises(RigError, match="vCPU 1 shares its thread with vCPU 0"):
            Pinned(counted.process, counted.monitor, 1)
        with pytest.raises(RigError, match="no vCPU 7, but 0,1"):
            Pinned(counted.process, counted.monitor, 7)
        assert counted.cores() == before


def test_plan():
    """The last core, or the one that is asked for."""
    assert plan(10, 9, {0, 1, 3}).core == 3
    chosen = plan(10, 9, {0, 1, 3}, 1)
    assert (chosen.core, chosen.rest) == (1, {0, 3})
    assert chosen.cores(10) == chosen.cores(9) == {1}
    assert chosen.cores(11) == {0, 3}


def test_plan_without_cores_is_refused():
    """With those that there are."""
    with pytest.raises(RigError, match="core 2 is not among .*: 0,1"):
        plan(10, 9, {0, 1}, 2)
    with pytest.raises(RigError, match="takes two, and this program may use 5 only"):
        plan(10, 9, {5})
