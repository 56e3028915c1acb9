# SPDX-License-Identifier: Apache-2.0
"""Clocks of nodes, with this host's shell as a node whose clock is off."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from rig import clock
from rig.errors import RigError

DATE = """#!/bin/sh
# date of a host whose clock is off by what a file says, in nanoseconds
case $1 in
+%s%N) [ -z "$SLOW" ] || sleep 0.05; echo $(( $(/bin/date +%s%N) + $(cat "$OFF") )) ;;
-s) [ -z "$SLOW" ] || sleep 0.05; at=${2#@}; echo $(( ${at%.*}${at#*.} - $(/bin/date +%s%N) )) >"$OFF" ;;
esac
"""


@dataclass
class Played:
    """A node: its shell, and how far its clock is off."""

    folder: Path
    number: int = 0
    stuck: bool = False
    slow: str = ""  # not empty: to read and to set it takes a while

    def __post_init__(self) -> None:
        (self.folder / "date").write_text(DATE)
        (self.folder / "date").chmod(0o755)
        self.off(2.5)

    def off(self, seconds: float) -> None:
        (self.folder / "off").write_text(str(round(seconds * clock.NANOSECONDS)))

    def out(self, command: str) -> str:
        environment = os.environ | {"PATH": f"{self.folder}:/bin:/usr/bin", "OFF": str(self.folder / "off"), "SLOW": self.slow}
        return subprocess.run(["sh", "-c", command], env=environment, check=True, capture_output=True, text=True).stdout

    def run(self, command: str) -> None:
        if not self.stuck:
            self.out(command)


@pytest.mark.parametrize("slow", ["", "yes"])
def test_clock_is_set_by_the_hosts(tmp_path: Path, slow: str):
    node = Played(tmp_path, slow=slow)
    assert clock.offset_s(node) == pytest.approx(2.5, abs=0.2)
    node.off(-0.75)
    left = clock.set_clocks([node])
    assert abs(left[0]) <= clock.NEAR_S
    assert abs(clock.offset_s(node)) < 0.1


def test_clock_that_cannot_be_set_is_an_error(tmp_path: Path):
    with pytest.raises(RigError, match=r"node 0's clock is 2\.[3-7]\d* s from"):
        clock.set_clocks([Played(tmp_path, stuck=True)])
