# SPDX-License-Identifier: Apache-2.0
"""Commands on a node: the host's end of the agent's protocol (agent/agent.c).

A Channel is a connection to an agent, of node 0 through its virtio-serial port, of
others through node 0 (rig.link); it runs any number of Jobs at a time. One thread
reads; frames go to the job they are for.
"""

import contextlib
import itertools
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from rig.errors import CommandTimeout, MachineLost, RigError

VERSION = 1
HEADER = struct.Struct("<cBBBII")
FRAME_MAX = 1 << 20
RUN, INPUT, KILL, SIZE, PING = 1, 2, 3, 4, 5
HELLO, OUTPUT, ERROR, EXIT = 16, 17, 18, 19
RUN_TERMINAL, RUN_INPUT = 1, 2
EXIT_TIMEOUT = 1
INPUT_CHUNK = 64 << 10

# How much longer than its own limit to wait for a command's end: the agent
# kills it at its limit, but its node may be slow to say so.
GRACE_S = 60


def frame(kind: int, job: int = 0, payload: bytes = b"", flags: int = 0) -> bytes:
    """One frame of the protocol."""
    return HEADER.pack(b"M", VERSION, kind, flags, job, len(payload)) + payload


class Stream(Protocol):
    """What a Channel wants of a connection: these of a socket's methods."""

    def recv(self, count: int, /) -> bytes: ...
    def sendall(self, data: bytes, /) -> None: ...
    def shutdown(self, how: int, /) -> None: ...
    def close(self) -> None: ...


