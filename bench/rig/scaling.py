# SPDX-License-Identifier: Apache-2.0
"""What bench/micro/scale.c prints, read; and what follows from it: pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rig.errors import RigError
from rig.markers import Stretch
from rig.words import words

# All other words are numbers.
TEXTS = ("op", "at", "dir")


@dataclass(frozen=True)
class Thread:
    """One thread in one repeat; ns by its kernel's clock."""

    repeat: int
    thread: int
    cpu: int
    calls: int
    ns: int


@dataclass(frozen=True)
class Scaling:
    """One run to its end. setting: what it was asked for; repeats: all threads of each."""

    setting: dict[str, int | str]
    repeats: list[list[Thread]]


def read(text: str) -> Scaling:
    """One run. Raises RigError if it is not whole, or a thread did not do what it was asked for."""
    lines = text.splitlines()
    kinds = ("setting", "thread", "done")
    of = {kind: [words(line, TEXTS, "dir") for line in lines if line.startswith(f"scale {kind}")] for kind in kinds}
    if len(of["setting"]) != 1 or len(of["done"]) != 1:
        raise RigError(f"no whole run of scale:\n{text[-2000:]}")
    (setting,), (done,) = of["setting"], of["done"]
    threads = [Thread(**found) for found in of["thread"]]
    wanted = [(repeat, number) for repeat in range(1, setting["repeats"] + 1) for number in range(setting["threads"])]
    if [(thread.repeat, thread.thread) for thread in threads] != wanted:
        raise RigError(f"not each thread of each of scale's {setting['repeats']} repeats is there once:\n{text[-2000:]}")
    calls = [thread.calls for thread in threads]
    if set(calls) != {setting["calls"]} or sum(calls) != done["calls"]:
        raise RigError(f"not all of scale's {setting['calls']} calls were made:\n{text[-2000:]}")
    count = setting["threads"]
    return Scaling(setting, [threads[start : start + count] for start in range(0, len(threads), count)])


def _of_each_repeat(runs: Sequence[Scaling]) -> Iterable[list[Thread]]:
    """Of runs at the same time: all threads."""
    if len({len(run.repeats) for run in runs}) != 1:
        raise RigError("runs at the same time have as many repeats")
    return ([thread for part in parts for thread in part] for parts in zip(*(run.repeats for run in runs), strict=True))


def rates(runs: Sequence[Scaling]) -> list[float]:
    """Calls a second of all threads of runs at the same time, in each repeat."""
    return [sum(thread.calls / thread.ns for thread in threads) * 1e9 for threads in _of_each_repeat(runs)]


def own_instructions(runs: Sequence[Scaling], stretches: Sequence[Stretch], cores: Sequence[int]) -> list[float]:
    """What these cores, one a thread, executed for a call, in each repeat of runs at the same time.

    Raises RigError unless each core has counted each repeat.
    """
    of_core = {core: [one.instructions for one in stretches if one.vcpu == core] for core in cores}
    found = []
    for number, threads in enumerate(_of_each_repeat(runs)):
        if len(threads) != len(of_core):
            raise RigError(f"{len(threads)} threads on cores {sorted(of_core)}: not one each")
        if any(len(counts) != len(runs[0].repeats) for counts in of_core.values()):
            counted = {core: len(counts) for core, counts in of_core.items()}
            raise RigError(f"cores have counted so many of {len(runs[0].repeats)} repeats: {counted}")
        found.append(sum(counts[number] for counts in of_core.values()) / sum(thread.calls for thread in threads))
    return found
