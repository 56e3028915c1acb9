# SPDX-License-Identifier: Apache-2.0
"""The move of a guest whose memory is split is cancelled: the guest goes on where it was, with all of its memory, also if
its next host does not say a word any more."""

from collections.abc import Callable

import pytest

from rig import halt
from rig.channel import Job
from rig.guest import Guest, counted_versions
from rig.killed_move import NAME, RECORDS, halting, operations
from rig.mintctl import FAILED
from rig.server import Server

OPTIONS = "--memory 128M --split main=64M,node0=rest --no-network --no-disk --memory-load 14336"
COMPARED = "tick [0-9]* at .*, [1-9][0-9]* versions"
LIMIT_S = 240
PAGERS = "pgrep -x mint-pager >/dev/null"


def amid_its_memory(pair: Server) -> Job:
    """It runs; the next host's pager stands still amid what it is sent."""
    halt.ask(pair.two, "pager-copied")
    job = move(pair)
    halt.wait(pair.two, "pager-copied")
    return job


def amid_the_last_of_it(pair: Server) -> Job:
    """It stands still; the next host's pager takes nothing of the last of it, nor answers."""
    halt.ask(pair.one, "pager-final")
    job = move(pair)
    halt.wait(pair.one, "pager-final")
    pair.two.run(f"pkill -STOP -x mint-pager; {PAGERS}")
    pair.one.run(halt.GO_ON)
    pair.one.wait("a guest that stands still", f"virsh domstate {NAME} | grep -q paused", LIMIT_S)
    return job


def move(pair: Server) -> Job:
    """Begins to move it."""
    words = f"mintctl vm migrate {NAME} --to node2 --split main=64M,node0=rest --bandwidth 8M --json"
    return pair.zero.start(words, LIMIT_S)


@pytest.mark.soak
@pytest.mark.soak_only
@pytest.mark.parametrize("begun", [amid_its_memory, amid_the_last_of_it])
def test_split_guest_whose_move_is_cancelled_goes_on_where_it_was(pair: Server, begun: Callable[[Server], Job]):
    """mintctl operation cancel, when the next host's pager says nothing: the guest goes on, nothing is left there, and it
    can go there later."""
    with halting(pair), Guest(pair.one, NAME) as here, Guest(pair.two, NAME) as there:
        here.start(OPTIONS)
        here.wait_line(COMPARED, LIMIT_S)
        job = begun(pair)
        before = counted_versions(here.log())[-1]
        (entry,) = [found for found in operations(pair.zero) if found["state"] == "running"]
        assert (entry["kind"], entry["subject"]) == ("migrate", NAME)
        pair.mintctl("operation", "cancel", entry["id"])
        ended = job.wait()
        pair.two.run(f"pkill -CONT -x mint-pager; {halt.GO_ON}", check=False)
        assert ended.status == FAILED and "it stays on one (running)" in ended.err, ended
        assert [found["state"] for found in operations(pair.zero) if found["id"] == entry["id"]] == ["cancelled"]
        for node in (pair.one, pair.two):
            node.wait("nothing left to settle", f"! ls {RECORDS}/*.json >/dev/null 2>&1", LIMIT_S)
        pair.two.wait("no process of it there", f"! {PAGERS} && ! pgrep -x mint-keeper >/dev/null", LIMIT_S)
        assert NAME not in pair.two.out("virsh -q list --all --name").split()
        here.node.wait("it compares its memory", f"! tail -n 1 {here.log_path} | grep -q ', {before} versions'", LIMIT_S)
        pair.mintctl("vm", "migrate", NAME, "--to", "two")
        there.wait_line(COMPARED, LIMIT_S)
        assert "FAIL" not in here.log() + there.log()
        assert not pair.mintctl("vm", "memory", NAME)["lost_bytes"]
