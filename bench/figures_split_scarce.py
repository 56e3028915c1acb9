# SPDX-License-Identifier: Apache-2.0
"""What group "split" compares the paper's way with: a guest goes to node 2, which has memory for half of what it uses, over
links of one rate (S-memV, section 5: a guest of 12 GB, 6 GB at its next host, 10 GbE; here at 1/32).

enough     node 2 has room for all of it: QEMU's stream, mintctl
prepared   the same, of a guest that can be split, and is not
split      node 2 gets what fits, node 0 the rest: mintctl ... --split
SSD, HDD   QEMU's stream to a node 2 that swaps: its guests' cgroup may have no more, and its swap disk has the paper's
           disks' rate beside its link's. By virsh, as mintctl refuses what does not fit
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from figures_migrate import MIGRATE, downtime_s, figures, timed
from report.recorder import Recorder, Taker
from rig import paths
from rig.errors import RigError
from rig.guest import Guest
from rig.machine import MachineConfig, port
from rig.node import Node
from rig.server import ONE, TWO, Server

ENOUGH, AGAIN, PREPARED, SPLIT, SSD, HDD = "enough", "enough again", "prepared", "split", "SSD", "HDD"
SIDES = {
    ENOUGH: "room for all of it",
    AGAIN: "the same again",
    PREPARED: "room for all of it, prepared for a split",
    SPLIT: "half of it there, the rest on another node",
    SSD: "half of the memory, swap like an SSD's",
    HDD: "half of the memory, swap like a hard disk's",
}

# The paper's disks beside its link of 1.17 GB/s.
SSD_PART, HDD_PART = 0.5 / 1.17, 0.15 / 1.17
HDD_READS_S = 120
# Of libvirt's guests on a node, and what QEMU has there beside the guest's memory once it is short of some.
MACHINE = "/sys/fs/cgroup/machine"
QEMU_MIB = 20
# Of that limit, as what waits above it has a little more.
OVER_MIB = 8
SWAP_BUS, SWAP_MIB, SWAP_SERIAL = 8, 512, "mint-swap"
# Node 2 takes all of a guest, and has a core for its vCPU and one for what serves it.
MINT_ROOMY = "mint=on,mem=1408M@0,mem=1792M@1"
ROOMY = replace(TWO, cpus=(*TWO.cpus, 5), memory_mib=1152, devices=(*TWO.devices, f"0000:{SWAP_BUS:02x}:00.0"))
LIMIT_S = 1800


# What guests work with, from Debian (images/scripts/fetch-programs), and where that is.
PROGRAMS = "/boot/programs.initrd"
WITH_PROGRAMS = f"--initrd {PROGRAMS}"
MOUNT = "mkdir -p /used && mount -t tmpfs -o size=90% used /used && cd /used"


@dataclass(frozen=True)
class Scale:
    """How large all is. main_mib: what node 2 has for the guest where memory is scarce; rate_mbit: of the links."""

    memory_mib: int
    main_mib: int
    rate_mbit: int = 120


WHOLE = Scale(384, 192)


def config() -> MachineConfig:
    """A machine whose node 2 has a swap disk."""
    file = paths.RIG / "swap.raw"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as image:
        image.truncate(SWAP_MIB << 20)
    disk = (
        *port(SWAP_BUS),
        "-object", "iothread,id=swap-thread",
        "-drive", f"if=none,id=swap,file={file},format=raw,cache=unsafe,throttling.bps-total={1 << 30}",
        "-device", f"virtio-blk-pci,drive=swap,bus=rp{SWAP_BUS},iothread=swap-thread,serial={SWAP_SERIAL}",
    )  # fmt: skip
    return MachineConfig("figures-split", mint=MINT_ROOMY, extra=disk)


def add_nodes(server: Server) -> None:
    """Nodes 1 and 2, the second with its swap disk."""
    server.add(ONE, "--wait", "running")
    server.add(ROOMY)
    server.wait_ready(server.one)
    server.wait_ready(server.two)


@contextlib.contextmanager
def shaped(nodes: list[Node], rate_mbit: int) -> Iterator[None]:
    """What leaves these nodes on mint0 has that rate."""
    with contextlib.ExitStack() as ends:
        for node in nodes:
            shape = f"tc qdisc add dev mint0 root tbf rate {rate_mbit}mbit burst 256k latency 500ms"
            ends.enter_context(node.undone(shape, "tc qdisc del dev mint0 root"))
        yield


def booted(
    recorder: Recorder, group: str, count: int, rounds: int, parts: Mapping[str, Callable[[Taker, Server, int, int], None]]
) -> None:
    """Measure what is missing of a group: each machine boots once for each of its parts, which takes the machine, the
    turns' seed, and how many rounds."""
    for number in range(1, count + 1):
        for part, measure in parts.items():
            name = f"machine {number}"
            if name not in recorder.to_do(group, "machine", count, part):
                continue
            with recorder.machine(group, name, part) as taker, Server(config()) as server:
                add_nodes(server)
                measure(taker, server, recorder.header.seed, rounds)


