# SPDX-License-Identifier: Apache-2.0
"""What a kernel says on its console when something is wrong in it."""

import re

# A panic that a test asks for says none of these.
REPORTS = re.compile(
    r"BUG:|WARNING: |Oops|KASAN|UBSAN|general protection|unable to handle|possible recursive locking|"
    r"possible circular locking|inconsistent lock state|suspicious RCU usage|refcount_t|list_(add|del) corruption|"
    r"sleeping function called from invalid context|rcu.*(detected stalls|self-detected stall)|"
    r"blocked for more than|soft lockup|hard LOCKUP"
)
BEGIN, END = "Linux version ", "reboot: "
# A stock kernel that ends stops its cores one by one, unlike those that go by hotplug: one that still runs may
# wake another, and warns. Seen with an emulated core that its host did not run for some milliseconds.
STOCK_AT_END = "sched: Unexpected reschedule of offline CPU#"


def reports_in(text: str) -> list[str]:
    """The lines of a console's text that begin a report; without the one that belongs to a stock kernel's end."""
    found, ends, stock = [], False, False
    for line in text.splitlines():
        if BEGIN in line or END in line:
            ends, stock = END in line, False
        elif ends and STOCK_AT_END in line:
            stock = True
        elif REPORTS.search(line):
            if not stock:
                found.append(line)
            stock = False
    return found