def read_exactly(stream: Stream, count: int) -> bytes:
    """count bytes from a socket; raises EOFError at its end."""
    data = bytearray()
    while len(data) < count:
        chunk = stream.recv(count - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def read_frame(stream: Stream) -> tuple[int, int, int, bytes]:
    """The next frame: kind, flags, job, payload; raises EOFError at the end."""
    while True:
        magic, version, kind, flags, job, count = HEADER.unpack(read_exactly(stream, HEADER.size))
        if magic != b"M" or version != VERSION or count > FRAME_MAX:
            raise EOFError(f"not a frame of this protocol: {magic!r} version {version}")
        return kind, flags, job, read_exactly(stream, count)


@dataclass(frozen=True)
class Result:
    """How a command ended. status: 128+n for signal n."""

    status: int
    stdout: bytes
    stderr: bytes
    seconds: float

    @property
    def out(self) -> str:
        """stdout as text."""
        return self.stdout.decode(errors="replace")

    @property
    def err(self) -> str:
        """stderr as text."""
        return self.stderr.decode(errors="replace")


class Job:
    """One command in flight."""

    def __init__(self, channel: "Channel", number: int, command: str, limit_s: float) -> None:
        self._channel, self.number, self.command, self.limit_s = channel, number, command, limit_s
        self._frames: queue.SimpleQueue = queue.SimpleQueue()
        self._start = time.monotonic()
        self.result: Result | None = None
        self._stdout, self._stderr = bytearray(), bytearray()

    def deliver(self, kind: int, flags: int, payload: bytes) -> None:
        """From the channel's reader: a frame for this job."""
        self._frames.put((kind, flags, payload))

    def frames(self, limit_s: float | None = None) -> Iterator[tuple[int, bytes]]:
        """(OUTPUT|ERROR, bytes) as they come; ends at the command's end.

        limit_s: how long to wait altogether; raises CommandTimeout.
        """
        end = None if limit_s is None else time.monotonic() + limit_s
        while self.result is None:
            try:
                left = None if end is None else max(0.0, end - time.monotonic())
                kind, flags, payload = self._frames.get(timeout=left)
            except queue.Empty:
                raise CommandTimeout(f"no end within {limit_s:g} s of: {self.command}") from None
            if kind == EXIT:
                (status,) = struct.unpack("<I", payload)
                taken = time.monotonic() - self._start
                self.result = Result(status, bytes(self._stdout), bytes(self._stderr), taken)
                if flags & EXIT_TIMEOUT:
                    raise CommandTimeout(
                        f"killed after {self.limit_s:g} s: {self.command}\n"
                        f"--- stdout\n{self.result.out[-4000:]}\n--- stderr\n{self.result.err[-4000:]}"
                    )
                return
            if kind < 0:
                raise self._channel.error(f"{payload.decode()} during: {self.command}")
            (self._stdout if kind == OUTPUT else self._stderr).extend(payload)
            yield kind, payload

    def lines(self, limit_s: float | None = None) -> Iterator[str]:
        """stdout's lines as they come, without their ends."""
        rest = b""
        for kind, payload in self.frames(limit_s):
            if kind != OUTPUT:
                continue
            *whole, rest = (rest + payload).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace")
        if rest:
            yield rest.decode(errors="replace")

    def wait(self, limit_s: float | None = None) -> Result:
        """Wait for its end (limit_s: its own limit and some); raises CommandTimeout."""
        if limit_s is None:
            limit_s = self.limit_s + GRACE_S
        for _ in self.frames(limit_s):
            pass
        return self.result

    def done(self) -> bool:
        """Whether its end has come (output read so far stays in the job)."""
        try:
            for _ in self.frames(0):
                pass
        except CommandTimeout:
            return self.result is not None
        return True

    def input(self, data: bytes) -> None:
        """Bytes for its stdin (it must have been started with input=...)."""
        for at in range(0, len(data), INPUT_CHUNK):
            self._channel.send(frame(INPUT, self.number, data[at : at + INPUT_CHUNK]))

    def end_input(self) -> None:
        """End of file on its stdin."""
        self._channel.send(frame(INPUT, self.number))

    def resize(self, rows: int, columns: int) -> None:
        """New size of its terminal."""
        self._channel.send(frame(SIZE, self.number, struct.pack("<HH", rows, columns)))

    def kill(self, signal_number: int = 15) -> None:
        """Signal to its whole session."""
        self._channel.send(frame(KILL, self.number, bytes([signal_number])))


class Channel:
    """Connection to the agent, or to a background rig that relays to it.

    lost: called when the connection ends; returns what to say about it. error: what is
    raised then.
    """

    def __init__(self, stream: Stream, lost: Callable[[], str], error: type[RigError] = MachineLost) -> None:
        self._stream, self._lost, self.error = stream, lost, error
        self._numbers = itertools.count(1)
        self._jobs: dict[int, Job] = {}
        self._lock = threading.Lock()
        # Not the lock above: a send may wait for the agent, which may wait for
        # us to read what it says.
        self._send_lock = threading.Lock()
        self._hello = threading.Event()
        self.boot_id = ""
        self._over = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                kind, flags, number, payload = read_frame(self._stream)
                if kind == HELLO:
                    self.boot_id = payload.decode(errors="replace").strip()
                    self._hello.set()
                    continue
                with self._lock:
                    job = self._jobs.pop(number, None) if kind == EXIT else self._jobs.get(number)
                if job:
                    job.deliver(kind, flags, payload)
        except (EOFError, OSError) as error:
            over = self._lost() or f"the channel closed ({error})"
            with self._lock:
                self._over = over
                jobs, self._jobs = list(self._jobs.values()), {}
            for job in jobs:
                job.deliver(-1, 0, over.encode())
            self._hello.set()

    def send(self, data: bytes) -> None:
        """Frames to the agent; raises self.error, e.g. MachineLost."""
        try:
            with self._send_lock:
                if not self._over:
                    self._stream.sendall(data)
                    return
        except OSError as error:
            raise self.error(self._lost() or f"the channel broke: {error}") from error
        raise self.error(self._over)

    @property
    def over(self) -> bool:
        """Whether the connection has ended."""
        return bool(self._over)

    def wait_ready(self, limit_s: float = 180) -> None:
        """Wait for the agent's first word; raises CommandTimeout, or self.error."""
        if not self._hello.wait(limit_s):
            raise CommandTimeout(f"the agent did not answer within {limit_s:g} s")
        if self._over:
            raise self.error(self._over)

    def adopt(self, receiver) -> int:
        """A job number whose frames go to receiver.deliver(kind, flags, payload)."""
        number = next(self._numbers)
        with self._lock:
            self._jobs[number] = receiver
        return number

    def start(
        self,
        command: str,
        limit_s: float = 120,
        stdin: bytes | None = None,
        keep_input: bool = False,
        terminal: bool = False,
    ) -> Job:
        """Start `sh -c command` on the node; it is killed after limit_s (0: never).

        stdin: its whole input; keep_input: Job.input() will bring it.
        """
        number = next(self._numbers)
        job = Job(self, number, command, limit_s)
        with self._lock:
            self._jobs[number] = job
        flags = RUN_TERMINAL if terminal else 0
        flags |= RUN_INPUT if stdin is not None or keep_input else 0
        payload = struct.pack("<I", int(limit_s * 1000)) + command.encode()
        self.send(frame(RUN, number, payload, flags))
        if stdin is not None:
            job.input(stdin)
            job.end_input()
        return job

    def close(self) -> None:
        """End the connection; jobs go on in the node."""
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()
