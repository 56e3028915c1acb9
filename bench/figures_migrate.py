# SPDX-License-Identifier: Apache-2.0
"""Group "migrate" of make report: what it takes a guest to go to another node, beside another machine; and what its
Ethernet costs it.

moves      an idle guest of 512 MiB from node 1 to node 2 by mintctl; in turns with it the same guest by virsh, which
           neither plans nor looks whether it came, and one like it from node 0 to node 0 of another machine by
           virsh, over TLS and the wire between both
ethernet   one TCP stream, and one byte's round trip, between guests: of nodes 1 and 2 on the Ethernet of all nodes;
           on bridges that the nodes route between; of node 1 alone
"""

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from figures_ethernet import Talkers
from figures_programs import TMP, seconds
from report.figure import Figure
from report.goals import EMULATOR, Goal, equal
from report.recorder import Recorder, Taker
from report.turns import turns
from rig.clock import set_clocks
from rig.errors import RigError
from rig.guest import Guest
from rig.linked import linked
from rig.machine import MachineConfig
from rig.node import Node
from rig.server import ONE, TWO, Server
from rig.two import TwoMachines

GROUP = "migrate"
NOT_AT = "it takes a second server on one wire with this one, which a plan cannot name yet"
MACHINES, QUICK_MACHINES = 5, 1
MOVE_ROUNDS, QUICK_MOVE_ROUNDS = 2, 1
TALK_ROUNDS, QUICK_TALK_ROUNDS = 4, 1

# Node 2 takes a guest of 512 MiB, too.
MINT_ROOMY = "mint=on,mem=1408M@0,mem=1792M@1"
ROOMY = replace(TWO, memory_mib=1152)
GUEST_MIB, USED_MIB = 512, 128
LIMIT_S = 300
MIGRATE = "virsh -q migrate --live --p2p --persistent --undefinesource"
# Its memory is not all zeroes, which QEMU does not send.
USE = f"mkdir -p /used && mount -t tmpfs used /used && dd if=/dev/urandom of=/used/all bs=1M count={USED_MIB} 2>/dev/null"

NODES, AGAIN, PLAIN, MACHINE = "nodes", "nodes again", "plain", "machines"
MOVE_SIDES = {
    NODES: "node 1 → node 2, mintctl",
    AGAIN: "the same again",
    PLAIN: "node 1 → node 2, virsh",
    MACHINE: "machine → machine, virsh --tls",
}
ETHERNET, ETHERNET_AGAIN, ROUTES, ONE_NODE = "ethernet", "ethernet again", "routes", "one node"
TALK_SIDES = {
    ETHERNET: "guests of two nodes, one Ethernet",
    ETHERNET_AGAIN: "the same again",
    ROUTES: "the same guests, nodes route",
    ONE_NODE: "two guests of node 1",
}
IDLE = f"An idle guest of {GUEST_MIB} MiB, of which {USED_MIB} are used, without a disk."
FIGURES = (
    Figure(GROUP, "total", "A running guest goes to another kernel", "s", MOVE_SIDES,
           note=f"{IDLE} By the clock of the node that it leaves, around the command that a user gives."),
    Figure(GROUP, "downtime", "The guest stands still", "s", MOVE_SIDES,
           note=f"{IDLE} As libvirt counts it, from one host's clock to the other's; those of two machines were set alike."),
    Figure(GROUP, "stream", "One TCP stream between guests", "MB/s", TALK_SIDES),
    Figure(GROUP, "trip", "Round trip of one byte between guests", "µs", TALK_SIDES),
)  # fmt: skip
GOALS = (
    Goal("a guest goes to a node in a third of the time of a machine", GROUP, "total", NODES, MACHINE, high=1 / 3,
         where=(EMULATOR,)),
    Goal("a guest stands still no longer", GROUP, "downtime", NODES, MACHINE, high=1.0, where=(EMULATOR,)),
    Goal("plan, reservation and looks are a twentieth of a move", GROUP, "total", NODES, PLAIN, high=1.05, where=(EMULATOR,)),
    Goal("guests' Ethernet is as quick as routes", GROUP, "stream", ETHERNET, ROUTES, low=0.9, where=(EMULATOR,)),
    equal("a guest goes to a node, and again", GROUP, "total", AGAIN, NODES, within=0.15, null=True),
    equal("a stream on the guests' Ethernet, and again", GROUP, "stream", ETHERNET_AGAIN, ETHERNET, within=0.15, null=True),
)  # fmt: skip
UNITS = {"total": "s", "downtime": "s", "stream": "MB/s", "trip": "µs"}


class Mover(Protocol):
    """A side of the moves."""

    def move(self) -> dict[str, float]:
        """There and back; the way there by case."""


def timed(node: Node, command: str, limit_s: float = LIMIT_S) -> tuple[float, str]:
    """A command's seconds, by its node's clock, and its output."""
    text = node.out(
        f"set -e; begin=$(date +%s%N); {command} >{TMP}/said; echo; echo took $(( ($(date +%s%N) - begin) / 1000 ));"
        f" cat {TMP}/said",
        limit_s,
    )
    # a command may say nothing
    return seconds(text, "took")[0], text.partition("\ntook ")[2].partition("\n")[2]


def used(guest: Guest) -> Guest:
    """Started on its node, its memory used."""
    guest.start(f"--memory {GUEST_MIB}M --no-disk --no-network --append mint.tick=0")
    text, status = guest.shell(USE, LIMIT_S)
    if status:
        raise RigError(f"{guest} does not fill its memory:\n{text}")
    return guest


