# SPDX-License-Identifier: Apache-2.0
"""A rig in the background: keeps machines and lets other processes use their
exec channels (`make up`, `make exec`).

Clients connect to a machine's Unix socket and speak the agent's protocol; job numbers
are translated. One more frame, QUIT, ends all machines.
"""

import contextlib
import os
import socket
import threading
from pathlib import Path

from rig import channel as protocol
from rig.channel import Channel, frame, read_frame
from rig.errors import MachineLost
from rig.machine import Machine

QUIT = 32
SOCKET = "rig.socket"


@contextlib.contextmanager
def short_path(folder: Path):
    """A path of the socket in folder that fits into the 107 bytes it may have."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


def connect(folder: Path) -> socket.socket | None:
    """A connection to the rig in the background whose files are in folder; None: there is none."""
    stream = socket.socket(socket.AF_UNIX)
    try:
        with short_path(folder) as path:
            stream.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        stream.close()
        return None
    return stream


class Client:
    """One connection to the relay; runs in a thread of its own."""

    def __init__(self, stream: socket.socket, machine: Machine, quit_asked: threading.Event) -> None:
        self._stream, self._machine, self._quit = stream, machine, quit_asked
        self._numbers: dict[int, int] = {}
        self._send_lock = threading.Lock()

    def send(self, data: bytes) -> None:
        """Frames to the client; if it is gone, serve() sees that too."""
        try:
            with self._send_lock:
                self._stream.sendall(data)
        except OSError:
            pass

    def serve(self) -> None:
        """Until the client closes: then what it started is killed."""
        agent = self._machine.channel
        try:
            while True:
                kind, flags, job, payload = read_frame(self._stream)
                if kind == QUIT:
                    self._quit.set()
                elif kind == protocol.PING:
                    agent.wait_ready()
                    self.send(frame(protocol.HELLO, payload=agent.boot_id.encode()))
                elif kind == protocol.RUN:
                    self._numbers[job] = agent.adopt(Forward(self, job))
                    agent.send(frame(kind, self._numbers[job], payload, flags))
                elif job in self._numbers:
                    agent.send(frame(kind, self._numbers[job], payload, flags))
        except (EOFError, OSError):
            for number in self._numbers.values():
                with contextlib.suppress(MachineLost):
                    agent.send(frame(protocol.KILL, number, b"\x09"))
        except MachineLost:
            pass
        finally:
            self._stream.close()


class Forward:
    """Takes a job's frames from the channel and hands them to a client."""

    def __init__(self, client: Client, job: int) -> None:
        self._client, self._job = client, job

    def deliver(self, kind: int, flags: int, payload: bytes) -> None:
        """From the channel's reader."""
        if kind > 0:
            self._client.send(frame(kind, self._job, payload, flags))


@contextlib.contextmanager
def listening(machine: Machine, quit_asked: threading.Event):
    """Clients of a machine are served meanwhile."""
    with short_path(machine.folder) as path, socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()

        def accept() -> None:
            while True:
                try:
                    stream, _ = server.accept()
                except OSError:
                    return
                client = Client(stream, machine, quit_asked)
                threading.Thread(target=client.serve, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield
    (machine.folder / SOCKET).unlink(missing_ok=True)


def serve(*machines: Machine) -> None:
    """Run the relays of started machines until QUIT, or the end of the last machine."""
    over = threading.Event()
    with contextlib.ExitStack() as relays:
        for machine in machines:
            relays.enter_context(listening(machine, over))
        while not over.wait(0.5) and any(machine.alive() for machine in machines):
            pass


def client_channel(stream: socket.socket) -> Channel:
    """A Channel over a connection to the relay."""
    channel = Channel(stream, lambda: "the rig in the background ended (make down, or the machine was lost)")
    channel.send(frame(protocol.PING))
    return channel
