# SPDX-License-Identifier: Apache-2.0
"""What bench/micro/eval.c prints, read."""

from dataclasses import dataclass

from rig.errors import RigError
from rig.words import words

# All other words are numbers.
TEXTS = ("copy_by", "at", "file", "places")


@dataclass(frozen=True)
class Repeat:
    """One of its repeats; ticks: of the TSC, places: a hash of those that were read."""

    number: int
    ns: int
    ticks: int
    begin_tsc: int
    begin_realtime_ns: int
    cpu: int
    moved: bool
    places: str


@dataclass(frozen=True)
class Evaluation:
    """One run to its end. setting: what it was asked for, tsc_hz and file_bytes among it."""

    setting: dict[str, int | str]
    repeats: list[Repeat]


def read(text: str) -> Evaluation:
    """One run, in a program's output or a console's text. Raises RigError if it is not whole."""
    lines = [line.strip("\r") for line in text.splitlines()]
    of = {what: [line for line in lines if line.startswith(f"eval {what}")] for what in ("setting", "repeat", "done")}
    if len(of["setting"]) != 1 or len(of["done"]) != 1:
        raise RigError(f"no whole run of eval:\n{text[-2000:]}")
    setting = words(of["setting"][0], TEXTS, "file")
    repeats = [Repeat(**found | {"moved": bool(found["moved"])}) for found in (words(line, TEXTS, "file") for line in of["repeat"])]
    if [repeat.number for repeat in repeats] != list(range(1, int(setting["repeats"]) + 1)):
        raise RigError(f"not each of eval's {setting['repeats']} repeats is there once:\n{text[-2000:]}")
    return Evaluation(setting, repeats)
