# SPDX-License-Identifier: Apache-2.0
"""Samples are kept, go on after a cut, and never mix with those of something else."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from made_data import HEADER, Group
from report.recorder import Recorder, Refused, read
from report.samples import Sample, SampleError, line, parse


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report" / "data.jsonl"


def measure(path: Path, group: Group, header=HEADER, keep_seed: bool = True) -> list[str]:
    """A run, which may be cut; what it said."""
    with Recorder(path, header, keep_seed) as recorder:
        with contextlib.suppress(KeyboardInterrupt):
            group.run(recorder)
        return recorder.said


PER_MACHINE = 3 * 4


@pytest.mark.parametrize("cut", [0, 1, PER_MACHINE - 1, PER_MACHINE, 2 * PER_MACHINE + 5])
def test_cut_run_goes_on_and_gives_the_same(path: Path, tmp_path: Path, cut: int):
    first, second, whole = Group(dies_before=cut), Group(), Group()
    measure(path, first)
    done = cut // PER_MACHINE
    assert len(read(path).samples) == done * PER_MACHINE
    said = measure(path, second, replace(HEADER, seed=99, load=3.0))
    assert second.measured == [f"machine {n}" for n in range(done + 1, 6)]
    assert not done or "goes on" in said[0]
    measure(tmp_path / "whole.jsonl", whole)
    assert read(path).samples == read(tmp_path / "whole.jsonl").samples
    assert read(path).cut == {}


def test_line_that_was_cut_is_measured_again(path: Path):
    measure(path, Group())
    whole = path.read_bytes()
    path.write_bytes(whole[: -len(whole.splitlines(keepends=True)[-1]) // 2])
    assert len(read(path).samples) == 4 * PER_MACHINE
    again = Group()
    measure(path, again)
    assert again.measured == ["machine 5"] and len(read(path).samples) == 5 * PER_MACHINE


def test_rounds_of_two_boots_do_not_mix(path: Path):
    measure(path, Group(dies_before=PER_MACHINE + 7))
    data = read(path)
    assert {sample.machine for sample in data.samples} == {"machine 1"}
    assert data.cut == {("made", "machine 2"): "cut short"}


def test_failed_machine_is_left_out_with_its_reason(path: Path):
    with Recorder(path, HEADER) as recorder:
        with pytest.raises(OSError), recorder.machine("made", "machine 1") as taker:
            taker.add("rate", "a", 1.0, "MB/s")
            raise OSError("QEMU is gone")
        with recorder.machine("made", "machine 2") as taker:
            taker.add("rate", "a", 1.0, "MB/s")
        assert recorder.missing("made", "machine", 3) == ["machine 1", "machine 3"]
    assert [s.machine for s in read(path).samples] == ["machine 2"]
    assert read(path).cut == {("made", "machine 1"): "OSError: QEMU is gone"}
    measure(path, Group(machines=1))
    assert read(path).cut == {}


@pytest.mark.parametrize(
    "change",
    [
        {"commit": "f" * 40},
        {"dirty": "abc"},
        {"qemu": "QEMU 12"},
        {"kernels": {"mint": "beef"}},
        {"host": "another"},
        {"quick": True},
    ],
)
def test_data_of_something_else_is_put_aside_and_not_added_to(path: Path, change: dict):
    measure(path, Group())
    before = path.read_bytes()
    group = Group()
    said = measure(path, group, replace(HEADER, **change))
    assert group.measured[0] == "machine 1"
    (aside,) = path.parent.glob("data-*.jsonl")
    assert aside.read_bytes() == before
    assert "begins anew" in said[0] and next(iter(change)) in said[0] and str(aside) in said[0]
    assert path.read_text().count('"begin"') == len(group.measured)


def test_nothing_that_was_put_aside_is_written_over(path: Path):
    for number in range(3):
        measure(path, Group(machines=1), replace(HEADER, qemu=f"QEMU {number}"))
    assert len(list(path.parent.glob("data-*.jsonl"))) == 2


def test_seed_is_the_datas_unless_one_is_asked_for(path: Path):
    measure(path, Group(machines=1))
    assert not any("anew" in text for text in measure(path, Group(machines=1), replace(HEADER, seed=99)))
    assert read(path).header.seed == 7
    assert any("seed" in text for text in measure(path, Group(machines=1), replace(HEADER, seed=99), keep_seed=False))
    assert read(path).header.seed == 99


def test_file_with_two_headers_that_differ_is_no_data(path: Path):
    measure(path, Group(machines=1))
    with path.open("a") as file:
        file.write(line("header", replace(HEADER, commit="f" * 40)))
    with pytest.raises(SampleError, match="different things.*commit"):
        read(path)
    said = measure(path, Group(machines=1))
    assert "begins anew" in said[0]


def test_two_runs_do_not_write_one_file(path: Path):
    with Recorder(path, HEADER), pytest.raises(Refused, match="another run writes"):
        Recorder(path, HEADER)
    Recorder(path, HEADER).close()


def test_each_sample_is_on_the_disk_before_the_next(path: Path):
    with Recorder(path, HEADER) as recorder, recorder.machine("made", "machine 1") as taker:
        for count in range(3):
            taker.add("rate", "a", 1.0, "MB/s", round=count)
            assert len(path.read_text().splitlines()) == 3 + count


SAMPLE = Sample("made", "rate", "a", 1.5, "MB/s", "wall", "machine 1", 0, 0)
KEY = {"group": "made", "machine": "machine 1"}


@pytest.mark.parametrize(
    ("lines", "word"),
    [
        ([], "no header"),
        ([line("begin", KEY)], "line 1: no header before it"),
        ([line("header", HEADER), line("sample", SAMPLE)], "line 2: .*has not begun"),
        (
            [line("header", HEADER), line("begin", KEY), line("sample", SAMPLE), line("sample", SAMPLE)],
            "line 4: .*there twice",
        ),
        ([line("header", HEADER), line("end", KEY)], "line 2"),
        ([line("header", HEADER), "{}\n"], "line 2"),
        ([line("header", HEADER), "[1]\n"], "line 2"),
        ([line("header", HEADER), line("other", KEY)], "line 2: unknown kind"),
        ([line("header", HEADER), line("begin", KEY), '{"sample": {"group": "made"}}\n'], "line 3"),
        ([line("header", HEADER), line("begin", KEY), line("sample", SAMPLE).replace("1.5", "NaN")], "line 3: .*no number"),
    ],
)
def test_line_that_is_no_data_is_named(lines: list[str], word: str):
    with pytest.raises(SampleError, match=word):
        parse(lines)


def test_value_that_is_no_number_is_refused(path: Path):
    with Recorder(path, HEADER) as recorder, recorder.machine("made", "machine 1") as taker:
        for value in (float("nan"), float("inf")):
            with pytest.raises(SampleError, match="no number"):
                taker.add("rate", "a", value, "MB/s")
    assert read(path).samples == []


def test_lines_are_json_for_others(path: Path):
    measure(path, Group(machines=1))
    kinds = [next(iter(json.loads(text))) for text in path.read_text().splitlines()]
    assert kinds == ["header", "begin", *["sample"] * PER_MACHINE, "end"]


def test_emulator_boots_all_kernels_so_fewer_are_others():
    """Only a real server adds them boot by boot."""
    both = replace(HEADER, kernels={"mint": "cafe", "lockdep": "f00d"})
    assert HEADER.differences(both) and both.differences(HEADER)
    there = replace(HEADER, qemu="")
    assert not there.differences(replace(there, kernels={"linux": "f00d"}))
    assert there.differences(replace(there, kernels={"mint": "f00d"}))


def test_parts_of_a_machine_count_by_themselves(path: Path):
    """One part is whole, the other was cut: its samples are left out, and only it is measured again."""
    with Recorder(path, HEADER) as recorder:
        with recorder.machine("made", "pass 1", "linux") as taker:
            taker.add("case", "Linux", 1.0, "s")
        with pytest.raises(ValueError, match="cut"), recorder.machine("made", "pass 1", "mint") as taker:
            taker.add("case", "Mint", 2.0, "s")
            raise ValueError("cut")
    data = read(path)
    assert [(s.machine, s.side) for s in data.samples] == [("pass 1", "Linux")]
    assert data.ended == {("made", "pass 1, linux")} and data.cut == {("made", "pass 1, mint"): "ValueError: cut"}
    with Recorder(path, HEADER) as recorder:
        assert recorder.missing("made", "pass", 1, "linux") == []
        assert recorder.missing("made", "pass", 1, "mint") == ["pass 1"]


def test_what_is_absent_is_told_until_it_is_there(path: Path):
    with Recorder(path, HEADER) as recorder:
        recorder.absent("made", "one", "no disk")
        recorder.absent("made", "two", "no core")
    with Recorder(path, HEADER) as recorder:
        recorder.absent("made", "one", "no disk")
        recorder.absent("made", "two", "")
    assert read(path).absent == {("made", "one"): "no disk"}
    assert path.read_text().count('"absent"') == 3
