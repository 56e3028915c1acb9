# SPDX-License-Identifier: Apache-2.0
"""The end of node 1, however it comes, leaves nodes 0 and 2 and their guests
alone, is reported within 2 s, and node 1 can be started again."""

import contextlib
import itertools
import json
import re
import threading
import time

import pytest

from rig.errors import RigError
from rig.faults import hang_all_cores
from rig.guest import Guest, guests
from rig.server import ONE, Server

REPORT_LIMIT_S = 2.0

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

    def wait(self, node: int, wanted: set[str], after: float, limit_s: float) -> tuple[float, dict]:
        """The first event of node that says one of the wanted states, later than after."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            for when, event in list(self.seen):
                if when >= after and event["node"] == node and event.get("new") in wanted:
                    return when, event
            time.sleep(0.02)
        raise RigError(f"no event of node {node} into {wanted} within {limit_s} s; all: {self.seen}")

    def stop(self) -> None:
        """End it."""
        self._job.kill(9)


class Ping:
    """A ping from node 0 to node 2 that must not lose a packet."""

    def __init__(self, server: Server) -> None:
        self._job = server.zero.start("exec ping -i 0.2 10.77.0.12", limit_s=0)

    def stop(self) -> None:
        """End it; asserts that each packet was answered, in order."""
        self._job.kill(2)
        text = self._job.wait(30).out
        sent, received = map(int, re.search(r"(\d+) packets transmitted, (\d+) received", text).groups())
        # The last one may be under way when it ends.
        assert received >= sent - 1, text[-600:]
        sequence = [int(n) for n in re.findall(r"icmp_seq=(\d+)", text)]
        assert sequence == list(range(1, len(sequence) + 1)), "packets were lost or came twice"


class Counter:
    """A guest's counter that must never stop: not by the guest's clock, nor by the host's."""

    # The emulated server's own cores stall for seconds on a busy host.
    STALL_LIMIT_S = 15.0

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        guest.wait_ticks(1)
        self._begin = time.monotonic(), guest.counter()[-1][1]

    def check(self) -> None:
        """Asserts that it counted on, second by second, until now."""
        self._guest.wait_ticks()
        counter = self._guest.counter()
        numbers = [number for number, _ in counter]
        assert numbers == list(range(1, len(numbers) + 1)), f"{self._guest} lost lines: {numbers}"
        uptimes_s = [uptime_s for _, uptime_s in counter]
        stall_s = max(b - a for a, b in itertools.pairwise(uptimes_s))
        assert stall_s < self.STALL_LIMIT_S, f"{self._guest} stood still for {stall_s} s: {counter}"
        began, uptime_s = self._begin
        lost_s = (time.monotonic() - began) - (uptimes_s[-1] - uptime_s)
        assert lost_s < self.STALL_LIMIT_S, f"{self._guest} is {lost_s:.1f} s behind: {counter}"


class Steady:
    """A guest on node 0 and one on node 2, which run from test to test as long as their machine."""

    def __init__(self) -> None:
        self._server: Server | None = None
        self._exit = contextlib.ExitStack()
        self._counters: list[Counter] = []

    def counters_on(self, server: Server) -> list[Counter]:
        """Their counters, which go on already."""
        if self._server is not server:
            self.end()
            found = self._exit.enter_context(guests([server.zero, server.two], "steady"))
            self._counters = [Counter(guest) for guest in found]
            self._server = server
        return self._counters

    def end(self) -> None:
        """End them; no error if their machine is gone."""
        with contextlib.suppress(RigError):
            self._exit.close()
        self._server = None


@pytest.fixture(scope="module")
def steady():
    """Guests that outlive whatever the tests of this module do to node 1."""
    steady = Steady()
    yield steady
    steady.end()


@pytest.fixture
def watched(pair: Server, steady: Steady):
    """The pair, the steady guests, whose counters must go on, and a ping that must not miss."""
    counters = steady.counters_on(pair)
    ping, events = Ping(pair), Events(pair)
    yield pair, events
    for counter in counters:
        counter.check()
    ping.stop()
    events.stop()


@pytest.mark.parametrize("end", ENDS)
def test_guests_elsewhere_outlive_end_of_node1(watched, end: str):
    """reboot, poweroff, panic in node 1 while guests run on nodes 0 and 2."""
    server, events = watched
    command, states = ENDS[end]
    begin = time.monotonic()
    # Not awaited: the node ends under the command.
    server.one.start(f"sync; exec {command}" if end != "panic" else f"sync; {command}", limit_s=30)
    _, event = events.wait(1, states - {"running"} or states, begin, 30)
    assert (event["seen_ns"] - event["time_ns"]) / 1e9 < REPORT_LIMIT_S, event
    if end == "panic":
        assert "sysrq" in event["reason"].lower(), event
    if end == "reboot":  # the daemon that added it starts it again, as a machine's firmware would
        server.wait_state(1, "running", limit_s=60)
    else:
        server.mintctl("node", "start", ONE.name)
    server.wait_ready(server.one)


def test_hung_node1_is_reported_killed_and_started_again(watched):
    """Every core of node 1 spins with interrupts off: `hung` is reported, node kill parks it."""
    server, events = watched
    begin = time.monotonic()
    hang_all_cores(server.one)
    end = time.monotonic() + 60
    while server.mintctl.nodes()[1]["health"] != "hung":
        assert time.monotonic() < end, "the hang was not noticed within 60 s"
        time.sleep(0.3)
    answer = server.mintctl("node", "kill", ONE.name)
    assert answer["node"]["state"] == "killed"
    _, event = events.wait(1, {"killed"}, begin, 30)
    assert (event["seen_ns"] - event["time_ns"]) / 1e9 < REPORT_LIMIT_S, event
    cores = [cpu for cpu in server.mintctl("cpu", "list")["cpus"] if cpu["owner"] == 1]
    assert len(cores) == len(ONE.cpus)
    assert all("parked" in cpu["flags"] for cpu in cores), cores
    server.mintctl("node", "start", ONE.name)
    server.wait_ready(server.one)


def test_kill_of_node1_during_its_guest_and_disk_writes(watched):
    """node kill while node 1 runs a guest and writes its disk; it starts again and runs a guest again."""
    server, _ = watched
    with guests([server.one], "victim"):
        server.one.start("while :; do dd if=/dev/zero of=/root/w bs=1M count=64 oflag=direct; done", limit_s=60)
        time.sleep(0.5)
        answer = server.mintctl("node", "kill", ONE.name)
        assert answer["node"]["state"] == "killed"
        server.mintctl("node", "start", ONE.name)
        server.wait_ready(server.one)
    with guests([server.one], "again") as (again,):
        again.wait_ticks(1)
