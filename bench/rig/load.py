# SPDX-License-Identifier: Apache-2.0
"""What runs on nodes while others end, or resources move: guests that count
seconds, fio that reads back and compares all that it writes, and a ping. None
may notice.

fio runs beside the guests, not in them: a guest's request takes an emulated
machine so many exits that three guests under fio leave no host core for the rest.
"""

import contextlib
import itertools
import re
import time
from collections.abc import Iterator

from rig.errors import RigError
from rig.guest import Guest, guests
from rig.node import Node
from rig.wait import SLOWNESS, wait_until

# 30 writes a second, or there would be no core left for the rest.
FIO = (
    "fio --name=load --filename=/root/load.fio --size=16m --rw=randwrite --bs=4k --direct=1 --ioengine=psync"
    " --verify=crc32c --verify_fatal=1 --verify_backlog=16 --time_based --runtime=1000000 --rate_iops=30"
    " --status-interval=2 --eta=never --output={log}"
)
# Bytes of a ping: their pattern is compared in each reply. More than one page, through one ring record.
PING_BYTES = 8000


class Ping:
    """A ping from one node to another that must not lose a packet, nor change one. One from each node at a time."""

    LOG = "/tmp/ping.log"

    def __init__(self, node: Node, to: Node) -> None:
        self._node = node
        # A session of its own: it outlives the mintctl of node 0 that starts it.
        node.run(f"setsid ping -i 0.2 -s {PING_BYTES} 10.77.0.{10 + to.number} >{self.LOG} 2>&1 </dev/null &")

    def check_and_end(self) -> None:
        """End it; asserts that each packet was answered, whole and in order."""
        text = self._node.out(f"killall -INT ping; while pidof ping >/dev/null; do sleep 0.1; done; cat {self.LOG}")
        sent, received = map(int, re.search(r"(\d+) packets transmitted, (\d+) received", text).groups())
        # The last one may be under way when it ends.
        assert received >= sent - 1, text[-600:]
        sequence = [int(n) for n in re.findall(r"icmp_seq=(\d+)", text)]
        assert sequence == list(range(1, len(sequence) + 1)), "packets were lost or came twice"
        assert "wrong data" not in text, text[:3000]


class Counter:
    """A guest's counter that must never stop: not by the guest's clock, nor by the host's."""

    # The emulated server's own cores stall for seconds on a busy host.
    STALL_LIMIT_S = 15.0 * SLOWNESS

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        guest.wait_ticks(1)
        self._begin = time.monotonic(), guest.counter()[-1][1]

    def check(self) -> None:
        """Asserts that it counted on, second by second, until now."""
        self.guest.wait_ticks()
        counter = self.guest.counter()
        numbers = [number for number, _ in counter]
        assert numbers == list(range(1, len(numbers) + 1)), f"{self.guest} lost lines: {numbers}"
        uptimes_s = [uptime_s for _, uptime_s in counter]
        stall_s = max(b - a for a, b in itertools.pairwise(uptimes_s))
        assert stall_s < self.STALL_LIMIT_S, f"{self.guest} stood still for {stall_s} s: {counter}"
        began, uptime_s = self._begin
        lost_s = (time.monotonic() - began) - (uptimes_s[-1] - uptime_s)
        assert lost_s < self.STALL_LIMIT_S, f"{self.guest} is {lost_s:.1f} s behind: {counter}"


class Disk:
    """fio on a node's own disk, which it must go on using. One on each node at a time."""

    LOG = "/tmp/fio.log"

    def __init__(self, node: Node) -> None:
        self._node = node
        node.run(f"rm -f {self.LOG}; setsid {FIO.format(log=self.LOG)} >/dev/console 2>&1 </dev/null &")
        wait_until(f"fio on node {node.number}", self.writes, 60, every_s=0.5)

    def writes(self) -> int:
        """Requests until now."""
        found = re.findall(r"issued rwts: total=\d+,(\d+)", self._node.run(f"cat {self.LOG}", check=False).out)
        return int(found[-1]) if found else 0

    def check(self) -> None:
        """Asserts that it goes on, and read what it had written."""
        seen = self.writes()
        wait_until(f"fio on node {self._node.number} goes on", lambda: self.writes() > seen, 60, every_s=0.5)
        log = self._node.out(f"cat {self.LOG}")
        assert "verify" not in log and not re.search(r"err=\s*[1-9]", log), log[-3000:]

    def end(self) -> None:
        """End it; no error if it is gone."""
        self._node.run("killall -INT fio; while pidof fio >/dev/null; do sleep 0.1; done; rm -f /root/load.fio", check=False)


class Busy:
    """A node with a guest, and fio on its disk."""

    def __init__(self, guest: Guest) -> None:
        self._counter, self._disk = Counter(guest), Disk(guest.node)

    def check(self) -> None:
        """Asserts that the guest counted on, and that the disk takes writes and gives back what was written."""
        self._counter.check()
        self._disk.check()

    def end(self) -> None:
        """End what is beside the guest."""
        self._disk.end()


@contextlib.contextmanager
def load(nodes: list[Node]) -> Iterator[list[Busy]]:
    """A guest, and fio, on each of the nodes; ended at the end, unchecked."""
    with guests(nodes, "busy", "--no-disk --memory 96M") as found, contextlib.ExitStack() as ends:
        running = []
        for guest in found:
            running.append(Busy(guest))
            ends.callback(running[-1].end)
        yield running


class LoadUntilEnd:
    """The same, for longer than one test."""

    def __init__(self) -> None:
        self._exit = contextlib.ExitStack()
        self._key: object = None
        self._busy: list[Busy] = []

    def on(self, key: object, nodes: list[Node]) -> list[Busy]:
        """Guests on these nodes; those that there are already, if key is the same as before."""
        if self._key is not key:
            self.end()
            self._busy = self._exit.enter_context(load(nodes))
            self._key = key
        return self._busy

    def end(self) -> None:
        """End them; no error if their machine is gone."""
        with contextlib.suppress(RigError):
            self._exit.close()
        self._key = None
