# SPDX-License-Identifier: Apache-2.0
"""Group "network" of make report: one TCP stream, and one byte's round trip.

mint0 between two nodes, virtio-net between two guests of node 0, loopback on node 0, in turns.
The guests have a card that node 0's kernel serves (vhost-net, as libvirt does where it can), and one that QEMU
does; they are idle while others have their turn.
"""

import contextlib
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence

import figures_talk
from figures_programs import FOLDER, GUESTS_TAKE, beside, build, guest_initrd, number, put
from figures_talk import PORT
from report.figure import Figure
from report.goals import Goal, equal
from report.passes import WHOLE_GROUP
from report.recorder import Recorder, Taker
from report.turns import turns
from rig.guest import Guest, start_command
from rig.inventory import MINT
from rig.machine import MachineConfig
from rig.node import Node
from rig.remote import Remote
from rig.server import Server

GROUP = "network"
MACHINES, QUICK_MACHINES = 5, 1
ROUNDS, QUICK_ROUNDS = 6, 1
GUEST_LIMIT_S = 240
ADDRESS_OF_TWO = "10.77.0.12"

MINT0, AGAIN, VHOST, VIRTIO, LOOPBACK = "mint0", "mint0 again", "vhost", "virtio", "loopback"
SIDES = {
    MINT0: "mint0, node 1 → node 2",
    AGAIN: "the same again",
    VHOST: "vhost-net, guest → guest on node 0",
    VIRTIO: "virtio-net by QEMU, the same guests",
    LOOPBACK: "loopback on node 0",
}
# MiB of a stream, trips in a row: as much as takes a second or two.
AMOUNTS = {MINT0: (256, 2000), AGAIN: (256, 2000), VHOST: (32, 300), VIRTIO: (32, 300), LOOPBACK: (256, 2000)}
# What serves a guest's cards, in their order, as libvirt calls it; the second has a network of its own on the bridge.
DRIVERS = {VHOST: "vhost", VIRTIO: "qemu"}
SECOND_FAR, SECOND_NEAR = "10.79.0.1", "10.79.0.2"
# A card must not answer for the other's address: the bridge joins them.
SECOND_UP = "echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore && ip addr add {address}/24 dev eth1 && ip link set eth1 up"
NOTE = "mint0's MTU is 65280, virtio-net's 1500. A guest's exits are emulated, and cost more than on a real server."
FIGURES = (
    Figure(GROUP, "stream", "One TCP stream", "MB/s", SIDES, note=f"{NOTE} 256 MiB a sample, between guests 32."),
    Figure(
        GROUP, "trip", "Round trip of one byte", "µs", SIDES,
        note=f"{NOTE} A sample is the median of 2,000 trips, between guests of 300.",
    ),
)  # fmt: skip
GOALS = (
    Goal("a stream over mint0 is three times as fast as vhost-net", GROUP, "stream", MINT0, VHOST, low=3),
    equal("a stream over mint0, and again", GROUP, "stream", AGAIN, MINT0, within=0.15, null=True),
    equal("a round trip over mint0, and again", GROUP, "trip", AGAIN, MINT0, within=0.15, null=True),
)
UNITS = {"stream": "MB/s", "trip": "µs"}


@contextlib.contextmanager
def serving(node: Node) -> Iterator[None]:
    """The other end on a node, until the end."""
    with beside(node, f"exec {FOLDER}/measure serve {PORT}"):
        node.wait("listens", f"ss -Htln 'sport = :{PORT}' | grep -q .")
        yield


def from_node(node: Node, address: str, amounts: tuple[int, int]) -> dict[str, float]:
    """A stream and round trips from a node to an address."""
    stream = node.out(f"{FOLDER}/measure send {address} {PORT} {amounts[0]}", 300)
    trips = node.out(f"{FOLDER}/measure pingpong {address} {PORT} {amounts[1]}", 300)
    return {"stream": number(stream, "send"), "trip": number(trips, "pingpong")}


def with_cards(domain: str, sides: Sequence[str]) -> str:
    """A domain with a card for each of these sides, on its node's bridge. Raises RigError unless it has one."""
    tree, first, second = figures_talk.two_cards(domain)
    for card, side in zip((first, second), sides, strict=False):
        ElementTree.SubElement(card, "driver", name=DRIVERS[side])
    if len(sides) == 1:
        tree.find("devices").remove(second)
    return ElementTree.tostring(tree, encoding="unicode")


