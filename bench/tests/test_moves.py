# SPDX-License-Identifier: Apache-2.0
"""Many moves between running nodes, in random order, while guests and a ping run on them.

Random, but the same for the same --seed; the seed is in the output of a test
that fails. --moves makes it longer (make soak).
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from rig.ledger import Ledger
from rig.load import Ping, check, load
from rig.mintctl import REFUSED, MintctlError
from rig.server import CARD2_E1000E, ONE, TWO, Server

NAMES = ("node0", ONE.name, TWO.name)
# Nodes with a guest. Its vCPU has one core that it cannot do without: not the
# boot core, if there is another.
LOADED = (0, 2)
# Of 14 moves ten are cores', three memory's, one a function's.
WEIGHTS = (10, 3, 1)
BLOCK = "128M"
# Blocks that a node may have less than at first.
MAY_LACK = 2


@dataclass
class Moves:
    """Makes moves and keeps count."""

    server: Server
    rng: random.Random
    start: Ledger
    done: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

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

    def one(self, kind: str, plan: Callable[[Ledger], tuple[list[str], int | None, int | None]]) -> None:
        """A move: one of the kind is the taker's afterwards, and nothing else has changed; or it is refused."""
        before = self.server.ledger()
        words, giver, taker = plan(before)
        try:
            self.server.mintctl(*words)
        except MintctlError as error:
            # A block may hold pages that cannot leave; then it says so.
            assert kind == "memory" and error.status == REFUSED, f"{words}: {error}"
            assert not (changed := before.difference(self.server.ledger())), f"{words}: {changed}"
            self.refused[kind] = self.refused.get(kind, 0) + 1
            return
        after = self.server.ledger()
        for node, more in ((giver, -1), (taker, 1)):
            assert len(after.owned(kind, node)) == len(before.owned(kind, node)) + more, words
        assert len(before.difference(after)) == 1, f"{words}: {before.difference(after)}"
        self.done[kind] = self.done.get(kind, 0) + 1


def test_random_moves_under_load(worn: Server, request: pytest.FixtureRequest):
    """Cores, memory and a function go to and fro between all nodes: each move does what it says, guests and the ping
    do not notice."""
    seed = request.config.getoption("--seed")
    rng = random.Random(seed)
    moves = Moves(worn, rng, worn.ledger())
    kinds = {"cpu": moves.core, "memory": moves.memory, "device": moves.device}
    with load([worn.node(number) for number in LOADED]) as found:
        ping = Ping(worn.one, worn.two)
        for number in range(request.config.getoption("--moves")):
            kind = rng.choices(list(kinds), WEIGHTS)[0]
            print(f"seed {seed}, move {number}: {kind}")
            moves.one(kind, kinds[kind])
        check(found)
        ping.check_and_end()
    print(f"seed {seed}: done {moves.done}, refused {moves.refused}")
    assert moves.refused.get("memory", 0) <= moves.done.get("memory", 0), "most memory should be able to leave"
    # Everybody gives back what is not its own; of memory as much as it was, whichever blocks.
    worn.give_back(like=moves.start)
    worn.ensure_pair()
    end = worn.ledger()
    for kind in "cpu", "device":
        for place in (None, 0, 1, 2):
            assert end.owned(kind, place) == moves.start.owned(kind, place), f"seed {seed}: {kind}s of {place}"
