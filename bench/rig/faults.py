# SPDX-License-Identifier: Apache-2.0
"""Faults that the rig puts into a node."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

from rig.gdb import attach
from rig.machine import Machine
from rig.node import Node
from rig.ram import Ram, kernel_place, symbol

# ud2: what BUG() is made of
BUG = bytes.fromhex("0f 0b")
# A hrtimer's function, called in the timer's interrupt; of timer_create(2),
# which nothing but coreutils' timeout uses here.
INTERRUPT = "posix_timer_fn"
# What a wild write may leave: stores through a stale register, invalid codes,
# an instruction of prefixes only, pops until the stack is left.
SCRIBBLES = (b"\x00", b"\xff", b"\x41", b"\x5a")
SCRIBBLE_BYTES = 4096
# cli; 1: pause; jmp 1b
SPIN = bytes.fromhex("fa f3 90 eb fc")
# A system call that nothing uses: QEMU has not translated its code yet, and
# would not notice that its memory changes later.
CALL = "__x64_sys_pivot_root"
# The same holds for this: a node of the rig takes no NMI unless it is to end.
NMI = "asm_exc_nmi"


# MCi_STATUS: valid, uncorrected, enabled, address and misc valid, context corrupt.
FATAL = 0xBE00000000000135
# MCG_STATUS: restart IP valid, machine check in progress.
IN_PROGRESS = 0x5


def machine_check(machine: Machine, cpu: int) -> None:
    """A fatal error in bank 1 of one of the machine's cores."""
    machine.monitor.human(f"mce {cpu} 1 {FATAL:#x} {IN_PROGRESS:#x} 0x12345000 0x8c")


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


def deafen(node: Node) -> None:
    """From now on a core of the node that takes an NMI spins in it, and takes no other."""
    address = kernel_place(node).physical(symbol(node, NMI))
    with Ram(node.machine) as ram:
        ram.write(address, SPIN)


def bug_in_interrupt(node: Node) -> None:
    """A node's kernel meets a BUG() in a timer's interrupt."""
    address = kernel_place(node).physical(symbol(node, INTERRUPT))
    with Ram(node.machine) as ram:
        ram.write(address, BUG)
    node.start("timeout 0.1 sleep 60", limit_s=60)


def scribble_over_text(node: Node, rng: random.Random) -> None:
    """Some of a node's kernel's text is overwritten, and then run."""
    address = kernel_place(node).physical(symbol(node, CALL))
    with Ram(node.machine) as ram:
        ram.write(address, rng.choice(SCRIBBLES) * SCRIBBLE_BYTES)
    node.start("pivot_root / /", limit_s=60)


@contextmanager
def failing(node: Node, function: str, errno: int) -> Iterator[None]:
    """In here a function of the node's kernel does nothing and says that it failed."""
    # mov $-errno, %eax; ret
    code = b"\xb8" + (-errno).to_bytes(4, "little", signed=True) + b"\xc3"
    address = kernel_place(node).physical(symbol(node, function))
    with Ram(node.machine) as ram:
        was = ram.read(address, len(code))

    def write(data: bytes) -> None:
        # not as Ram does it: this code may have run before
        with attach(node.machine) as gdb:
            gdb.write(address, data)

    write(code)
    try:
        yield
    finally:
        write(was)
