# SPDX-License-Identifier: Apache-2.0
"""Victim and aggressor do what they are asked for, and say so; run on this host, shortly."""

import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig import paths
from rig.errors import RigError
from rig.victim import Suffered, done, one, suffered, width_ns

HERE = Path(__file__).resolve().parent
CPU = str(min(os.sched_getaffinity(0)))
MODES = {"cpu": "", "memory": "bytes=1048576", "disk": "FILE direct=0", "fork": "", "unlink": "DIR", "tlb": "", "toggle": "SWITCH"}


def command(program: Path, words: str) -> list[str]:
    """Pinned to a core."""
    return ["taskset", "-c", CPU, str(paths.need(program)), *words.split()]


def victim(words: str) -> Suffered:
    """A run that must succeed."""
    return one(subprocess.run(command(paths.VICTIM, words), capture_output=True, text=True, check=True).stdout)


@pytest.fixture
def file(tmp_path: Path) -> str:
    """1 MiB, on whatever file system."""
    path = tmp_path / "data"
    path.write_bytes(bytes(1 << 20))
    return f"file={path}"


def free_port() -> int:
    """Of UDP, that nobody has now."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def answering() -> Iterator[int]:
    """The other end, on a port."""
    port = free_port()
    words = command(paths.VICTIM, f"answer=1 port={port}")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == f"victim answers port={port}\n"
            yield port
        finally:
            process.kill()


def check(run: Suffered, kind: str, rounds: int) -> None:
    """What is true of each run."""
    assert (run.kind, run.rounds, run.moved) == (kind, rounds, 0)
    assert sum(run.histogram.values()) == rounds
    lowest, highest = min(run.histogram), max(run.histogram)
    assert lowest <= run.least_ns < lowest + width_ns(lowest)
    assert highest <= run.most_ns < highest + width_ns(highest)
    assert rounds * run.least_ns <= run.sum_ns <= rounds * run.most_ns
    middles = sum((low + width_ns(low) / 2) * count for low, count in run.histogram.items())
    assert middles == pytest.approx(run.sum_ns, rel=0.01)


def test_wakes_are_late_and_as_many_as_asked_for():
    run = victim("wake=200 skip=5 period_us=500")
    check(run, "wake", 200)
    assert run.took_ns >= 199 * 500_000, "a period is no shorter"


def test_reads_are_timed(file: str):
    run = victim(f"read=300 {file} direct=0")
    check(run, "read", 300)
    assert run.took_ns >= run.sum_ns


def test_each_datagram_is_answered():
    with answering() as port:
        run = victim(f"echo=300 to=127.0.0.1 port={port}")
    check(run, "echo", 300)
    assert run.again == 0


def test_lost_answer_is_asked_for_again_and_told():
    """All of the time until it came is the round's. A socket's timeout is counted in ticks: one of 10 ms may be gone."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        words = command(paths.VICTIM, f"echo=2 skip=0 wait_ms=50 to=127.0.0.1 port={peer.getsockname()[1]}")
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            lost, _ = peer.recvfrom(64)
            for _ in range(2):
                data, asker = peer.recvfrom(64)
                peer.sendto(data, asker)
                peer.sendto(lost, asker)  # late, of the first round: no answer to the second
            run = one(process.communicate()[0])
    assert run.again >= 1 and run.most_ns >= 40_000_000


def test_nobody_answers_is_a_failure():
    done = subprocess.run(
        command(paths.VICTIM, f"echo=1 to=127.0.0.1 port={free_port()}"), capture_output=True, text=True
    )
    assert done.returncode == 1 and "nobody answers" in done.stderr


