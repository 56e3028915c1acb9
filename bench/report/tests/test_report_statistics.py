# SPDX-License-Identifier: Apache-2.0
"""Intervals and verdicts say the truth about data whose truth is known, as often as they promise."""

import random
from dataclasses import replace

import pytest

from made_data import GOAL, SIDES, samples
from report.goals import HOLDS, MISSED, NOT_HERE, OPEN, Goal, doubts, equal, judge
from report.samples import SampleError
from report.stats import interval, percentile, ratios
from report.turns import turns

DRAWS = 1000
# What differs: mostly machines, mostly rounds, both, with rounds that are far off.
NOISES = {
    "both": {"machine_noise": 0.03, "noise": 0.03},
    "machines": {"machine_noise": 0.03, "noise": 0.005},
    "rounds": {"machine_noise": 0.005, "noise": 0.06},
    "heavy": {"machine_noise": 0.02, "noise": 0.02, "heavy": True},
}


def share(words: list[str], word: str) -> float:
    return words.count(word) / len(words)


def draws(ratio: float, goal: Goal = GOAL, **noise) -> list[str]:
    """Verdicts on that many data sets."""
    chance = random.Random(20)
    return [judge(goal, samples(chance, ratio, **noise), "emulator").word for _ in range(DRAWS)]


@pytest.mark.parametrize("noise", NOISES)
def test_interval_has_the_truth_as_often_as_it_says(noise: str):
    chance = random.Random(10)
    hits = 0
    for _ in range(DRAWS):
        found = interval(ratios(samples(chance, 1.1, **NOISES[noise]), *SIDES), of_ratios=True)
        hits += found.low <= 1.1 <= found.high
    # 95 %, and what chance does to a count of a thousand.
    assert 0.93 <= hits / DRAWS <= 0.97


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("ratio", [1.0, 1.02, 0.98])
def test_goal_that_is_met_is_called_missed_in_one_of_20_at_most(ratio: float, noise: str):
    """The truth at a bound is the worst case of all that meet the goal."""
    assert share(draws(ratio, **NOISES[noise]), MISSED) <= 0.05


@pytest.mark.parametrize("noise", NOISES)
def test_goal_that_is_just_missed_is_called_met_in_one_of_20_at_most(noise: str):
    assert share(draws(1.021, **NOISES[noise]), HOLDS) <= 0.05


def test_known_gap_is_found():
    words = draws(0.95, machine_noise=0.01, noise=0.02)
    assert share(words, MISSED) >= 0.8 and HOLDS not in words


def test_equal_sides_are_found_equal():
    assert share(draws(1.0, machine_noise=0.004, noise=0.01), HOLDS) >= 0.95


def test_planted_slowdown_of_5_percent_is_missed():
    good = samples(random.Random(3), 1.0, machine_noise=0.004, noise=0.01)
    slow = [replace(s, value=s.value * 0.95) if s.side == "a" else s for s in good]
    assert judge(GOAL, good, "emulator").word == HOLDS
    assert judge(GOAL, slow, "emulator").word == MISSED


def test_more_rounds_do_not_pass_for_more_machines():
    """A thousand rounds on five machines that differ say no more than how these differ."""
    chance = random.Random(5)
    few = interval(ratios(samples(chance, 1, rounds=5, machine_noise=0.03, noise=0.001), *SIDES))
    chance = random.Random(5)
    many = interval(ratios(samples(chance, 1, rounds=400, machine_noise=0.03, noise=0.001), *SIDES))
    assert many.samples == 2000 and many.machines == few.machines == 5
    assert (many.high - many.low) > 0.3 * (few.high - few.low)


def test_ratios_are_of_the_same_round():
    """The host gets ten times slower amid it: no ratio sees that."""
    taken = samples(random.Random(1), 1.0, machine_noise=0, noise=0)
    slower = [replace(s, value=s.value * (10 if s.round > 2 else 1)) for s in taken]
    found = ratios(slower, *SIDES)
    assert len(found) == 5
    for values in found.values():
        assert values == pytest.approx([1.0] * 5)
    without = [s for s in taken if not (s.side == "b" and s.round == 3)]
    assert all(len(values) == 4 for values in ratios(without, *SIDES).values())


def test_ratio_and_its_inverse_have_inverse_intervals():
    taken = samples(random.Random(2), 1.5)
    one, other = (interval(ratios(taken, *sides), of_ratios=True) for sides in (SIDES, SIDES[::-1]))
    assert (one.low, one.middle, one.high) == pytest.approx((1 / other.high, 1 / other.middle, 1 / other.low))


