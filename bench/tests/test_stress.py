# SPDX-License-Identifier: Apache-2.0
"""Moves between running nodes, while mintctl, a mintd or a whole node is killed amid one of them.

Random, but the same for the same --seed; the seed is in the output of a test
that fails. --stress-rounds makes it longer (make soak).
"""

import contextlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from rig.channel import Job
from rig.errors import NodeEnded
from rig.ledger import Ledger
from rig.load import Busy, check
from rig.mintctl import Mintctl
from rig.node import Node
from rig.resources import Resources
from rig.server import CARD2_E1000E, ONE, TWO, Server
from rig.wait import wait_until

NODES = (0, 1, 2)
NAMES = ("node0", ONE.name, TWO.name)
# The kill comes after so many changes of the ledger's words at most: one that is claimed or
# released changes twice. Few moves make more than six.
CHANGES_MAX = 6
# mint-service starts a mintd again after a second.
ANSWER_LIMIT_S = 120
# Rounds that may miss, or whose move is refused, for each kill that hits.
TRIES = 6
# Free memory that node 0 may have less after all.
LEAK_SLACK_BYTES = 24 << 20


def some_move(rng: random.Random) -> list[str]:
    """Words of a mintctl command that moves something; it may well be refused."""
    node, other = rng.sample(NAMES[1:], 2)
    resize = ["node", "resize", node]
    return rng.choice(
        (
            [*resize, "--cpus", "+1", "--from", rng.choice(NAMES)],
            [*resize, "--cpus", "-1"],
            [*resize, "--memory", "+128M"],
            [*resize, "--memory", "-128M"],
            [*resize, "--memory", "-128M", "--to", other],
            ["device", "move", CARD2_E1000E, "--to", rng.choice(NAMES)],
            [*resize, "--cpus", "+1", "--memory", "+128M", "--device", CARD2_E1000E, "--from", ",".join(NAMES)],
        )
    )


def kill_something(server: Server, rng: random.Random, asker: int) -> tuple[str, bool]:
    """What was killed, in words, and whether there was one; asker is the node on which mintctl runs."""
    what = rng.choice(("mintctl", "mintd", "mintd", "node", "node"))
    if what == "node":
        number = rng.choice((1, 2))
        # Through the kernel: node 0's mintd is busy with the move.
        killed = server.zero.run(f"mintctl node kill {number}", check=False).status == 0
    else:
        number = asker if what == "mintctl" else rng.choice(NODES)
        killed = server.node(number).run(f"killall -9 {what}", check=False).status == 0
    return f"{what} {number}", killed


def all_answer(server: Server) -> bool:
    """All three nodes run and their mintds answer each other; they answer mintctl already."""
    return all(
        [node["mintd"] for node in Mintctl(server.node(number))("node", "list")["nodes"]] == ["ok"] * len(NODES)
        for number in NODES
    )


def recover(server: Server) -> None:
    """What an administrator would do: start the node that is dead, let the doctor heal."""
    server.wait_mintd(server.zero, ANSWER_LIMIT_S)
    for number in (1, 2):
        if server.state(number) != "running":
            server.mintctl("node", "start", NAMES[number])
        server.wait_mintd(server.node(number), ANSWER_LIMIT_S)
    wait_until("all mintds", lambda: all_answer(server), ANSWER_LIMIT_S, every_s=0.5)
    for number in NODES:
        Mintctl(server.node(number))("doctor", "--repair")


# Where a daemon dies (fault_point() of mint-node), and on which node: a core and a block of memory
# go from node 1 to node 2, asked for on node 0.
STEPS = (("after-journal", 0), ("after-release", 1), ("after-claim", 2), ("before-commit", 0))
FAULT = "/run/mint/fault"  # holds the name of the step


@contextlib.contextmanager
def fallible(nodes: list[Node]) -> Iterator[None]:
    """The mintds of these nodes look at FAULT at each step."""
    for node in nodes:
        node.run(f"rm -f {FAULT}; MINT_FAULT={FAULT} mint-service restart mintd")
    try:
        yield
    finally:
        for node in nodes:
            node.run(f"rm -f {FAULT}; mint-service restart mintd")


