# SPDX-License-Identifier: Apache-2.0
"""The client of QEMU's gdbserver, against one that is played."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rig.errors import RigError
from rig.gdb import GS_BASE, Gdb, packet


@contextmanager
def played(answers: list[str]) -> Iterator[tuple[Gdb, list[str]]]:
    """A client whose server acknowledges each packet and gives these answers, in order; and what it was asked."""
    ours, theirs = socket.socketpair()
    asked: list[str] = []

    def serve() -> None:
        with theirs, theirs.makefile("rb") as stream:
            for answer in answers:
                while stream.read(1) not in (b"$", b""):
                    pass
                data = b""
                while (byte := stream.read(1)) not in (b"#", b""):
                    data += byte
                stream.read(2)
                asked.append(data.decode())
                theirs.sendall(b"+" + packet(answer))
            theirs.shutdown(socket.SHUT_WR)
            stream.read()

    thread = threading.Thread(target=serve)
    thread.start()
    with ours:
        ours.settimeout(10)
        gdb = Gdb(ours)
        yield gdb, asked
        gdb.close()
    thread.join()


def test_packet_has_the_sum_of_its_bytes():
    assert packet("OK") == b"$OK#9a"


def test_register_is_little_endian_and_of_the_core_that_was_asked_for():
    with played(["OK", "0010000000800000"]) as (gdb, asked):
        assert gdb.register(5, GS_BASE) == 0x800000001000
    assert asked == ["Hg6", "p19"]


def test_breakpoint_goes_with_its_block():
    with played(["OK", "T05thread:03;", "OK"]) as (gdb, asked), gdb.breakpoint(0x1000):
        assert gdb.resume_all() == 2
    assert asked == ["Z0,1000,1", "vCont;c", "z0,1000,1"]


def test_one_core_goes_one_step():
    with played(["T05thread:0a;"]) as (gdb, asked):
        gdb.step(9)
    assert asked == ["vCont;s:a"]


@pytest.mark.parametrize("answer", ["", "E22"])
def test_what_the_server_refuses_is_an_error(answer: str):
    with played([answer]) as (gdb, _asked), pytest.raises(RigError):
        gdb.write(0, b"\x90")


def test_server_that_ends_is_an_error():
    with played([]) as (gdb, _asked), pytest.raises((RigError, OSError)):
        gdb.ask("?")


def test_machine_that_ends_is_an_error():
    with played(["W00"]) as (gdb, _asked), pytest.raises(RigError):
        gdb.resume_all()
