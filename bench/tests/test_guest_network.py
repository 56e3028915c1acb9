# SPDX-License-Identifier: Apache-2.0
"""One Ethernet for the guests of all nodes: addresses, gateway, connections that live on."""

import contextlib
import ipaddress
import re

import pytest

from rig.echo import address, wait_echoes
from rig.guest import Guest, guests
from rig.mintctl import REFUSED, MintctlError
from rig.node import Node
from rig.server import CARD2_E1000E, Server

NUMBERS = (0, 1, 2)
NETWORK = ipaddress.ip_network("10.78.0.0/16")
NETWORK6 = ipaddress.ip_network("fd4d:494e:5400:78::/64")
GATEWAY = "10.78.0.1"
LEASES = "/var/lib/mint/dhcp.leases"
PORT = "mint0.78"


@pytest.fixture(autouse=True)
def libvirt_answers(pair: Server) -> None:
    """On all nodes: one that was started anew by an earlier test may be without it yet."""
    for number in NUMBERS:
        pair.wait_ready(pair.node(number))


def own_mac(number: int) -> str:
    """MAC of a node on mint0, and of its guests' bridge."""
    return f"02:4d:49:4e:54:{number:02x}"


def address6(guest: Guest) -> ipaddress.IPv6Address:
    """What a guest makes of its MAC and the prefix (RFC 4291, appendix A)."""
    mac = re.search(r"mac address='([^']*)'", guest.node.out(f"virsh dumpxml {guest.name}"))[1]
    octets = bytearray.fromhex(mac.replace(":", ""))
    octets[0] ^= 2
    return NETWORK6[int.from_bytes(octets[:3] + b"\xff\xfe" + octets[3:], "big")]


@pytest.mark.soak
@pytest.mark.soak_only
def test_guest_keeps_its_address_and_its_connection_on_every_node(pair: Server):
    """A guest talks by TCP with one on node 0; it goes from node 1 to 2, then the other one to 1. One
    connection all the time, the same addresses, and who has moved is found by who has not."""
    with contextlib.ExitStack() as ends:
        for node in (pair.node(number) for number in NUMBERS):
            for name in ("speaker", "mover"):
                ends.enter_context(Guest(node, name))
        speaker = Guest(pair.zero, "speaker").start("--no-disk")
        there = address(speaker)
        mover = Guest(pair.one, "mover").start(f"--no-disk --net-echo {there}")
        here, here6 = address(mover), address6(mover)
        assert ipaddress.ip_address(here) in NETWORK and here != there
        places = {"mover": mover, "speaker": speaker}
        found = wait_echoes(mover)
        gaps = [found[1]]
        for name, to in (("mover", 2), ("speaker", 1)):
            node = pair.node(to)
            node.run(f"rm -f {places[name].log_path}")
            pair.mintctl("vm", "migrate", name, "--to", to)
            places[name] = Guest(node, name)
            before, found = found, wait_echoes(places["mover"])
            assert found[0] > before[0]
            gaps.append(found[1])
            shown, _ = places["mover"].shell("ip -4 address show dev eth0; ip -6 address show dev eth0")
            assert f"inet {here}/16" in shown and f"inet6 {here6}/64" in shown, shown
            # whoever has spoken with it before, and each node, finds it where it is now
            for other in NUMBERS:
                text = pair.node(other).out(f"ping -c 2 -i 0.2 -W 10 {here}")
                assert re.search(r"\b0% packet loss", text), text
        shown, status = places["speaker"].shell(f"ping -6 -c 2 {here6}")
        assert status == 0, shown
        print(f"longest time of a reply, in s, after each move: {gaps}")


def lease(guest: Guest) -> tuple[str, str]:
    """Ask for an address as if for the first time: what it is given, and by whom."""
    guest.shell("killall udhcpc; ip -4 address flush dev eth0")
    shown, status = guest.shell("udhcpc -f -n -q -t 10 -i eth0 -s /bin/true")
    assert status == 0, shown
    return re.search(r"lease of ([\d.]+) obtained from ([\d.]+)", shown).groups()


