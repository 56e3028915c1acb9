# SPDX-License-Identifier: Apache-2.0
"""mint0: every node reaches every other node directly."""

import re

import pytest

from rig.server import Server
from rig.wait import wait_until


def address(number: int) -> str:
    """A node's address on mint0."""
    return f"10.77.0.{10 + number}"


@pytest.mark.parametrize(("here", "there"), [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)])
def test_ping_between_all_nodes(pair: Server, here: int, there: int):
    """No packet is lost, by address and by name."""
    node = pair.node(here)
    for target in (address(there), f"node{there}"):
        text = node.out(f"ping -c 5 -i 0.2 -W 10 {target}")
        assert re.search(r"\b0% packet loss", text), text


def test_large_mtu_passes_whole(pair: Server):
    """The MTU is beyond Ethernet's, and a packet of that size passes unfragmented."""
    mtu = int(pair.one.read("/sys/class/net/mint0/mtu"))
    assert mtu >= 16384
    text = pair.one.out(f"ping -c 3 -i 0.2 -W 10 -M do -s {mtu - 28} {address(2)}")
    assert re.search(r"\b0% packet loss", text), text


def test_mac_and_address_follow_the_node_id(pair: Server):
    """02:4d:49:4e:54:NN and 10.77.0.(10+N)/24."""
    for n in (0, 1, 2):
        node = pair.node(n)
        assert node.read("/sys/class/net/mint0/address") == f"02:4d:49:4e:54:{n:02x}"
        assert f"{address(n)}/24" in node.out("ip -4 addr show mint0")


def test_ssh_from_node1_to_node2(pair: Server):
    """Login without a question, and the key is known: no first-time prompt is needed."""
    assert pair.one.out("ssh -o BatchMode=yes node2 hostname") == pair.two.out("hostname")


def test_one_gib_over_tcp_checksummed_while_node0_is_busy(pair: Server):
    """1 GiB from node 1 to node 2, sha256 on both sides equal; node 0 spins meanwhile."""
    # Random bytes, repeated with a number in between: no two MiB are the same.
    make = (
        "head -c 16777216 /dev/urandom >/tmp/chunk; mkfifo /tmp/copy; md5sum </tmp/copy >/tmp/sum & "
        "for i in $(seq 65); do echo $i; cat /tmp/chunk; done | head -c 1073741824 | tee /tmp/copy | "
        f"nc -N {address(2)} 5001; wait; cat /tmp/sum; rm /tmp/chunk /tmp/copy /tmp/sum"
    )
    busy = pair.zero.start("for i in 1 2 3; do (while :; do :; done) & done; wait", limit_s=700)
    try:
        receive = pair.two.start("nc -d -l 5001 | md5sum", limit_s=600)
        wait_until(
            "node 2 listens",
            lambda: pair.two.run("ss -Htln 'sport = :5001' | grep -q .", check=False).status == 0,
        )
        sent = pair.one.run(make, limit_s=600)
        received = receive.wait()
        assert received.status == 0, received.err
        assert received.out.split()[0] == sent.out.split()[0]
        assert not busy.done(), "node 0 was not busy"
    finally:
        busy.kill(9)
