# SPDX-License-Identifier: Apache-2.0
"""Virtual functions (SR-IOV) of node 0's card are other nodes' cards."""

import pytest

from rig.functions import driver_of, interface_of
from rig.mintctl import REFUSED, MintctlError
from rig.node import Node
from rig.server import CARD3_IGB as CARD  # the physical function, node 0's
from rig.server import ONE, TWO, Server
from rig.wait import wait_until

FIRST, SECOND = VFS = ("0000:08:10.0", "0000:08:10.2")
NUMVFS = f"/sys/bus/pci/devices/{CARD}/sriov_numvfs"
ADDRESS = {0: "10.8.0.10", 1: "10.8.0.1", 2: "10.8.0.2"}


def up(node: Node, function: str, address: str) -> None:
    """The function's interface with that address, when it has its carrier."""
    node.wait(f"interface of {function}", f"ls -d /sys/bus/pci/devices/{function}/net/*")
    name = interface_of(node, function)
    node.run(f"ip addr replace {address}/24 dev {name} && ip link set {name} up")
    node.wait(f"carrier of {name}", f"grep -q 1 /sys/class/net/{name}/carrier")


def reach(node: Node, address: str) -> None:
    """Ten answers in a row through the card."""
    node.wait(f"{address}", f"ping -c 1 -W 2 {address} >/dev/null", 120)
    assert " 0% packet loss" in node.out(f"ping -q -c 10 -i 0.05 {address}")


def devices(server: Server) -> dict[str, dict]:
    """device list, by address."""
    return {device["bdf"]: device for device in server.mintctl("device", "list")["devices"]}


def refused(server: Server, *words: str) -> str:
    """Refused because virtual functions are lent or enabled; what it says."""
    with pytest.raises(MintctlError) as caught:
        server.mintctl(*words)
    assert caught.value.status == REFUSED, caught.value
    assert caught.value.codes & {"device_lent", "device_busy"}, caught.value
    return str(caught.value)


@pytest.mark.soak
@pytest.mark.soak_only
def test_virtual_functions_are_given_to_nodes_and_come_back(pair: Server):
    """Two of them: each works on its node beside the other and the physical one, through the end and
    the restart of these nodes; while they are lent node 0 neither disables them, nor restarts. The
    physical function moves, too."""
    server = pair
    before = devices(server)
    assert CARD in before and not set(VFS) & set(before)

    server.zero.run(f"echo 2 >{NUMVFS}")
    assert {bdf: device["physfn"] for bdf, device in devices(server).items() if "physfn" in device} == dict.fromkeys(VFS, CARD)
    up(server.zero, CARD, ADDRESS[0])
    for function, node, plan in ((FIRST, server.one, ONE), (SECOND, server.two, TWO)):
        assert driver_of(server.zero, function) == "igbvf"
        server.mintctl("device", "move", function, "--to", plan.name)
        assert function not in server.zero.out("lspci -D")
        assert "82576" in node.out(f"lspci -D -s {function}")
        assert driver_of(node, function) == "igbvf"
        up(node, function, ADDRESS[node.number])
    reach(server.one, ADDRESS[0])
    reach(server.one, ADDRESS[2])
    reach(server.zero, ADDRESS[2])

    assert server.zero.run(f"echo 0 >{NUMVFS}", check=False).status != 0
    assert "virtual functions" in refused(server, "device", "move", CARD, "--to", ONE.name)
    assert ONE.name in refused(server, "node", "restart", "node0")
    reach(server.two, ADDRESS[1])

    # Function 2 of a slot whose function 0 is another node's is found at boot, too.
    server.one.start("echo c >/proc/sysrq-trigger")
    server.wait_state(1, "crashed")
    reach(server.two, ADDRESS[0])
    server.mintctl("node", "start", ONE.name, "--wait", "running")
    server.mintctl("node", "restart", TWO.name)
    for function, node in ((FIRST, server.one), (SECOND, server.two)):
        server.wait_mintd(node)
        assert driver_of(node, function) == "igbvf"
        up(node, function, ADDRESS[node.number])
    reach(server.two, ADDRESS[1])

    for function in VFS:
        server.mintctl("device", "move", function, "--to", "node0")
        assert driver_of(server.zero, function) == "igbvf"
    server.zero.run(f"echo 0 >{NUMVFS}")
    wait_until("they are gone", lambda: devices(server).keys() == before.keys())

    # The physical one on node 2: what it has lent goes with its kernel, and may be made again.
    server.mintctl("device", "move", CARD, "--to", TWO.name)
    server.two.run(f"echo 1 >{NUMVFS}")
    server.mintctl("device", "move", FIRST, "--to", ONE.name)
    up(server.two, CARD, ADDRESS[2])
    up(server.one, FIRST, ADDRESS[1])
    reach(server.one, ADDRESS[2])
    assert ONE.name in refused(server, "node", "restart", TWO.name)
    server.mintctl("node", "stop", TWO.name, "--force")
    server.mintctl("node", "start", TWO.name)
    server.one.wait("its end", f"! test -e /sys/bus/pci/devices/{FIRST}")
    assert "is gone with its physical function" in server.one.out("dmesg")
    assert devices(server).keys() == before.keys()
    server.wait_mintd(server.two)
    server.mintctl("device", "move", CARD, "--to", "node0")
    server.zero.run(f"echo 2 >{NUMVFS}; echo 0 >{NUMVFS}")
