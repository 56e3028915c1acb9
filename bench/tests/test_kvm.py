# SPDX-License-Identifier: Apache-2.0
"""KVM and libvirt on every node."""

import pytest

from rig.guest import Guest, guests
from rig.server import Server

ALL = pytest.mark.parametrize("number", [0, 1, 2], ids=["node0", "node1", "node2"])


@ALL
def test_dev_kvm_is_there(pair: Server, number: int):
    """A character device that opens for reading and writing."""
    pair.node(number).run("test -c /dev/kvm && exec 3<>/dev/kvm")


@ALL
def test_virt_host_validate_has_no_fail(pair: Server, number: int):
    """virt-host-validate qemu."""
    result = pair.node(number).run("virt-host-validate qemu", check=False)
    assert "PASS" in result.out
    assert "FAIL" not in result.out, result.out


def test_guests_on_all_nodes_have_console_disk_and_network(pair: Server):
    """virsh start on three nodes: each guest's console answers, it writes and verifies its disk, it reaches its
    node; then all three count on together."""
    nodes = [pair.node(n) for n in (0, 1, 2)]
    with guests(nodes, "trio", "--disk-test 1 --net-test node") as trio:
        for guest in trio:
            guest.passed("disk")
            guest.passed("net")
            guest.dialogue("echo the answer is $((6 * 7))", "the answer is 42")
        for guest in trio:
            guest.wait_ticks()
        for node in nodes:
            assert node.out("virsh domstate trio").strip() == "running"


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
    want = "capabilities | sed -n 's/.*<uuid>\\(.*\\)<.uuid>.*/\\1/p'"
    uuid = pair.node(here).out(f"virsh -c qemu+ssh://node{there}/system {want}", 180)
    assert len(uuid) == 36
    assert uuid == pair.node(there).out(f"virsh {want}")
    assert uuid != pair.node(here).out(f"virsh {want}")
