# SPDX-License-Identifier: Apache-2.0
"""What virt-host-validate prints is understood."""

from rig.virt import faults_in

GOOD = """\
  QEMU: Checking for hardware virtualization                                 : PASS
  QEMU: Checking if device '/dev/kvm' exists                                 : PASS
  QEMU: Checking if device '/dev/kvm' is accessible                          : PASS
  QEMU: Checking for secure guest support                                    : WARN (Unknown)
"""


def test_warnings_are_no_faults():
    assert faults_in(GOOD) == []


def test_failures_and_missing_lines_are_faults():
    bad = GOOD.replace("exists                                 : PASS", "exists                                 : FAIL (no)")
    assert len(faults_in(bad)) == 2
    assert faults_in("") and faults_in("virt-host-validate: not found")
