# SPDX-License-Identifier: Apache-2.0
"""Moves between running nodes, while mintctl, a mintd or a whole node is killed at a random step.

Random, but the same for the same --seed; the seed is in the output of a test
that fails. --stress-rounds makes it longer (make soak).
"""

import random
import time

import pytest

from rig.ledger import Ledger
from rig.load import check, load
from rig.mintctl import Mintctl
from rig.server import CARD2_E1000E, ONE, TWO, Server
from rig.wait import wait_until

NODES = (0, 1, 2)
NAMES = ("node0", ONE.name, TWO.name)
# Longer than any of the moves takes, so that some end before the kill.
KILL_AFTER_S = 2.0
# mint-service starts a mintd again after a second.
ANSWER_LIMIT_S = 120
# A session on a node that is killed ends within seconds.
SSH_OPTIONS = "-o ConnectTimeout=10 -o ServerAliveInterval=2 -o ServerAliveCountMax=5"


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


def on(number: int, command: str) -> str:
    """A command for node 0's shell that runs on a node without any mintd's help."""
    return command if number == 0 else f"ssh {SSH_OPTIONS} 10.77.0.{10 + number} {command}"


def kill_something(server: Server, rng: random.Random, asker: int) -> str:
    """What was killed, in words; asker is the node on which mintctl runs."""
    what = rng.choice(("mintctl", "mintd", "mintd", "node", "node"))
    if what == "node":
        number = rng.choice((1, 2))
        server.zero.run(f"mintctl node kill {number}", check=False)
    else:
        number = asker if what == "mintctl" else rng.choice(NODES)
        server.zero.run(on(number, f"killall -9 {what}"), check=False)
    return f"{what} {number}"


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
        if server.mintctl.state(number) != "running":
            server.mintctl("node", "start", NAMES[number])
        server.wait_ready(server.node(number))
        server.wait_mintd(server.node(number), ANSWER_LIMIT_S)
    wait_until("all mintds", lambda: all_answer(server), ANSWER_LIMIT_S, every_s=0.5)
    for number in NODES:
        Mintctl(server.node(number))("doctor", "--repair")


def kill_amid_a_move(server: Server, rng: random.Random, told: str, start: Ledger) -> None:
    """One round; told is where it is, in words, start the ledger before all rounds."""
    asker, words = rng.choice(NODES), some_move(rng)
    job = server.zero.start(on(asker, " ".join(["mintctl", *words])), limit_s=240)
    time.sleep(rng.uniform(0, KILL_AFTER_S))
    killed = kill_something(server, rng, asker)
    told += f": node {asker}: {' '.join(words)}: {job.wait().status}; killed {killed}"
    print(told)
    recover(server)
    now = server.ledger()
    assert not now.moving(), f"{told}: {now.moving()}"
    assert now.resources.keys() == start.resources.keys(), told
    lost = {key: value for key, value in now.resources.items() if value[0] not in ("owned", "free")}
    assert not lost, f"{told}: {lost}"


def test_kills_at_random_steps_lose_nothing(bare: Server, request: pytest.FixtureRequest):
    """After each kill and the doctor's repair: nothing is between owners, nothing is gone, every node works;
    a guest on node 0 never notices."""
    seed = request.config.getoption("--seed")
    rng = random.Random(seed)
    start = bare.ledger()
    bare.ensure_pair()
    with load([bare.zero]) as found:
        for number in range(request.config.getoption("--stress-rounds")):
            kill_amid_a_move(bare, rng, f"seed {seed}, round {number}", start)
            check(found)
    bare.give_back()
    assert not (changed := start.difference(bare.ledger())), f"seed {seed}: {changed}"
