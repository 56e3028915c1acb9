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


BLOCK = 4096


@pytest.mark.parametrize("rest", [0, 511 * 8], ids=["first word", "last word"])
def test_one_bit_of_its_disk_is_noticed(tmp_path, rest):
    """It reads back what it has written: 256 blocks, at the beginning of the disk alone."""
    disk = tmp_path / "disk"
    disk.write_bytes(b"\xff" * (2 << 20))
    with load("disk", 1000, tmp_path / "blocks", disk) as running, open(disk, "r+b", buffering=0) as device:
        counted(tmp_path / "blocks", 2000)
        # Those that it writes next go unseen: damage is done until one is read back first.
        number = 0
        while running.poll() is None:
            at = number % 256 * BLOCK + rest
            device.seek(at)
            byte = device.read(1)[0]
            device.seek(at)
            device.write(bytes([byte ^ 4]))
            number += 1
            time.sleep(0.0005)
        assert running.wait(LIMIT_S) == 1
        said = running.stdout.read()
        word = rest // 8
        assert re.fullmatch(rf"word {word} of block \d+ of version \d+ is [0-9a-f]{{16}}, not [0-9a-f]{{16}}\n", said), said
    assert disk.read_bytes()[256 * BLOCK :] == b"\xff" * (1 << 20), "it wrote behind its blocks"


def test_disk_that_is_too_small_or_not_there_is_told(tmp_path):
    (tmp_path / "small").write_bytes(bytes(BLOCK))
    for disk, said in (("small", "shorter than 1048576 bytes"), ("none", "No such file or directory")):
        with load("disk", 1000, tmp_path / "blocks", tmp_path / disk) as running:
            assert running.wait(LIMIT_S) == 1
            assert said in running.stdout.read()


def test_as_many_blocks_a_second_as_it_is_told(tmp_path):
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(1 << 20))
    begin = time.monotonic()
    with load("disk", 50, tmp_path / "blocks", disk):
        written, _ = counted(tmp_path / "blocks", 100)
    # never more; how much less is the host's affair
    assert written / (time.monotonic() - begin) <= 51


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


@pytest.mark.parametrize("words", [(), ("memory", "8"), ("disk", "8"), ("dance", "8", "out")])
def test_anything_else_is_told_how_it_is_used(words, tmp_path):
    words = [tmp_path / "out" if word == "out" else word for word in words]
    done = subprocess.run([LOAD, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("usage: load memory")
