# SPDX-License-Identifier: Apache-2.0
"""The program that scales over cores does what it is asked for, and says so; run on this host."""

import contextlib
import ctypes
import os
import re
import resource
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig import paths
from rig.errors import RigError
from rig.markers import Stretch
from rig.scaling import Scaling, Thread, own_instructions, rates, read

HERE = Path(__file__).resolve().parent
CORES = sorted(os.sched_getaffinity(0))[:2]
CPUS = f"cpus={','.join(map(str, CORES))}"
OPS = ("unlink", "mmap", "fault", "connect")
LIMIT_S = 60
IN_CREATE, IN_DELETE, IN_ISDIR = 0x100, 0x200, 0x40000000


def call(*words: str, **more) -> subprocess.CompletedProcess:
    """A run to its end, however it ends."""
    return subprocess.run([paths.need(paths.SCALE), *words], capture_output=True, text=True, timeout=LIMIT_S, **more)


def scale(*words: str) -> Scaling:
    """A run that must succeed."""
    done = call(*words)
    assert done.returncode == 0, done.stderr
    return read(done.stdout)


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[list[tuple[int, str]]]:
    """What is made and unlinked in a folder meanwhile: (event, name), there at the end."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init()
    assert watch >= 0 and libc.inotify_add_watch(watch, os.fsencode(folder), IN_CREATE | IN_DELETE) >= 0
    seen: list[tuple[int, str]] = []
    yield seen
    data = os.read(watch, 1 << 20)
    os.close(watch)
    while data:
        _, mask, _, length = struct.unpack_from("iIII", data)
        seen.append((mask, data[16 : 16 + length].rstrip(b"\0").decode()))
        data = data[16 + length :]


@pytest.mark.parametrize("op", OPS)
def test_each_thread_makes_all_calls_in_each_repeat(op: str, tmp_path: Path):
    """Each on its own core; the sum is told."""
    done = call(f"op={op}", CPUS, "calls=70", "repeats=3", f"dir={tmp_path}")
    run = read(done.stdout)
    assert (run.setting["op"], run.setting["threads"], run.setting["dir"]) == (op, len(CORES), str(tmp_path))
    assert [[thread.cpu for thread in threads] for threads in run.repeats] == [CORES] * 3
    assert all(thread.calls == 70 and thread.ns > 0 for threads in run.repeats for thread in threads)
    assert done.stdout.endswith(f"scale done calls={70 * 3 * len(CORES)}\n")
    assert not list(tmp_path.iterdir())


def test_without_words_each_core_has_a_thread():
    """Of those that the program may run on."""
    run = scale("op=mmap", "calls=1")
    assert [thread.cpu for thread in run.repeats[0]] == sorted(os.sched_getaffinity(0))
    done = call("op=mmap", "calls=1", preexec_fn=lambda: os.sched_setaffinity(0, CORES[:1]))
    assert [thread.cpu for thread in read(done.stdout).repeats[0]] == CORES[:1]


def test_unlink_makes_and_unlinks_a_file_a_call(tmp_path: Path):
    """All threads in one folder."""
    with watched(tmp_path) as seen:
        scale("op=unlink", CPUS, "calls=5", "repeats=2", f"dir={tmp_path}")
    names = {name for _, name in seen}
    assert len(names) == len(CORES)
    for name in names:
        assert [event for event, which in seen if which == name] == [IN_CREATE, IN_DELETE] * 10


def test_apart_means_a_folder_for_each_thread(tmp_path: Path):
    """Which is gone at the end."""
    with watched(tmp_path) as seen:
        scale("op=unlink", CPUS, "calls=5", "apart=1", f"dir={tmp_path}")
    folders = {name for _, name in seen}
    assert sorted(seen) == sorted((event | IN_ISDIR, name) for name in folders for event in (IN_CREATE, IN_DELETE))
    assert len(folders) == len(CORES)


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt


def test_fault_is_a_page_fault_a_call():
    """Also where the last mapping is not used up; mmap makes none."""
    none, few, many = (
        (before := faults(), scale(f"op={op}", CPUS, f"calls={calls}", "repeats=2", "pages=64"), faults() - before)[-1]
        for op, calls in (("mmap", 10_000), ("fault", 100), ("fault", 10_100))
    )
    assert many - few == pytest.approx(10_000 * 2 * len(CORES), rel=0.01)
    assert none < few + 500


def test_mmap_maps_so_many_pages():
    """More than there may be is a failure, and said."""
    limit = (1 << 30, 1 << 30)
    words = ("op=mmap", f"cpus={CORES[0]}", "calls=1")
    for pages, status in ((1 << 10, 0), (1 << 19, 1)):
        done = call(*words, f"pages={pages}", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit))
        assert done.returncode == status, done.stderr
    assert f"mmap of {1 << 19} pages: Cannot allocate memory" in done.stderr


def opened() -> tuple[int, int]:
    """TCP connections of this host until now: begun, taken."""
    lines = [line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if line.startswith("Tcp:")]
    values = dict(zip(*lines, strict=True))
    return int(values["ActiveOpens"]), int(values["PassiveOpens"])


def test_connect_is_a_connection_a_call():
    """None of them stays, waiting for its end."""
    waiting = Path("/proc/net/sockstat").read_text()
    before = opened()
    calls = 3000
    scale("op=connect", CPUS, f"calls={calls}", "repeats=1")
    after = opened()
    assert all(now - then >= calls * len(CORES) for now, then in zip(after, before, strict=True))
    left = [int(re.search(r"tw (\d+)", text)[1]) for text in (waiting, Path("/proc/net/sockstat").read_text())]
    assert left[1] - left[0] < calls


def test_begins_when_a_line_comes(tmp_path: Path):
    """Nothing is done before; the setting is out, so that who gives the line knows that it is ready."""
    process = subprocess.Popen(
        [paths.need(paths.SCALE), "op=unlink", CPUS, "at=stdin", f"dir={tmp_path}/later"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    limit = threading.Timer(LIMIT_S, process.kill)
    limit.start()
    ready = process.stdout.readline()
    assert ready.startswith("scale setting")
    (tmp_path / "later").mkdir()
    read(ready + process.communicate("\n")[0])
    limit.cancel()
    assert call("op=mmap", "at=stdin", stdin=subprocess.DEVNULL).returncode == 1


@pytest.mark.parametrize(("words", "why"), [
    ([], "op=: unlink, mmap, fault or connect"),
    (["op=read"], "op=read: unlink, mmap, fault or connect"),
    (["op"], "op: no such setting"),
    (["op=mmap", "threads=2"], "no such setting"),
    (["op=mmap", "calls=x"], "a number is wanted"),
    (["op=mmap", "calls=-1"], "a number is wanted"),
    (["op=mmap", "calls=0"], "from 1 to"),
    (["op=mmap", "repeats=0"], "from 1 to"),
    (["op=mmap", "pages=0"], "from 1 to"),
    (["op=mmap", "apart=2"], "from 0 to 1"),
    (["op=mmap", "label=16"], "from 0 to 15"),
    (["op=mmap", "at=noon"], "at=noon: now or stdin"),
    (["op=mmap", "cpus=0,"], "a number is wanted"),
    (["op=mmap", "cpus=0,0"], "0 is there twice"),
    (["op=mmap", "cpus=1024"], "less than 1024"),
])  # fmt: skip
def test_bad_words_are_usage_errors(words: list[str], why: str):
    """Status 2, the reason, and nothing is done."""
    done = call(*words)
    assert done.returncode == 2
    assert why in done.stderr
    assert not done.stdout


@pytest.mark.parametrize(("words", "why"), [
    (["op=unlink", "dir=/proc/none"], "No such file"),
    (["op=unlink", "apart=1", "dir=/proc/none"], "No such file"),
    (["op=mmap", "cpus=1023"], "a thread on CPU 1023"),
])  # fmt: skip
def test_what_cannot_be_done_is_a_failure(words: list[str], why: str):
    """Status 1."""
    done = call(*words)
    assert done.returncode == 1
    assert why in done.stderr


def test_program_has_a_marker_for_each_end_of_each_label():
    """Once each: as the plugin looks for them."""
    header = (HERE.parent / "marker.h").read_text()
    magic = int(re.search(r"MARKER_MAGIC\s+(0x\w+)", header)[1], 16)
    program = paths.need(paths.SCALE).read_bytes()
    for number in range(2 * int(re.search(r"MARKER_LABELS\s+(\d+)", header)[1])):
        assert program.count(bytes([0x0F, 0x1F, 0x84, 0x00]) + struct.pack("<I", magic + number)) == 1


def test_run_that_is_not_whole_is_told():
    """Killed, a line is lost, or a call."""
    text = call("op=mmap", CPUS, "calls=5", "repeats=2").stdout
    with pytest.raises(RigError, match="no whole run"):
        read(text.replace("scale done", ""))
    with pytest.raises(RigError, match="not each thread"):
        read(text.replace("repeat=2 thread=0", "repeat=1 thread=0"))
    with pytest.raises(RigError, match="not all of scale's 5 calls"):
        read(text.replace("calls=5 ns", "calls=4 ns", 1))


def made(*cpus: int, repeats: int = 2) -> Scaling:
    """100 calls of each thread, in 1 µs."""
    threads = [[Thread(number, at, cpu, 100, 1000) for at, cpu in enumerate(cpus)] for number in range(1, repeats + 1)]
    return Scaling({"repeats": repeats}, threads)


def test_rate_is_of_all_threads_of_all_runs():
    assert rates([made(1, 2)]) == pytest.approx([2e8, 2e8])
    assert rates([made(0), made(0)]) == pytest.approx([2e8, 2e8])


def test_instructions_are_of_all_cores_that_work():
    """By call; of other cores' stretches none is taken."""
    stretches = [Stretch(1, 0, 500), Stretch(0, 0, 1), Stretch(3, 0, 700), Stretch(3, 0, 900), Stretch(1, 0, 300)]
    assert own_instructions([made(1, 2)], stretches, [1, 3]) == [6.0, 6.0]
    assert own_instructions([made(0), made(0)], stretches, [1, 3]) == [6.0, 6.0]


def test_what_was_not_counted_whole_is_refused():
    stretches = [Stretch(1, 0, 500), Stretch(3, 0, 700), Stretch(3, 0, 900)]
    with pytest.raises(RigError, match="so many of 2 repeats: {1: 1, 3: 2}"):
        own_instructions([made(1, 2)], stretches, [1, 3])
    with pytest.raises(RigError, match="not one each"):
        own_instructions([made(1, 2)], stretches, [1])
    with pytest.raises(RigError, match="as many repeats"):
        rates([made(1), made(1, repeats=3)])
