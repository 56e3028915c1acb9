# SPDX-License-Identifier: Apache-2.0
"""Interrupts of one CPU are told apart from its own and from those of others."""

import pytest

from rig.errors import RigError
from rig.interrupts import between, of_cpu

BEFORE = """\
            CPU0       CPU2
  27:        100          5   PCI-MSIX-0000:08:00.0   1-edge      virtio3-req.0
  31:          0          9   PCI-MSIX-0000:06:00.0   0-edge      eth2-rx-0
 NMI:          0          0   Non-maskable interrupts
 LOC:       1000       2000   Local timer interrupts
 RES:         10         20   Rescheduling interrupts
 DBL:          0          3   Mint doorbells
 ERR:          0
"""
AFTER = """\
            CPU0       CPU2
  27:        900         25   PCI-MSIX-0000:08:00.0   1-edge      virtio3-req.0
  31:          0          9   PCI-MSIX-0000:06:00.0   0-edge      eth2-rx-0
  33:          0          2   PCI-MSIX-0000:09:00.0   1-edge      virtio4-req.0
 NMI:          0          0   Non-maskable interrupts
 LOC:       3000       4000   Local timer interrupts
 RES:         70         21   Rescheduling interrupts
 DBL:          0          7   Mint doorbells
 ERR:          5
"""
DISK, NEW = (
    "27 PCI-MSIX-0000:08:00.0 1-edge virtio3-req.0",
    "33 PCI-MSIX-0000:09:00.0 1-edge virtio4-req.0",
)
RES, DBL = "RES Rescheduling interrupts", "DBL Mint doorbells"


def test_rows_are_of_the_cpu_that_is_asked_for():
    """By its number, not by its column."""
    assert of_cpu(BEFORE, 2)[DISK] == 5
    assert of_cpu(BEFORE, 0)[RES] == 10
    assert "ERR" not in of_cpu(BEFORE, 0)
    with pytest.raises(RigError, match=r"no CPU 1, but \[0, 2\]"):
        of_cpu(BEFORE, 1)


def test_own_timer_and_devices_do_not_count():
    """All that has grown is told else, also what is new."""
    assert between(BEFORE, AFTER, 2) == {DISK: 20, NEW: 2, RES: 1, DBL: 4}
    assert between(BEFORE, AFTER, 2, [r"\bvirtio3-", "^DBL"]) == {NEW: 2, RES: 1}
    assert between(BEFORE, BEFORE, 2) == {}