def test_differences_around_0_do_not_take_their_interval_from_their_sign():
    """By their logarithms the first would reach to 2.5."""
    above, below = (interval({str(n): [value] for n, value in enumerate(found)}) for found in ((0.3, 0.1, 0.02), (0.3, 0.1, -0.02)))
    assert above.high < 0.51 and above.high - below.high == pytest.approx(0, abs=0.1)


def test_no_ratio_is_made_of_nothing():
    taken = [replace(s, value=0.0) if s.side == "b" else s for s in samples(random.Random(2), 1.0)]
    with pytest.raises(SampleError, match="no ratio"):
        ratios(taken, *SIDES)
    assert interval({"machine 1": [0.0, 0.0], "machine 2": [0.0]}).middle == 0
    assert interval({}) is None and interval({"machine 1": []}) is None


@pytest.mark.parametrize(("p", "least"), [(0.5, 20), (0.9, 100), (0.95, 200), (0.99, 1000), (0.999, 10000)])
def test_percentile_wants_samples_beyond_it(p: float, least: int):
    assert percentile(range(least - 1), p) is None
    assert percentile(range(least), p) == pytest.approx((least - 1) * p)


def test_verdicts_are_by_the_interval():
    taken = samples(random.Random(4), 1.0, machine_noise=0.004, noise=0.01)

    def word(**bounds) -> str:
        return judge(Goal("g", "made", "rate", "a", "b", **bounds), taken, "emulator").word

    assert word(high=1.1) == HOLDS and word(high=0.9) == MISSED and word(high=1.0) == OPEN
    assert word(low=0.9) == HOLDS and word(low=1.1) == MISSED and word(low=1.0) == OPEN
    assert word(low=0.9, high=1.0) == OPEN and word(low=1.1, high=1.2) == MISSED


def test_what_cannot_be_said_is_open_or_not_here():
    one = samples(random.Random(4), 1.0, machines=1)
    verdict = judge(GOAL, one, "emulator")
    assert verdict.word == OPEN and verdict.found.low is None and "one machine" in verdict.why
    assert judge(GOAL, [], "emulator").why == "not measured"
    server = replace(GOAL, where=("server",))
    five = samples(random.Random(4), 1.0)
    assert judge(server, five, "emulator").word == NOT_HERE and judge(server, five, "server").word != NOT_HERE
    assert judge(replace(GOAL, clock="counted"), five, "emulator").found is None


def test_values_are_judged_without_a_ratio():
    taken = samples(random.Random(6), 1.0)
    assert judge(Goal("g", "made", "rate", "a", low=50, unit="MB/s"), taken, "emulator").word == HOLDS
    with pytest.raises(ValueError, match="without a bound"):
        Goal("g", "made", "rate", "a")


def test_bounds_are_written_as_people_do():
    assert GOAL.bounds() == "1.00 ± 0.02"
    assert replace(GOAL, low=None, high=0.5).bounds() == "≤ 0.5"
    assert replace(GOAL, low=3, high=None, unit="MB/s").bounds() == "≥ 3 MB/s"


def test_results_without_a_null_comparison_that_holds_are_doubted():
    taken = samples(random.Random(4), 1.0, machine_noise=0.004, noise=0.01)
    null = equal("n", "made", "rate", "a", "b", 0.1, null=True)
    assert doubts([judge(null, taken, "emulator"), judge(GOAL, taken, "emulator")]) == {}
    assert doubts([judge(GOAL, taken, "emulator")]) == {"made": ["it has no null comparison"]}
    off = samples(random.Random(4), 1.3, machine_noise=0.004, noise=0.01)
    assert doubts([judge(null, off, "emulator"), judge(GOAL, taken, "emulator")]) == {"made": ["n: missed"]}
    assert doubts([judge(null, [], "emulator")]) == {}


def test_turns_are_fair_and_by_the_seed():
    orders = turns(1, "m", ["a", "b", "c"], 6)
    assert orders == turns(1, "m", ["a", "b", "c"], 6)
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert all(second == first[::-1] for first, second in zip(orders[::2], orders[1::2], strict=True))
    assert len({tuple(turns(seed, "m", ["a", "b"], 1)[0]) for seed in range(20)}) == 2
    assert len({tuple(turns(1, f"machine {n}", ["a", "b"], 1)[0]) for n in range(20)}) == 2
