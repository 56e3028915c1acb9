# SPDX-License-Identifier: Apache-2.0
"""Machine checks and external NMIs: an event on one node's core is that node's alone (docs/hardware-faults.md)."""

import re
import struct

from rig.faults import machine_check
from rig.gdb import GS_BASE, attach
from rig.node import Node
from rig.ram import Ram, symbol
from rig.rawcalls import NOBODY, Raw
from rig.scribble import Area
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


# struct mint_area_cpu: NMIs and machine checks that the park loop took
CPU_FAULTS = 40
HLT, LIDT = bytes.fromhex("f4"), bytes.fromhex("0f 01 1d")
# From the entry of park_64.S to its halt, on a core whose APIC is in xAPIC mode.
WAY = 43


def test_machine_check_at_any_instruction_on_the_way_to_the_park_loop_harms_nobody(bare: Server):
    """A core leaves node 0, and takes one before each instruction between its kernel and the halt: its kernel takes
    those until the park loop's handlers are in place, on its own data, and the loop all others. It parks, and comes
    back."""
    (core,) = SPARE.cpus
    raw, machine = Raw(bare.zero), bare.machine
    handler = symbol(bare.zero, "exc_machine_check")
    hits: list[tuple[int, int]] = []
    with Ram(machine) as ram:
        area = Area(bare.zero, ram)
        entry = area.address + area.header["park_offset"] + area.header["park_entry"]
        ((at_faults, _),) = area.entries("cpu", CPU_FAULTS, CPU_FAULTS + 8)[core : core + 1]

        def faults() -> int:
            return struct.unpack("<Q", area.read(at_faults, 8))[0]

        with attach(machine) as gdb:
            with gdb.breakpoint(entry):
                release = raw.start("release", "cpu", core, 0)
                assert gdb.resume_all() == core
            at, own = entry, gdb.register(core, GS_BASE)
            assert gdb.pc(core) == entry
            while ram.read(at, 1) != HLT:
                before = faults()
                with gdb.breakpoint(at), gdb.breakpoint(handler):
                    machine_check(machine, core)
                    gdb.resume(core)
                    if gdb.pc(core) == handler:
                        assert gdb.register(core, GS_BASE) == own, f"after {len(hits)} instructions"
                        gdb.step(core)
                        gdb.resume(core)
                assert gdb.pc(core) == at
                hits.append((at, faults() - before))
                gdb.step(core)
                at = gdb.pc(core)
        lidt = next(number for number, (at, _) in enumerate(hits) if ram.read(at, len(LIDT)) == LIDT)
    taken = [count for _, count in hits]
    assert taken == [0] * (lidt + 1) + [1] * (len(hits) - lidt - 1), taken
    assert len(hits) == WAY
    assert Raw.end(release) == {"errno": 0, "reason": 0, "owner": NOBODY}
    assert str(core) in bare.ledger().owned("cpu", None)
    assert raw("claim", "cpu", core, 0)["errno"] == 0
    assert str(core) in bare.zero.out("cat /sys/devices/system/cpu/online | tr -- '-,' '\\n\\n'").split()


def test_external_nmi_is_node0s(pair: Server):
    """The platform's NMI line ends at node 0's boot core: the others take none of it."""
    before = {number: nmis(pair.node(number)) for number in (0, 1, 2)}
    pair.machine.monitor.execute("inject-nmi")
    wait_until("node 0 to take the NMI", lambda: nmis(pair.zero) > before[0])
    assert nmis(pair.one) == before[1]
    assert nmis(pair.two) == before[2]
    assert [pair.mintctl.state(number) for number in (1, 2)] == ["running"] * 2
    assert pair.ledger().owned("cpu", 2) == [str(cpu) for cpu in TWO.cpus]
