# SPDX-License-Identifier: Apache-2.0
"""PCI functions as the node sees them that has them; and what nobody needs to own to be done with them."""

from contextlib import AbstractContextManager

from rig.machine import Machine
from rig.node import Node

# PCI 3.0, 3.2.2.3.2: address and data of configuration accesses by ports; 6.1: registers.
CONFIG_ADDRESS, CONFIG_DATA = 0xCF8, 0xCFC
VENDOR_ID, COMMAND, COMMAND_MASTER = 0x00, 0x04, 1 << 2


def driver_of(node: Node, function: str) -> str:
    """The driver that is bound to a function; "" if none is."""
    return node.run(f"basename $(readlink /sys/bus/pci/devices/{function}/driver)", check=False).out.strip()


def interface_of(node: Node, function: str) -> str:
    """The name of a card's interface, which is its own or its virtio device's."""
    return node.out(f"cd /sys/bus/pci/devices/{function} && basename $(ls -d net/* virtio*/net/* 2>/dev/null)")


def mac_of(node: Node, function: str) -> str:
    """The MAC address of a card's interface."""
    return node.read(f"/sys/class/net/{interface_of(node, function)}/address")


def addressed(node: Node, card: str, cidr: str) -> AbstractContextManager[None]:
    """The card's interface is up and has an IP address."""
    name = interface_of(node, card)
    return node.undone(
        f"ip link set {name} up && ip address add {cidr} dev {name}",
        f"ip address delete {cidr} dev {name}; ip link set {name} down",
    )


def let_master(machine: Machine, function: str, vendor: int) -> None:
    """Set bus mastering of a function, whoever owns it, as the first step of any driver does.

    The machine goes on meanwhile, as QEMU drops the frames that wait for a card when it stops; nothing else may
    touch configuration spaces. vendor is whose function it has to be.
    """
    _, bus, slot = function.split(":")
    device, number = slot.split(".")
    address = 1 << 31 | int(bus, 16) << 16 | int(device, 16) << 11 | int(number, 16) << 8
    monitor = machine.monitor

    def read() -> int:
        return int(monitor.human(f"i /xh {CONFIG_DATA:#x}").split("=")[1], 16)

    monitor.human(f"o /w {CONFIG_ADDRESS:#x} {address | VENDOR_ID:#x}")
    assert read() == vendor
    monitor.human(f"o /w {CONFIG_ADDRESS:#x} {address | COMMAND:#x}")
    command = read()
    monitor.human(f"o /h {CONFIG_DATA:#x} {command | COMMAND_MASTER:#x}")
    assert not command & COMMAND_MASTER and read() & COMMAND_MASTER
