# SPDX-License-Identifier: Apache-2.0
"""KUnit's tests of Mint (arch/x86/mint/mint_kunit.c): in a kernel of their own, and at each boot of the flavours lockdep
and kasan."""

import re

from rig.machine import DEFAULT_FLAVOUR, Machine, MachineConfig
from rig.server import Server

CASES = 28


def check(log: str, who: str) -> None:
    """All cases passed, and there were as many as there are."""
    totals = re.findall(r"# mint: pass:(\d+) fail:(\d+) skip:(\d+) total:(\d+)", log)
    assert totals, f"{who} ran none"
    faults = "\n".join(re.findall(r".*not ok .*|.* # .*: (?:ASSERTION|EXPECTATION) .*", log))
    assert tuple(map(int, totals[-1])) == (CASES, 0, 0, CASES), faults


def test_kernel_unit_tests_pass():
    """In flavour "kunit", which has nothing but Mint and what it stands on, and ends where its init would start."""
    # It panics behind the tests, and stands there: the console is read to its end.
    with Machine(MachineConfig("kunit", flavour="kunit", disks=False, append="panic=0")) as machine:
        # "ok 1 mint", or "not ok 1 mint"
        machine.console[0].wait_for(r"ok \d+ mint\b")
        check(machine.console[0].text(), "the kernel")


if DEFAULT_FLAVOUR in ("lockdep", "kasan"):

    def test_kernel_unit_tests_pass_on_every_node(pair: Server):
        """On node 0 and on the nodes that it started."""
        for node in (pair.zero, pair.one, pair.two):
            check(node.console.text(), f"node {node.number}")
