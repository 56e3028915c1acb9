# SPDX-License-Identifier: Apache-2.0
"""KUnit's tests of Mint (arch/x86/mint/mint_kunit.c), which flavours lockdep and kasan run at each boot."""

import re

from rig.machine import DEFAULT_FLAVOUR
from rig.server import Server

CASES = 27

if DEFAULT_FLAVOUR in ("lockdep", "kasan"):

    def test_kernel_unit_tests_pass(pair: Server):
        """On node 0 and on the nodes that it started."""
        for node in (pair.zero, pair.one, pair.two):
            log = node.console.text()
            totals = re.findall(r"# mint: pass:(\d+) fail:(\d+) skip:(\d+) total:(\d+)", log)
            assert totals, f"node {node.number} ran none"
            faults = "\n".join(re.findall(r".*not ok .*|.* # .*: (?:ASSERTION|EXPECTATION) .*", log))
            assert tuple(map(int, totals[-1])) == (CASES, 0, 0, CASES), faults
