# SPDX-License-Identifier: Apache-2.0
"""The kernel's own hotplug selftests, and stress-ng, inside a node while its peers run guests, fio and a ping."""

import contextlib
import re
from collections.abc import Iterator

import pytest

from rig import paths
from rig.load import Ping
from rig.node import Node
from rig.server import ONE, Server

# As in the kernel's tools/testing/selftests; the whole scope of each.
SELFTESTS = {"cpu-on-off-test.sh": "-a", "mem-on-off-test.sh": "-r 10"}


@pytest.mark.parametrize("script", SELFTESTS)
def test_kernel_selftest_of_hotplug_passes_inside_a_node(busy_peers: Server, script: str):
    """Cores and memory go offline and online by the node's own hand: it passes, nothing changes owner."""
    # Memory that a node got at runtime is movable, and stays so: some of it can go offline for sure.
    busy_peers.mintctl("node", "resize", ONE.name, "--memory", "+256M")
    one = busy_peers.one
    one.run("cat >/tmp/selftest", stdin=paths.need(paths.KERNELS / "mint" / "selftests" / script).read_bytes())
    ping = Ping(one, busy_peers.two)
    # 4 would be its word for "not possible here".
    one.run(f"bash /tmp/selftest {SELFTESTS[script]} 2>&1", 300)
    ping.check_and_end()
    assert int(one.out("nproc")) == len(ONE.cpus)
    assert "offline" not in one.out("cat /sys/devices/system/memory/memory*/state")
    busy_peers.mintctl("node", "resize", ONE.name, "--memory", "-256M")


# Of each class of stress-ng, what a node of 1 GiB has room for. --cpu-online leaves CPU 0 alone,
# and counts as pathological: it is known to hang machines.
STRESS_S = 15
STRESSORS = "--cpu 2 --vm 2 --vm-bytes 96M --io 1 --hdd 1 --hdd-bytes 32M --pathological --cpu-online 1 --memhotplug 1"
KINDS = ("cpu", "vm", "io", "hdd", "cpu-online", "memhotplug")


@contextlib.contextmanager
def stress_ng(node: Node) -> Iterator[str]:
    """Puts stress-ng onto a node's disk; gives the command."""
    node.run("gzip -dc | tar -x -C /root", stdin=paths.need(paths.STRESS_NG).read_bytes())
    try:
        yield "LD_LIBRARY_PATH=/root/stress-ng /root/stress-ng/stress-ng --temp-path /root/stress-ng"
    finally:
        node.run("rm -rf /root/stress-ng")


@pytest.mark.soak
@pytest.mark.soak_only
def test_stress_ng_passes_inside_a_node_beside_busy_peers(busy_peers: Server):
    """Cores, memory, disk and hotplug of node 1 under stress at a time: all that it computes and stores is right,
    nobody notices."""
    one = busy_peers.one
    blocks = one.out("cat /sys/devices/system/memory/memory*/state")
    with stress_ng(one) as command:
        ping = Ping(one, busy_peers.two)
        text = one.run(f"{command} {STRESSORS} --verify --metrics --timeout {STRESS_S} 2>&1", 300).out
        print(text)
        assert "skipped: 0\n" in text
        for kind in KINDS:
            assert re.search(rf"metrc:.* {kind} +[1-9]", text), f"{kind} did nothing"
        ping.check_and_end()
    assert int(one.out("nproc")) == len(ONE.cpus)
    assert one.out("cat /sys/devices/system/memory/memory*/state") == blocks
