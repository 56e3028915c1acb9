# SPDX-License-Identifier: Apache-2.0
"""Guests that check themselves go from node to node, and to another machine and back: by mintctl and by plain virsh,
alone, several at once, past each other."""

import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from rig.channel import Job
from rig.echo import address, wait_echoes
from rig.guest import LIMIT_S as START_LIMIT_S
from rig.guest import Guest, counted_versions, counted_writes, start_command
from rig.node import Node
from rig.server import ONE, TWO
from rig.two import TwoMachines

LIMIT_S = 400  # of a move, beside three others
RECORDS = "/var/lib/mint/guests"
NODES = (ONE, TWO)
# One round; each guest begins at another place of it.
ROUND = ("node2", "node0", "b/node0", "node0", "node1")
STARTS = (1, 4, 2, 3)
OPTIONS = "--memory 96M --disk 8M --disk-load 4 --memory-load 128"
LIMIT_TICKS = 120  # a guest's own seconds until all that it does has gone on


class Counted(NamedTuple):
    """What a guest has counted by now."""

    replies: int = 0
    versions: int = 0
    writes: int = 0


@dataclass
class Walker:
    """A guest that goes round, and where it is."""

    name: str
    vcpus: int
    place: int
    counted: Counted = Counted()
    gap_s: float = 0.0

    @property
    def at(self) -> str:
        """The node that it is on."""
        return ROUND[self.place]

    @property
    def next(self) -> str:
        """The node that it goes to."""
        return ROUND[(self.place + 1) % len(ROUND)]


class Circle:
    """The nodes, by what machine a's mintctl calls them."""

    def __init__(self, machines: TwoMachines) -> None:
        a, b = machines.a, machines.b
        self.nodes: dict[str, Node] = {"node0": a.zero, "node1": a.one, "node2": a.two, "b/node0": b.zero}
        self._addresses = {"node0": a.address(0), "node1": a.address(1), "node2": a.address(2), "b/node0": b.address(0)}
        self._askers = [node for name, node in self.nodes.items() if name != "b/node0"]

    def guest(self, walker: Walker) -> Guest:
        """Where it is now."""
        return Guest(self.nodes[walker.at], walker.name)

    def start(self, walker: Walker, to: str, how: str, rng: random.Random) -> Job:
        """Begin a move."""
        if how == "mintctl":
            return rng.choice(self._askers).start(f"mintctl vm migrate {walker.name} --to {to} --json", LIMIT_S)
        is_far = "b/node0" in (walker.at, to)
        uri, tls = (f"qemu+tls://{self._addresses[to]}/system", "--tls") if is_far else (f"qemu+ssh://{to}/system", "")
        return self.nodes[walker.at].start(
            f"path=$(virsh -q vol-path {walker.name}.raw --pool mint) && virsh migrate --live --p2p --persistent"
            f" --undefinesource --copy-storage-all {tls} {walker.name} {uri} && virsh -q vol-delete $path",
            LIMIT_S,
        )

    def check(self, walker: Walker) -> None:
        """It is at one place alone, with its disk, and does what it did: memory, disk and connection are as they
        should be, and go on."""
        look = f"virsh -q list --all --name | grep -x {walker.name}; ls /var/lib/libvirt/images | grep -x {walker.name}.raw"
        jobs = {name: node.start(f"{look}; true") for name, node in self.nodes.items()}
        there = {name: job.wait().out.split() for name, job in jobs.items()}
        assert {name for name, words in there.items() if words} == {walker.at}, (walker, there)
        assert there[walker.at] == [walker.name, f"{walker.name}.raw"], (walker, there)
        guest = self.guest(walker)
        replies, gap_s = wait_echoes(guest, 3)
        for _ in range(LIMIT_TICKS):
            versions, writes = counted_versions(guest.log()), counted_writes(guest.log())
            if versions[-1] > versions[0] + 1 and writes[-1] > writes[0]:
                break
            guest.wait_ticks(1)
        else:
            pytest.fail(f"{guest} does not go on: versions of memory {versions}, writes {writes}")
        log = guest.log()
        assert "FAIL" not in log and "mint-guest: up" not in log.split("tick", 1)[-1], log[-2000:]
        now = Counted(replies, counted_versions(log)[-1], counted_writes(log)[-1])
        assert all(new > old for new, old in zip(now, walker.counted, strict=True)), (walker, now)
        walker.counted, walker.gap_s = now, gap_s


