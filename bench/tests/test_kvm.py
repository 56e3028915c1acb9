# SPDX-License-Identifier: Apache-2.0
"""KVM and libvirt on every node."""

import re

import pytest

from rig.guest import Guest, counted_writes, guests
from rig.load import GUEST_OPTIONS, LoadUntilEnd
from rig.server import ONE, Server
from rig.virt import assert_host_validates

ALL = pytest.mark.parametrize("number", [0, 1, 2], ids=["node0", "node1", "node2"])


@pytest.fixture(autouse=True)
def libvirt_answers(pair: Server) -> None:
    """On all nodes: one that was started anew by an earlier test may be without it yet."""
    for number in (0, 1, 2):
        pair.wait_ready(pair.node(number))


@ALL
def test_dev_kvm_is_there(pair: Server, number: int):
    """A character device that opens for reading and writing."""
    pair.node(number).run("test -c /dev/kvm && exec 3<>/dev/kvm")


@ALL
def test_virt_host_validate_has_no_fail(pair: Server, number: int):
    """virt-host-validate qemu."""
    assert_host_validates(pair.node(number))


# Through virtio, two bridges and mint0.
SENT_BYTES = 256 << 10
PORT = 7000
# In a guest: what comes is told on its console, once it listens. What is waited for is no part of the line.
LISTEN = (
    f"(nc -l -p {PORT} | head -c {SENT_BYTES} | md5sum | sed 's/^/got /' >/dev/console) & "
    f"until grep -q ':{PORT:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6; do sleep 1; done"
)
DIGEST = r"\b([0-9a-f]{32})  -"


def send(here: Guest, there: Guest) -> None:
    """Random bytes go from one guest to another, which listens, by TCP, and arrive as they were sent."""
    address = re.search(r"eth0 ([\d.]+)/", there.wait_line("mint-guest: eth0"))[1]
    line = f"head -c {SENT_BYTES} /dev/urandom >/tmp/sent; md5sum </tmp/sent; nc {address} {PORT} </tmp/sent; rm /tmp/sent"
    sent = re.search(DIGEST, here.dialogue(line, DIGEST))[1]
    there.wait_line(f"got {sent}", 120)


@pytest.mark.soak
@pytest.mark.soak_only
def test_guests_on_all_nodes_have_console_disk_and_network(busy_peers: Server, outliving: LoadUntilEnd):
    """virsh start on three nodes, of two vCPUs on node 1: each guest's console answers, it writes and verifies its
    disk, it reaches its node; one sends to a guest on another node; then all three count on together."""
    vcpus = {0: 1, 1: len(ONE.cpus), 2: 1}
    with guests([busy_peers.one], "busy", f"{GUEST_OPTIONS} --vcpus {vcpus[1]}") as found:
        trio = [*(busy.guest for busy in outliving.busy), *found]
        assert sorted(guest.node.number for guest in trio) == [0, 1, 2]
        for guest in trio:
            guest.passed("net")
            cores = vcpus[guest.node.number]
            question = "echo the answer is $((6 * 7)), of $(grep -c ^processor /proc/cpuinfo)"
            guest.dialogue(f"{LISTEN}; {question}" if guest is trio[0] else question, f"the answer is 42, of {cores}\\b")
        send(trio[-1], trio[0])
        writes = {guest: counted_writes(guest.log())[-1] for guest in trio}
        for guest in trio:
            guest.wait_ticks()
            log = guest.log()
            assert counted_writes(log)[-1] > writes[guest] and "load FAIL" not in log, log[-2000:]
            assert guest.node.out(f"virsh domstate {guest.name}").strip() == "running"


def test_virsh_shows_only_the_nodes_own_guests(pair: Server):
    """A guest defined on node 1 is in node 1's list alone."""
    with Guest(pair.one, "mine") as guest:
        guest.start("--no-start --no-disk")
        assert "mine" in pair.one.out("virsh -q list --all --name").split()
        for other in (pair.zero, pair.two):
            assert "mine" not in other.out("virsh -q list --all --name").split()


@pytest.mark.parametrize(("here", "there"), [(1, 2), (2, 1), (0, 1)])
def test_virsh_reaches_another_node_over_mint0(pair: Server, here: int, there: int):
    """virsh -c qemu+ssh://nodeN/system: the answer is that node's."""
    # nodes that have just started
    for number in (here, there):
        pair.wait_ready(pair.node(number))
    want = "capabilities | sed -n 's/.*<uuid>\\(.*\\)<.uuid>.*/\\1/p'"
    uuid = pair.node(here).out(f"virsh -c qemu+ssh://node{there}/system {want}", 180)
    assert len(uuid) == 36
    assert uuid == pair.node(there).out(f"virsh {want}")
    assert uuid != pair.node(here).out(f"virsh {want}")
