# SPDX-License-Identifier: Apache-2.0
"""Medians, paired ratios, intervals, percentiles: pure.

Rounds on one machine are alike: where its kernels lie, what the host gave it. So a machine,
not a round, is what counts as one observation: an interval is Student's, of the machines'
medians. docs/benchmarks.md has the false alarms of this and of the bootstraps that were
tried: with five machines those had up to four times as many as they may.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles, stdev

from report.samples import Sample, SampleError

# Quantile 0.975 of Student's distribution for 1, 2, … degrees of freedom; the last also for
# all above, which makes those intervals a little wider than they must be.
STUDENT_975 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
)  # fmt: skip
# Beyond a percentile there must be this many samples.
LEAST_BEYOND = 10

# Values of each machine, by its name.
ByMachine = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Interval:
    """Where the middle is with 95 % confidence. low and high are None with one machine: nothing says how machines
    differ."""

    low: float | None
    middle: float
    high: float | None
    machines: int
    samples: int


def interval(values: ByMachine, of_ratios: bool = False) -> Interval | None:
    """The interval of what machines have in the middle; None without values.

    Of ratios by their logarithms: a ratio and its inverse are then equally far from 1. Of others it must not
    depend on whether the smallest of them is a little above 0, or below.
    """
    values = {machine: list(taken) for machine, taken in values.items() if taken}
    if not values:
        return None
    there, back = (math.log, math.exp) if of_ratios else (float, float)
    middles = [median(map(there, taken)) for taken in values.values()]
    middle, samples = fmean(middles), sum(map(len, values.values()))
    if len(middles) == 1:
        return Interval(None, back(middle), None, 1, samples)
    freedom = len(middles) - 1
    half = STUDENT_975[min(freedom, len(STUDENT_975)) - 1] * stdev(middles) / math.sqrt(len(middles))
    return Interval(back(middle - half), back(middle), back(middle + half), len(middles), samples)


def by_machine(samples: Iterable[Sample]) -> dict[str, list[float]]:
    """Their values, by machine."""
    found: dict[str, list[float]] = {}
    for sample in samples:
        found.setdefault(sample.machine, []).append(sample.value)
    return found


def ratios(samples: Iterable[Sample], side: str, to: str) -> dict[str, list[float]]:
    """side ÷ to, of each round that has both, by machine. Raises SampleError where that is no ratio."""
    rounds: dict[tuple[str, int], dict[str, float]] = {}
    for sample in samples:
        if sample.side in (side, to):
            if sample.value <= 0:
                raise SampleError(f"{sample}: no ratio can be made of it; compare the values themselves")
            rounds.setdefault((sample.machine, sample.round), {})[sample.side] = sample.value
    found: dict[str, list[float]] = {}
    for (machine, _), taken in rounds.items():
        if side in taken and to in taken:
            found.setdefault(machine, []).append(taken[side] / taken[to])
    return found


def percentile(values: Sequence[float], p: float) -> float | None:
    """Percentile p (0.99: the 99th), None unless some samples lie beyond it: 10/(1 − p) samples."""
    hundredths = round(p * 1000)
    if not 500 <= hundredths <= 999:
        raise ValueError(f"percentile {p}: from 0.5 to 0.999")
    # In whole numbers: 10 / (1 - 0.99) is a little more than 1000.
    if len(values) * (1000 - hundredths) < LEAST_BEYOND * 1000:
        return None
    return quantiles(values, n=1000, method="inclusive")[hundredths - 1]
