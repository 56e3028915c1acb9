# SPDX-License-Identifier: Apache-2.0
"""What runs on nodes while others end, or resources move: guests that count
seconds, fio in the guests and beside them that reads back and compares all that
it writes, and a ping. None may notice.

fio has a rate: without one, three guests under it leave no host core for the
rest, so many exits does a guest's request take an emulated machine. A node of one
core must have time left, too, or its guest waits for that core: its kernel shares
it fairly among all that want it, and a guest that waits for its turn is no fault.
"""

import contextlib
import itertools
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

from rig.errors import RigError
from rig.guest import Guest, counted_writes, counter, guests
from rig.node import Node
from rig.wait import wait_until

# 10 writes a second: 30 and what a guest does with 4 kept a node's one core busy all the time.
FIO = (
    "fio --name=load --filename=/root/load.fio --size=16m --rw=randwrite --bs=4k --direct=1 --ioengine=psync"
    " --verify=crc32c --verify_fatal=1 --verify_backlog=16 --time_based --runtime=1000000 --rate_iops=10"
    " --status-interval=2 --eta=never --output={log}"
)
# Of a guest, too; each costs it a dozen exits.
GUEST_WRITES_PER_S = 2
CUT = "--fio--"
# Bytes of a ping: their pattern is compared in each reply. More than one page, through one ring record.
PING_BYTES = 8000


# How long anything may stand still, without what the host kept the emulator waiting for a core
# (rig.delay): so many times what it did in a quiet window of the same run, before anything was
# done to the machine; and no less than so many seconds, as the host's cores are few, and a node
# that boots takes one.
QUIET_TIMES = 5
LEAST_STALL_S = 5.0
# Of the quiet window: a guest counts seconds, a ping is answered five times a second.
QUIET_TICKS = 8
QUIET_REPLIES = 10


def stall_limit_s(quiet_s: float) -> float:
    """How long something may stand still that stood still for quiet_s at most when nothing was done."""
    return max(QUIET_TIMES * quiet_s, LEAST_STALL_S)


class Ping:
    """A ping from one node to another that must not lose a packet, nor change one, nor stand still.

    One from each node at a time. What it does before anything else happens is its quiet window.
    """

    LOG = "/tmp/ping.log"
    REPLY = re.compile(r"^\[([\d.]+)\] .*icmp_seq=(\d+) .*time=([\d.]+) ms", re.MULTILINE)

    def __init__(self, node: Node, to: Node) -> None:
        self._node, self._name = node, f"ping from node {node.number} to node {to.number}"
        self._bytes = 0  # of its log, that are read
        self._last: tuple[float, int] | None = None  # when and which, of the last reply
        self._ahead_s = 0.0  # of its node's clock, the host's monotonic one
        self.worst_s = 0.0  # the longest time without a reply, or for one, since the quiet window
        # A session of its own: it outlives what started it.
        node.run(f"setsid ping -D -i 0.2 -s {PING_BYTES} {to.machine.address(to.number)} >{self.LOG} 2>&1 </dev/null &")
        self._wait_replies(QUIET_REPLIES)
        self.quiet_s, self.worst_s = self._read(), 0.0
        self._ahead_s = time.monotonic() - self._last[0]

    def _wait_replies(self, more: int) -> None:
        wanted = more + (self._last[1] if self._last else 0)
        self._node.wait(f"{self._name}: {more} replies", f"grep -q 'icmp_seq={wanted} ' {self.LOG}")

    def _read(self) -> float:
        """Reads whole lines that came since; asserts that no packet is missing, twice there, or changed. Gives the
        longest stall in them, in seconds (Delays.own_s)."""
        data = self._node.run(f"tail -c +{self._bytes + 1} {self.LOG}").stdout
        data = data[: data.rfind(b"\n") + 1]
        self._bytes += len(data)
        text = data.decode(errors="replace")
        assert "wrong data" not in text, text[:3000]
        replies = [(float(when), int(number), float(ms) / 1e3) for when, number, ms in self.REPLY.findall(text)]
        if not replies:
            return 0.0
        before = [self._last] if self._last else []
        numbers = [number for _, number in before] + [number for _, number, _ in replies]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), f"{self._name}: lost, or twice: {text[-2000:]}"
        assert before or numbers[0] == 1, f"{self._name}: its first was lost: {text[:600]}"
        moments = [when + self._ahead_s for when, *_ in [*before, *replies]]
        late = [(when + self._ahead_s - took, when + self._ahead_s) for when, _, took in replies]
        stall_s = self._node.machine.delays.longest_own_s([*itertools.pairwise(moments), *late])
        self._last = replies[-1][:2]
        self.worst_s = max(self.worst_s, stall_s)
        return stall_s

    def check(self) -> None:
        """Asserts that it goes on, and did so all the time."""
        self._read()
        self._wait_replies(2)
        self._read()
        limit_s = stall_limit_s(self.quiet_s)
        print(f"{self._name}: {self.quiet_s:.2f} s without a reply when quiet, then {self.worst_s:.2f} s at most")
        assert self.worst_s < limit_s, f"{self._name}: no reply for {self.worst_s:.1f} s, when quiet {self.quiet_s:.1f} s"

    def check_and_end(self) -> None:
        """Check, and end it; asserts that each packet was answered."""
        self.check()
        summary = self._node.out(f"killall -INT ping; while pidof ping >/dev/null; do sleep 0.1; done; tail -n 4 {self.LOG}")
        sent, received = map(int, re.search(r"(\d+) packets transmitted, (\d+) received", summary).groups())
        # The last one may be under way when it ends.
        assert received >= sent - 1, summary


