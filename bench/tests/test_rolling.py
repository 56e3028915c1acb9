# SPDX-License-Identifier: Apache-2.0
"""Every node is restarted, one after the other, under guests that never stop: mintctl node restart --evacuate."""

import contextlib
import json

import pytest

from rig.echo import address, wait_echoes
from rig.guest import Guest, counted_versions, counted_writes
from rig.server import ONE, TWO, Server
from rig.wait import wait_until

LIMIT_S = 1200
# The node that restarts, its name, and the node that is asked for it.
TURNS = ((1, ONE.name, 0), (2, TWO.name, 1), (0, "node0", 2))
SPEAKER, HOMES = "speaker", {"speaker": 0, "first": 1, "second": 2}
LOAD = "--memory 96M --disk 8M --disk-load 4 --memory-load 128 --net-echo"
TOLD = "/run/restarted"


def restart(server: Server, number: int, name: str, asked: int) -> dict:
    """What the command says that another node's shell runs, as one that outlives its connection: node 0's end cuts it."""
    node, boots = server.node(asked), server.nodes()[number].boots
    channel = server.machine.channel
    boot_id = channel.boot_id
    node.run(f"rm -f {TOLD}*")
    node.run(
        f"setsid sh -c 'mintctl node restart {name} --evacuate --json >{TOLD} 2>&1; echo $? >{TOLD}.status'"
        " >/dev/null 2>&1 </dev/null &"
    )
    wait_until(f"another boot of {name}", lambda: server.nodes()[number].boots > boots, LIMIT_S)
    if number == 0:
        wait_until("node 0's agent", lambda: channel.boot_id != boot_id, LIMIT_S)
    node.wait("the command's end", f"[ -s {TOLD}.status ]", LIMIT_S)
    said = node.read(TOLD)
    assert node.read(f"{TOLD}.status") == "0", said
    assert server.nodes()[number].boots == boots + 1
    return json.loads(said.splitlines()[-1])


def goes_on(server: Server, name: str, before: tuple[int, ...]) -> tuple[tuple[int, ...], float]:
    """A guest is at home, and only there; what it counts goes on as in one boot. Gives what it has counted, and the longest
    time of a reply."""
    home = HOMES[name]
    found = [number for number in (0, 1, 2) if name in server.node(number).out("virsh -q list --name").split()]
    assert found == [home], (name, found)
    guest = Guest(server.node(home), name)
    guest.wait_ticks(2)
    if name == SPEAKER:
        now, gap_s = (guest.ticks(), int(guest.counter()[-1][1])), 0.0
    else:
        replies, gap_s = wait_echoes(guest, 3)
        log = guest.log()
        now = (guest.ticks(), replies, counted_versions(log)[-1], counted_writes(log)[-1])
    log = guest.log()
    # its log begins with its last coming
    assert "FAIL" not in log and "mint-guest: up" not in log.split("tick ", 1)[-1], log[-2000:]
    assert all(new > old for new, old in zip(now, before, strict=True)), (name, before, now)
    return now, gap_s


@pytest.mark.soak
@pytest.mark.soak_only
def test_nodes_restart_in_turn_under_guests_that_never_stop(worn: Server, request: pytest.FixtureRequest):
    """--rolling-rounds times nodes 1, 2 and 0, each asked for on another node: each boots once a round; a guest of each
    node writes and compares memory and disk, and those of nodes 1 and 2 talk to that of node 0 over one connection."""
    server, rounds = worn, request.config.getoption("--rolling-rounds")
    begin = {number: node.boots for number, node in server.nodes().items()}
    gaps, counted = {}, {}
    with contextlib.ExitStack() as ends:
        for name in HOMES:
            for number in (0, 1, 2):
                server.node(number).run(f"rm -f {Guest(server.node(number), name).log_path}")
                ends.enter_context(Guest(server.node(number), name))
        there = address(Guest(server.zero, SPEAKER).start("--no-disk"))
        for name, home in HOMES.items():
            if name != SPEAKER:
                Guest(server.node(home), name).start(f"{LOAD} {there}")
            counted[name], _ = goes_on(server, name, (0, 0) if name == SPEAKER else (0, 0, 0, 0))
        for turn in range(rounds):
            for number, restarts, asked in TURNS:
                done = restart(server, number, restarts, asked)
                at_home = {name for name, home in HOMES.items() if home == number}
                assert {vm["name"] for vm in done["evacuated"]["vms"]} == {vm["name"] for vm in done["returned"]} == at_home, done
                for node in (server.zero, server.one, server.two):
                    server.wait_ready(node)
                for name in HOMES:
                    counted[name], gaps[name] = goes_on(server, name, counted[name])
                print(f"round {turn}: {restarts} has restarted; {counted}; longest times of a reply, in s: {gaps}", flush=True)
        assert {number: node.boots - begin[number] for number, node in server.nodes().items()} == dict.fromkeys((0, 1, 2), rounds)
        assert server.mintctl("doctor")["ok"]
