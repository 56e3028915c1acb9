# SPDX-License-Identifier: Apache-2.0
"""PCI functions as the node sees them that has them."""

from contextlib import AbstractContextManager

from rig.node import Node


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
