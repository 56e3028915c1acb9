# SPDX-License-Identifier: Apache-2.0
"""Guests that check themselves go from node to node, and to another machine and back: by mintctl and by plain virsh,
alone, several at once, past each other."""

import contextlib
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from rig.channel import Job
from rig.echo import address, echoes, wait_echoes
from rig.guest import Guest
from rig.node import Node
from rig.server import ONE, TWO
from rig.two import TwoMachines

LIMIT_S = 400  # of a move, beside three others
RECORDS = "/var/lib/mint/guests"
# Its versions of a file in memory, two at a time: each is compared with its sum while the next is written.
VERSIONS = (
    "n=0; while :; do n=$((n + 1)); v=$((n % 2)); dd if=/dev/urandom of=/tmp/m$v bs=64k count=2 2>/dev/null;"
    " md5sum /tmp/m$v >/tmp/s$v; cat /tmp/s? | md5sum -c -s || echo memory FA''IL at $n >/dev/console;"
    " echo $n >/tmp/version; sleep 2; done & true"
)
NODES = (ONE, TWO)
# How many guests have room; one more that is on its way does, too.
ROOM = {"node0": 4, "node1": 2, "node2": 2, "b/node0": 4}
MEMORY = "96M"


@dataclass
class Walker:
    """A guest that goes round, and where it is."""

    name: str
    vcpus: int
    at: str = ""
    version: int = 0
    replies: int = 0
    gap_s: float = field(default=0.0)


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
        replies, _ = wait_echoes(guest, 3)
        shown, status = guest.shell(f"until [ $(cat /tmp/version) -gt {walker.version + 1} ]; do sleep 0.3; done", 120)
        assert status == 0, shown
        version = int(re.findall(r"(?m)^(\d+)$", guest.shell("cat /tmp/version")[0])[-1])
        log = guest.log()
        assert "FAIL" not in log and "mint-guest: up" not in log.split("tick", 1)[-1], log[-2000:]
        assert version > walker.version and replies > walker.replies, (walker, version, replies)
        walker.version, walker.replies, walker.gap_s = version, replies, echoes(guest)[1]


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


def turns(walkers: list[Walker], rng: random.Random, number: int) -> list[tuple[Walker, str]]:
    """Who goes where next: one, two that pass each other if they can, all."""
    moving = rng.sample(walkers, (1, 2, len(walkers))[number % 3])
    if len(moving) == 2 and moving[0].at != moving[1].at:
        return [(moving[0], moving[1].at), (moving[1], moving[0].at)]
    at = {walker.name: walker.at for walker in walkers}
    ways = []
    for walker in moving:
        taken = Counter(at.values())
        at[walker.name] = rng.choice([name for name, room in ROOM.items() if name != walker.at and taken[name] < room])
        ways.append((walker, at[walker.name]))
    return ways


@pytest.mark.soak
@pytest.mark.soak_only
def test_guests_go_round_nodes_and_machines(linked: TwoMachines, request: pytest.FixtureRequest):
    """--circle-moves of four guests, one of them with two vCPUs: each writes and compares memory and disk, and talks by
    TCP with a guest that stays. Nothing is lost, no connection ends."""
    count, rng = request.config.getoption("--circle-moves"), random.Random(request.config.getoption("--seed"))
    walkers = [Walker(f"walker{number}", 2 if number == 1 else 1) for number in range(4)]
    done: Counter[str] = Counter()
    with circle(linked) as nodes, contextlib.ExitStack() as ends:
        for node in nodes.nodes.values():
            for name in ("speaker", *(walker.name for walker in walkers)):
                ends.enter_context(Guest(node, name))
        there = address(Guest(linked.b.zero, "speaker").start("--no-disk"))
        for walker, at in zip(walkers, nodes.nodes, strict=True):
            walker.at = at
            guest = nodes.guest(walker).start(f"--vcpus {walker.vcpus} --memory {MEMORY} --disk 8M --disk-load 4 --net-echo {there}")
            text, status = guest.shell(VERSIONS)
            assert status == 0, text
            nodes.check(walker)
        number = 0
        while sum(done.values()) < count:
            ways = turns(walkers, rng, number)
            jobs = []
            for walker, to in ways:
                how = ("mintctl", "virsh")[(number + len(jobs)) % 2]
                nodes.nodes[to].run(f"rm -f {Guest(nodes.nodes[to], walker.name).log_path}")
                jobs.append((walker, to, how, nodes.start(walker, to, how, rng)))
            for walker, to, how, job in jobs:
                result = job.wait()
                assert result.status == 0, (number, walker, to, how, result)
                done[f"{how}, {'machine' if 'b/node0' in (walker.at, to) else 'node'}, {len(ways)} at once"] += 1
                walker.at = to
            for walker, *_ in jobs:
                nodes.check(walker)
            number += 1
        for node in nodes.nodes.values():
            assert node.run(f"ls {RECORDS}/*.json", check=False).status != 0, node
        for server in linked.servers:
            server.zero.run("mintctl doctor")
    gaps = {walker.name: walker.gap_s for walker in walkers}
    print(f"{sum(done.values())} moves: {dict(done)}; longest time of a reply, in s: {gaps}")
    assert {how.split(",")[0] for how in done} == {"mintctl", "virsh"}
    assert {how.split(", ")[1] for how in done} == {"node", "machine"}
