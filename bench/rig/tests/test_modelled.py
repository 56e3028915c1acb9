# SPDX-License-Identifier: Apache-2.0
"""What counters of modelled caches come to."""

import pytest

from rig.modelled import FAR_CYCLES, NEAR_CYCLES, Course, Second, Watched, done_in, seconds

M = 1_000_000


def second(near: int = 0, far: int = 0, instructions: int = 10 * M, span_ms: int = 1000) -> Second:
    return Second(span_ms, instructions, near, far)


def test_far_lines_take_twice_as_long():
    assert second().done == 1
    near, far = second(near=400_000), second(far=400_000)
    assert near.done == pytest.approx(10 * M / (10 * M + 400_000 * NEAR_CYCLES))
    # L, 5.3.2: what a guest loses whose lines are all far
    assert 1 - far.done / near.done == pytest.approx(0.404, abs=0.002)
    assert FAR_CYCLES == 2 * NEAR_CYCLES


def test_lines_are_near_or_far_by_the_cpu():
    def sample(fills: list[int] | None, instructions: int | None = 5 * M) -> dict:
        return {"span_ms": 1001, "run_ms": 990, "instructions": instructions, "misses": 30, "fills": fills}

    samples = [sample([10, 20]), sample([10, 20], 1000), sample([10, 20], None)]
    assert seconds({"numa": 1, "samples": samples}, 1001) == [Second(1001, 5 * M, 20, 10)]
    assert seconds({"numa": 0, "samples": samples}, 1001) == [Second(1001, 5 * M, 10, 20)]
    assert len(seconds({"numa": 0, "samples": samples})) == 2
    # one NUMA node; nothing told
    assert seconds({"numa": 1, "samples": [sample([30]), sample(None)]}) == [Second(1001, 5 * M, 30, 0)] * 2


def test_each_second_is_seen_once():
    ring = [second(instructions=number * M + 5 * M) for number in range(20)]
    watched = Watched()
    assert [watched.add(ring[start : start + 10]) for start in (0, 3, 9, 9)] == [10, 13, 19, 19]
    assert watched.seen == ring[:19]


def test_seconds_of_the_last_node_are_none_of_the_next_ones():
    """It is told them; where lines came from is another there."""
    last = [second(near=7, instructions=number * M + 5 * M) for number in range(4)]
    carried = [second(far=7, instructions=one.instructions) for one in last]
    watched = Watched(last)
    assert watched.add([*carried, second(9)]) == 1 and watched.seen == [second(9)]


def test_seconds_count_by_what_was_done_in_them():
    few, many = second(far=M, instructions=M), second(instructions=99 * M)
    assert done_in([few, many]) == pytest.approx(100 * M / (100 * M + FAR_CYCLES * M))
    assert done_in([few]) == few.done


def course(after: list[Second]) -> Course:
    return Course([second(near=400_000)] * 9, after, [second()] * 3, [second(near=20_000)] * 3)


def test_course_of_a_guest_that_recovers():
    far, near = second(far=400_000, span_ms=1100), second(near=400_000)
    told = {name: value for name, (value, _) in course([far] * 7 + [near] * 12).told().items()}
    assert told["recovery"] == pytest.approx(7.7)
    assert told["end"] == pytest.approx(0) and told["first"] == pytest.approx(0.596, abs=0.002)
    cycles = 7 / far.done + 3 / near.done
    assert told["loss"] == pytest.approx(100 * (1 - 10 / cycles / near.done))
    assert told["resident"] == pytest.approx(9.5, abs=0.1)


def test_course_of_a_guest_that_does_not_recover_and_of_one_that_need_not():
    """What it gets done in the end is what it is measured by."""
    far, near = second(far=400_000), second(near=400_000)
    assert course([far] * 12).told()["recovery"] == (0, "s")
    assert course([far] * 12).told()["end"][0] == pytest.approx(40.4, abs=0.2)
    assert [course([near] * 12).told()[name][0] for name in ("loss", "recovery", "end")] == pytest.approx([0, 0, 0])


def test_course_of_too_few_seconds_is_none():
    with pytest.raises(ValueError, match="too few"):
        course([second()] * 9).told()