@pytest.mark.soak
def test_mintd_that_dies_at_a_step_leaves_all_or_nothing(pair: Server, request: pytest.FixtureRequest):
    """At each of the named steps of a compound move, the daemon that does it: it is back a moment later, and after
    the doctor's repair the move is done as a whole, or not at all."""
    core = str(ONE.cpus[-1])
    words = ["node", "resize", TWO.name, "--cpus", f"{TWO.cpus[0]},{core}", "--memory", "+128M@numa0", "--from", ONE.name]
    start, nodes = pair.ledger(), [pair.node(number) for number in NODES]
    hits: dict[tuple[str, int], int] = dict.fromkeys(STEPS, 0)
    with fallible(nodes):
        recover(pair)
        for _ in range(max(1, request.config.getoption("--stress-rounds") // len(STEPS))):
            for step, number in STEPS:
                nodes[number].run(f"echo {step} >{FAULT}")
                result = pair.zero.run(f"mintctl {' '.join(words)}", 240, check=False)
                assert nodes[number].run(f"test -e {FAULT}", check=False).status == 1, f"no daemon came to {step}"
                hits[step, number] += 1
                recover(pair)
                now = pair.ledger()
                assert not now.moving(), f"{step} on node {number}: {now.moving()}"
                more = len(now.owned("memory", 2)) - len(start.owned("memory", 2))
                done = now.resources["cpu", core] == ("owned", 2), more == 1
                print(f"{step} on node {number}: mintctl ended with {result.status}; done: {done}; hits {sum(hits.values())}")
                assert done in ((True, True), (False, False)), f"{step} on node {number}: a part of it is done"
                if all(done):
                    pair.restore(start)
                assert not (changed := start.difference(pair.ledger())), f"{step} on node {number}: {changed}"
    assert all(hits.values()), hits
    recover(pair)


def is_under_way(server: Server, job: Job, start: Ledger, changes: int) -> bool:
    """Wait until the ledger in RAM has changed so often since; False if the move has ended before."""
    while not job.done():
        if server.ledger().changes() - start.changes() >= changes:
            return True
        time.sleep(0.002)
    return False


@dataclass
class Kills:
    """What was killed amid moves, and how often in vain."""

    hits: int = 0
    misses: int = 0

    def one(self, server: Server, rng: random.Random, told: str, start: Ledger) -> None:
        """A move and a kill; told is where it is, in words, start the ledger before all."""
        asker, words = rng.choice(NODES), some_move(rng)
        before = server.ledger()
        job = server.node(asker).start(f"exec mintctl {' '.join(words)}", limit_s=240)
        # A kill hits if the move has begun to change owners, and has not ended.
        under_way = is_under_way(server, job, before, rng.randint(1, CHANGES_MAX))
        killed, there = kill_something(server, rng, asker) if under_way else ("nothing: it had ended", False)
        hit = under_way and there
        self.hits, self.misses = self.hits + hit, self.misses + (not hit)
        print(f"{told}: node {asker}: {' '.join(words)}; killed {killed}; hits {self.hits}, misses {self.misses}")
        with contextlib.suppress(NodeEnded):
            job.wait()
        if not hit:
            return
        recover(server)
        now = server.ledger()
        assert not now.moving(), f"{told}: {now.moving()}"
        assert now.resources.keys() == start.resources.keys(), told
        lost = {key: value for key, value in now.resources.items() if value[0] not in ("owned", "free")}
        assert not lost, f"{told}: {lost}"


@pytest.mark.soak
@pytest.mark.soak_only
def test_kills_at_any_change_lose_nothing(worn_peers: tuple[Server, list[Busy]], request: pytest.FixtureRequest):
    """After each kill that hits, and the doctor's repair: nothing is between owners, nothing is gone, every node
    works; a guest on node 0 never notices. --stress-rounds kills hit."""
    server, found = worn_peers
    on_node0 = [busy for busy in found if busy.guest.node.number == 0]
    seed = request.config.getoption("--seed")
    rng = random.Random(seed)
    start, before = server.ledger(), Resources(server.zero)
    count, kills = request.config.getoption("--stress-rounds"), Kills()
    while kills.hits < count:
        kills.one(server, rng, f"seed {seed}, round {kills.hits + kills.misses}", start)
        check(on_node0)
        assert kills.misses <= TRIES * count, f"seed {seed}: {kills}"
    print(f"seed {seed}: {kills}")
    assert kills.hits == count
    server.give_back(like=start)
    server.ensure_pair()
    assert not (changed := start.differs_but_for_blocks(server.ledger())), f"seed {seed}: {changed}"
    before.check(Resources(server.zero), LEAK_SLACK_BYTES)
