# SPDX-License-Identifier: Apache-2.0
"""Data whose truth is known."""

import math
import random
from dataclasses import replace
from types import SimpleNamespace

from report.figure import Figure
from report.goals import Goal, equal
from report.recorder import Recorder
from report.samples import DataSet, Header, Sample
from report.turns import turns

HEADER = Header(
    commit="0123456789abcdef0123456789abcdef01234567", dirty="", qemu="QEMU emulator version 11.1", kernels={"mint": "cafe"},
    host="2 × a processor, 8 GiB, Linux 6.12", plan="emulator", quick=False, seed=7, load=0.1,
)  # fmt: skip
SIDES = ("a", "b")


def samples(
    chance: random.Random,
    ratio: float,
    machines: int = 5,
    rounds: int = 5,
    machine_noise: float = 0.02,
    noise: float = 0.02,
    heavy: bool = False,
) -> list[Sample]:
    """Side a has ratio × what b has. machine_noise: how much that differs between machines; noise: between rounds.
    heavy: one round in ten is far off, to either side."""
    found = []
    for machine in range(machines):
        own_level = chance.gauss(0, 0.1)
        own_ratio = math.log(ratio) + chance.gauss(0, machine_noise)
        for number in range(rounds):
            for order, side in enumerate(SIDES):
                value = own_level + (own_ratio if side == "a" else 0) + chance.gauss(0, noise / math.sqrt(2))
                if heavy and chance.random() < 0.1:
                    value += chance.choice((-8, 8)) * noise
                found.append(
                    Sample(
                        "made", "rate", side, 100 * math.exp(value), "MB/s", "wall", f"machine {machine + 1}", number, order
                    )
                )
    return found


GOAL = equal("a is as fast as b", "made", "rate", "a", "b", 0.02)
NULL = equal("b, and again", "made", "rate", "b again", "b", 0.1, null=True)
GOALS = (GOAL, NULL, Goal("a is fast", "made", "rate", "a", low=10, unit="MB/s"))
FIGURES = (Figure("made", "rate", "A rate", "MB/s", {"a": "the a", "b": "the <b> & more", "b again": "the same again"}),)


def with_null(taken: list[Sample], ratio: float = 1.0) -> list[Sample]:
    """Side b once more, as another side."""
    return [*taken, *(replace(s, side="b again", value=s.value * ratio, order=2) for s in taken if s.side == "b")]


def data_set(ratio: float = 1.0, seed: int = 1, null_ratio: float = 1.0, **more) -> DataSet:
    """A whole data set."""
    chance = random.Random(seed)
    taken = with_null(samples(chance, ratio, machine_noise=0.005, noise=0.005), null_ratio)
    return DataSet(replace(HEADER, **more), taken, {(s.group, s.machine) for s in taken})


class Group:
    """A group of make report that boots nothing: what it gives is by the machine's name, so that it is the same
    whether it was cut or not. It dies before the sample of that number, if there is one. The machine that fails does so
    once."""

    def __init__(
        self,
        machines: int = 5,
        dies_before: int | None = None,
        null_ratio: float = 1.0,
        null_noise: float = 0.002,
        fails: str = "",
    ) -> None:
        self.machines, self.null_ratio, self.null_noise = machines, null_ratio, null_noise
        self.left, self.fails = dies_before, fails
        self.measured: list[str] = []
        self.module = SimpleNamespace(run=self.run, GOALS=GOALS, FIGURES=FIGURES)

    def run(self, recorder: Recorder) -> None:
        """As figures_start.run."""
        for name in recorder.to_do("made", "machine", recorder.pick(self.machines, 2)):
            self.measured.append(name)
            chance = random.Random(name)
            null = self.null_ratio * math.exp(chance.gauss(0, self.null_noise))
            with recorder.machine("made", name) as taker:
                if name == self.fails:
                    self.fails = ""
                    raise TypeError("no QEMU")
                for number, order in enumerate(turns(recorder.header.seed, name, ("a", "b", "b again"), 4)):
                    level = 100 * math.exp(chance.gauss(0, 0.002))
                    for place, side in enumerate(order):
                        if self.left is not None:
                            if self.left == 0:
                                raise KeyboardInterrupt
                            self.left -= 1
                        factor = null if side == "b again" else 1.0
                        taker.add("rate", side, level * factor, "MB/s", round=number, order=place)
