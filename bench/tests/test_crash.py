# SPDX-License-Identifier: Apache-2.0
"""The end of node 1, however it comes, leaves nodes 0 and 2 and their guests
alone, is reported within 2 s (a hang within 5 s of its time), and node 1 can be
started again."""

import json
import random
import threading
import time

import pytest

from rig.errors import RigError
from rig.faults import bug_in_interrupt, deafen, hang_all_cores, scribble_over_text
from rig.guest import LIMIT_S, Guest, guests, start_command
from rig.resources import Resources
from rig.server import ONE, Server
from rig.wait import SLOWNESS

REPORT_LIMIT_S = 2.0
# A heart that stands still for [wait] hung_s, of which the rig's mint.toml says nothing, is a
# hang; daemons look each second.
HUNG_S = 10.0
HANG_REPORT_LIMIT_S = 5.0
# Free memory that node 0 may have less after crashes of another node: its daemon, libvirt and
# the log of a guest go on meanwhile.
LEAK_SLACK_BYTES = 16 << 20

# What ends node 1, and the states it may be in then.
ENDS = {
    "reboot": ("reboot", {"reboot", "starting", "running"}),
    "poweroff": ("poweroff", {"halted", "stopped"}),
    "panic": ("echo c >/proc/sysrq-trigger", {"crashed"}),
}


