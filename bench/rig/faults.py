# SPDX-License-Identifier: Apache-2.0
"""Faults that the rig puts into a node."""

from rig.node import Node
from rig.ram import Ram, kernel_place, symbol

# cli; 1: pause; jmp 1b
SPIN = bytes.fromhex("fa f3 90 eb fc")
# A system call that nothing uses: QEMU has not translated its code yet, and
# would not notice that its memory changes later.
CALL = "__x64_sys_pivot_root"


def hang_all_cores(node: Node) -> None:
    """Every core of a node spins in its kernel with interrupts off, for ever.

    Its kernel's own text is changed in RAM, as a wild fault would.
    """
    address = kernel_place(node).physical(symbol(node, CALL))
    with Ram(node.machine) as ram:
        ram.write(address, SPIN)
    # A pinned process on each core calls it; they wait for each other, or the
    # first would take the one that starts the rest with it.
    node.start(
        "for core in $(cd /sys/devices/system/cpu; ls -d cpu[0-9]* | tr -d cpu); do "
        "taskset -c $core sh -c 'until [ -e /tmp/hang ]; do sleep 0.05; done; exec pivot_root / /' & "
        "done; sleep 0.5; touch /tmp/hang; wait",
        limit_s=60,
    )
