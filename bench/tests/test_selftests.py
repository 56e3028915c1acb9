# SPDX-License-Identifier: Apache-2.0
"""The kernel's own hotplug selftests, inside a node beside busy peers."""

import pytest

from rig import paths
from rig.load import Ping, load
from rig.server import ONE, Server

# As in the kernel's tools/testing/selftests; the whole scope of each.
SELFTESTS = {"cpu-on-off-test.sh": "-a", "mem-on-off-test.sh": "-r 10"}


@pytest.mark.parametrize("script", SELFTESTS)
def test_kernel_selftest_of_hotplug_passes_inside_a_node(pair: Server, script: str):
    """Cores and memory go offline and online by the node's own hand: it passes, nothing changes owner."""
    # Memory that a node got at runtime is movable: some of it can go offline for sure.
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
