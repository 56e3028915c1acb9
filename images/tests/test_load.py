# SPDX-License-Identifier: Apache-2.0
"""The guest image's load: what it does all the time, and that it notices."""

import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BUILD = Path(os.environ.get("BUILD", Path(__file__).resolve().parents[2] / "build"))
LOAD = BUILD / "images/load"
KIB = 128
LIMIT_S = 60


@contextmanager
def load(*words: object) -> Iterator[subprocess.Popen]:
    """It runs meanwhile."""
    with subprocess.Popen([LOAD, *map(str, words)], stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def counted(file: Path, least: int) -> list[int]:
    """What it has counted once that is at least so much; the file has whole numbers whenever it is read."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        # not there yet, or nothing in it
        if file.exists() and (text := file.read_text()):
            assert re.fullmatch(r"\d+ +\d+ *\n", text), text
            if (numbers := [int(word) for word in text.split()])[0] >= least:
                return numbers
        time.sleep(0.01)
    raise AssertionError(f"{file} never came to {least}")


def own_memory(pid: int) -> int:
    """Where the memory begins that it writes versions to."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        first, last = (int(end, 16) for end in line.split()[0].split("-"))
        if last - first >= KIB << 10 and "rw-p" in line and line.split()[4] == "0" and len(line.split()) == 5:
            return last - (KIB << 10)
    raise AssertionError("no such mapping")


def test_one_bit_of_its_memory_is_noticed(tmp_path):
    with load("memory", KIB, tmp_path / "versions") as running:
        counted(tmp_path / "versions", 2)
        at = own_memory(running.pid) + 8 * 5
        with open(f"/proc/{running.pid}/mem", "r+b", buffering=0) as memory:
            memory.seek(at)
            byte = memory.read(1)[0]
            memory.seek(at)
            memory.write(bytes([byte ^ 4]))
        assert running.wait(LIMIT_S) == 1
        assert re.fullmatch(r"word 5 of version \d+ is [0-9a-f]{16}, not [0-9a-f]{16}\n", running.stdout.read())


class Peer:
    """An echo service that goes wrong after some replies."""

    def __init__(self, good: int, wrong: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._good, self._wrong = good, wrong
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        peer, _ = self._listener.accept()
        with peer, peer.makefile("rwb", buffering=0) as stream:
            for _ in range(self._good):
                stream.write(stream.readline())
            sent = stream.readline()
            stream.write(self._wrong[: len(sent)])

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *exception) -> None:
        self._listener.close()


@pytest.mark.parametrize(("wrong", "said"), [(b"3\n", "4 was sent, 3 came"), (b"", "no reply to 4: closed")])
def test_reply_that_is_wrong_or_missing_is_noticed(tmp_path, wrong, said):
    with Peer(3, wrong) as peer, load("echo", "127.0.0.1", tmp_path / "echo", peer.port) as running:
        assert running.wait(LIMIT_S) == 1
        assert running.stdout.read().strip() == said
    replies, longest_cs = counted(tmp_path / "echo", 3)
    assert replies == 3 and longest_cs >= 0


@pytest.mark.parametrize("words", [(), ("memory", "8"), ("dance", "8", "out")])
def test_anything_else_is_told_how_it_is_used(words, tmp_path):
    words = [tmp_path / "out" if word == "out" else word for word in words]
    done = subprocess.run([LOAD, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("usage: load memory")
