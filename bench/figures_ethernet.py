# SPDX-License-Identifier: Apache-2.0
"""Guests that talk by TCP, for the group "migrate" of make report.

"near" and "beside" are on node 1, "far" is on node 2. Each has a card on the guests' Ethernet; near and far have
another one, on a bridge that their node alone has: between these bridges the nodes route, over mint0.
"""

import contextlib
import xml.etree.ElementTree as ElementTree

import figures_talk
from figures_programs import build, guest_initrd
from figures_talk import LIMIT_S
from rig.echo import address
from rig.guest import Guest, start_command
from rig.node import Node
from rig.server import Server

# MiB of a stream, trips in a row: as much as takes some seconds.
AMOUNTS = (32, 300)
BRIDGE = "figbr0"
SUBNET = "10.79.{node}.{host}"
SECOND_UP = "ip addr add {own}/24 dev eth1 && ip link set eth1 up && ip route add 10.79.0.0/16 via {gateway}"
NEAR, BESIDE, FAR = "near", "beside", "far"


def routed(node: int, other: int, address: str) -> str:
    """For node's shell: its bridge, and the way to the other's, whose address on mint0 is given."""
    return (
        f"ip link add {BRIDGE} type bridge && ip address add {SUBNET.format(node=node, host=1)}/24 dev {BRIDGE}"
        f" && ip link set {BRIDGE} up && ip route add {SUBNET.format(node=other, host=0)}/24 via {address}"
        " && sysctl -qw net.ipv4.ip_forward=1"
    )


def with_second_card(domain: str) -> str:
    """A domain with a card on the routed bridge, too. Raises RigError unless it has one card."""
    tree, _, second = figures_talk.two_cards(domain)
    if (source := second.find("source")) is not None:
        second.remove(source)
    second.set("type", "bridge")
    ElementTree.SubElement(second, "source", bridge=BRIDGE)
    return ElementTree.tostring(tree, encoding="unicode")


class Talkers:
    """The three guests; as a context, they and the bridges are gone at the end."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._guests = {NEAR: Guest(server.one, NEAR), BESIDE: Guest(server.one, BESIDE), FAR: Guest(server.two, FAR)}
        self._addresses: dict[str, str] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Talkers":
        server = self._server
        with contextlib.ExitStack() as stack:
            for here, there in ((1, 2), (2, 1)):
                way = routed(here, there, server.address(there))
                stack.enter_context(server.node(here).undone(way, f"ip link del {BRIDGE}"))
            for guest in self._guests.values():
                stack.enter_context(guest)
                self._start(guest)
            for name in (FAR, BESIDE):
                self._addresses[name] = address(self._guests[name])
                figures_talk.serve(self._guests[name])
            address(self._guests[NEAR])
            for name, node in ((NEAR, 1), (FAR, 2)):
                own, gateway = SUBNET.format(node=node, host=2), SUBNET.format(node=node, host=1)
                figures_talk.up(self._guests[name], SECOND_UP.format(own=own, gateway=gateway))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception) -> None:
        self._stack.close()

    def _start(self, guest: Guest) -> None:
        node: Node = guest.node
        initrd = guest_initrd(node, build("measure"))
        words = f"--no-disk --initrd {initrd} --append mint.tick=0 --print"
        domain = node.out(start_command(node, guest.name, words), LIMIT_S)
        figures_talk.start(guest, domain if guest.name == BESIDE else with_second_card(domain))

    def _measured(self, to: str) -> dict[str, float]:
        return figures_talk.measured(self._guests[NEAR], to, AMOUNTS)

    def ethernet(self) -> dict[str, float]:
        """MB/s of a stream, µs of a round trip, to the guest of node 2 on one Ethernet."""
        return self._measured(self._addresses[FAR])

    def routes(self) -> dict[str, float]:
        """The same by routes."""
        return self._measured(SUBNET.format(node=2, host=2))

    def one_node(self) -> dict[str, float]:
        """The same to the other guest of node 1."""
        return self._measured(self._addresses[BESIDE])
