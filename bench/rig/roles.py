# SPDX-License-Identifier: Apache-2.0
"""What of a machine is for what, as benchmarks ask for it: pure.

The emulated server's is known (rig.server.EMULATED); a real one's is in a plan (rig.plan).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class NodePlan:
    """A node that a test wants: the words of `mintctl node add`."""

    name: str
    cpus: tuple[int, ...]
    memory_mib: int
    numa: int
    devices: tuple[str, ...] = ()
    more: tuple[str, ...] = ()

    @property
    def memory_bytes(self) -> int:
        """Its memory."""
        return self.memory_mib << 20

    def words(self) -> list[str]:
        """After `mintctl node add`."""
        cpus = ",".join(map(str, self.cpus))
        words = [self.name, "--cpus", cpus, "--memory", f"{self.memory_mib}M@numa{self.numa}"]
        for device in self.devices:
            words += ["--device", device]
        return [*words, *self.more]


@dataclass(frozen=True)
class Roles:
    """Parts of a machine. Cores are numbered as Mint numbers them, which node 0's kernel does, too.

    one, two    nodes beside node 0, with a disk each
    guests      cores of node 0 that guests are pinned to
    moving      a core of node 0's that goes to node one and comes back; 1 GiB of NUMA node
                moving_numa does the same, and the function of a disk
    data        functions of disks whose content is nobody's, of node 0 and of node one
    """

    one: NodePlan
    two: NodePlan | None = None
    guests: tuple[int, ...] = ()
    moving: int | None = None
    moving_numa: int | None = None
    moving_disk: str | None = None
    data: tuple[str | None, str | None] = (None, None)
