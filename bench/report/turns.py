# SPDX-License-Identifier: Apache-2.0
"""The order in which the sides of a comparison take their turns: pure."""

import random
from collections.abc import Sequence


def turns(seed: int, machine: str, sides: Sequence[str], rounds: int) -> list[list[str]]:
    """The sides of each round, in order.

    By chance, so that no side follows the host's rhythm; each second round is the one before it
    backwards, so that what slowly gets better or worse meets all alike.
    """
    chance = random.Random(f"{seed} {machine}")
    found: list[list[str]] = []
    for number in range(rounds):
        if number % 2:
            found.append(found[-1][::-1])
        else:
            found.append(chance.sample(list(sides), len(sides)))
    return found
