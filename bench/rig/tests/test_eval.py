# SPDX-License-Identifier: Apache-2.0
"""The evaluation program does what it is asked for, and says so; run on this host."""

import os
import re
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest

from rig import paths
from rig.errors import RigError
from rig.evaluation import Evaluation, read

HERE = Path(__file__).resolve().parent
CPU = str(min(os.sched_getaffinity(0)))
KIB = 1024
LIMIT_S = 60


def command(*words: str) -> list[str]:
    """Pinned to a core."""
    return ["taskset", "-c", CPU, str(paths.need(paths.EVAL)), *words]


def evaluate(*words: str) -> Evaluation:
    """A run that must succeed."""
    return read(subprocess.run(command(*words), capture_output=True, text=True, check=True).stdout)


@pytest.fixture
def file(tmp_path: Path) -> str:
    """4 MiB, on whatever file system."""
    path = tmp_path / "data with=sign"
    path.write_bytes(bytes(4 << 20))
    return f"file={path}"


def test_ten_repeats_of_all_three_parts(file: str):
    """As in the paper, without being asked for; the time goes on."""
    run = evaluate("io=2", "register=1000", "copy=3", file, "direct=0")
    assert len(run.repeats) == 10
    assert (run.setting["io"], run.setting["register"], run.setting["copy"]) == (2, 1000, 3)
    assert (run.setting["bytes"], run.setting["align"], run.setting["direct"]) == (256 * KIB, 4096, 0)
    assert (run.setting["file_bytes"], f"file={run.setting['file']}") == (4 << 20, file)
    for before, repeat in zip(run.repeats, run.repeats[1:]):
        assert repeat.begin_tsc >= before.begin_tsc + before.ticks
    assert all(repeat.cpu == int(CPU) and not repeat.moved for repeat in run.repeats)


@pytest.mark.parametrize("size_kib", [256, 512, 1024])
@pytest.mark.parametrize("by", ["memcpy", "loop"])
def test_copies_of_the_papers_sizes(size_kib: int, by: str):
    run = evaluate("copy=2", f"bytes={size_kib * KIB}", f"copy_by={by}", "repeats=2")
    assert run.setting["bytes"] == size_kib * KIB
    assert len(run.repeats) == 2


def test_all_increments_are_done():
    """No compiler takes them out: 20 times as many take longer than 5 times as long (shortest of ten)."""
    few, many = (min(repeat.ticks for repeat in evaluate(f"register={n}").repeats) for n in (100_000, 2_000_000))
    assert many > 5 * few
    assert few > 100_000 / 8


def test_ticks_are_told_in_time():
    """The rate is measured; what one core does in 50 ms is no less by the clock."""
    begin_s = time.monotonic()
    run = evaluate("register=50000000", "repeats=1")
    took_s = time.monotonic() - begin_s
    [repeat] = run.repeats
    assert repeat.ns == pytest.approx(repeat.ticks * 1e9 / run.setting["tsc_hz"], abs=1)
    assert 0 < repeat.ns / 1e9 < took_s


def test_same_seed_reads_the_same_places(file: str):
    """Each repeat others; another seed others, too."""

    def places(seed: int) -> list[str]:
        return [repeat.places for repeat in evaluate("io=8", file, "direct=0", f"seed={seed}", "repeats=3").repeats]

    first = places(7)
    assert len(set(first)) == 3
    assert places(7) == first
    assert not set(places(8)) & set(first)


def test_several_begin_together():
    """At a time that is asked for; not before, and one that is over is an error."""
    at_ns = time.time_ns() + 3_000_000_000
    words = command("register=1000", "repeats=1", f"at=realtime:{at_ns}")
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for run in [read(process.communicate()[0]) for process in both]:
        assert run.repeats[0].begin_realtime_ns >= at_ns
    late = subprocess.run(command("register=1", f"at=realtime:{at_ns}"), capture_output=True, text=True)
    assert late.returncode == 1
    assert "that is over" in late.stderr


def test_begins_at_a_tsc():
    """Of this CPU; the program says where it was."""
    now = evaluate("register=1", "repeats=1")
    at = now.repeats[0].begin_tsc + 3 * int(now.setting["tsc_hz"])
    assert evaluate("register=1", "repeats=1", f"at=tsc:{at}").repeats[0].begin_tsc >= at


def test_begins_when_a_line_comes():
    """Settings are out before, so that who gives the line knows that it is ready."""
    process = subprocess.Popen(
        command("register=1", "at=stdin"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    limit = threading.Timer(LIMIT_S, process.kill)
    limit.start()
    ready = process.stdout.readline()
    assert ready.startswith("eval setting")
    given = time.time_ns()
    run = read(ready + process.communicate("\n")[0])
    limit.cancel()
    assert run.repeats[0].begin_realtime_ns >= given


@pytest.mark.parametrize(("words", "why"), [
    ([], "nothing to do"),
    (["register"], "register: no such setting"),
    (["registers=1"], "no such setting"),
    (["register=x"], "a number is wanted"),
    (["register=-1"], "a number is wanted"),
    (["register=99999999999999999999"], "a number is wanted"),
    (["register=1", "label=16"], "from 0 to 15"),
    (["register=1", "repeats=0"], "from 1 to"),
    (["register=1", "at=noon"], "at=noon: now, stdin"),
    (["register=1", "at=tsc:"], "a number is wanted"),
    (["copy=1", "copy_by=hand"], "memcpy or loop"),
    (["copy=1", "copy_by=loop", "bytes=100"], "no multiple of 16"),
    (["io=1"], "io wants file"),
    (["io=1", "file=/x", "bytes=5000"], "no multiple of align"),
])  # fmt: skip
def test_bad_words_are_usage_errors(words: list[str], why: str):
    """Status 2, the reason, and nothing is done."""
    done = subprocess.run(command(*words), capture_output=True, text=True)
    assert done.returncode == 2
    assert why in done.stderr
    assert not done.stdout


@pytest.mark.parametrize(("name", "why"), [("missing", "No such file"), ("short", "less than one read")])
def test_files_that_cannot_be_read_are_failures(tmp_path: Path, name: str, why: str):
    """Status 1."""
    (tmp_path / "short").write_bytes(b"x")
    done = subprocess.run(
        command("io=1", "direct=0", f"file={tmp_path / name}"), capture_output=True, text=True
    )
    assert done.returncode == 1
    assert why in done.stderr


def test_program_has_a_marker_for_each_end_of_each_label():
    """Once each: as the plugin looks for them."""
    header = (HERE.parent / "marker.h").read_text()
    magic = int(re.search(r"MARKER_MAGIC\s+(0x\w+)", header)[1], 16)
    labels = int(re.search(r"MARKER_LABELS\s+(\d+)", header)[1])
    program = paths.need(paths.EVAL).read_bytes()
    for number in range(2 * labels):
        assert program.count(bytes([0x0F, 0x1F, 0x84, 0x00]) + struct.pack("<I", magic + number)) == 1


def test_run_that_is_not_whole_is_told():
    """Killed, or a line is lost."""
    text = subprocess.run(command("register=1"), capture_output=True, text=True, check=True).stdout
    assert len(read(text.replace("\n", "\r\n")).repeats) == 10, "as a console has it"
    with pytest.raises(RigError, match="no whole run"):
        read(text.replace("eval done", ""))
    with pytest.raises(RigError, match="not each of eval's 10 repeats"):
        read(text.replace("number=4 ", "number=5 "))
