# SPDX-License-Identifier: Apache-2.0
"""What the host kept the emulator waiting is told for any interval."""

import os

import pytest

from rig.delay import EVERY_S, Delays, stolen_of, waiting_of


def delays(*rows: tuple[float, ...]) -> Delays:
    """Samples: a time, and how long each of the threads has waited until then."""
    found = Delays()
    for at_s, *waiting_s in rows:
        found.add(at_s, {str(number): seconds for number, seconds in enumerate(waiting_s)})
    return found


def test_the_thread_that_waited_longest_counts():
    found = delays((0, 0, 0), (10, 1, 0), (20, 1, 4), (30, 1, 4))
    assert found.kept_waiting_s(0, 30) == 4
    assert found.kept_waiting_s(0, 10) == 1
    assert found.kept_waiting_s(20, 30) == 0
    assert found.kept_waiting_s(12, 18) == 4, "samples around the interval count"


def test_a_thread_that_came_later_counts_from_nothing():
    assert delays((0, 1), (10, 1, 3)).kept_waiting_s(0, 10) == 3


def test_without_waiting_an_interval_is_as_long_as_it_is():
    assert Delays().own_s(5, 12) == 7
    still = delays(*((at * EVERY_S, 2.0) for at in range(60)))
    assert still.own_s(5, 12) == 7
    assert still.longest_own_s([(1, 2), (5, 12), (13, 14)]) == 7
    assert still.longest_own_s([]) == 0


def test_what_the_host_kept_it_waiting_is_taken_off():
    # Waits all the time from 10 s to 20 s.
    found = delays(*((at, float(min(max(at - 10, 0), 10))) for at in range(0, 41)))
    assert found.own_s(11, 19) == pytest.approx(0)
    assert found.own_s(15, 35) == pytest.approx(14), "a margin before it counts, too"
    assert found.own_s(25, 35) == 10


def test_what_the_hosts_hypervisor_stole_is_taken_off_too():
    found = Delays()
    for at_s in range(0, 41):
        found.add(at_s, {"1": at_s / 10}, {"cpu0": float(min(max(at_s - 10, 0), 10)), "cpu1": 0.0})
    assert found.kept_waiting_s(10, 20) == pytest.approx(11), "of thread and core that waited longest"
    assert found.own_s(25, 35) == pytest.approx(10 - 1.2), "nothing was stolen then"


def test_steal_of_each_core_is_read():
    assert stolen_of("cpu  9 9 9 9 9 9 9 900 9 9\ncpu0 1 2 3 4 5 6 7 250 9 10\ncpu12 1 2 3 4 5 6 7 8 9 10\nintr 5\n") == {
        "cpu0": 250 / os.sysconf("SC_CLK_TCK"),
        "cpu12": 8 / os.sysconf("SC_CLK_TCK"),
    }


def test_threads_of_a_process_are_read():
    assert str(os.getpid()) in waiting_of(os.getpid())
    assert waiting_of(2**30) == {}