class GuestPair:
    """Two guests on a node's bridge, the other end in the first; sides: their cards, in order."""

    def __init__(self, far: Guest, near: Guest, sides: Sequence[str]) -> None:
        self._near = near
        first = re.search(r"eth0 ([\d.]+)/", far.wait_line("mint-guest: eth0"))[1]
        near.wait_line("mint-guest: eth0")
        self._addresses = dict(zip(sides, (first, SECOND_FAR), strict=False))
        if len(sides) > 1:
            for guest, address in ((far, SECOND_FAR), (near, SECOND_NEAR)):
                figures_talk.up(guest, SECOND_UP.format(address=address))
        figures_talk.serve(far)

    def measured(self, side: str) -> dict[str, float]:
        """A stream and round trips from the second to the first, over a side's cards."""
        return figures_talk.measured(self._near, self._addresses[side], AMOUNTS[side])


@contextlib.contextmanager
def guest_pair(node: Node, cpus: tuple[int, ...], program: bytes, sides: Sequence[str]) -> Iterator[GuestPair]:
    """Started, each on a core of its own; ended at the end."""
    options = f"--no-disk --initrd {guest_initrd(node, program)} --append mint.tick=0 --print"
    with Guest(node, "far") as far, Guest(node, "near") as near:
        for guest, cpu in zip((far, near), cpus, strict=True):
            domain = node.out(start_command(node, guest.name, f"{options} --pin {cpu}"), GUEST_LIMIT_S)
            figures_talk.start(guest, with_cards(domain, sides))
        yield GuestPair(far, near, sides)


def measured(server: Server | Remote, guests: GuestPair | None, side: str, two: str) -> dict[str, float]:
    """One side's turn; two: node 2's address."""
    if side in DRIVERS and guests:
        return guests.measured(side)
    if side == LOOPBACK:
        return from_node(server.zero, "127.0.0.1", AMOUNTS[side])
    return from_node(server.one, two, AMOUNTS[side])


def in_turns(taker: Taker, server: Server | Remote, sides: list[str], two: str, seed: int, rounds: int) -> None:
    """All turns on a machine; node 0 is alone before."""
    program = build("measure")
    server.add(server.roles.one)
    server.add(server.roles.two)
    for node in (server.zero, server.one, server.two):
        put(node, f"{FOLDER}/measure", program)
    with contextlib.ExitStack() as stack:
        stack.enter_context(serving(server.two))
        stack.enter_context(serving(server.zero))
        guests = None
        if cards := [side for side in DRIVERS if side in sides]:
            guests = stack.enter_context(guest_pair(server.zero, server.roles.guests[:2], program, cards))
        for count, order in enumerate(turns(seed, f"{GROUP} {taker.name}", sides, rounds)):
            for place, side in enumerate(order):
                for case, value in measured(server, guests, side, two).items():
                    taker.add(case, side, value, UNITS[case], round=count, order=place)


def on_machine(taker: Taker, seed: int, rounds: int) -> None:
    """All turns of one machine."""
    with Server(MachineConfig("figures-network")) as server:
        in_turns(taker, server, list(SIDES), ADDRESS_OF_TWO, seed, rounds)


AT_BOOTS = (MINT,)
VHOST_NET = "/dev/vhost-net"


def no_guests(remote: Remote) -> str:
    """Why there are no guests there; "" if there are."""
    if len(remote.roles.guests) < 2:
        return "the plan has no [guests] with two cores"
    return remote.has.lacks_in_mint(GUESTS_TAKE)


def without_cards(remote: Remote) -> dict[str, str]:
    """Sides of guests that are not measured there, and why."""
    found = {VHOST: no_guests(remote) or remote.has.lacks_in_mint((VHOST_NET,)), VIRTIO: no_guests(remote)}
    return {side: why for side, why in found.items() if why}


def absent_at(remote: Remote) -> Mapping[str, str]:
    """What is not measured on a server."""
    if remote.roles.two is None:
        return {WHOLE_GROUP: "the plan has no [two]"}
    return {SIDES[side]: why for side, why in without_cards(remote).items()}


def on_pass(taker: Taker, remote: Remote, recorder: Recorder) -> None:
    """All turns of a pass on a server."""
    lost = without_cards(remote)
    sides = [side for side in SIDES if side not in lost]
    address = remote.address(2)
    in_turns(taker, remote, sides, address, recorder.header.seed, recorder.pick(ROUNDS, QUICK_ROUNDS))


def run(recorder: Recorder) -> None:
    """Measure what is missing."""
    rounds = recorder.pick(ROUNDS, QUICK_ROUNDS)
    for name in recorder.to_do(GROUP, "machine", recorder.pick(MACHINES, QUICK_MACHINES)):
        with recorder.machine(GROUP, name) as taker:
            on_machine(taker, recorder.header.seed, rounds)
