# SPDX-License-Identifier: Apache-2.0
"""A machine that is reached by ssh: commands there, and the rig's agent as a stream for a Channel.

ssh is the one on the path, with the user's configuration. It asks nothing, shares no
connection that others began, and notices within a minute that the machine is gone.
"""

import contextlib
import os
import shlex
import subprocess
import threading

from rig import bootstrap
from rig.channel import Channel
from rig.errors import CommandTimeout, MachineLost, RigError
from rig.wait import SLOWNESS

OPTIONS = (
    "-T", "-x", "-a",
    "-o", "BatchMode=yes", "-o", "ControlMaster=no", "-o", "ControlPath=none", "-o", "ConnectTimeout=20",
    "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4",
)  # fmt: skip
# ssh's own status, when it is not the command's.
NO_CONNECTION = 255
START_S = 120
# For what is done at the end of a connection: nodes are removed there.
END_S = 180


class NoConnection(RigError):
    """ssh could not connect, or the shell there could not run anything."""


class Busy(RigError):
    """Another run has the machine."""


class ProcessStream:
    """A process as a stream: what Channel wants of a socket. What it says on its standard error is kept."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
            # An interrupt at the terminal is for us: we end it in order.
            start_new_session=True,
        )  # fmt: skip
        self._said = bytearray()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        while data := os.read(self.process.stderr.fileno(), 4096):
            self._said.extend(data)
            del self._said[:-4000]

    @property
    def said(self) -> str:
        """The end of its standard error."""
        return self._said.decode(errors="replace").strip()

    def recv(self, count: int, /) -> bytes:
        """Bytes from it; none at the end."""
        return os.read(self.process.stdout.fileno(), count)

    def sendall(self, data: bytes, /) -> None:
        """Bytes to it; raises OSError when it has ended."""
        if self.process.stdin.closed:
            raise OSError("the connection has ended")
        rest = memoryview(data)
        while rest:
            rest = rest[self.process.stdin.write(rest) :]

    def shutdown(self, _how: int, /) -> None:
        """End of file for it: whoever reads is told when it has ended."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def close(self, limit_s: float = END_S) -> int:
        """Wait for its end, which shutdown() has asked for; its status. One that does not end is killed."""
        try:
            status = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        self._listener.join(5)
        return status


class Ssh:
    """A machine, by the words that ssh takes for it."""

    def __init__(self, at: str) -> None:
        if not at or at.startswith("-") or any(sign.isspace() for sign in at):
            raise RigError(f"{at!r} names no server: give what ssh takes, like root@server")
        self.at = at

    def _words(self, command: str) -> list[str]:
        return ["ssh", *OPTIONS, "--", self.at, command]

    def run(self, script: str, limit_s: float = 120) -> str:
        """stdout of a script for its sh, which writes nothing there. Raises NoConnection, RigError."""
        try:
            done = subprocess.run(
                self._words("exec sh -s"), input=script, capture_output=True, text=True, timeout=limit_s * SLOWNESS, check=False
            )
        except FileNotFoundError as error:
            raise NoConnection(f"there is no ssh here: {error}; run 'make setup'") from error
        except subprocess.TimeoutExpired as error:
            text = f"{self.at} did not answer within {limit_s:g} s: look whether `ssh {self.at}` does"
            raise NoConnection(text) from error
        if done.returncode == NO_CONNECTION:
            raise NoConnection(
                f"no connection to {self.at}: {done.stderr.strip() or 'ssh says nothing'}. `ssh -o BatchMode=yes {self.at}"
                " true` must work: give ssh a key that asks nothing, and the host's key"
            )
        if done.returncode:
            raise RigError(f"{self.at}: status {done.returncode} from a script there: {done.stderr.strip()}")
        return done.stdout

    def agent(self, agent: bytes, at_begin: str = "", at_end: str = "", lock: str = "") -> tuple[Channel, ProcessStream]:
        """The rig's agent there, brought by the connection, once it answers. Raises NoConnection; Busy where another
        has the lock."""
        words = shlex.join(bootstrap.command(len(agent), at_begin, at_end, lock=lock))
        stream = ProcessStream(self._words(f"exec {words}"))

        def lost() -> str:
            # Standard output ends a moment before the process does.
            with contextlib.suppress(subprocess.TimeoutExpired):
                stream.process.wait(5)
            why = stream.said or "ssh says nothing"
            return f"the connection to {self.at} ended: {why}. What it ran there ends with it"

        try:
            stream.sendall(agent)
            channel = Channel(stream, lost, MachineLost)
            channel.wait_ready(START_S * SLOWNESS)
        except (OSError, MachineLost, CommandTimeout) as error:
            stream.shutdown(0)
            if stream.close(5) == bootstrap.BUSY:
                raise Busy(f"{self.at}: {stream.said}") from error
            raise NoConnection(str(error) if isinstance(error, RigError) else lost()) from error
        return channel, stream
