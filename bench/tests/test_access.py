# SPDX-License-Identifier: Apache-2.0
"""No node touches what it does not own: devices, ports and APICs (QEMU's
trace), RAM below 1 MiB, RAM of peers."""

from dataclasses import replace

import pytest

from rig import kerneltext
from rig.ledger import Ledger
from rig.machine import MachineConfig
from rig.ram import Ram
from rig.server import DISK1, ONE, SERIAL, TWO, Server
from rig.trace import Judge, Step, read_bars

MIB = 1 << 20


class Traced:
    """A traced machine, and what was wrong in each step so far."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.bars = read_bars(server.machine.monitor.execute("query-pci"))
        self.steps: list[Step] = []
        self.faults: list[str] = []

    def step(self, name: str, action, interrupts: set[int] = frozenset(), buries: set[int] = frozenset()) -> None:
        """Do something, judge what all CPUs did meanwhile."""
        before = self.server.ledger()
        self.server.machine.trace.cut()
        action()
        after = self.server.ledger()
        step = Step(
            name, before, after, self.server.machine.trace.cut(), frozenset(interrupts), frozenset(buries)
        )
        self.steps.append(step)
        self.faults += Judge(self.bars, step).faults()


def with_owner(ledger: Ledger, kind: str, name: str, owner: int) -> Ledger:
    """The ledger with one owner changed."""
    return replace(ledger, resources=ledger.resources | {(kind, name): ("owned", owner)})


def work(server: Server) -> None:
    """Disk, network between nodes, timers, IPIs: on all three nodes at the same time."""
    command = (
        "dd if=/dev/urandom of=/root/w bs=1M count=16 oflag=direct 2>/dev/null; sync; rm /root/w; "
        "ping -q -c 5 -i 0.2 node{peer} >/dev/null; lspci >/dev/null; cat /proc/interrupts >/dev/null; "
        "for i in 1 2 3 4; do (seq 100000 >/dev/null) & done; wait"
    )
    jobs = [server.node(n).start(command.format(peer=(n + 1) % 3)) for n in (0, 1, 2)]
    for job in jobs:
        assert job.wait().status == 0, job.result.err


def crash(server: Server) -> None:
    """Panic node 1."""
    server.one.start("echo c >/proc/sysrq-trigger", limit_s=10)
    server.wait_state(1, "crashed")


def test_no_node_touches_what_it_does_not_own(own_machine):
    """Start, work, stop, crash, kill, restart, remove: every access by CPU, against the ledger."""
    server = own_machine(MachineConfig("trace", trace=True))
    traced = Traced(server)
    traced.step("start of node 1", lambda: server.add(ONE), interrupts={1})
    traced.step("start of node 2", lambda: server.add(TWO), interrupts={2})
    server.wait_ready(server.one)
    server.wait_ready(server.two)
    traced.step("work", lambda: work(server))
    worked = traced.steps[-1]
    traced.step("stop of node 2", lambda: server.mintctl("node", "stop", 2), {2}, {2})
    traced.step("start of node 2 again", lambda: server.mintctl("node", "start", 2), {2}, {2})
    traced.step("crash of node 1", lambda: crash(server), {1}, {1})
    traced.step("start of node 1 after its crash", lambda: server.mintctl("node", "start", 1), {1}, {1})
    traced.step("kill of node 1", lambda: server.mintctl("node", "kill", 1), {1}, {1})
    traced.step("removal of node 1", lambda: server.mintctl("node", "remove", 1, "--force"), {1}, {1})
    traced.step("removal of node 2", lambda: server.mintctl("node", "remove", 2, "--force"), {2}, {2})
    report = server.machine.folder / "trace.report"
    report.write_text("\n".join(traced.faults) + "\n")
    assert not traced.faults, f"{len(traced.faults)} accesses, all in {report}:\n" + "\n".join(traced.faults[:40])

    # The same record must not pass with a ledger that says otherwise.
    for kind, name, owner in (("device", DISK1, 2), ("device", SERIAL, 1), ("cpu", str(ONE.cpus[0]), 2)):
        wrong = with_owner(worked.before, kind, name, owner)
        assert Judge(traced.bars, replace(worked, before=wrong, after=wrong)).faults(), (
            f"nobody seems to have used {kind} {name} during the work: the record is not whole"
        )


@pytest.mark.soak
@pytest.mark.soak_only
def test_ram_below_1_mib_and_quiet_ram_of_peers_stay(bare: Server):
    """A node starts, works, crashes, starts again and goes: other RAM is as it was.

    Quiet RAM: the text and read-only data of the peers' kernels, and 64 MiB of
    known bytes in the memory of nodes 0 and 2.
    """
    fill = "head -c 67108864 /dev/urandom >/dev/shm/quiet; sha256sum </dev/shm/quiet"
    look = "sha256sum </dev/shm/quiet"
    bare.add(TWO)
    two = next(number for number, node in bare.extra_nodes().items() if node["name"] == TWO.name)
    peers = [bare.zero, bare.node(two)]
    with Ram(bare.machine) as ram:
        before = [peer.out(fill, 180) for peer in peers]
        low = ram.read(0, MIB)
        bare.add(ONE)
        one = next(number for number, node in bare.extra_nodes().items() if node["name"] == ONE.name)
        node = bare.node(one)
        node.run("head -c 200000000 /dev/urandom >/dev/shm/x; rm /dev/shm/x", limit_s=180)
        node.start("echo c >/proc/sysrq-trigger", limit_s=10)
        bare.wait_state(one, "crashed")
        bare.mintctl("node", "start", one)
        bare.mintctl("node", "remove", one, "--force")
        now = ram.read(0, MIB)
        changed = [hex(page) for page in range(0, MIB, 4096) if low[page : page + 4096] != now[page : page + 4096]]
        assert not changed, f"pages below 1 MiB that changed: {changed}"
        for peer, digest in zip(peers, before, strict=True):
            assert peer.out(look, 180) == digest, f"RAM of node {peer.number} changed"
            assert not kerneltext.check(peer, ram)
            peer.run("rm /dev/shm/quiet")
    bare.remove_all()
