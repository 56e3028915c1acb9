# SPDX-License-Identifier: Apache-2.0
"""A guest's move between nodes 1 and 2, amid which something dies: at a named step of who moves it, which stands still
there meanwhile."""

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from rig import halt
from rig.channel import Job, Result
from rig.errors import NodeEnded
from rig.guest import Guest
from rig.mintctl import Mintctl
from rig.node import Node
from rig.server import ONE, TWO, Server

NAME = "victim"
RECORDS = "/var/lib/mint/guests"
NODE_NAMES = {1: ONE.name, 2: TWO.name}
GUESTD = "mint-guestd"
# Of a node that died, the other one's libvirt hears by its keepalive.
SETTLED_S = 240
# Memory and disk go for some seconds.
BANDWIDTH = "8M"

SOURCE, TARGET, ASKER = "source", "target", "asker"  # the asker is node 0: the operation is its mintd's


@dataclass(frozen=True)
class Step:
    """A step of mint-guestd (docs/testing.md), and on which side it is."""

    name: str
    side: str
    is_over: bool = False  # libvirt has switched over: the guest is on its new node
    is_failure: bool = False  # the move is to fail first
    is_switch: bool = False  # no step of mint-guestd: the source has sent all, and waits for the target's word


@dataclass(frozen=True)
class Victim:
    """What is killed, and where."""

    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.what} of the {self.where}"


MINTD_ASKER = Victim("mintd", ASKER)
MINTD, GUESTDS, LIBVIRTD, QEMU, NODE = (
    {side: Victim(what, side) for side in (SOURCE, TARGET)} for what in ("mintd", GUESTD, "libvirtd", "qemu", "node")
)


GOING = Step("move-going", SOURCE)  # libvirt tells how far it is


def allowed(step: Step, victim: Victim) -> set[tuple[str, str]]:
    """Where the guest may be afterwards, and in what state (docs/guests.md)."""
    home = TARGET if step.is_over else SOURCE
    if victim in (QEMU[home], NODE[home]):
        return {(home, "shut off")}
    # a daemon's death may, or may not, end what has not gone far
    is_open = not (step.is_over or step.is_failure)
    may_go_on = victim.what in ("mintd", GUESTD) or (victim.what == "libvirtd" and step != GOING)
    return {(home, "running")} | ({(TARGET, "running")} if is_open and may_go_on else set())


