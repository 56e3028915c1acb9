# SPDX-License-Identifier: Apache-2.0
"""Guests that talk by TCP, for groups of make report: their domains, and what is measured between them."""

import copy
import xml.etree.ElementTree as ElementTree

from figures_programs import TMP, number
from rig.errors import RigError
from rig.guest import WHOLE, Guest

PORT = 5999
LIMIT_S = 300


def two_cards(domain: str) -> tuple[ElementTree.Element, ElementTree.Element, ElementTree.Element]:
    """A domain with another card, like its own but for the MAC; gives it and both cards. Raises RigError unless it has
    one."""
    tree = ElementTree.fromstring(domain)
    devices, cards = tree.find("devices"), tree.findall("devices/interface")
    if devices is None or len(cards) != 1:
        raise RigError(f"the domain has {len(cards)} cards, not one:\n{domain}")
    second = copy.deepcopy(cards[0])
    if (mac := second.find("mac")) is not None:
        second.remove(mac)
    devices.insert(list(devices).index(cards[0]) + 1, second)
    return tree, cards[0], second


def start(guest: Guest, domain: str) -> None:
    """Define a guest, and start it."""
    guest.node.run(f"cat >{TMP}/{guest.name}.xml", stdin=domain.encode())
    guest.node.run(f"virsh -q define --validate {TMP}/{guest.name}.xml && virsh -q start {guest.name}", LIMIT_S)


def serve(guest: Guest) -> None:
    """The other end, in a guest."""
    guest.dialogue(f"measure serve {PORT} & echo ser''ves", "serves")


def up(guest: Guest, command: str) -> None:
    """Have a guest set up its second card. Raises RigError."""
    text, status = guest.shell(command)
    if status:
        raise RigError(f"{guest} has no second card:\n{text}")


def _say(guest: Guest, what: str, address: str, amount: int) -> float:
    line = f"measure {what} {address} {PORT} {amount}"
    return number(guest.dialogue(line, rf"(?m)^measure {what} [\d.]+{WHOLE}", LIMIT_S), what)


def measured(guest: Guest, address: str, amounts: tuple[int, int]) -> dict[str, float]:
    """A stream of so many MiB in MB/s, and so many round trips in µs, from a guest to an address."""
    stream, trips = amounts
    return {"stream": _say(guest, "send", address, stream), "trip": _say(guest, "pingpong", address, trips)}
