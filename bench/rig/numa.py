# SPDX-License-Identifier: Apache-2.0
"""Guests whose memory is a memfd, and on which NUMA node each of its pages is, by the kernel's word (rig/numa/numa.c)."""

from collections import Counter

from rig import paths
from rig.guest import LIMIT_S, Guest
from rig.node import Node

PROGRAM = "/tmp/numa"
PAGE = 4096
FILL = "/run/fill"
# of a guest's memory in /proc/PID/maps
MEMFD = "memfd:memory-backend-memfd"
BACKING = '<memoryBacking><source type="memfd"/><access mode="shared"/></memoryBacking>'


def define_with_memfd(guest: Guest, options: str) -> None:
    """It is there, but does not run (options: mint-guest's, with --no-start); its memory will be a memfd of its QEMU's."""
    name = guest.name
    guest.node.run(f"mint-guest {name} {options}", LIMIT_S)
    edit = f"sed 's|<vcpu |{BACKING}<vcpu |'"
    guest.node.run(f"virsh dumpxml --inactive {name} | {edit} >/tmp/{name}.xml && virsh -q define /tmp/{name}.xml")


class Numa:
    """The program, put onto a node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        node.run(f"cat >{PROGRAM} && chmod 755 {PROGRAM}", stdin=paths.need(paths.NUMA).read_bytes())

    def pages(self, pid: int, file: str) -> dict[int, int]:
        """The NUMA node of each page of a file that a process has mapped, by its offset in bytes."""
        found = {}
        for line in self.node.out(f"{PROGRAM} where {pid} {file}").splitlines():
            offset, length, numa = map(int, line.split())
            if numa >= 0:
                found |= dict.fromkeys(range(offset, offset + length, PAGE), numa)
        return found

    def move(self, pid: int, file: str, start: int, length: int, numa: int) -> None:
        """All pages of that range go to a NUMA node. Raises CommandFailed if one stays."""
        self.node.run(f"{PROGRAM} move {pid} {file} {start} {length} {numa}")


def free_mib(node: Node, numa: int) -> int:
    """That nobody has."""
    return int(node.out(f"awk '/MemFree/ {{ print $4 }}' /sys/devices/system/node/node{numa}/meminfo")) // 1024


class Filler:
    """What nobody may have of a NUMA node, as a file."""

    def __init__(self, node: Node, numa: int) -> None:
        self.node = node
        node.run("echo 3 >/proc/sys/vm/drop_caches")
        node.run(f"mkdir -p {FILL} && mount -t tmpfs -o size=100%,mpol=bind:{numa} fill {FILL}")

    def add(self, mib: int) -> None:
        """More of it."""
        self.node.run(f"head -c {mib}M /dev/zero >>{FILL}/file", LIMIT_S)

    def __enter__(self) -> "Filler":
        return self

    def __exit__(self, *exception) -> None:
        self.node.run(f"umount {FILL} && rmdir {FILL}")


class Stripes:
    """A file whose ranges are bound to two NUMA nodes in turn, so that nothing is right by chance."""

    def __init__(self, length: int, stripe: int) -> None:
        self.length, self.stripe = length, stripe

    def numa(self, offset: int) -> int:
        """Where the page at that offset is to be."""
        return offset // self.stripe % 2

    def command(self, pid: str, file: str) -> str:
        """Binds them, as lines of a shell."""
        starts = range(0, self.length, self.stripe)
        return "\n".join(f"{PROGRAM} bind {pid} {file} {start} {self.stripe} {self.numa(start)} || exit 1" for start in starts)

    def check(self, pages: dict[int, int], least: int) -> None:
        """All of these pages are where they are to be, so many bytes at least on each NUMA node."""
        wrong = {offset: numa for offset, numa in pages.items() if numa != self.numa(offset)}
        assert not wrong, f"{len(wrong)} of {len(pages)} pages, the first at {min(wrong):#x}"
        counts = Counter(pages.values())
        assert all(counts[numa] * PAGE >= least for numa in (0, 1)), counts
