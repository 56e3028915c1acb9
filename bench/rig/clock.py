# SPDX-License-Identifier: Apache-2.0
"""Nodes' wall clocks, set by the host's as a time server would: a machine's own clock begins with whole seconds."""

import time
from collections.abc import Iterable

from rig.errors import RigError
from rig.node import Node

LOOKS, TRIES = 7, 10
NEAR_S = 0.02
NANOSECONDS = 1_000_000_000
SET = "to=$(( $(date +%s%N) - {} )); date -s @$((to / 1000000000)).$(printf %09d $((to % 1000000000))) >/dev/null"


def offset_s(node: Node) -> float:
    """How much later a node's clock is than the host's, by the quickest of some looks."""
    looks = []
    for _ in range(LOOKS):
        begin = time.time()
        there = int(node.out("date +%s%N")) / NANOSECONDS
        end = time.time()
        looks.append((end - begin, there - (begin + end) / 2))
    return min(looks)[1]


def set_clocks(nodes: Iterable[Node]) -> dict[int, float]:
    """Set them; gives what is left by node, in s, on both sides of the host's clock. Raises RigError where that is much."""
    left = {}
    for place, node in enumerate(nodes):
        lead_s = 0.0
        for number in range(TRIES):
            if abs(offset := offset_s(node)) <= NEAR_S:
                break
            # what is left after the first time is how long setting takes
            lead_s -= offset if number else 0.0
            node.run(SET.format(round((offset - lead_s) * NANOSECONDS)))
        else:
            raise RigError(f"node {node.number}'s clock is {offset:.3f} s from the host's after {TRIES} tries")
        left[place] = offset
    return left