@pytest.mark.soak
@pytest.mark.soak_only
def test_every_node_alone_gives_a_guest_the_same_address(pair: Server):
    """With dnsmasq of one node only, which knows of no lease: the same address from each, by the same name."""
    nodes = [pair.node(number) for number in NUMBERS]
    given = {}
    with Guest(pair.one, "asker") as asker:
        asker.start("--no-disk")
        first = address(asker)
        try:
            for node in nodes:
                for other in nodes:
                    other.run(f"mint-service stop dnsmasq; rm -f {LEASES}")
                    assert other.run("pidof dnsmasq", check=False).status == 1
                node.run("mint-service start dnsmasq")
                given[node.number] = lease(asker)
        finally:
            for node in nodes:
                node.run("mint-service start dnsmasq")
    assert given == dict.fromkeys(NUMBERS, (first, GATEWAY))


def neighbour(guest: Guest, other: str) -> str:
    """The MAC that a guest knows an address by, once it has asked."""
    shown, status = guest.shell(f"ping -c 2 {other} && ip neigh show {other}")
    assert status == 0, shown
    return re.search(r"lladdr ([\da-f:]+)", shown)[1]


def answering(guest: Guest, other: str) -> set[str]:
    """MACs of all who answer when a guest asks everybody for an address."""
    shown, _ = guest.shell(f"arping -b -c 3 -I eth0 {other}")
    return set(re.findall(r"reply from [\d.]+ \[([\da-f:]+)\]", shown))


def received(node: Node) -> int:
    """Packets that a node has had from the others' guests and bridges."""
    return int(node.read(f"/sys/class/net/{PORT}/statistics/rx_packets"))


def test_gateway_is_the_guests_own_node_and_broadcast_goes_round_once(pair: Server):
    """The address that all nodes have is answered by each to its own guests, and is not asked for elsewhere; five
    questions to nobody reach the other nodes five times, not for ever."""
    with guests([pair.one, pair.two], "near", "--no-disk") as found:
        for guest in found:
            address(guest)
            assert neighbour(guest, GATEWAY) == own_mac(guest.node.number)
            assert answering(guest, GATEWAY) == {own_mac(guest.node.number)}
        near = found[0]
        assert neighbour(near, f"10.78.0.{10 + 2}") == own_mac(2)
        before = {number: received(pair.node(number)) for number in NUMBERS}
        near.shell("arping -c 5 -I eth0 10.78.99.99")
        heard = {number: received(pair.node(number)) - before[number] for number in NUMBERS}
        # announcements of the IPv6 prefix and the like come on top
        assert all(5 <= heard[number] < 60 for number in (0, 2)) and heard[1] < 60, heard


def test_node_with_an_uplink_leaves_the_machines_ethernet(pair: Server):
    """It gives no addresses any more, and no guest comes to it that would lose its network; without the uplink all is as
    it was."""
    zero = pair.zero
    card = zero.out(f"ls /sys/bus/pci/devices/{CARD2_E1000E}/net").strip()
    ports = "ls /sys/class/net/mintbr0/brif"
    assert PORT in zero.out(ports).split() and zero.run("pidof dnsmasq", check=False).status == 0
    with Guest(pair.one, "stays") as guest:
        guest.start("--no-disk")
        with zero.undone(
            f"echo 'uplink = \"{card}\"' >/etc/mint/kvm.toml && mint-kvm-config apply",
            f"rm -f /etc/mint/kvm.toml; ip link set {card} down nomaster; mint-kvm-config apply",
        ):
            shown = zero.out(ports).split()
            assert card in shown and PORT not in shown
            assert zero.run("pidof dnsmasq", check=False).status == 1
            with pytest.raises(MintctlError) as caught:
                pair.mintctl("vm", "migrate", "stays", "--to", 0, "--dry-run")
            assert caught.value.status == REFUSED and caught.value.codes == {"plan_refused", "vm_network"}, caught.value
            # the card is taken out first: two Ethernets never become one
            result = zero.run("rm /etc/mint/kvm.toml; mint-kvm-config apply", check=False)
            assert result.status == REFUSED and f"ip link set {card} nomaster" in result.err, result
            assert PORT not in zero.out(ports).split()
        shown = zero.out(ports).split()
        assert card not in shown and PORT in shown and zero.run("pidof dnsmasq", check=False).status == 0
        pair.mintctl("vm", "migrate", "stays", "--to", 0, "--dry-run")
