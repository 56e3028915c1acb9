# SPDX-License-Identifier: Apache-2.0
"""What a guest says of its network: the address that it was given, and replies over its one connection."""

import re

from rig.guest import Guest


def address(guest: Guest) -> str:
    """What it has been given, from its console."""
    return re.search(r"eth0 ([\d.]+)/16", guest.wait_line("mint-guest: eth0"))[1]


def echoes(guest: Guest) -> tuple[int, float]:
    """How many replies a guest has had over its connection, all as they should be; the longest time of one, in s."""
    # not yet there, or just being written
    shown, status = guest.shell('until read n gap </tmp/echo && [ "$gap" ]; do sleep 0.2; done; echo "$n $gap"', 120)
    assert status == 0, shown
    number, hundredths = re.findall(r"(?m)^(\d+) (\d+)$", shown)[-1]
    assert "echo FAIL" not in guest.log()
    return int(number), int(hundredths) / 100


def wait_echoes(guest: Guest, more: int = 10) -> tuple[int, float]:
    """Wait until that many more numbers have gone there and back."""
    goal = echoes(guest)[0] + more
    guest.shell(f"until read n gap </tmp/echo && [ $n -ge {goal} ]; do sleep 0.2; done", 120)
    return echoes(guest)
