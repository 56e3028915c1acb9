# SPDX-License-Identifier: Apache-2.0
"""What a guest says on its console, its shell's prompt and unfinished lines in between."""

from rig.guest import counted_writes, counter

LOG = "mint-guest: up\n~ # tick 1 at 3.10\ntick 2 at 4.11, 7 writes\ntick 3 at 5.12, 11 writes\ntick 4 at 6.1"


def test_counter_has_whole_lines_only():
    assert counter(LOG) == [(1, 3.10), (2, 4.11), (3, 5.12)]


def test_writes_are_those_of_whole_lines():
    assert counted_writes(LOG) == [7, 11]
    assert counted_writes("tick 1 at 3.10\n") == []
