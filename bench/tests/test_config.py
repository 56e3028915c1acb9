# SPDX-License-Identifier: Apache-2.0
"""Without Mint: CONFIG_MINT=n, and CONFIG_MINT=y without `mint=`, are stock."""

import re
from collections.abc import Callable

from rig.machine import MachineConfig
from rig.node import Node
from rig.server import Server

# What differs between two boots of one kernel: numbers (times, sizes,
# addresses, counts), and how the version line tells the builds apart.
NUMBERS = re.compile(r"-?(0x[0-9a-f]+|\b[0-9a-f]{8,16}\b|\d+(\.\d+)?)")
# How TSC, APIC timer and delay loop get calibrated depends on how an emulated CPU
# is scheduled.
CALIBRATION = re.compile(r"tsc: |APIC calibration |APIC delta |calibrate_delay_direct|Calibrating delay")


def shapes(node: Node) -> set[str]:
    """Kernel messages up to the first program, without what differs from boot to boot."""
    text = node.out("dmesg").split("Run /init as init process")[0]
    lines = (re.sub(r"^\[[ \d.]+\] ", "", line) for line in text.splitlines())
    return {
        NUMBERS.sub("N", line)
        for line in lines
        if not line.startswith("Linux version") and not CALIBRATION.match(line)
    }


def boot(own_machine: Callable[[MachineConfig], Server], flavour: str) -> Server:
    """A machine of a kernel flavour without mint=, up to libvirtd."""
    return own_machine(MachineConfig(f"plain-{flavour}", mint="", flavour=flavour))


def assert_no_mint(node: Node) -> None:
    """Nothing of Mint is visible."""
    assert node.run("test -e /dev/mint -o -e /sys/kernel/mint", check=False).status == 1
    assert "mint0" not in node.out("ls /sys/class/net").split()
    messages = [line for line in node.out("dmesg").splitlines() if "mint:" in line.lower()]
    assert not messages


def test_config_mint_n_boots_without_a_trace_of_mint(own_machine):
    """CONFIG_MINT=n: boots to libvirtd, KVM works."""
    server = boot(own_machine, "off")
    assert_no_mint(server.zero)
    assert server.zero.run("virt-host-validate qemu", check=False).out.count("FAIL") == 0


def test_without_mint_parameter_dmesg_is_as_stock(own_machine):
    """CONFIG_MINT=y without mint=: the same messages as a kernel without the series.

    The stock kernel boots twice: what differs between those two says nothing.
    """
    stock = [shapes(boot(own_machine, "stock").zero) for _ in range(2)]
    ours = boot(own_machine, "mint")
    assert_no_mint(ours.zero)
    found = shapes(ours.zero)
    noise = stock[0] ^ stock[1]
    more = found - stock[0] - stock[1]
    less = (stock[0] & stock[1]) - found
    assert not (more | less) - noise, f"only with the series: {sorted(more)}\nonly without it: {sorted(less)}"
