# SPDX-License-Identifier: Apache-2.0
"""Without Mint: CONFIG_MINT=n, and CONFIG_MINT=y without `mint=`, are stock."""

import re

import pytest

from rig.machine import Machine, MachineConfig
from rig.node import Node
from rig.virt import assert_host_validates

FIRST_PROGRAM = "Run /init as init process"

# What differs between two boots of one kernel: numbers (times, sizes,
# addresses, counts), and how the version line tells the builds apart.
NUMBERS = re.compile(r"-?(0x[0-9a-f]+|\b[0-9a-f]{8,16}\b|\d+(\.\d+)?)")
# How TSC, APIC timer and delay loop get calibrated depends on how an emulated CPU
# is scheduled; that the TSC is refined and taken may come after the first program.
# A timer's interrupt that the host held up for long is told of, by any kernel.
HOST_TIME = re.compile(
    r"tsc: |clocksource: tsc: |clocksource: Switched to clocksource tsc$|APIC calibration |APIC delta |"
    # the second is the next line of the first
    r"calibrate_delay_direct|Probably due to long platform interrupts|Calibrating delay|hrtimer: interrupt took "
)


def shapes(text: str) -> set[str]:
    """Kernel messages up to the first program, without what differs from boot to boot."""
    lines = (re.sub(r"^\[[ \d.]+\] ", "", line) for line in text.split(FIRST_PROGRAM)[0].splitlines())
    return {
        NUMBERS.sub("N", line)
        for line in lines
        if not line.startswith("Linux version") and not HOST_TIME.match(line)
    }


def messages(flavour: str) -> set[str]:
    """What a kernel flavour without mint= says on its console, of every level, up to the first program."""
    with Machine(MachineConfig(f"messages-{flavour}", mint="", flavour=flavour, append="ignore_loglevel")) as machine:
        machine.console[0].wait_for(f"{FIRST_PROGRAM}.*\n")
        return shapes(machine.console[0].text())


def assert_no_mint(node: Node) -> None:
    """Nothing of Mint is visible."""
    assert node.run("test -e /dev/mint -o -e /sys/kernel/mint", check=False).status == 1
    assert "mint0" not in node.out("ls /sys/class/net").split()
    said = [line for line in node.out("dmesg").splitlines() if "mint:" in line.lower()]
    assert not said


@pytest.mark.parametrize("flavour", ["off", "mint"])
def test_without_mint_boots_to_libvirt_and_kvm(own_machine, flavour: str):
    """CONFIG_MINT=n, and CONFIG_MINT=y without mint=: not a trace of Mint, and KVM works."""
    server = own_machine(MachineConfig(f"plain-{flavour}", mint="", flavour=flavour))
    assert_no_mint(server.zero)
    assert_host_validates(server.zero)


@pytest.mark.soak
@pytest.mark.soak_only
def test_without_mint_parameter_dmesg_is_as_stock():
    """CONFIG_MINT=y without mint=: the same messages as a kernel without the series.

    The stock kernel boots twice: what differs between those two says nothing.
    """
    stock = [messages("stock") for _ in range(2)]
    found = messages("mint")
    assert len(found) > 100, found
    noise = stock[0] ^ stock[1]
    more = found - stock[0] - stock[1]
    less = (stock[0] & stock[1]) - found
    assert not (more | less) - noise, f"only with the series: {sorted(more)}\nonly without it: {sorted(less)}"