class Events(threading.Thread):
    """mintctl events --follow --json, with the host's time of each line's arrival."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._server = server
        # Not what earlier tests did: only what comes after the last event there is now.
        last = server.zero.out("mintctl events --json | tail -n 1")
        since = json.loads(last)["seq"] if last else 0
        command = f"exec mintctl events --follow --since {since} --json"
        self._job = server.zero.start(command, limit_s=0)
        self.seen: list[tuple[float, dict]] = []
        self.start()

    def run(self) -> None:
        try:
            for line in self._job.lines():
                if line.startswith("{"):
                    self.seen.append((time.monotonic(), json.loads(line)))
        except RigError:
            pass

    def reported(self, node: int, wanted: set[str], after: float, limit_s: float) -> dict:
        """The first event of node that says one of the wanted states, later than after (seconds of the host's
        monotonic clock); asserts that it was seen within REPORT_LIMIT_S of what it tells."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            for when, event in list(self.seen):
                if when >= after and event["node"] == node and event.get("new") in wanted:
                    assert (event["seen_ns"] - event["time_ns"]) / 1e9 < REPORT_LIMIT_S, event
                    return event
            time.sleep(0.02)
        raise RigError(f"no event of node {node} into {wanted} within {limit_s} s; all: {self.seen}")

    def hang_reported(self, node: int, limit_s: float = 60) -> None:
        """Wait until node is told to hang; asserts that this is HANG_REPORT_LIMIT_S after its time at most, and not
        before, by its heartbeat as it stands in RAM."""
        last = self._server.nodes()[node].heartbeat
        beat = began = time.monotonic()
        while True:
            for when, event in list(self.seen):
                if when >= began and event["node"] == node and event["event"] == "hung":
                    late_s = when - beat - HUNG_S
                    print(f"hang of node {node} told {late_s:.1f} s after the {HUNG_S:g} s without a heartbeat")
                    assert -1.0 < late_s < HANG_REPORT_LIMIT_S * SLOWNESS, event
                    return
            now, heartbeat = time.monotonic(), self._server.nodes()[node].heartbeat
            if heartbeat != last:
                last, beat = heartbeat, now
            if now - began > limit_s * SLOWNESS:
                raise RigError(f"the hang of node {node} was not told within {limit_s:g} s; all: {self.seen}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End it."""
        self._job.kill(9)


@pytest.fixture
def watched(busy_peers: Server):
    """Busy peers, which must go on, and all events."""
    events = Events(busy_peers)
    yield busy_peers, events
    events.stop()


@pytest.mark.parametrize("end", ["reboot", *(pytest.param(end, marks=[pytest.mark.soak, pytest.mark.soak_only]) for end in ENDS if end != "reboot")])
def test_guests_elsewhere_outlive_end_of_node1(watched, end: str):
    """reboot, poweroff, panic in node 1 while guests run on nodes 0 and 2."""
    server, events = watched
    command, states = ENDS[end]
    begin = time.monotonic()
    # Not awaited: the node ends under the command.
    server.one.start(f"sync; exec {command}" if end != "panic" else f"sync; {command}", limit_s=30)
    event = events.reported(1, states - {"running"} or states, begin, 30)
    if end == "panic":
        assert "sysrq" in event["reason"].lower(), event
    if end == "reboot":  # the daemon that added it starts it again, as a machine's firmware would
        server.wait_state(1, "running", limit_s=60)
    else:
        server.mintctl("node", "start", ONE.name)
    server.wait_mintd(server.one)


def kill_hung(server: Server, events: Events, begin: float) -> None:
    """Wait until node 1 is said to hang, kill it: all its cores are parked."""
    events.hang_reported(1)
    assert server.mintctl.nodes()[1]["health"] == "hung"
    answer = server.mintctl("node", "kill", ONE.name)
    assert answer["node"]["state"] == "killed"
    events.reported(1, {"killed"}, begin, 30)
    cores = [cpu for cpu in server.mintctl("cpu", "list")["cpus"] if cpu["owner"] == 1]
    assert len(cores) == len(ONE.cpus)
    assert all("parked" in cpu["flags"] for cpu in cores), cores


@pytest.mark.soak
@pytest.mark.soak_only
def test_hung_node1_is_reported_killed_and_started_again(watched):
    """Every core of node 1 spins with interrupts off: `hung` is reported, node kill parks it."""
    server, events = watched
    begin = time.monotonic()
    hang_all_cores(server.one)
    kill_hung(server, events, begin)
    server.mintctl("node", "start", ONE.name)
    server.wait_mintd(server.one)


@pytest.mark.soak
@pytest.mark.soak_only
def test_node1_that_takes_no_nmi_is_parked_by_init(watched):
    """The last resort: what its kernel's NMI handler would park spins there instead."""
    server, events = watched
    begin, mark = time.monotonic(), server.zero.console.mark()
    deafen(server.one)
    hang_all_cores(server.one)
    kill_hung(server, events, begin)
    server.zero.console.wait_for("(?s)" + ".*".join(["ignores the NMI: INIT"] * len(ONE.cpus)), mark)
    server.mintctl("node", "start", ONE.name)
    server.wait_mintd(server.one)


@pytest.mark.soak
@pytest.mark.soak_only
def test_kill_of_node1_during_its_guest_and_disk_writes(watched):
    """node kill while node 1 runs a guest and writes its disk; it starts again and runs a guest again."""
    server, _ = watched
    with Guest(server.one, "victim"):
        # It boots: its CPU is in it as good as always.
        server.one.run(start_command(server.one, "victim", "--no-disk --memory 96M"), LIMIT_S)
        writes = server.one.start("while :; do dd if=/dev/zero of=/root/w bs=1M count=64 oflag=direct; done", limit_s=60)
        server.one.wait("its disk is written", "[ -s /root/w ]")
        assert server.one.out("virsh domstate victim") == "running" and not writes.done()
        answer = server.mintctl("node", "kill", ONE.name)
        assert answer["node"]["state"] == "killed"
        server.mintctl("node", "start", ONE.name)
        server.wait_mintd(server.one)
    with guests([server.one], "again", "--no-disk --memory 96M") as (again,):
        again.wait_ticks(1)


def crash(server: Server, kind: str, rng: random.Random) -> None:
    """Node 1's kernel fails; not awaited."""
    if kind == "panic":
        server.one.start("echo c >/proc/sysrq-trigger", limit_s=30)
    elif kind == "bug in an interrupt":
        bug_in_interrupt(server.one)
    elif kind == "text scribbled over":
        scribble_over_text(server.one, rng)
    elif kind == "spin with interrupts off":
        hang_all_cores(server.one)


CRASHES = ("panic", "bug in an interrupt", "text scribbled over", "spin with interrupts off", "mintctl node kill")
# What no other test does: these are in every run, all of them in the soak.
OTHERS_DO_NOT = ("bug in an interrupt", "text scribbled over")


@pytest.mark.soak
def test_crashes_of_five_kinds_stay_on_node1(watched, request: pytest.FixtureRequest):
    """--crashes, one after the other, in random order: each is told, node 1 starts again, nodes 0 and 2 never notice
    and node 0 loses nothing."""
    server, events = watched
    seed = request.config.getoption("--seed")
    rng = random.Random(seed)
    count = request.config.getoption("--crashes")
    kinds = CRASHES if count > len(OTHERS_DO_NOT) else OTHERS_DO_NOT
    kinds = [kinds[number % len(kinds)] for number in range(count)]
    rng.shuffle(kinds)
    before = Resources(server.zero)
    done = dict.fromkeys(kinds, 0)
    for number, kind in enumerate(kinds):
        print(f"seed {seed}, crash {number}: {kind}")
        begin, boots = time.monotonic(), server.nodes()[1].boots
        if kind == "mintctl node kill":
            assert server.mintctl("node", "kill", ONE.name)["node"]["state"] == "killed"
        elif kind == "spin with interrupts off":
            crash(server, kind, rng)
            kill_hung(server, events, begin)
        else:
            crash(server, kind, rng)
            events.reported(1, {"crashed"}, begin, 60 * SLOWNESS)
        assert server.state(1) in ("crashed", "killed")
        done[kind] += 1
        # Its mintd answers then: it can crash again, whatever of its services is there yet.
        server.mintctl("node", "start", ONE.name)
        assert server.nodes()[1].boots == boots + 1
        # Its last words are what they should be; some come only after its end is known.
        server.one.console.skip_to_last("Linux version")
    server.wait_mintd(server.one)
    print(f"seed {seed}: done {done}")
    assert sum(done.values()) == count
    before.check(Resources(server.zero), LEAK_SLACK_BYTES)
