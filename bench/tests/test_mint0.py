# SPDX-License-Identifier: Apache-2.0
"""mint0: every node reaches every other node directly."""

import hashlib
import random
import re

import pytest

from rig.node import Node
from rig.server import Server

GIB = 1 << 30
TICKS_PER_S = 100  # of /proc/stat


def address(number: int) -> str:
    """A node's address on mint0."""
    return f"10.77.0.{10 + number}"


def idle_ticks(node: Node) -> list[int]:
    """How long each core of the node has been idle, in ticks."""
    return [int(ticks) for ticks in re.findall(r"^cpu\d+ \d+ \d+ \d+ (\d+)", node.read("/proc/stat"), re.MULTILINE)]


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
    # Nobody put anything into root's own files for that.
    for node in pair.one, pair.two:
        assert node.run("cat /root/.ssh/config /root/.ssh/authorized_keys", check=False).out == ""


@pytest.mark.soak
@pytest.mark.soak_only
def test_one_gib_over_tcp_checksummed_while_node0_is_busy(pair: Server):
    """1 GiB from node 1 to node 2 arrives as it was sent; every core of node 0 spins meanwhile."""
    # Random bytes, repeated with a number in between: no two MiB are the same.
    chunk = random.randbytes(16 << 20)
    sent = hashlib.md5()
    for number in range(GIB // len(chunk)):
        sent.update(f"{number}\n".encode() + chunk)
    pair.one.run("cat >/tmp/chunk", stdin=chunk)
    send = (
        f"for i in $(seq 0 {GIB // len(chunk) - 1}); do echo $i; cat /tmp/chunk; done | nc -N {address(2)} 5001; "
        "rm /tmp/chunk"
    )
    cores = re.findall(r"^processor\s*: (\d+)", pair.zero.read("/proc/cpuinfo"), re.MULTILINE)
    spin = f"for core in {' '.join(cores)}; do taskset -c $core sh -c 'while :; do :; done' & done; wait"
    before = idle_ticks(pair.zero)
    busy = pair.zero.start(spin, limit_s=1000)
    try:
        receive = pair.two.start("nc -d -l 5001 | md5sum", limit_s=900)
        pair.two.wait("listens", "ss -Htln 'sport = :5001' | grep -q .")
        pair.one.run(send, limit_s=900)
        received = receive.wait()
        assert received.status == 0, received.err
        assert received.out.split()[0] == sent.hexdigest()
        assert not busy.done(), "node 0 was not busy"
        assert len(before) == len(cores)
        idle_s = [(now - then) / TICKS_PER_S for now, then in zip(idle_ticks(pair.zero), before, strict=True)]
        assert max(idle_s) < 0.5 * received.seconds, f"cores of node 0 were idle for {idle_s} of {received.seconds:.1f} s"
    finally:
        busy.kill(9)