@contextlib.contextmanager
def circle(machines: TwoMachines) -> Iterator[Circle]:
    """Machine a has nodes 1 and 2 meanwhile."""
    for plan in NODES:
        machines.a.add(plan)
    for node in (machines.a.one, machines.a.two):
        machines.a.wait_ready(node)
    yield Circle(machines)
    for plan in NODES:
        machines.a.mintctl("node", "remove", plan.name, "--force")


@pytest.mark.soak
def test_guests_go_round_nodes_and_machines(linked: TwoMachines, request: pytest.FixtureRequest):
    """--circle-moves of --circle-guests, one of them with two vCPUs: each writes and compares memory and disk, and talks by
    TCP with a guest that stays. Nothing is lost, no connection ends."""
    count, rng = request.config.getoption("--circle-moves"), random.Random(request.config.getoption("--seed"))
    guests = request.config.getoption("--circle-guests")
    walkers = [Walker(f"walker{number}", 2 if number == 0 else 1, place) for number, place in enumerate(STARTS[:guests])]
    done: Counter[str] = Counter()
    with circle(linked) as nodes, contextlib.ExitStack() as ends:
        for node in nodes.nodes.values():
            for name in ("speaker", *(walker.name for walker in walkers)):
                ends.enter_context(Guest(node, name))
        there = address(Guest(linked.b.zero, "speaker").start("--no-disk"))
        begun = []
        for walker in walkers:
            node = nodes.nodes[walker.at]
            options = f"--vcpus {walker.vcpus} {OPTIONS} --net-echo {there}"
            begun.append(node.start(start_command(node, walker.name, options), START_LIMIT_S))
        for walker, job in zip(walkers, begun, strict=True):
            assert job.wait().status == 0, (walker, job.result)
            nodes.check(walker)
        leg = 0
        while sum(done.values()) < count:
            # all at once, which is past each other on the wire, or one after the other
            together = [walkers] if leg % 2 == 0 else [[walker] for walker in walkers]
            for moving in together:
                jobs = []
                for walker in moving:
                    how = ("mintctl", "virsh")[(leg + walkers.index(walker)) % 2]
                    nodes.nodes[walker.next].run(f"rm -f {Guest(nodes.nodes[walker.next], walker.name).log_path}")
                    jobs.append((walker, how, nodes.start(walker, walker.next, how, rng)))
                for walker, how, job in jobs:
                    result = job.wait()
                    assert result.status == 0, (leg, walker, how, result)
                    done[f"{how}, {'machine' if 'b/node0' in (walker.at, walker.next) else 'node'}, {len(moving)} at once"] += 1
                    walker.place = (walker.place + 1) % len(ROUND)
                for walker, how, job in jobs:
                    nodes.check(walker)
                    took = f"{job.result.seconds:.1f} s"
                    print(f"{leg}: {walker.name} went to {walker.at} by {how}, {took}, {walker.counted}", flush=True)
            leg += 1
        for node in nodes.nodes.values():
            assert node.run(f"ls {RECORDS}/*.json", check=False).status != 0, node
        for server in linked.servers:
            server.zero.run("mintctl doctor")
    gaps = {walker.name: walker.gap_s for walker in walkers}
    print(f"{sum(done.values())} moves: {dict(done)}; longest time of a reply, in s: {gaps}")
    assert {how.split(",")[0] for how in done} == {"mintctl", "virsh"}
    assert {how.split(", ")[1] for how in done} == {"node", "machine"}
