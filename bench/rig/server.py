# SPDX-License-Identifier: Apache-2.0
"""A machine with Mint on it, as tests and benchmarks use it: nodes, mintctl,
ledger, and the two nodes of the default scenario."""

import time
from dataclasses import asdict

from rig import paths
from rig.area import Area, NodeNow
from rig.errors import RigError
from rig.guest import GUEST_KERNEL
from rig.ledger import Ledger
from rig.machine import DEFAULT_FLAVOUR, Machine, MachineConfig
from rig.mintctl import Mintctl
from rig.node import Node
from rig.ram import Ram, area_of
from rig.roles import NodePlan, Roles
from rig.wait import SLOWNESS, wait_until
from rig.watch import watch

# What the machine's kernels may take until their services answer. Emulated,
# on two host cores that other work may share.
READY_LIMIT_S = 240


DISK1, DISK2_NVME = "0000:02:00.0", "0000:03:00.0"
CARD0, CARD1, CARD2_E1000E = "0000:04:00.0", "0000:05:00.0", "0000:06:00.0"
DISK0, SERIAL = "0000:01:00.0", "0000:07:00.0"
CARD3_IGB = "0000:08:00.0"  # of the machine that tests share

# The two nodes beside node 0 in the default scenario; the second on the other
# NUMA node, with an NVMe disk. Cores 0, 1 and 5 stay with node 0.
ONE = NodePlan("one", (3, 4), 1024, 1, (DISK1, CARD1))
TWO = NodePlan("two", (2,), 768, 0, (DISK2_NVME,))

# Room for one more: core 5 and 768 MiB, no disk; it stays in its initrd.
SPARE = NodePlan("spare", (5,), 768, 1, (CARD2_E1000E,), (
    "--cmdline", "console=hvc0 tsc=reliable nowatchdog oops=panic mint.root=initrd", "--wait", "running",
))  # fmt: skip

# What benchmarks do with them. A guest cannot be on the boot core, and the core that moves is another.
EMULATED = Roles(ONE, TWO, guests=(1, 5), moving=5, moving_numa=0, moving_disk=DISK2_NVME)


