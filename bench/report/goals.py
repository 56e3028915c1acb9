# SPDX-License-Identifier: Apache-2.0
"""Goals, and the verdicts on them, by the interval: pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from report.samples import EMULATED, Sample
from report.stats import Interval, by_machine, interval, ratios

HOLDS, MISSED, OPEN, NOT_HERE = "holds", "missed", "open", "not here"
NOT_MEASURED = "not measured"  # why it is open
WORDS = (HOLDS, MISSED, OPEN, NOT_HERE, NOT_MEASURED)
EMULATOR, SERVER = EMULATED, "server"


@dataclass(frozen=True)
class Goal:
    """What is wanted of side ÷ to in a case, or, without to, of side's values.

    where: the places whose samples decide it. null: both sides are one configuration, so that a
    miss is the measurement's own fault, and nothing else in the report is to be believed. reason: what is known
    to make it missed on an emulator, shown where it is.
    """

    name: str
    group: str
    case: str
    side: str
    to: str | None = None
    low: float | None = None
    high: float | None = None
    clock: str = "wall"
    unit: str = ""
    where: tuple[str, ...] = (EMULATOR, SERVER)
    null: bool = False
    reason: str = ""

    def __post_init__(self) -> None:
        if self.low is None and self.high is None:
            raise ValueError(f"{self.name}: a goal without a bound")

    def bounds(self) -> str:
        """As people write them."""
        unit = f" {self.unit}" if self.unit else ""
        if self.low is None:
            return f"≤ {self.high:g}{unit}"
        if self.high is None:
            return f"≥ {self.low:g}{unit}"
        return f"{(self.low + self.high) / 2:.2f} ± {(self.high - self.low) / 2:.2f}{unit}"


def equal(
    name: str, group: str, case: str, side: str, to: str, within: float, clock: str = "wall", null: bool = False
) -> Goal:
    """Both sides are the same, but for this part of 1."""
    return Goal(name, group, case, side, to, 1 - within, 1 + within, clock, null=null)


@dataclass(frozen=True)
class Verdict:
    """Whether a goal is met, with what was found."""

    goal: Goal
    word: str
    found: Interval | None
    why: str = ""


def values(goal: Goal, samples: Iterable[Sample]) -> dict[str, list[float]]:
    """What a goal speaks of, by machine."""
    case = [s for s in samples if (s.group, s.case, s.clock) == (goal.group, goal.case, goal.clock)]
    if goal.to is None:
        return by_machine(s for s in case if s.side == goal.side)
    return ratios(case, goal.side, goal.to)


def judge(goal: Goal, samples: Iterable[Sample], place: str) -> Verdict:
    """The verdict on a goal by samples of a place."""
    found = interval(values(goal, samples), of_ratios=goal.to is not None)
    if place not in goal.where:
        here = "an emulator" if place == EMULATOR else "a server"
        return Verdict(goal, NOT_HERE, found, f"it takes {' or '.join(goal.where)}; this is {here}")
    if found is None:
        return Verdict(goal, OPEN, None, NOT_MEASURED)
    if found.low is None or found.high is None:
        return Verdict(goal, OPEN, found, "one machine does not say how machines differ")
    low_holds = goal.low is None or found.low >= goal.low
    high_holds = goal.high is None or found.high <= goal.high
    if low_holds and high_holds:
        return Verdict(goal, HOLDS, found)
    if (goal.low is not None and found.high < goal.low) or (goal.high is not None and found.low > goal.high):
        return Verdict(goal, MISSED, found, goal.reason if place == EMULATOR else "")
    return Verdict(goal, OPEN, found, "the interval spans the goal")


def doubts(verdicts: Iterable[Verdict], quick: bool = False) -> dict[str, list[str]]:
    """By group, why what was measured of it is not to be trusted: null comparisons that do not hold, or that there is
    none. A quick run's may be open: it has one machine."""
    good = (HOLDS, OPEN) if quick else (HOLDS,)
    measured = [verdict for verdict in verdicts if verdict.found]
    found: dict[str, list[str]] = {}
    for group in dict.fromkeys(verdict.goal.group for verdict in measured):
        nulls = [verdict for verdict in measured if verdict.goal.null and verdict.goal.group == group]
        bad = [f"{verdict.goal.name}: {verdict.word}" for verdict in nulls if verdict.word not in good]
        if bad or not nulls:
            found[group] = bad or ["it has no null comparison"]
    return found


def tally(verdicts: Iterable[Verdict]) -> dict[str, Counter[str]]:
    """How often each word was said, by group; goals that were not measured are "not measured" instead of open."""
    found: dict[str, Counter[str]] = {}
    for verdict in verdicts:
        word = NOT_MEASURED if verdict.word == OPEN and verdict.found is None else verdict.word
        found.setdefault(verdict.goal.group, Counter())[word] += 1
    return found


def unmet(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Those that were measured here and do not hold, missed ones first; of one machine's, none is judged."""
    judged = [verdict for verdict in verdicts if verdict.found and verdict.found.low is not None]
    found = [verdict for verdict in judged if verdict.word in (MISSED, OPEN)]
    return sorted(found, key=lambda verdict: verdict.word != MISSED)