@dataclass(frozen=True)
class Look:
    """What a busy node has done until now."""

    counter: list[tuple[int, float]]  # Guest.counter()
    guest_writes: int
    disk_writes: int

    def all_after(self, earlier: "Look") -> bool:
        """Whether the guest, its disk and the node's have all done something since."""
        return (
            len(self.counter) > len(earlier.counter)
            and self.guest_writes > earlier.guest_writes
            and self.disk_writes > earlier.disk_writes
        )


class Busy:
    """A node with a guest that counts and uses its disk, and fio on the node's own disk. One on each node at a time."""

    FIO_LOG = "/tmp/fio.log"

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        fio = FIO.format(log=self.FIO_LOG)
        guest.node.run(f"rm -f {self.FIO_LOG}; setsid {fio} >/dev/console 2>&1 </dev/null &")
        # When it was looked at, by the host's clock, and its uptime then; lines until the quiet window's end.
        self._begin: tuple[float, float] | None = None
        self._quiet_lines = 0
        self.quiet_s = 0.0

    def begin(self) -> None:
        """Wait until all is in use; the guest's clock is compared with the host's from here on."""
        look = self._wait_after(Look([], 0, 0), 120)
        self._begin = time.monotonic(), look.counter[-1][1]

    def be_quiet(self, since: Look) -> None:
        """Wait for the end of the quiet window that began with that look."""
        first = len(since.counter)
        self.guest.wait_line(f"tick {first + QUIET_TICKS} at ", 120)
        counter = self.look().counter
        self._quiet_lines = len(counter)
        self.quiet_s = self._longest_stall_s(counter[first - 1 :])

    def _longest_stall_s(self, lines: list[tuple[int, float]]) -> float:
        """Between one line of the counter and the next (Delays.own_s)."""
        began, uptime_s = self._begin
        moments = [began + at_s - uptime_s for _, at_s in lines]
        return self.guest.node.machine.delays.longest_own_s(itertools.pairwise(moments))

    def look(self) -> Look:
        """One command's worth of all; asserts that no block was read back otherwise than it was written."""
        log = self.FIO_LOG
        # No newline before CUT: the guest's last line may be half written, and must not look whole.
        guest_log, _, fio_log = self.guest.node.out(
            f"cat {self.guest.log_path}; echo {CUT}; grep -E 'verify|err= *[1-9]' {log} | head -n 9; "
            f"grep -o 'issued rwts: total=[0-9]*,[0-9]*' {log} | tail -n 1"
        ).partition(CUT)
        guest_log = guest_log.replace("\r", "")
        failed = re.search("mint-guest: load FAIL.*", guest_log)
        assert not failed, f"{self.guest}: {failed[0]}"
        assert "verify" not in fio_log and "err=" not in fio_log, f"fio on node {self.guest.node.number}: {fio_log}"
        counted = counted_writes(guest_log)
        issued = re.findall(r"total=\d+,(\d+)", fio_log)
        return Look(counter(guest_log), counted[-1] if counted else 0, int(issued[-1]) if issued else 0)

    def _wait_after(self, earlier: Look, limit_s: float) -> Look:
        def later() -> Look | None:
            look = self.look()
            return look if look.all_after(earlier) else None

        return wait_until(f"{self.guest}, its disk and the node's get on from {earlier}", later, limit_s, every_s=0.5)

    def check(self, since: Look) -> None:
        """Asserts that all goes on since that look, and that the guest's counter never stopped until now, compared
        with its quiet window: not by its own clock, nor by the host's."""
        lines = self._wait_after(since, 60).counter
        numbers = [number for number, _ in lines]
        assert numbers == list(range(1, len(numbers) + 1)), f"{self.guest} lost lines: {numbers}"
        began, uptime_s = self._begin
        last = began + lines[-1][1] - uptime_s
        behind_s = self.guest.node.machine.delays.own_s(last, time.monotonic())
        worst_s = self._longest_stall_s(lines[max(0, self._quiet_lines - 1) :])
        print(
            f"{self.guest}: {self.quiet_s:.2f} s between two seconds of its counter when quiet, then "
            f"{worst_s:.2f} s at most; {behind_s:.2f} s behind the host"
        )
        limit_s = stall_limit_s(self.quiet_s)
        assert worst_s < limit_s, f"{self.guest} stood still for {worst_s} s, when quiet {self.quiet_s} s: {lines}"
        assert behind_s < limit_s, f"{self.guest} is {behind_s:.1f} s behind: {lines}"

    def end(self) -> None:
        """End what is beside the guest; no error if it is gone."""
        self.guest.node.run(
            "killall -INT fio; while pidof fio >/dev/null; do sleep 0.1; done; rm -f /root/load.fio", check=False
        )


