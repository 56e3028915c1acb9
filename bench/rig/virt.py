# SPDX-License-Identifier: Apache-2.0
"""What libvirt says of a node."""

from rig.node import Node


def assert_host_validates(node: Node) -> None:
    """virt-host-validate qemu ends well, has looked at KVM, and finds no fault. Warnings are not faults."""
    result = node.run("virt-host-validate qemu", check=False)
    assert result.status == 0, f"status {result.status}\n{result.out}{result.err}"
    assert "FAIL" not in result.out, result.out
    kvm = [line for line in result.out.splitlines() if "/dev/kvm exists" in line]
    assert kvm and all(line.rstrip().endswith("PASS") for line in kvm), result.out
