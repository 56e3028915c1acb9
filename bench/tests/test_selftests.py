# SPDX-License-Identifier: Apache-2.0
"""The kernel's own hotplug selftests, and stress-ng, inside a node beside busy peers."""

import contextlib
from collections.abc import Iterator

import pytest

from rig import paths
from rig.load import Ping, load
from rig.node import Node
from rig.server import ONE, Server

# As in the kernel's tools/testing/selftests; the whole scope of each.
SELFTESTS = {"cpu-on-off-test.sh": "-a", "mem-on-off-test.sh": "-r 10"}


@pytest.mark.parametrize("script", SELFTESTS)
def test_kernel_selftest_of_hotplug_passes_inside_a_node(pair: Server, script: str):
    """Cores and memory go offline and online by the node's own hand: it passes, nothing changes owner."""
    # Memory that a node got at runtime is movable, and stays so: some of it can go offline for sure.
    pair.mintctl("node", "resize", ONE.name, "--memory", "+256M")
    pair.one.run("cat >/tmp/selftest", stdin=paths.need(paths.KERNELS / "mint" / "selftests" / script).read_bytes())
    with load([pair.zero, pair.two]) as found:
        ping = Ping(pair.one, pair.two)
        # 4 would be its word for "not possible here".
        pair.one.run(f"bash /tmp/selftest {SELFTESTS[script]} 2>&1", 300)
        for busy in found:
            busy.check()
        ping.check_and_end()
    assert int(pair.one.out("nproc")) == len(ONE.cpus)
    assert "offline" not in pair.one.out("cat /sys/devices/system/memory/memory*/state")
    pair.mintctl("node", "resize", ONE.name, "--memory", "-256M")


# Of each class of stress-ng, what a node of 1 GiB has room for. --cpu-online leaves CPU 0 alone,
# and counts as pathological: it is known to hang machines.
STRESS_S = 12
STRESSORS = {
    "cpu": "--cpu 2",
    "vm": "--vm 2 --vm-bytes 96M",
    "io": "--io 1 --hdd 1 --hdd-bytes 32M",
    "hotplug": "--pathological --cpu-online 1 --memhotplug 1",
}


@contextlib.contextmanager
def stress_ng(node: Node) -> Iterator[str]:
    """Puts stress-ng onto a node's disk; gives the command."""
    node.run("gzip -dc | tar -x -C /root", stdin=paths.need(paths.STRESS_NG).read_bytes())
    try:
        yield "LD_LIBRARY_PATH=/root/stress-ng /root/stress-ng/stress-ng --temp-path /root/stress-ng"
    finally:
        node.run("rm -rf /root/stress-ng")


def test_stress_ng_passes_inside_a_node_beside_busy_peers(pair: Server):
    """Cores, memory, disk and hotplug of node 1 under stress: all that it computes and stores is right, nobody notices."""
    blocks = pair.one.out("cat /sys/devices/system/memory/memory*/state")
    with stress_ng(pair.one) as command, load([pair.zero, pair.two]) as found:
        ping = Ping(pair.one, pair.two)
        for kind, stressors in STRESSORS.items():
            text = pair.one.run(f"{command} {stressors} --verify --metrics --timeout {STRESS_S} 2>&1", 300).out
            print(f"{kind}:\n{text}")
            assert "skipped: 0\n" in text
            for busy in found:
                busy.check()
        ping.check_and_end()
    assert int(pair.one.out("nproc")) == len(ONE.cpus)
    assert pair.one.out("cat /sys/devices/system/memory/memory*/state") == blocks
