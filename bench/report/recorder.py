# SPDX-License-Identifier: Apache-2.0
"""The file of samples. A run that is cut goes on with it, machine by machine.

Each line is on the disk before the next is measured. A machine that was cut is measured
anew: rounds of two boots under one name would pass for those of one machine.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from report.samples import DataSet, Header, Sample, SampleError, line, parse, part_name


class Refused(Exception):
    """The data is not to be touched: another run writes it."""


def read(path: Path) -> DataSet:
    """The data set of a file; a last line that was cut is left out. Raises SampleError, FileNotFoundError."""
    try:
        return parse(_whole(path).decode().splitlines())
    except (SampleError, UnicodeDecodeError) as error:
        raise SampleError(f"{path}: {error}") from error


def _whole(path: Path) -> bytes:
    data = path.read_bytes()
    return data[: data.rfind(b"\n") + 1]


def free_name(path: Path, tree: str) -> Path:
    """Beside path, for data of another tree."""
    number = 1
    while (found := path.with_name(f"{path.stem}-{tree}.{number}{path.suffix}")).exists():
        number += 1
    return found


class Recorder:
    """Writes samples under a header; as a context.

    If the file has samples of the same header (its seed is kept), they stay, and what is there is
    not measured again. Data of another header is never added to: it is put aside, under a name
    that said() tells. lock: of more runs than those into this folder.
    """

    def __init__(self, path: Path, header: Header, keep_seed: bool = True, lock: Path | None = None) -> None:
        self._path = path
        self.header = header
        self.said: list[str] = []
        self._absent: dict[tuple[str, str], str] = {}
        self._failed: set[tuple[str, str]] = set()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(lock or path.parent / "lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise Refused(f"another run writes {path}: wait for its end, or give another folder (BUILD=…)") from None
        try:
            self._ended = self._go_on(keep_seed)
            self._file = path.open("ab")
            self._write(line("header", self.header))
        except BaseException:
            os.close(self._lock)
            raise

    def _go_on(self, keep_seed: bool) -> set[tuple[str, str]]:
        """What is there already, if it can be gone on with."""
        if not self._path.exists():
            return set()
        try:
            old = read(self._path)
        except SampleError as error:
            return self._put_aside("unreadable", str(error))
        if keep_seed:
            self.header = replace(self.header, seed=old.header.seed)
        if different := old.header.differences(self.header):
            return self._put_aside(old.header.tree, "; ".join(different))
        self._absent = dict(old.absent)
        whole = len(_whole(self._path))
        if whole < self._path.stat().st_size:
            os.truncate(self._path, whole)
        if old.ended:
            self.said.append(f"goes on with {self._path}: {len(old.ended)} machines are there")
        return old.ended

    def _put_aside(self, tree: str, why: str) -> set[tuple[str, str]]:
        aside = free_name(self._path, tree)
        self._path.rename(aside)
        self.said.append(f"begins anew: {why}. The data that was there is now {aside}")
        return set()

    def _write(self, text: str) -> None:
        self._file.write(text.encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def pick(self, full: int, quick: int) -> int:
        """How much to do."""
        return quick if self.header.quick else full

    def missing(self, group: str, what: str, count: int, part: str = "") -> list[str]:
        """Names "WHAT 1" … of a group's machines, or a part of them, that were not measured."""
        names = [f"{what} {number}" for number in range(1, count + 1)]
        return [name for name in names if (group, part_name(name, part)) not in self._ended]

    def to_do(self, group: str, what: str, count: int, part: str = "") -> list[str]:
        """Those of them that this run has not tried yet."""
        names = self.missing(group, what, count, part)
        return [name for name in names if (group, part_name(name, part)) not in self._failed]

    @property
    def failures(self) -> int:
        """How many machines failed in this run."""
        return len(self._failed)

    def absent(self, group: str, what: str, why: str) -> None:
        """Something is not measured here, and why; with no reason it is, now."""
        if self._absent.get((group, what), "") != why:
            self._write(line("absent", {"group": group, "what": what, "why": why}))
            self._absent[group, what] = why

    def absences(self, group: str) -> dict[str, str]:
        """What of a group was told as not measured, and why."""
        return {what: why for (one, what), why in self._absent.items() if one == group and why}

    @contextlib.contextmanager
    def machine(self, group: str, name: str, part: str = "") -> Iterator["Taker"]:
        """Takes what is measured on one machine; it counts when the context has ended without an error.

        part: of a machine that takes several boots; each counts by itself.
        """
        key = {"group": group, "machine": name} | ({"part": part} if part else {})
        self._write(line("begin", key))
        try:
            yield Taker(self, group, name)
        except Exception as error:
            self._write(line("failed", {**key, "why": f"{type(error).__name__}: {error}"[:2000]}))
            self._failed.add((group, part_name(name, part)))
            raise
        self._write(line("end", key))
        self._ended.add((group, part_name(name, part)))

    def add(self, sample: Sample) -> None:
        """One more."""
        self._write(line("sample", sample))

    def close(self) -> None:
        """The file is another's from here on."""
        self._file.close()
        os.close(self._lock)

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *exception) -> None:
        self.close()


class Taker:
    """Adds samples of one machine."""

    def __init__(self, recorder: Recorder, group: str, name: str) -> None:
        self._recorder, self.group, self.name = recorder, group, name

    def add(
        self, case: str, side: str, value: float, unit: str, clock: str = "wall", round: int = 0, order: int = 0
    ) -> None:
        """One value."""
        self._recorder.add(Sample(self.group, case, side, value, unit, clock, self.name, round, order))