class Way(Protocol):
    """How a side's guest goes."""

    name: str

    def ready(self) -> contextlib.AbstractContextManager[None]:
        """Node 2 is as the side wants it."""

    def there(self) -> dict[str, float]:
        """The guest goes to node 2: "total" and "downtime", in s."""

    def came(self) -> int:
        """Pages that have come back from where they were put, since the guest or its node began."""

    def back(self) -> None:
        """It goes to node 1."""


class Enough:
    """All of it fits."""

    options, verb = "", "vm migrate"

    def __init__(self, server: Server, name: str) -> None:
        self.server, self.name = server, name

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """It is."""
        yield

    def there(self) -> dict[str, float]:
        """By mintctl."""
        total_s, said = timed(self.server.one, f"mintctl vm migrate {self.name} --to node2 {self.options} --json")
        return figures(total_s, json.loads(said))

    def came(self) -> int:
        """None do."""
        return 0

    def back(self) -> None:
        """By mintctl."""
        self.server.two.run(f"mintctl {self.verb} {self.name} --to node1", LIMIT_S)


class Split(Enough):
    """A part of it is on node 0."""

    verb = "vm merge"

    def __init__(self, server: Server, name: str, main_mib: int) -> None:
        super().__init__(server, name)
        self._main_mib = main_mib
        self.options = f"--split main={main_mib}M,node0=rest"

    def there(self) -> dict[str, float]:
        """Raises RigError if it was not split as it was to be."""
        found = super().there()
        view = self.server.mintctl("vm", "memory", self.name)
        if view["here_bytes"] > (self._main_mib << 20) + view["chunk_bytes"] or not view["elsewhere_bytes"]:
            raise RigError(f"it was not split as it was to be: {view}")
        return found

    def came(self) -> int:
        """As its pager counts."""
        view = self.server.mintctl("vm", "memory", self.name)
        if view["lost_bytes"]:
            raise RigError(f"pages are lost: {view}")
        return view["page_ins"]


