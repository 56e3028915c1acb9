# SPDX-License-Identifier: Apache-2.0
"""What runs on nodes while others end, or resources move: guests that count
seconds, fio in the guests and beside them that reads back and compares all that
it writes, and a ping. None may notice.

fio has a rate: without one, three guests under it leave no host core for the
rest, so many exits does a guest's request take an emulated machine.
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
from rig.wait import SLOWNESS, wait_until

# 30 writes a second, or there would be no core left for the rest.
FIO = (
    "fio --name=load --filename=/root/load.fio --size=16m --rw=randwrite --bs=4k --direct=1 --ioengine=psync"
    " --verify=crc32c --verify_fatal=1 --verify_backlog=16 --time_based --runtime=1000000 --rate_iops=30"
    " --status-interval=2 --eta=never --output={log}"
)
# Of a guest, too; each costs it a dozen exits.
GUEST_WRITES_PER_S = 4
CUT = "--fio--"
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
    # The emulated server's own cores stall for seconds on a busy host.
    STALL_LIMIT_S = 15.0 * SLOWNESS

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        fio = FIO.format(log=self.FIO_LOG)
        guest.node.run(f"rm -f {self.FIO_LOG}; setsid {fio} >/dev/console 2>&1 </dev/null &")
        self._begin: tuple[float, float] | None = None

    def begin(self) -> None:
        """Wait until all is in use; the guest's clock is compared with the host's from here on."""
        look = self._wait_after(Look([], 0, 0), 120)
        self._begin = time.monotonic(), look.counter[-1][1]

    def look(self) -> Look:
        """One command's worth of all; asserts that no block was read back otherwise than it was written."""
        log = self.FIO_LOG
        # No newline before CUT: the guest's last line may be half written, and must not look whole.
        guest_log, _, fio_log = self._guest.node.out(
            f"cat {self._guest.log_path}; echo {CUT}; grep -E 'verify|err= *[1-9]' {log} | head -n 9; "
            f"grep -o 'issued rwts: total=[0-9]*,[0-9]*' {log} | tail -n 1"
        ).partition(CUT)
        guest_log = guest_log.replace("\r", "")
        failed = re.search("mint-guest: load FAIL.*", guest_log)
        assert not failed, f"{self._guest}: {failed[0]}"
        assert "verify" not in fio_log and "err=" not in fio_log, f"fio on node {self._guest.node.number}: {fio_log}"
        counted = counted_writes(guest_log)
        issued = re.findall(r"total=\d+,(\d+)", fio_log)
        return Look(counter(guest_log), counted[-1] if counted else 0, int(issued[-1]) if issued else 0)

    def _wait_after(self, earlier: Look, limit_s: float) -> Look:
        def later() -> Look | None:
            look = self.look()
            return look if look.all_after(earlier) else None

        return wait_until(f"{self._guest}, its disk and the node's get on from {earlier}", later, limit_s, every_s=0.5)

    def check(self, since: Look) -> None:
        """Asserts that all goes on since that look, and that the guest's counter never stopped until now: not by its
        own clock, nor by the host's."""
        lines = self._wait_after(since, 60).counter
        numbers = [number for number, _ in lines]
        assert numbers == list(range(1, len(numbers) + 1)), f"{self._guest} lost lines: {numbers}"
        uptimes_s = [uptime_s for _, uptime_s in lines]
        stall_s = max(b - a for a, b in itertools.pairwise(uptimes_s))
        assert stall_s < self.STALL_LIMIT_S, f"{self._guest} stood still for {stall_s} s: {lines}"
        began, uptime_s = self._begin
        lost_s = (time.monotonic() - began) - (uptimes_s[-1] - uptime_s)
        assert lost_s < self.STALL_LIMIT_S, f"{self._guest} is {lost_s:.1f} s behind: {lines}"

    def end(self) -> None:
        """End what is beside the guest; no error if it is gone."""
        self._guest.node.run(
            "killall -INT fio; while pidof fio >/dev/null; do sleep 0.1; done; rm -f /root/load.fio", check=False
        )


def check(found: list[Busy]) -> None:
    """Asserts of all of them that they go on (Busy.check)."""
    # All are looked at first: one gets on while another is waited for.
    for busy, look in [(busy, busy.look()) for busy in found]:
        busy.check(look)


@contextlib.contextmanager
def load(nodes: list[Node]) -> Iterator[list[Busy]]:
    """A guest with fio in it, and fio, on each of the nodes; ended at the end, unchecked."""
    options = f"--disk 2M --disk-load {GUEST_WRITES_PER_S} --memory 96M"
    with guests(nodes, "busy", options) as found, contextlib.ExitStack() as ends:
        running: list[Busy] = []
        for guest in found:
            running.append(Busy(guest))
            ends.callback(running[-1].end)
        for busy in running:
            busy.begin()
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