class Round:
    """One move and one kill. Few commands: each takes the cores that what it waits for needs."""

    options = ""  # of mintctl vm migrate

    def __init__(self, server: Server, source: int, disk: str, step: Step, victim: Victim) -> None:
        self.server, self.disk, self.step, self.victim = server, disk, step, victim
        self.numbers = {SOURCE: source, TARGET: 3 - source, ASKER: 0}
        self.nodes = {side: server.node(number) for side, number in self.numbers.items()}
        self.at = self.nodes[step.side]  # where the step is

    def __str__(self) -> str:
        step = "switch-over" if self.step.is_switch else self.step.name
        return f"{step}, {self.victim}, from node {self.numbers[SOURCE]}"

    def both(self, command: str) -> dict[str, str]:
        """What a shell command says on either side."""
        jobs = {side: self.nodes[side].start(command) for side in (SOURCE, TARGET)}
        return {side: job.wait().out for side, job in jobs.items()}

    def move(self) -> Job:
        """The move, up to the step, at which it stands still."""
        source, target = self.nodes[SOURCE], self.nodes[TARGET]
        first, where = (GOING, source) if self.step.is_failure else (self.step, self.at)
        halt.ask(where, first.name)
        words = f"mintctl vm migrate {NAME} --to node{target.number} --bandwidth {BANDWIDTH} {self.options} --json"
        job = self.server.zero.start(words, SETTLED_S)
        halt.wait(where, first.name)
        if self.step.is_failure:
            halt.ask(self.at, self.step.name)
            source.run(f"virsh domjobabort {NAME}; {halt.GO_ON}")
            halt.wait(self.at, self.step.name)
        return job

    def kill(self) -> None:
        """Raises CommandFailed if there was nothing to kill."""
        where, what = self.nodes[self.victim.where], self.victim.what
        if what == "node":
            self.server.mintctl("node", "kill", where.number)
        else:
            pid = f"$(cat /run/libvirt/qemu/{NAME}.pid)" if what == "qemu" else f"$(pidof {what})"
            where.run(f"kill -9 {pid}")
        if what != "node" or where != self.at:
            self.at.run(halt.GO_ON)

    def recover(self, job: Job) -> Result | None:
        """What an administrator would do, and no more: start a node that is dead. Then wait until nothing is open."""
        if self.victim.what == "node":
            node = self.nodes[self.victim.where]
            self.server.mintctl("node", "start", NODE_NAMES[node.number])
            self.server.wait_ready(node)
            halt.arm(node, GUESTD)
        result = None
        with contextlib.suppress(NodeEnded):
            result = job.wait()
        for side in (SOURCE, TARGET):
            self.nodes[side].wait("nothing left to settle", f"! ls {RECORDS}/*.json >/dev/null 2>&1", SETTLED_S)
        self.server.zero.wait("all daemons", "mintctl vm list >/dev/null 2>&1", SETTLED_S)
        return result

    def allowed(self) -> set[tuple[str, str]]:
        """Where the guest may be afterwards, and in what state."""
        return allowed(self.step, self.victim)

    def check(self) -> tuple[str, str]:
        """The guest is on one side, as it was promised, and nothing of the move is left; gives the side, and its
        state."""
        said = self.both(f"virsh -q 'list --all; vol-list mint'; ls {self.disk}")
        states = {side: re.findall(rf"^ *[-\d]+ +{NAME} +(.*\S)", text, re.MULTILINE) for side, text in said.items()}
        found = [(side, state) for side in (SOURCE, TARGET) for state in states[side]]
        assert len(found) == 1 and found[0] in self.allowed(), found
        files = {side: text.count(self.disk) for side, text in said.items()}
        assert all(count == (2 if side == found[0][0] else 0) for side, count in files.items()), said
        self.server.zero.wait("a content doctor", "mintctl doctor >/dev/null")
        move = [entry for entry in operations(self.server.zero) if entry["kind"] == "migrate"][-1]
        assert move["state"] in ("done", "failed", "cancelled", "refused"), move
        return found[0]

    def start(self, guest: Guest) -> None:
        """Of a guest that has ended."""
        guest.node.run(f"rm -f {guest.log_path}; virsh start {NAME}")
        guest.wait_line("mint-guest: up")

    def carry_out(self) -> int:
        """Gives the node that has the guest now; there it runs again."""
        began = time.monotonic()
        job = self.move()
        self.kill()
        moved = self.recover(job)
        side, state = self.check()
        guest = Guest(self.nodes[side], NAME)
        if state == "shut off":
            self.start(guest)
        count = f"grep -c 'tick ' {guest.log_path}"
        guest.node.run(f"was=$({count}); until [ $({count}) -gt $was ]; do sleep 0.2; done")
        status = moved.status if moved else None
        print(f"{self}: {side}, {state}; mintctl ended with {status}; {time.monotonic() - began:.1f} s")
        return guest.node.number


def operations(node: Node) -> list[dict]:
    """Operations of a node's mintd, the last one last."""
    return sorted(Mintctl(node)("operation", "list")["operations"], key=lambda entry: entry["id"])


class SwitchOver(Round):
    """A move whose source has sent all of it, and whose target says nothing, when the source's libvirtd is killed."""

    def move(self) -> Job:
        """The target's libvirtd stands still, from when memory goes."""
        job = super().move()
        self.nodes[TARGET].run("kill -STOP $(pidof libvirtd)")
        self.at.run(halt.GO_ON)
        self.nodes[SOURCE].wait("its switch-over", f"grep -q \"phase='perform3_done'\" /run/libvirt/qemu/{NAME}.xml")
        return job

    def kill(self) -> None:
        """Afterwards the target's goes on."""
        super().kill()
        self.nodes[TARGET].run("kill -CONT $(pidof libvirtd)")


@contextlib.contextmanager
def halting(server: Server) -> Iterator[None]:
    """The mint-guestds of nodes 1 and 2 take part."""
    nodes: list[Node] = [server.one, server.two]
    for node in (server.zero, *nodes):
        server.wait_ready(node)
    with halt.armed(nodes, GUESTD):
        yield
