# SPDX-License-Identifier: Apache-2.0
"""What bench/micro/victim.c and bench/micro/aggressor.c print, read."""

import re
from dataclasses import dataclass

from rig.errors import RigError

# A percentile is told if so many rounds lie beyond it: p99.9 takes 10,000.
LEAST_BEYOND = 10


@dataclass(frozen=True)
class Suffered:
    """One run of the victim to its end. histogram: rounds by the lowest value of their bucket, in ns."""

    kind: str
    rounds: int
    histogram: dict[int, int]
    sum_ns: int
    least_ns: int
    most_ns: int
    took_ns: int
    again: int  # how often it asked again
    moved: int  # rounds that ended on another CPU than the first

    def percentile_ns(self, per_mille: int) -> float:
        """The latency below which so many of 1,000 rounds are. Raises RigError if there are too few rounds."""
        beyond = self.rounds * (1000 - per_mille)
        if beyond < LEAST_BEYOND * 1000:
            raise RigError(f"{self.rounds} rounds are too few for the percentile {per_mille / 10:g}")
        wanted, seen = self.rounds * per_mille / 1000, 0
        for lowest, count in sorted(self.histogram.items()):
            if seen + count >= wanted:
                # As if a bucket's rounds lay in it at equal distances.
                return lowest + width_ns(lowest) * (wanted - seen) / count
            seen += count
        raise AssertionError


def width_ns(lowest_ns: int) -> int:
    """Of the bucket with this lowest value."""
    return 1 << max(0, lowest_ns.bit_length() - 7)


def _lines(text: str, start: str) -> list[str]:
    lines = [line.strip("\r") for line in text.splitlines()]
    return [line.removeprefix(start) for line in lines if line.startswith(start)]


def _numbers(line: str) -> dict[str, int]:
    return {key: int(value) for key, value in re.findall(r"(\w+)=(-?\d+)(?= |$)", line)}


def suffered(text: str) -> list[Suffered]:
    """All runs, in a program's output or a console's text. Raises RigError if one is not whole."""
    found = []
    for part in re.split(r"(?m)^victim setting ", text)[1:]:
        kind = re.match(r"kind=(\w+) ", part)
        done = [_numbers(line) for line in _lines(part, "victim done ")]
        histogram = {int(k): v for line in _lines(part, "victim histogram ") for k, v in _numbers(line).items()}
        if not kind or len(done) != 1 or sum(histogram.values()) != done[0].get("rounds"):
            raise RigError(f"no whole run of victim:\n{part[-2000:]}")
        of = done[0]
        found.append(Suffered(
            kind[1], of["rounds"], histogram, of["sum_ns"], of["least_ns"], of["most_ns"], of["took_ns"], of["again"],
            of["moved"],
        ))  # fmt: skip
    return found


def one(text: str) -> Suffered:
    """The run that there is. Raises RigError if there is not one."""
    found = suffered(text)
    if len(found) != 1:
        raise RigError(f"{len(found)} runs of victim, not one:\n{text[-2000:]}")
    return found[0]


def done(text: str) -> int:
    """How much an aggressor has done. Raises RigError if it has not ended as it should, or has done nothing."""
    found = [_numbers(line) for line in _lines(text, "aggressor done ")]
    if len(found) != 1 or found[0].get("count", 0) < 1:
        raise RigError(f"the aggressor has done nothing, or does not say what:\n{text[-2000:]}")
    return found[0]["count"]