def check(found: list[Busy]) -> None:
    """Asserts of all of them that they go on (Busy.check)."""
    # All are looked at first: one gets on while another is waited for.
    for busy, look in [(busy, busy.look()) for busy in found]:
        busy.check(look)


# Of each guest under load. It pings its node once, at its start.
GUEST_OPTIONS = f"--disk 2M --disk-load {GUEST_WRITES_PER_S} --net-test node --memory 96M"


@contextlib.contextmanager
def load(nodes: list[Node]) -> Iterator[list[Busy]]:
    """A guest with fio in it, and fio, on each of the nodes, after a quiet window; ended at the end, unchecked."""
    with guests(nodes, "busy", GUEST_OPTIONS) as found, contextlib.ExitStack() as ends:
        running: list[Busy] = []
        for guest in found:
            running.append(Busy(guest))
            ends.callback(running[-1].end)
        for busy in running:
            busy.begin()
        # All at the same time.
        for busy, look in [(busy, busy.look()) for busy in running]:
            busy.be_quiet(look)
        yield running


class LoadUntilEnd:
    """The same, and a ping from the first to the last of the nodes, for longer than one test."""

    def __init__(self) -> None:
        self._exit = contextlib.ExitStack()
        self._key: object = None
        self._busy: list[Busy] = []
        self._ping: Ping | None = None

    def on(self, key: object, nodes: list[Node]) -> list[Busy]:
        """Guests on these nodes; those that there are already, if key is the same as before."""
        if self._key is not key:
            self.end()
            self._busy = self._exit.enter_context(load(nodes))
            self._ping = Ping(nodes[0], nodes[-1])
            self._key = key
        return self._busy

    @property
    def busy(self) -> list[Busy]:
        """What runs now."""
        return self._busy

    def check(self) -> None:
        """Asserts that guests and ping go on, and never stood still."""
        check(self._busy)
        self._ping.check()

    def end(self) -> None:
        """End them; no error if their machine is gone."""
        with contextlib.suppress(RigError, AssertionError):
            if self._ping:
                self._ping.check_and_end()
        with contextlib.suppress(RigError):
            self._exit.close()
        self._key = self._ping = None
        self._busy = []
