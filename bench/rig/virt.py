# SPDX-License-Identifier: Apache-2.0
"""What libvirt says of a node."""

import re

from rig.node import Node

# Of virt-host-validate's lines, which must be there and PASS.
KVM_LINES = ("Checking if device '/dev/kvm' exists", "Checking if device '/dev/kvm' is accessible")


def faults_in(text: str) -> list[str]:
    """What is wrong by virt-host-validate's output: its FAIL lines, and what it should have looked at. Warnings are
    not faults."""
    found = [line for line in text.splitlines() if re.search(r": FAIL\b", line)]
    for what in KVM_LINES:
        if not re.search(rf"^ *QEMU: {re.escape(what)} *: PASS$", text, re.MULTILINE):
            found.append(f"no PASS of: {what}")
    return found


def assert_host_validates(node: Node) -> None:
    """virt-host-validate qemu ends well, has looked at KVM, and finds no fault."""
    result = node.run("virt-host-validate qemu", check=False)
    assert result.status == 0, f"status {result.status}\n{result.out}{result.err}"
    assert not (found := faults_in(result.out)), f"{found}\n{result.out}"
