# SPDX-License-Identifier: Apache-2.0
"""A guest whose memory is split between its node and one of a linked machine."""

import contextlib
import json
import time
from collections.abc import Iterator

import pytest

from rig.guest import Guest, counted_versions
from rig.mintctl import MintctlError
from rig.node import Node
from rig.two import TwoMachines
from rig.wait import SLOWNESS, wait_until

STORE = "/run/mint/ram/store"
LIMIT_S = 300
MAIN_MIB, LOAD_KIB, RESERVE_MIB = 26, 14 << 10, 64
COMPARED = "tick [0-9]* at .*, [1-9][0-9]* versions"
START = f"--memory 128M --split main=64M,b/node0=rest --no-network --memory-load {LOAD_KIB} --disk 8M --disk-load 4"
SPLIT = f"main={MAIN_MIB}M,b/node0=rest"


def kept_bytes(node: Node) -> int:
    """What a node's memory server keeps, as its file takes it."""
    blocks = node.out(f"stat -c %b {STORE}/*.pages 2>/dev/null || echo 0")
    return sum(int(number) * 512 for number in blocks.split())


def goes_on(machines: TwoMachines, guest: Guest, more: int = 1) -> None:
    """It compares its memory as often as that, and pages have come back for it."""
    memory = ("vm", "memory", guest.name)
    guest.node.wait("its pager", f"mintctl {' '.join(memory)} >/dev/null 2>&1", LIMIT_S)
    came, before = machines.a.mintctl(*memory)["page_ins"], counted_versions(guest.log())[-1]
    end = time.monotonic() + LIMIT_S * SLOWNESS
    while (now := counted_versions(guest.log())[-1]) < before + more:
        assert time.monotonic() < end, f"{guest} stands still at {before} versions: {machines.a.mintctl(*memory)}"
        time.sleep(1)
    assert "FAIL" not in guest.log(), guest.log()[-500:]
    assert now > before and machines.a.mintctl(*memory)["page_ins"] != came


@contextlib.contextmanager
def short_of_memory(node: Node, left_mib: int) -> Iterator[None]:
    """A node has so much that it could give, besides what it keeps for itself."""
    node.run("mkdir -p /run/full && mount -t tmpfs -o size=100% full /run/full")
    try:
        # what the kernel says is available changes with what it keeps of files: not at one go
        node.run(
            "size=0; for round in 1 2 3 4 5; do"
            " available=$(awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo);"
            f" size=$((size + available - {RESERVE_MIB + left_mib}));"
            " truncate -s ${size}M /run/full/full && fallocate -l ${size}M /run/full/full; done",
            LIMIT_S,
        )
        yield
    finally:
        node.run("umount /run/full")


@pytest.mark.soak
@pytest.mark.soak_only
def test_linked_machine_keeps_memory_of_a_guest_under_tls(linked: TwoMachines):
    """What its node has no room for is on the other machine, which it reaches through both mintds alone. Whoever is killed,
    or the wire cut, it waits and goes on; then all of it comes back, and nothing is left there."""
    a, b = linked.a, linked.b
    with Guest(a.zero, "far") as guest:
        guest.start(START)
        guest.wait_line(COMPARED, LIMIT_S)
        with pytest.raises(MintctlError) as refused:
            a.mintctl("vm", "migrate", "far", "--to", "node0", "--split", "main=26M,c/node0=rest")
        assert "linked with none that is called c" in str(refused.value)
        a.mintctl("vm", "migrate", "far", "--to", "node0", "--split", SPLIT, "--policy", "fifo")
        goes_on(linked, guest)
        host = a.mintctl("vm", "memory", "far")["hosts"][0]
        assert host["node"] == "b/node0" and host["is_connected"], host
        assert kept_bytes(b.zero) > 8 << 20
        lease = json.loads(b.zero.out(f"cat {STORE}/*.lease"))
        assert len(lease["machine"]) == 32 and lease["main"]["node"] == 0, lease
        # what goes over the wire is mintd's: nobody but its own node talks with the memory server
        peers = b.zero.out("ss -Htn state established sport = :7778 | awk '{print $4}'").split()
        assert peers and all(peer.startswith(f"{b.address(0)}:") for peer in peers), peers
        assert not a.zero.out("ss -Htn state established dport = :7778")
        for node, program in ((a.zero, "mintd"), (b.zero, "mint-guestd"), (b.zero, "mint-store")):
            node.run(f"kill -9 $(pgrep -x {program})")
            goes_on(linked, guest)
        with linked.wire_cut():
            time.sleep(20)
        goes_on(linked, guest)
        with pytest.raises(MintctlError) as refused:
            b.mintctl("memory", "evacuate", "node0")
        assert "no other node runs that could keep memory of guest far" in str(refused.value)
        with short_of_memory(a.zero, 40):
            a.mintctl("vm", "migrate", "far", "--to", "node0", "--split", "auto")
            view = a.mintctl("vm", "memory", "far")
            # its node has what there is room for; no other node of this machine runs
            assert MAIN_MIB + 20 < view["main_bytes"] >> 20 < MAIN_MIB + 60, view
            assert [host["node"] for host in view["hosts"]] == ["b/node0"] and kept_bytes(b.zero) > 0, view
        before = counted_versions(guest.log())[-1]
        a.mintctl("vm", "merge", "far", "--to", "node0")
        assert not b.zero.out(f"ls {STORE}")
        wait_until("it goes on", lambda: counted_versions(guest.log())[-1] > before + 2, LIMIT_S)
        # one that ends leaves nothing there, either
        a.mintctl("vm", "migrate", "far", "--to", "node0", "--split", SPLIT)
        assert kept_bytes(b.zero) > 8 << 20
    b.zero.wait("its lease has ended", f"[ -z \"$(ls {STORE})\" ]", 60)