@pytest.mark.parametrize("mode", MODES)
def test_aggressor_does_something_until_it_is_told_to_end(mode: str, file: str, tmp_path: Path):
    """Nothing is left of it, and a switch is as it was."""
    words = MODES[mode].replace("FILE", file).replace("DIR", f"dir={tmp_path}")
    switch = tmp_path / "switch"
    switch.write_text("1\n")
    words = words.replace("SWITCH", f"file={switch}")
    before = sorted(tmp_path.iterdir())
    process = subprocess.Popen(command(paths.AGGRESSOR, f"{mode} {words}"), stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith(f"aggressor setting mode={mode} ")
    assert process.stdout.readline() == "aggressor begun\n"
    process.send_signal(signal.SIGTERM)
    assert done(process.communicate()[0]) >= 1
    assert process.returncode == 0
    assert sorted(tmp_path.iterdir()) == before and switch.read_text() == "1\n"


def test_aggressor_ends_after_its_seconds():
    text = subprocess.run(command(paths.AGGRESSOR, "cpu seconds=1"), capture_output=True, text=True, check=True).stdout
    assert int(re.search(r"took_ns=(\d+)", text)[1]) >= 1_000_000_000
    assert done(text) > 1


@pytest.mark.parametrize(("program", "words", "why"), [
    ("VICTIM", "", "one of wake, read, echo and answer"),
    ("VICTIM", "wake=1 read=1 file=/x", "one of wake"),
    ("VICTIM", "wake", "no such setting"),
    ("VICTIM", "sleep=1", "no such setting"),
    ("VICTIM", "wake=x", "a number is wanted"),
    ("VICTIM", "wake=-1", "a number is wanted"),
    ("VICTIM", "wake=99999999999999999999", "a number is wanted"),
    ("VICTIM", "wake=0", "from 1 to"),
    ("VICTIM", "wake=1 label=16", "from 0 to 15"),
    ("VICTIM", "read=1", "read wants file"),
    ("VICTIM", "read=1 file=/x bytes=100", "no multiple of 512"),
    ("VICTIM", "echo=1", "echo wants to"),
    ("VICTIM", "echo=1 to=here", "echo wants to"),
    ("AGGRESSOR", "", "nothing: no such mode"),
    ("AGGRESSOR", "sleep", "sleep: no such mode"),
    ("AGGRESSOR", "cpu threads=0", "from 1 to 64"),
    ("AGGRESSOR", "cpu thread=1", "no such setting"),
    ("AGGRESSOR", "disk", "disk wants file"),
    ("AGGRESSOR", "reclaim", "reclaim wants file"),
    ("AGGRESSOR", "unlink", "unlink wants dir"),
    ("AGGRESSOR", "toggle file=/x threads=2", "toggle is for one thread"),
    ("AGGRESSOR", "disk file=/x bytes=5000", "no multiple of 512"),
])  # fmt: skip
def test_bad_words_are_usage_errors(program: str, words: str, why: str):
    """Status 2, the reason, and nothing is done."""
    done = subprocess.run(command(getattr(paths, program), words), capture_output=True, text=True)
    assert done.returncode == 2
    assert why in done.stderr and "usage: " in done.stderr
    assert not done.stdout


@pytest.mark.parametrize(("program", "words", "why"), [
    ("VICTIM", "read=1 direct=0 file=/missing", "No such file"),
    ("VICTIM", "read=1 direct=0 bytes=2097152 FILE", "less than one read"),
    ("AGGRESSOR", "disk direct=0 file=/missing", "No such file"),
    ("AGGRESSOR", "disk direct=0 bytes=2097152 FILE", "less than one read"),
    ("AGGRESSOR", "reclaim FILE", "nothing would be taken back"),
    ("AGGRESSOR", "unlink dir=/missing", "No such file"),
    ("AGGRESSOR", "toggle file=/proc/version", "neither 0 nor 1"),
])  # fmt: skip
def test_what_cannot_be_done_is_a_failure(program: str, words: str, why: str, file: str):
    """Status 1."""
    done = subprocess.run(command(getattr(paths, program), words.replace("FILE", file)), capture_output=True, text=True)
    assert done.returncode == 1
    assert why in done.stderr


def test_victim_has_a_marker_for_each_end_of_each_label():
    """Once each: as the plugin looks for them."""
    header = (HERE.parent / "marker.h").read_text()
    magic = int(re.search(r"MARKER_MAGIC\s+(0x\w+)", header)[1], 16)
    labels = int(re.search(r"MARKER_LABELS\s+(\d+)", header)[1])
    program = paths.need(paths.VICTIM).read_bytes()
    for number in range(2 * labels):
        assert program.count(bytes([0x0F, 0x1F, 0x84, 0x00]) + struct.pack("<I", magic + number)) == 1


def made(histogram: dict[int, int]) -> Suffered:
    """A run with these rounds."""
    return Suffered("wake", sum(histogram.values()), histogram, 0, 0, 0, 0, 0, 0)


def test_percentile_lies_in_its_bucket():
    """And takes ten rounds beyond it."""
    run = made({1024: 9_985, 65536: 14, 1 << 20: 1})
    assert width_ns(1024) == 16 and width_ns(127) == 1 and width_ns(128) == 2
    assert 1024 <= run.percentile_ns(990) < 1040
    assert 65536 < run.percentile_ns(999) <= 65536 + width_ns(65536)
    with pytest.raises(RigError, match="too few for the percentile 99.9"):
        made({1024: 9_999}).percentile_ns(999)
    assert made({1024: 1_000}).percentile_ns(990) < 1040


def test_run_that_is_not_whole_is_told():
    """Killed, or a line is lost; as a console has it is fine."""
    text = subprocess.run(command(paths.VICTIM, "wake=20"), capture_output=True, text=True, check=True).stdout
    assert one(text.replace("\n", "\r\n")) == one(text)
    assert len(suffered(text + text)) == 2
    with pytest.raises(RigError, match="no whole run"):
        suffered(text.replace("victim done", ""))
    with pytest.raises(RigError, match="no whole run"):
        suffered(re.sub(r"(?m)^victim histogram .*$", "", text, count=1))
    with pytest.raises(RigError, match="2 runs of victim"):
        one(text + text)
    for bad in ("", "aggressor begun\n", "aggressor done count=0 took_ns=7\n"):
        with pytest.raises(RigError, match="has done nothing"):
            done(bad)
    assert done("aggressor done count=3 took_ns=7\r\n") == 3
