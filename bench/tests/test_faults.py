# SPDX-License-Identifier: Apache-2.0
"""Machine checks and external NMIs: an event on one node's core is that node's alone (docs/hardware-faults.md)."""

import re

from rig.faults import machine_check
from rig.node import Node
from rig.server import ONE, SPARE, TWO, Server
from rig.wait import wait_until


def nmis(node: Node) -> int:
    """NMIs that the node's cores took."""
    return sum(map(int, re.search(r"NMI: +([\d ]+)", node.read("/proc/interrupts"))[1].split()))


def test_machine_check_on_a_core_of_node1_ends_node1_alone(pair: Server):
    """It panics, is reported as crashed with the reason, its memory is kept; nodes 0 and 2 hear nothing of it. So it
    is with the next one on that core, which the first has left in the middle of its handler."""
    boots = {number: node["boots"] for number, node in pair.mintctl.nodes().items()}
    marks = {number: pair.node(number).console.mark() for number in (0, 2)}
    for _time in range(2):
        machine_check(pair.machine, ONE.cpus[-1])
        pair.wait_state(1, "crashed")
        assert "achine check" in pair.mintctl("node", "show", ONE.name)["node"]["reason"]
        for number in (0, 2):
            node = pair.node(number)
            node.run("sync")
            assert "ardware" not in node.console.text(marks[number])
        now = pair.mintctl.nodes()
        assert {number: now[number]["boots"] for number in (0, 2)} == {number: boots[number] for number in (0, 2)}
        pair.mintctl("node", "start", ONE.name)
        pair.wait_mintd(pair.one)


def test_machine_check_on_a_parked_core_harms_nobody(bare: Server):
    """The park loop takes it; the core works as a node's afterwards."""
    (core,) = SPARE.cpus
    bare.add(SPARE)
    bare.mintctl("node", "remove", SPARE.name, "--force", "--keep-free")
    assert str(core) in bare.ledger().owned("cpu", None)
    machine_check(bare.machine, core)
    bare.add(SPARE)
    assert bare.mintctl.state(1) == "running"
    bare.remove_all()


def test_external_nmi_is_node0s(pair: Server):
    """The platform's NMI line ends at node 0's boot core: the others take none of it."""
    before = {number: nmis(pair.node(number)) for number in (0, 1, 2)}
    pair.machine.monitor.execute("inject-nmi")
    wait_until("node 0 to take the NMI", lambda: nmis(pair.zero) > before[0])
    assert nmis(pair.one) == before[1]
    assert nmis(pair.two) == before[2]
    assert [pair.mintctl.state(number) for number in (1, 2)] == ["running"] * 2
    assert pair.ledger().owned("cpu", 2) == [str(cpu) for cpu in TWO.cpus]
