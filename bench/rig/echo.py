# SPDX-License-Identifier: Apache-2.0
"""What a guest says of its network: the address that it was given, and replies over its one connection."""

import re

from rig.errors import RigError
from rig.guest import Guest, counted_replies

LIMIT_TICKS = 120  # a guest's own seconds


def address(guest: Guest) -> str:
    """What it has been given, from its console."""
    return re.search(r"eth0 ([\d.]+)/16", guest.wait_line("mint-guest: eth0"))[1]


def echoes(guest: Guest) -> tuple[int, float]:
    """How many replies a guest has had over its connection, all as they should be; the longest time of one, in s."""
    guest.wait_line("tick [0-9]* at .* replies in up to ")
    log = guest.log()
    if "echo FAIL" in log:
        raise RigError(f"{guest}: {log[log.index('echo FAIL'):][:300]}")
    return counted_replies(log)[-1]


def wait_echoes(guest: Guest, more: int = 10) -> tuple[int, float]:
    """Wait until that many more numbers have gone there and back. Raises RigError."""
    goal = echoes(guest)[0] + more
    for _ in range(LIMIT_TICKS):
        if (now := echoes(guest))[0] >= goal:
            return now
        # It says so each second.
        guest.wait_ticks(1)
    raise RigError(f"{guest} had {now[0]} replies after {LIMIT_TICKS} seconds, and not {goal}")