class Server:
    """A started machine whose node 0 runs Mint's services."""

    def __init__(self, config: MachineConfig, roles: Roles = EMULATED) -> None:
        self.machine, self.roles = Machine(config), roles
        self.zero = self.node(0)
        self.one, self.two = self.node(1), self.node(2)
        self.mintctl = Mintctl(self.zero)
        self._ram: Ram | None = None
        self._area: Area | None = None

    def node(self, number: int) -> Node:
        """Node number, whether it exists now or not."""
        return Node(self.machine, number)

    def address(self, number: int) -> str:
        """A node's on mint0, whether it is there now or not."""
        return self.machine.address(number)

    def start(self, libvirt: bool = True) -> "Server":
        """Start the machine, wait for node 0's services; without libvirt for its mintd alone, if it has Mint."""
        self.machine.start()
        return self.wait_started(libvirt)

    def wait_started(self, libvirt: bool = True) -> "Server":
        """The rest of start(), of a machine that has been started; ends it if that fails."""
        try:
            watch(self.machine)
            self.machine.channel.wait_ready(READY_LIMIT_S * SLOWNESS)
            if libvirt or not self.machine.config.mint:
                self.wait_ready(self.zero)
            else:
                self.wait_mintd(self.zero, READY_LIMIT_S)
            if DEFAULT_FLAVOUR != "mint":
                # What node 0 starts others with. Guests keep the image's, which is "mint":
                # they are not what is checked.
                image = paths.need(paths.kernel(DEFAULT_FLAVOUR)).read_bytes()
                self.zero.run(f"cp --remove-destination /boot/vmlinuz-mint {GUEST_KERNEL}; cat >/boot/vmlinuz-mint && sync", stdin=image)
        except BaseException:
            self.machine.stop()
            raise
        return self

    def stop(self) -> None:
        """End the machine."""
        self.machine.stop()
        if self._ram is not None:
            self._ram.close()
            self._ram = self._area = None

    def __enter__(self) -> "Server":
        return self.start()

    def __exit__(self, *exception) -> None:
        self.stop()

    def wait_ready(self, node: Node, limit_s: float = READY_LIMIT_S) -> None:
        """Wait until a node's libvirtd answers (its init then makes /run/mint/ready). That is some time after its
        mintd does: guests wait for it by themselves."""
        node.wait("its services", "[ -e /run/mint/ready ]", limit_s)

    def wait_mintd(self, node: Node, limit_s: float = 60) -> None:
        """Wait until the mintd of a node that was started (again) answers mintctl there."""
        node.wait("its mintd", "mintctl node list >/dev/null 2>&1", limit_s)

    @property
    def area(self) -> Area:
        """The control area in the machine's RAM; raises RigError if there is none."""
        self.machine.check_alive()
        if self._ram is None:
            self._ram = Ram(self.machine)
        if self._area is None or not self._area.is_there():
            self._area = area_of(self._ram)
        if self._area is None:
            raise RigError("there is no control area in the machine's RAM: node 0 runs without Mint")
        return self._area

    def forget_area(self) -> None:
        """Make that the control area in the machine's RAM is none any more: it is of a boot that has ended."""
        phys = self.area.phys
        self._ram.write(phys, bytes(8))
        self._area = None

    def ledger(self) -> Ledger:
        """Who owns what now, read in the machine's RAM."""
        return self.area.ledger()

    def nodes(self) -> dict[int, NodeNow]:
        """The nodes that there are now, by id, read in the machine's RAM."""
        return self.area.nodes()

    def state(self, number: int) -> str:
        """State of node number, read in the machine's RAM ("absent": there is none)."""
        node = self.nodes().get(number)
        return node.state if node else "absent"

    def add(self, plan: NodePlan, *more: str) -> dict:
        """mintctl node add; gives what it answers."""
        return self.mintctl("node", "add", *plan.words(), *more)

    def wait_state(self, number: int, *states: str, limit_s: float = 60) -> str:
        """Wait until node number is in one of these states ("absent": there is none)."""

        def reached() -> str | None:
            state = self.state(number)
            return state if state in states else None

        return wait_until(f"node {number} {' or '.join(states)}", reached, limit_s, every_s=0.05)

    def extra_nodes(self) -> dict[int, dict]:
        """Nodes beside node 0, by id: name, state, boots, ..., as in NodeNow."""
        return {number: asdict(node) for number, node in self.nodes().items() if number != 0}

    def remove_all(self) -> bool:
        """Only node 0 stays; gives whether there were others."""
        others = self.extra_nodes()
        for number in others:
            self.mintctl("node", "remove", number, "--force")
        return bool(others)

    def give_back(self, like: Ledger | None = None) -> None:
        """Only node 0 stays, and takes what a move that was cut short has left free: cores, functions. If like is
        given, it has as much memory of each NUMA node as it had then, whichever blocks."""
        self.remove_all()
        free = self.ledger()
        if cores := free.owned("cpu", None):
            self.mintctl("node", "resize", "node0", "--cpus", f"+{len(cores)}")
        for device in free.owned("device", None):
            self.mintctl("device", "move", device, "--to", "node0")
        if like:
            owned = [block for block in like.details["memory"] if block["owner"] == 0]
            numas = sorted({block["numa"] for block in owned})
            total = {numa: sum(block["bytes"] for block in owned if block["numa"] == numa) for numa in numas}
            sizes = [f"--memory={total[numa] >> 20}M@numa{numa}" for numa in numas]
            self.mintctl("node", "resize", "node0", *sizes)

    def restore(self, like: Ledger) -> None:
        """Running nodes have again what they had then: the same cores and functions, and as much memory of each NUMA
        node, whichever blocks. Raises MintctlError, e.g. if memory cannot leave."""
        now, names = self.ledger(), like.nodes
        for (kind, device), (state, owner) in like.resources.items():
            if kind == "device" and state == "owned" and now.resources[kind, device] != (state, owner):
                self.mintctl("device", "move", device, "--to", names[owner])
        for node, name in names.items():
            others = ",".join(other for other in names.values() if other != name)
            wanted = like.owned("cpu", node)
            if self.ledger().owned("cpu", node) != wanted:
                self.mintctl("node", "resize", name, "--cpus", ",".join(wanted), "--from", others)
        more = {place: now.memory_bytes(*place) - like.memory_bytes(*place) for place in like.memory_places()}
        # What is too much first: it is free then.
        for (node, numa), count in sorted(more.items(), key=lambda item: -item[1]):
            if node is not None and count:
                self.mintctl("node", "resize", names[node], f"--memory={-count >> 20:+d}M@numa{numa}")

    def ensure_pair(self) -> bool:
        """Nodes 1 (ONE) and 2 (TWO) run, their mintds answer, and there are no others; gives whether that took a
        change."""
        have = {n: (node["name"], node["state"]) for n, node in self.extra_nodes().items()}
        if have == {1: (ONE.name, "running"), 2: (TWO.name, "running")}:
            return False
        if have:
            self.remove_all()
        # Both boot at the same time; the second is waited for by mintctl, as by default.
        self.add(ONE, "--wait", "running")
        self.add(TWO)
        names = {n: node["name"] for n, node in self.extra_nodes().items()}
        if names != {1: ONE.name, 2: TWO.name}:
            raise RigError(f"nodes one and two should have ids 1 and 2; there are {names}")
        self.wait_mintd(self.one, READY_LIMIT_S)
        self.wait_mintd(self.two, READY_LIMIT_S)
        return True

    def uptime_s(self) -> float:
        """Host seconds since QEMU's start."""
        return time.monotonic() - self.machine.started_at