class BetweenNodes:
    """Node 1 to node 2, by mintctl."""

    NAME = "roamer"

    def __init__(self, server: Server) -> None:
        self._one, self._two = server.one, server.two

    def _there(self) -> dict[str, float]:
        total_s, said = timed(self._one, f"mintctl vm migrate {self.NAME} --to node2 --json")
        return figures(total_s, json.loads(said))

    def move(self) -> dict[str, float]:
        """A move, and back."""
        found = self._there()
        self._two.run(f"mintctl vm migrate {self.NAME} --to node1", LIMIT_S)
        return found


class ByVirsh(BetweenNodes):
    """The same guest, the same way, by virsh."""

    def _there(self) -> dict[str, float]:
        total_s, _ = timed(self._one, f"{MIGRATE} {self.NAME} qemu+ssh://node2/system")
        return {"total": total_s, "downtime": downtime_s(self._two.out(f"virsh domjobinfo {self.NAME} --completed"))}


def figures(total_s: float, said: dict) -> dict[str, float]:
    """Of a command and what it said. Raises RigError."""
    took = said["took"]
    if not took or not took["total_ms"]:
        raise RigError(f"mintctl does not say what the move took: {said}")
    return {"total": total_s, "downtime": took["downtime_ms"] / 1e3}


class BetweenMachines:
    """Node 0 to node 0 of the other machine, by virsh."""

    NAME = "traveller"

    def __init__(self, two: TwoMachines) -> None:
        self._here, self._there = two.a, two.b

    def _command(self, to: Server) -> str:
        return f"{MIGRATE} --tls {self.NAME} qemu+tls://{to.address(0)}/system"

    def move(self) -> dict[str, float]:
        """A move, and back."""
        total_s, _ = timed(self._here.zero, self._command(self._there))
        said = self._there.zero.out(f"virsh domjobinfo {self.NAME} --completed")
        self._there.zero.run(self._command(self._here), LIMIT_S)
        return {"total": total_s, "downtime": downtime_s(said)}


def downtime_s(said: str) -> float:
    """Of virsh's words for a migration that is over. Raises RigError."""
    found = re.search(r"^Total downtime: +(\d+) +ms", said, re.MULTILINE)
    if found is None:
        raise RigError(f"libvirt does not say how long the guest stood still:\n{said}")
    return int(found[1]) / 1e3


@contextlib.contextmanager
def movers(two: TwoMachines) -> Iterator[dict[str, Mover]]:
    """The guests, by side; ended at the end, wherever they are."""
    between_nodes = BetweenNodes(two.a)
    with contextlib.ExitStack() as ends:
        for node, name in (
            (two.a.one, BetweenNodes.NAME),
            (two.a.two, BetweenNodes.NAME),
            (two.a.zero, BetweenMachines.NAME),
            (two.b.zero, BetweenMachines.NAME),
        ):
            ends.enter_context(Guest(node, name))
        used(Guest(two.a.one, BetweenNodes.NAME))
        used(Guest(two.a.zero, BetweenMachines.NAME))
        yield {NODES: between_nodes, AGAIN: between_nodes, PLAIN: ByVirsh(two.a), MACHINE: BetweenMachines(two)}


def moved(taker: Taker, two: TwoMachines, seed: int, rounds: int) -> None:
    """All moves of a machine."""
    with movers(two) as by_side:
        # a first one of each: files and connections are there then
        for side in (NODES, PLAIN, MACHINE):
            by_side[side].move()
        for count, order in enumerate(turns(seed, f"{GROUP} {taker.name}", list(MOVE_SIDES), rounds)):
            for place, side in enumerate(order):
                for case, value in by_side[side].move().items():
                    taker.add(case, side, value, UNITS[case], round=count, order=place)


def talked(taker: Taker, server: Server, seed: int, rounds: int) -> None:
    """All streams and round trips of a machine."""
    with Talkers(server) as talkers:
        measured = {
            ETHERNET: talkers.ethernet, ETHERNET_AGAIN: talkers.ethernet, ROUTES: talkers.routes, ONE_NODE: talkers.one_node
        }  # fmt: skip
        for count, order in enumerate(turns(seed, f"{GROUP} talk {taker.name}", list(TALK_SIDES), rounds)):
            for place, side in enumerate(order):
                for case, value in measured[side]().items():
                    taker.add(case, side, value, UNITS[case], round=count, order=place)


def run(recorder: Recorder) -> None:
    """Measure what is missing."""
    seed = recorder.header.seed
    for name in recorder.to_do(GROUP, "machine", recorder.pick(MACHINES, QUICK_MACHINES)):
        with (
            recorder.machine(GROUP, name) as taker,
            TwoMachines(MachineConfig("figures-migrate", mint=MINT_ROOMY), ("figures-migrate-a", "figures-migrate-b")) as two,
        ):
            for plan in (ONE, ROOMY):
                two.a.add(plan)
            for node in (two.a.one, two.a.two):
                two.a.wait_ready(node)
            with linked(two):
                set_clocks((two.a.zero, two.b.zero))
                moved(taker, two, seed, recorder.pick(MOVE_ROUNDS, QUICK_MOVE_ROUNDS))
            talked(taker, two.a, seed, recorder.pick(TALK_ROUNDS, QUICK_TALK_ROUNDS))
