# SPDX-License-Identifier: Apache-2.0
"""A real server over ssh, with the parts of rig.server.Server that benchmarks use.

Node 0's agent is brought by the connection and goes with it (rig.ssh). Those of other nodes
are brought by `mintctl node exec`, the same way: no image has one. Who owns what is asked of
mintctl; nobody reads RAM here.

What was made on the server is removed by it when the connection ends, whoever ended it: nodes
and guests of rig.plan's names, which were not there when it began; cores that went offline
are online again, and what was written to a data disk is zero.
"""

import shlex
from dataclasses import dataclass, field
from ipaddress import ip_address

from rig import bootstrap
from rig.channel import Channel
from rig.console import Console
from rig.errors import RigError
from rig.guest import READY
from rig.inventory import Inventory
from rig.ledger import Ledger, read_ledger
from rig.link import Carrier, Links
from rig.mintctl import Mintctl
from rig.node import Node
from rig.plan import GUESTS, NODES, Plan
from rig.roles import NodePlan
from rig.ssh import ProcessStream, Ssh
from rig.wait import wait_until

READY_LIMIT_S = 300
LOCK = bootstrap.LOCK
RUNS = ("starting", "running", "degraded")

AT_BEGIN = """
onlines=$(grep -lx 1 /sys/devices/system/cpu/cpu*/online 2>/dev/null)
"""
# What mintd was asked for goes on when the connection is gone, and may add a node after the first look. A look is a
# second.
AGAIN = 30
REMOVE_NODES = f"""
for look in $(seq {AGAIN}); do
	for node in {" ".join(NODES)}; do mintctl node remove $node --force >/dev/null 2>&1; done
	mintctl operation list 2>/dev/null | awk '$4 ~ /^(queued|running),?$/ {{ found = 1 }} END {{ exit !found }}' ||
		mintctl node list --json 2>/dev/null | grep -Eq '"name": *"({"|".join(NODES)})"' || break
	sleep 1
done
"""
AT_END = f"""
for guest in $(virsh -q list --all --name 2>/dev/null | grep -xE '{"|".join(GUESTS)}'); do
	virsh -q destroy $guest; virsh -q undefine $guest; virsh -q vol-delete $guest.raw --pool mint
done >/dev/null 2>&1
for guest in {" ".join(GUESTS)}; do
	rm -f /var/log/libvirt/qemu/$guest-console.log /var/log/libvirt/qemu/$guest.log
done
if [ -e /sys/kernel/mint/node ]; then
	{REMOVE_NODES}
fi
for online in $onlines; do grep -qx 1 $online 2>/dev/null || echo 1 >$online; done 2>/dev/null
{{
{bootstrap.ZERO_WRITTEN}
}} 2>/dev/null
"""


@dataclass
class RemoteMachine:
    """What rig.node.Node wants of a machine."""

    channel: Channel | None = None
    links: Links = field(default_factory=Links)
    console: list[Console] = field(default_factory=list)  # nobody follows them


class Remote:
    """A server whose plan has been checked, as a context."""

    def __init__(self, ssh: Ssh, plan: Plan, has: Inventory, agent: bytes) -> None:
        self.ssh, self.plan, self.has, self.roles = ssh, plan, has, plan.roles
        self._agent = agent
        self._stream: ProcessStream | None = None
        self.machine = RemoteMachine(links=Links(self._connect, self._boots, again_s=1.0))
        self.zero, self.one, self.two = self.node(0), self.node(1), self.node(2)
        self.mintctl = Mintctl(self.zero)

    @property
    def boot(self) -> str:
        """Whether Mint runs there: rig.inventory.MINT, LINUX."""
        return self.has.boot

    def node(self, number: int) -> Node:
        """Node number, whether it exists now or not."""
        return Node(self.machine, number)

    def _connect(self, main: Channel, node: int) -> Carrier:
        words = shlex.join(["mintctl", "node", "exec", "--stdin", str(node), "--", *bootstrap.command(len(self._agent))])
        carrier = Carrier(main, f"exec {words}")
        carrier.sendall(self._agent)
        return carrier

    def _boots(self) -> dict[int, int]:
        return {number: node["boots"] for number, node in self.mintctl.nodes().items() if node["state"] in RUNS}

    def start(self) -> "Remote":
        """Bring the agent; raises NoConnection, Busy."""
        self.machine.channel, self._stream = self.ssh.agent(self._agent, AT_BEGIN, AT_END, LOCK)
        return self

    def stop(self) -> None:
        """End the connection, and wait until the server has removed what was made there."""
        if self.machine.channel is None or self._stream is None:
            return
        self.machine.links.running({}, self.machine.channel)
        self._stream.shutdown(0)
        self._stream.close()

    def __enter__(self) -> "Remote":
        return self.start()

    def __exit__(self, *exception) -> None:
        self.stop()

    def address(self, number: int) -> str:
        """A node's on mint0, whether it is there now or not: 10 + its number, of the subnet that node 0 is in."""
        return str(ip_address(self.mintctl.nodes()[0]["address"]) + number)

    def wait_ready(self, node: Node, limit_s: float = READY_LIMIT_S) -> None:
        """Wait until a node's libvirtd answers."""
        node.wait("its services", READY, limit_s)

    def ledger(self) -> Ledger:
        """Who owns what now, as mintctl says."""
        return read_ledger(self.mintctl)

    def state(self, number: int) -> str:
        """State of node number ("absent": there is none)."""
        return self.mintctl.state(number)

    def wait_state(self, number: int, *states: str, limit_s: float = 60) -> str:
        """Wait until node number is in one of these states."""

        def reached() -> str | None:
            state = self.state(number)
            return state if state in states else None

        return wait_until(f"node {number} {' or '.join(states)}", reached, limit_s, every_s=0.3)

    def add(self, plan: NodePlan, *more: str) -> dict:
        """mintctl node add; gives what it answers. Raises RigError for a name that is not removed at the end."""
        if plan.name not in NODES:
            raise RigError(f"node {plan.name} would stay on the server: it is none of {', '.join(NODES)}")
        return self.mintctl("node", "add", *plan.words(), *more)

    def remove_all(self) -> bool:
        """Only node 0 stays; gives whether there were others. Raises RigError at one that is not ours."""
        others = {number: node["name"] for number, node in self.mintctl.nodes().items() if number != 0}
        if strangers := set(others.values()) - set(NODES):
            raise RigError(f"node {', '.join(sorted(strangers))} came meanwhile, and disturbs what is measured: remove it")
        for name in others.values():
            self.mintctl("node", "remove", name, "--force")
        return bool(others)
