# SPDX-License-Identifier: Apache-2.0
"""Many starts over many machine boots, with KASLR: a fault that shows once in
twenty shows here. After each start every running kernel's text and read-only
data are compared with its image."""

import pytest

from rig import kerneltext
from rig.machine import MachineConfig
from rig.ram import Ram
from rig.server import ONE, Server


def check_texts(server: Server, ram: Ram, when: str) -> None:
    """Each running kernel is what its image says."""
    wrong = []
    for number, node in server.nodes().items():
        if node.state == "running":
            wrong += kerneltext.check(server.node(number), ram)
    assert not wrong, f"{when}:\n" + "\n".join(wrong[:40])


def start_again_and_again(server: Server, starts: int, where: str) -> None:
    """Node 1 is started that often; each kernel that runs is compared with its image before and after each start."""
    with Ram(server.machine) as ram:
        check_texts(server, ram, f"{where}, before any start")
        server.add(ONE)
        check_texts(server, ram, f"{where}, start 0")
        for start in range(1, starts):
            mark = server.one.console.mark()
            server.mintctl("node", "restart", ONE.name)
            server.one.console.wait_for("mint-init: node 1 init", mark)
            check_texts(server, ram, f"{where}, start {start}")
    assert server.nodes()[1].boots == starts


@pytest.mark.soak
@pytest.mark.soak_only
def test_kernels_stay_as_their_images(bare: Server):
    """Node 0's, and node 1's over three starts."""
    start_again_and_again(bare, 3, "this machine")
    bare.remove_all()


@pytest.mark.soak
@pytest.mark.soak_only
def test_soak(own_machine, request: pytest.FixtureRequest, pool):
    """The same on --soak-boots machines, of --soak-starts starts each."""
    boots, starts = (request.config.getoption(f"--soak-{what}") for what in ("boots", "starts"))
    for boot in range(boots):
        server = own_machine(MachineConfig("soak"))
        start_again_and_again(server, starts, f"boot {boot}")
        pool.stop(server)
