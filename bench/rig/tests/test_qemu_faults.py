# SPDX-License-Identifier: Apache-2.0
"""The rig's QEMU has none of the faults that mend.c is for.

A machine of two CPUs and a program of its own (qemu-faults/) does what shows them.
"""

import pytest

from rig import emulator, paths, plugin, qemu_faults


def look(fault: str, count: int, more: tuple[str, ...] = ()) -> qemu_faults.Outcome:
    """What the program found, in QEMU as it is to be run; more: of its command line."""
    return qemu_faults.look(emulator.choose(), fault, count, limit_s=300, more=more)


def no_fault_in(fault: str, count: int) -> qemu_faults.Outcome:
    """None found, and as many guests run as were asked for."""
    outcome = look(fault, count)
    assert outcome.status == qemu_faults.NONE, outcome.text
    assert outcome.runs == count, outcome.text
    return outcome


def test_injected_interrupt_comes_once():
    """Without mend.c seen within some 2,000 at most."""
    no_fault_in("twice", 20_000)


def test_flags_of_the_first_cpu_stay_cleared():
    """Without mend.c seen within 300 to 90,000."""
    no_fault_in("flag", 300_000)


def test_interrupt_between_cpus_is_not_lost():
    """Before QEMU 10.2 one of some 50,000 to 500,000 is lost; `make qemu-faults` looks longer."""
    assert no_fault_in("lost", 300_000).interrupts > 1_000


def test_guest_with_an_interrupt_pending_may_write_its_priority():
    """Without mend.c QEMU ends with the first one."""
    no_fault_in("priority", 1_000)


def test_program_of_32_bits_may_call_its_kernel():
    """Without mend.c QEMU ends with the first one."""
    no_fault_in("busy", 1_000)


def test_modelled_counters_leave_flags_alone():
    """Interrupts that are closed stay so: the kernel reads and writes counters under its locks."""
    outcome = look("counter", 1_000, tuple(plugin.arguments(paths.QEMU_PMU)))
    assert (outcome.status, outcome.runs) == (qemu_faults.NONE, 1_000), outcome.text


@pytest.mark.parametrize("command", ["nothing", "twice"])
def test_looking_for_nothing_finds_no_absence(command: str):
    """A machine that did not do what it is for does not say that all is well."""
    outcome = look(command, 0)
    assert outcome.status == qemu_faults.UNABLE, outcome.text
