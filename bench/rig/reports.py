# SPDX-License-Identifier: Apache-2.0
"""What a kernel says on its console when something is wrong in it."""

import re

# Nothing of lockups: kernels of the rig are told nowatchdog (rig.machine). A CPU that stands still is seen by RCU.
# A panic that a test asks for says none of these. "WARNING: See https://..." is about the CPU, whose microcode
# does not mitigate what Debian's kernels would.
REPORTS = re.compile(
    r"BUG:|WARNING: (?!See )|Oops|KASAN|UBSAN|general protection|unable to handle|possible recursive locking|"
    r"possible circular locking|inconsistent lock state|suspicious RCU usage|refcount_t|list_(add|del) corruption|"
    r"sleeping function called from invalid context|rcu.*(detected stalls|self-detected stall)|"
    r"blocked for more than"
)
BEGIN, END = "Linux version ", "reboot: "
# A stock kernel that ends stops its cores one by one, unlike those that go by hotplug: one that still runs may
# wake another, and warns. Seen with an emulated core that its host did not run for some milliseconds.
STOCK_AT_END = "sched: Unexpected reschedule of offline CPU#"
# Another of a stock kernel's end: NVMe's queues are frozen when the lock of CPU hotplug is taken. Hotplug of memory
# that brings a NUMA node has led lockdep from that lock to one under which files are read. A kernel that ended while
# a core came could hang there, and would be killed after [wait] stop_s.
STOCK_FREEZE = ("possible circular locking", "at: cpu_hotplug_disable+", "at: nvme_start_freeze+")
FREEZE_LINES = 9


def is_stock_freeze(lines: list[str]) -> bool:
    """Whether the report that begins these lines is the one of frozen queues at a kernel's end."""
    words = "\n".join(lines[:FREEZE_LINES])
    return all(part in words for part in STOCK_FREEZE)


def reports_in(text: str) -> list[str]:
    """The lines of a console's text that begin a report; without those that belong to a stock kernel's end."""
    found, ends, stock = [], False, False
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if BEGIN in line or END in line:
            ends, stock = END in line, False
        elif ends and STOCK_AT_END in line:
            stock = True
        elif REPORTS.search(line):
            if not stock and not is_stock_freeze(lines[number:]):
                found.append(line)
            stock = False
    return found
