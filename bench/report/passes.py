# SPDX-License-Identifier: Apache-2.0
"""How groups are measured on a real server: it is not booted for each machine, so passes stand in for machines.

A pass is everything a group does, on nodes that are added for it and removed after it. A group
that compares boots (Linux, Mint) has a part of each pass in each boot.
"""

from collections.abc import Mapping
from typing import Protocol

from report.recorder import Recorder, Taker
from rig.inventory import LINUX, MINT
from rig.remote import Remote

PASSES, QUICK_PASSES = 5, 1
PASS = "pass"
# In place of what is absent, where that is the group.
WHOLE_GROUP = "all of it"
# The boots, as people are told of them.
BOOTS = {
    LINUX: "Linux without Mint (a stock kernel, or the -mint kernel without mint=)",
    MINT: "Mint (the -mint kernel with mint=on…)",
}


class Group(Protocol):
    """What a group's module has, if it can be measured on a server at all; one that cannot has NOT_AT: why."""

    GROUP: str
    AT_BOOTS: tuple[str, ...]  # those that it is measured in

    def absent_at(self, remote: Remote) -> Mapping[str, str]:
        """What is not measured there, and why; WHOLE_GROUP: nothing is."""

    def on_pass(self, taker: Taker, remote: Remote, recorder: Recorder) -> None:
        """A pass, or its part of this boot."""


def _boot_of(boot: str) -> str:
    """What is absent until that boot has been measured."""
    return f"its part on {boot}"


def parts(group: Group) -> dict[str, str]:
    """By boot: what its part of a pass is called; a group of one boot has no parts."""
    return {boot: boot if len(group.AT_BOOTS) > 1 else "" for boot in group.AT_BOOTS}


def measure(group, recorder: Recorder, remote: Remote) -> set[str]:
    """What is missing and this boot allows; gives the boots that the rest takes."""
    if not hasattr(group, "on_pass"):
        recorder.absent(group.GROUP, WHOLE_GROUP, group.NOT_AT)
        return set()
    absent = dict(group.absent_at(remote))
    boots = {_boot_of(boot) for boot in BOOTS}
    # What a former call lacked may be there by now.
    for what in {**recorder.absences(group.GROUP), **absent}:
        if what not in boots:
            recorder.absent(group.GROUP, what, absent.get(what, ""))
    if WHOLE_GROUP in absent:
        return set()
    count = recorder.pick(PASSES, QUICK_PASSES)
    part = parts(group).get(remote.boot)
    for name in recorder.to_do(group.GROUP, PASS, count, part) if part is not None else ():
        with recorder.machine(group.GROUP, name, part) as taker:
            try:
                group.on_pass(taker, remote, recorder)
            finally:
                if remote.boot == MINT:
                    remote.remove_all()
    left = {boot for boot, part in parts(group).items() if recorder.missing(group.GROUP, PASS, count, part)}
    for boot in group.AT_BOOTS:
        why = f"it takes a boot with {BOOTS[boot]}, which has not been measured yet" if boot in left else ""
        recorder.absent(group.GROUP, _boot_of(boot), why)
    return left
