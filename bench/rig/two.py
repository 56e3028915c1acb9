# SPDX-License-Identifier: Apache-2.0
"""Two emulated servers, on one wire.

The wire is cut at both ends at once, as a switch between them would fail: no card loses its
carrier. It is slowed where its frames come from, on node 0's card of each machine.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from rig import link, wire
from rig.functions import interface_of
from rig.machine import MachineConfig
from rig.server import CARD0, Server
from rig.wire import Wire

LETTERS = "ab"  # what the machines are called
SUBNETS = (link.SUBNET, "10.77.1.0/24")  # of mint0
ADDRESSES = ("192.0.2.1", "192.0.2.2")  # of the node 0s, on the wire


def at_wire(like: MachineConfig, cable: Wire, number: int, name: str) -> MachineConfig:
    """Of the machine at one end of the wire."""
    return replace(like, name=name, number=number, wire=cable.ends[number], subnet=SUBNETS[number])


def join_command(number: int) -> str:
    """For the shell of machine number's node 0: its card has its address on the wire."""
    return (
        f"cd /sys/bus/pci/devices/{CARD0} && card=$(basename virtio*/net/*) && ip link set $card up &&"
        f" ip address replace {ADDRESSES[number]}/24 dev $card"
    )


class TwoMachines:
    """Two started machines: a has the default subnet, b another; node 0 of each has an address on the wire."""

    def __init__(self, like: MachineConfig, names: tuple[str, str] = ("a", "b")) -> None:
        self.wire = Wire()
        self.a, self.b = self.servers = tuple(
            Server(at_wire(like, self.wire, number, name)) for number, name in enumerate(names)
        )

    def start(self, libvirt: bool = True) -> "TwoMachines":
        """Start both at the same time, wait for the services of their node 0s (Server.start)."""
        try:
            for server in self.servers:
                server.machine.start()
            for number, server in enumerate(self.servers):
                server.wait_started(libvirt).zero.run(join_command(number))
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End both, and the wire."""
        for server in self.servers:
            server.stop()
        self.wire.close()

    def __enter__(self) -> "TwoMachines":
        return self.start()

    def __exit__(self, *exception) -> None:
        self.stop()

    def _set_wire(self, whole: bool) -> None:
        for server in self.servers:
            if server.machine.alive():
                server.machine.monitor.execute("set_link", name=wire.NAME, up=whole)

    def cut(self) -> None:
        """No frame passes any more."""
        self._set_wire(False)

    def mend(self) -> None:
        """Frames pass again."""
        self._set_wire(True)

    @contextlib.contextmanager
    def wire_cut(self) -> Iterator[None]:
        """No frame passes meanwhile."""
        self.cut()
        try:
            yield
        finally:
            self.mend()

    @contextlib.contextmanager
    def wire_slow(self, how: str) -> Iterator[None]:
        """Frames of both node 0s' cards leave as `tc` has it: "delay 50ms", "rate 100mbit", ... (tc-netem)."""
        with contextlib.ExitStack() as ends:
            for server in self.servers:
                card = interface_of(server.zero, CARD0)
                ends.enter_context(
                    server.zero.undone(f"tc qdisc add dev {card} root netem {how}", f"tc qdisc del dev {card} root")
                )
            yield
