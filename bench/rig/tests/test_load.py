# SPDX-License-Identifier: Apache-2.0
"""What guests and pings did while others ended is judged by what they did when nothing was done."""

import time
from types import SimpleNamespace

import pytest

from rig import link
from rig.delay import Delays
from rig.guest import LINE_END
from rig.load import LEAST_STALL_S, QUIET_REPLIES, Busy, Ping, stall_limit_s


def reply(number: int, at_s: float, ms: float = 1.0) -> str:
    """A line of ping -D."""
    return f"[{at_s:.6f}] 8008 bytes from 10.77.0.12: icmp_seq={number} ttl=64 time={ms} ms\n"


class PlayedNode:
    """A node whose ping writes what the test says."""

    number = 0

    def __init__(self) -> None:
        self.log = "PING 10.77.0.12 (10.77.0.12) 8000(8028) bytes of data.\n"
        self.commands: list[str] = []
        self.machine = SimpleNamespace(delays=Delays())

    def run(self, command: str) -> SimpleNamespace:
        """The ping's start, or the rest of its log."""
        self.commands.append(command)
        if not command.startswith("tail -c +"):
            return SimpleNamespace(stdout=b"")
        return SimpleNamespace(stdout=self.log.encode()[int(command.split("+")[1].split()[0]) - 1 :])

    def out(self, command: str) -> str:
        """The end of its log."""
        return self.log

    def wait(self, what: str, condition: str) -> None:
        """There is nothing to wait for: it is in the log, or it never comes."""

    def replies(self, first: int, last: int, begin_s: float, every_s: float = 0.2) -> None:
        """These come, from begin_s on."""
        self.log += "".join(reply(n, begin_s + (n - first) * every_s) for n in range(first, last + 1))


PEER = SimpleNamespace(number=2, machine=SimpleNamespace(address=link.address))


@pytest.fixture
def node() -> PlayedNode:
    """It has had its quiet window."""
    node = PlayedNode()
    node.replies(1, QUIET_REPLIES, 100.0)
    return node


def test_ping_that_goes_on_passes(node: PlayedNode):
    ping = Ping(node, PEER)
    assert ping.quiet_s == pytest.approx(0.2)
    node.replies(QUIET_REPLIES + 1, 40, 102.0)
    ping.check()
    node.replies(41, 60, 108.0)
    node.log += "60 packets transmitted, 60 received, 0% packet loss, time 11800ms\n"
    ping.check_and_end()
    assert ping.worst_s < 1


def test_ping_that_stands_still_fails(node: PlayedNode):
    """Also between two looks, and if only its answers are late."""
    for late in ("gap", "answer"):
        played = PlayedNode()
        played.replies(1, QUIET_REPLIES, 100.0)
        ping = Ping(played, PEER)
        if late == "gap":
            played.replies(QUIET_REPLIES + 1, 20, 102.0 + LEAST_STALL_S)
        else:
            played.log += reply(QUIET_REPLIES + 1, 102.0, ms=1e3 * LEAST_STALL_S + 1)
        with pytest.raises(AssertionError, match="no reply for"):
            ping.check()


@pytest.mark.parametrize("numbers", [(11, 13), (11, 11), (13, 14)])
def test_ping_that_loses_a_packet_fails(node: PlayedNode, numbers: tuple[int, ...]):
    ping = Ping(node, PEER)
    node.log += "".join(reply(number, 102.0) for number in numbers)
    with pytest.raises(AssertionError, match="lost, or twice"):
        ping.check()


def test_ping_whose_end_is_unanswered_fails(node: PlayedNode):
    ping = Ping(node, PEER)
    node.log += "14 packets transmitted, 10 received, 28% packet loss\n"
    with pytest.raises(AssertionError):
        ping.check_and_end()


def test_ping_that_the_host_kept_waiting_passes(node: PlayedNode):
    ping = Ping(node, PEER)
    now_s = time.monotonic()
    for at_s in range(30):
        node.machine.delays.add(now_s + at_s, {"1": float(at_s)})
    node.replies(QUIET_REPLIES + 1, 20, 102.0 + 2 * LEAST_STALL_S)
    ping.check()
    assert ping.worst_s < 1


def test_what_was_slow_when_nothing_was_done_may_be_slow():
    assert stall_limit_s(0.2) == LEAST_STALL_S
    assert stall_limit_s(4.0) == 20.0


class PlayedGuest:
    """A guest that counted at these moments of its clock, and its node."""

    name, log_path = "busy", "/log"

    def __init__(self, uptimes_s: list[float]) -> None:
        self.uptimes_s = uptimes_s
        self.node = self
        self.number = 0
        self.machine = SimpleNamespace(delays=Delays())

    def run(self, command: str) -> None:
        """fio's start."""

    def out(self, command: str) -> str:
        """Its log, and fio's."""
        count = len(self.uptimes_s)
        lines = [f"tick {n} at {s}, {n} writes{LINE_END}\n" for n, s in enumerate(self.uptimes_s, 1)]
        return "".join(lines) + f"--fio--issued rwts: total=0,{count}"

    def wait_line(self, start: str, limit_s: float) -> None:
        """It counts on, once a second, to the number that is waited for."""
        more = int(start.split()[1]) - len(self.uptimes_s)
        self.uptimes_s += [self.uptimes_s[-1] + n for n in range(1, more + 1)]


@pytest.mark.parametrize(("still_s", "fails"), [(1.0, False), (LEAST_STALL_S + 0.1, True)])
def test_guest_that_stood_still_fails(monkeypatch, still_s: float, fails: bool):
    clock = [0.0]
    monkeypatch.setattr("rig.load.time", SimpleNamespace(monotonic=lambda: clock[0]))
    guest = PlayedGuest([10.0, 11.0])
    busy = Busy(guest)
    busy.begin()
    busy.be_quiet(busy.look())
    assert busy.quiet_s == 1.0
    look = busy.look()
    guest.uptimes_s += [guest.uptimes_s[-1] + still_s]
    clock[0] = guest.uptimes_s[-1] - 11.0
    if not fails:
        busy.check(look)
        # Its clock may not stop, either.
        clock[0] += LEAST_STALL_S
        guest.uptimes_s += [guest.uptimes_s[-1] + 1.0]
        clock[0] += 1.1
        with pytest.raises(AssertionError, match="behind"):
            busy.check(look)
        return
    with pytest.raises(AssertionError, match="stood still"):
        busy.check(look)
