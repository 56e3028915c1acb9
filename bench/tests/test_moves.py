# SPDX-License-Identifier: Apache-2.0
"""Many moves between running nodes, in random order, while guests and a ping run on them.

Random, but the same for the same --seed; the seed is in the output of a test
that fails. --moves makes it longer (make soak).
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from rig.functions import addressed
from rig.ledger import Ledger
from rig.load import Busy, Ping, check
from rig.mintctl import FAILED, REFUSED, Mintctl, MintctlError
from rig.resources import Resources
from rig.server import CARD0, CARD1, CARD2_E1000E, ONE, TWO, Server

NAMES = ("node0", ONE.name, TWO.name)
# Nodes with a guest. Its vCPU has one core that it cannot do without: not the
# boot core, if there is another.
LOADED = (0, 2)
# Of 14 moves ten are cores', three memory's, one a function's.
SHARES = {"cpu": 10, "memory": 3, "device": 1}
BLOCK = "128M"
# Blocks that a node may have less than at first.
MAY_LACK = 2
# Free memory that node 0 may have less after all: guests' logs, libvirt, the page tables of
# memory that came back by blocks.
LEAK_SLACK_BYTES = 24 << 20


@dataclass
class Moves:
    """Makes moves and keeps count."""

    server: Server
    rng: random.Random
    start: Ledger
    done: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SHARES, 0))
    refused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SHARES, 0))

    def core(self, now: Ledger) -> tuple[list[str], int | None, int]:
        """A core that can go goes to another node: words, giver, taker."""
        stay = {node: 2 if node in LOADED else 1 for node in range(3)}
        giver = self.rng.choice([node for node in range(3) if len(now.owned("cpu", node)) > stay[node]])
        taker = self.rng.choice([node for node in range(3) if node != giver])
        return ["node", "resize", NAMES[taker], "--cpus", "+1", "--from", NAMES[giver]], giver, taker

    def memory(self, now: Ledger) -> tuple[list[str], int | None, int | None]:
        """A block goes from one node to another, or is free in between; nobody has more than MAY_LACK blocks less than
        at first."""
        places = (None, 0, 1, 2)
        least = {place: len(self.start.owned("memory", place)) - MAY_LACK for place in places} | {None: 0}
        giver = self.rng.choice([place for place in places if len(now.owned("memory", place)) > least[place]])
        taker = self.rng.choice([place for place in places if place != giver])
        if giver is None:
            return ["node", "resize", NAMES[taker], "--memory", f"+{BLOCK}"], giver, taker
        to = [] if taker is None else ["--to", NAMES[taker]]
        return ["node", "resize", NAMES[giver], "--memory", f"-{BLOCK}", *to], giver, taker

    def device(self, now: Ledger) -> tuple[list[str], int | None, int]:
        """The second network card goes to another node."""
        (giver,) = [node for node in range(3) if CARD2_E1000E in now.owned("device", node)]
        taker = self.rng.choice([node for node in range(3) if node != giver])
        return ["device", "move", CARD2_E1000E, "--to", NAMES[taker]], giver, taker

    def one(self, kind: str, asked: int) -> bool:
        """A move, asked for on a node: one of the kind is the taker's afterwards, and nothing else has changed; or it
        is refused. Gives whether it was done."""
        before = self.server.ledger()
        plan: Callable[[Ledger], tuple[list[str], int | None, int | None]]
        plan = {"cpu": self.core, "memory": self.memory, "device": self.device}[kind]
        words, giver, taker = plan(before)
        try:
            Mintctl(self.server.node(asked))(*words)
        except MintctlError as error:
            assert kind == "memory" and stays(error), f"{words}: {error}"
            assert not (changed := before.difference(self.server.ledger())), f"{words}: {changed}"
            self.refused[kind] += 1
            return False
        after = self.server.ledger()
        for node, more in ((giver, -1), (taker, 1)):
            assert len(after.owned(kind, node)) == len(before.owned(kind, node)) + more, words
        assert len(before.difference(after)) == 1, f"{words}: {before.difference(after)}"
        if kind == "device":
            carries_frames(self.server, taker)
        self.done[kind] += 1
        return True


def stays(error: MintctlError) -> bool:
    """Whether blocks hold pages that cannot leave: refused where that is seen before, failed for the same reason where
    only the try shows it."""
    return "memory_busy" in error.codes and (error.status, error.code) in ((REFUSED, "plan_refused"), (FAILED, "failed"))


def carries_frames(server: Server, owner: int) -> None:
    """The moved card works where it is now: frames come and go. All cards are on one wire: to another node's own."""
    other, card = (server.one, CARD1) if owner == 0 else (server.zero, CARD0)
    node = server.node(owner)
    with addressed(node, CARD2_E1000E, "192.0.2.1/24"), addressed(other, card, "192.0.2.2/24"):
        node.wait("its card's link", "ping -c 1 -W 1 192.0.2.2 >/dev/null")
        node.run("ping -c 20 -i 0.05 -W 5 -s 1400 192.0.2.2")


def wanted(count: int) -> dict[str, int]:
    """How many moves of each kind so many are; one of each at least."""
    whole = sum(SHARES.values())
    counts = {kind: max(1, count * share // whole) for kind, share in SHARES.items()}
    return counts | {"cpu": counts["cpu"] + max(0, count - sum(counts.values()))}


@pytest.mark.soak
def test_random_moves_under_load(worn_peers: tuple[Server, list[Busy]], request: pytest.FixtureRequest):
    """Cores, memory and a function go to and fro between all nodes, asked for on any: each move does what it says,
    guests and pings do not notice. As many of each kind as are wanted are done; a refused one does not count."""
    server, found = worn_peers
    seed = request.config.getoption("--seed")
    rng = random.Random(seed)
    moves = Moves(server, rng, server.ledger())
    goal = wanted(request.config.getoption("--moves"))
    before = Resources(server.zero)
    ping = Ping(server.one, server.two)
    while left := {kind: count - moves.done[kind] for kind, count in goal.items() if moves.done[kind] < count}:
        kind, asked = rng.choices(list(left), list(left.values()))[0], rng.choice(range(3))
        done = moves.one(kind, asked)
        print(f"seed {seed}: {kind}, asked on node {asked}: {'done' if done else 'refused'}; done {moves.done}")
        assert moves.refused["memory"] <= max(3, goal["memory"]), f"seed {seed}: most memory should be able to leave"
    check(found)
    ping.check_and_end()
    print(f"seed {seed}: done {moves.done}, refused {moves.refused}")
    assert moves.done == goal
    try:
        server.restore(moves.start)
        check(found)
    except MintctlError as error:
        # As above: then nodes 1 and 2 are made anew, without guests.
        assert stays(error), error
        server.give_back(like=moves.start)
        server.ensure_pair()
    assert not (changed := moves.start.differs_but_for_blocks(server.ledger())), f"seed {seed}: {changed}"
    before.check(Resources(server.zero), LEAK_SLACK_BYTES)