class Swap(Enough):
    """Node 2 swaps."""

    def __init__(self, server: Server, name: str, main_mib: int, bytes_s: float, reads_s: int = 0) -> None:
        super().__init__(server, name)
        self._main_mib, self._bytes_s, self._reads_s = main_mib, int(bytes_s), reads_s

    def _throttle(self, bytes_s: int, reads_s: int) -> None:
        self.server.machine.monitor.execute(
            "block_set_io_throttle", device="swap", bps=bytes_s, bps_rd=0, bps_wr=0, iops=0, iops_rd=reads_s, iops_wr=0
        )

    @contextlib.contextmanager
    def ready(self) -> Iterator[None]:
        """It has so much memory, and a swap disk of that rate."""
        two = self.server.two
        disk = two.disk(SWAP_SERIAL)
        # QEMU waits above it; at memory.max, it is ended when a slow disk has much to write
        limit = f"{MACHINE}/memory.high"
        # libvirt makes the folder with its first guest, and each guest's below it
        made = f"mkdir -p {MACHINE} && echo +memory >/sys/fs/cgroup/cgroup.subtree_control"
        with (
            two.undone(f"mkswap {disk} >/dev/null && swapon {disk}", f"swapoff {disk}"),
            two.undone(f"{made} && echo {self._main_mib + QEMU_MIB}M >{limit}", f"echo max >{limit}"),
        ):
            self._throttle(self._bytes_s, self._reads_s)
            try:
                yield
            finally:
                # swapoff brings back what is there, which is not counted
                self._throttle(0, 0)

    def there(self) -> dict[str, float]:
        """By virsh. Raises RigError if nothing was swapped, or the guest has more than it may."""
        before = self._swapped("pswpout")
        total_s, _ = timed(self.server.one, f"{MIGRATE} {self.name} qemu+ssh://node2/system", LIMIT_S)
        if self._swapped("pswpout") == before:
            raise RigError("node 2 did not swap: its memory is not scarce")
        has = int(self.server.two.read(f"{MACHINE}/memory.current")) >> 20
        if has > self._main_mib + QEMU_MIB + OVER_MIB:
            raise RigError(f"guests of node 2 have {has} MiB: its memory is not as scarce as it is to be")
        return {"total": total_s, "downtime": downtime_s(self.server.two.out(f"virsh domjobinfo {self.name} --completed"))}

    def _swapped(self, what: str) -> int:
        return int(re.search(rf"(?m)^{what} (\d+)", self.server.two.read("/proc/vmstat"))[1])

    def came(self) -> int:
        """All that node 2 has read from its swap disk."""
        return self._swapped("pswpin")


@contextlib.contextmanager
def ways(server: Server, scale: Scale, prefix: str, sides: tuple[str, ...], options: str, line: str) -> Iterator[dict[str, Way]]:
    """The ways of some sides, by side. Two guests take them, each of which has done a line; they are ended at the end,
    wherever they are. options: more for mint-guest."""
    whole, parted = f"{prefix}-whole", f"{prefix}-parted"
    rate = scale.rate_mbit * 1e6 / 8
    found = {
        ENOUGH: Enough(server, whole),
        AGAIN: Enough(server, whole),
        PREPARED: Enough(server, parted),
        SPLIT: Split(server, parted, scale.main_mib),
        SSD: Swap(server, whole, scale.main_mib, rate * SSD_PART),
        HDD: Swap(server, whole, scale.main_mib, rate * HDD_PART, HDD_READS_S),
    }
    with contextlib.ExitStack() as ends:
        for name in (whole, parted):
            for node in (server.one, server.two):
                ends.enter_context(Guest(node, name))
            guest = Guest(server.one, name).start(
                f"--memory {scale.memory_mib}M --no-disk --no-network --append mint.tick=0 --no-start {options}"
            )
            if name == parted:
                server.mintctl("vm", "prepare", name)
            server.one.run(f"virsh -q start {name}", LIMIT_S)
            guest.wait_line("mint-guest: up")
            did(guest, line)
        yield {side: found[side] for side in sides}


def bring(server: Server) -> None:
    """Nodes 1 and 2 get what guests that work boot: QEMU looks for it where they come, too."""
    initrd = paths.GUEST_INITRD.read_bytes() + paths.need(paths.PROGRAMS).read_bytes()
    for node in (server.one, server.two):
        node.run(f"cat >{PROGRAMS}", stdin=initrd)


def did(guest: Guest, line: str) -> str:
    """What a guest's shell says to a line. Raises RigError if it fails."""
    text, status = guest.shell(line, LIMIT_S)
    if status:
        raise RigError(f"{guest} does not do this: {line}\n{text}")
    return text
