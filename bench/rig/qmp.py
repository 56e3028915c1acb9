# SPDX-License-Identifier: Apache-2.0
"""QEMU's monitor (QMP) for synchronous code: qemu.qmp on a loop of its own."""

import asyncio
import contextlib
import socket
import threading

from qemu.qmp import QMPClient


class Monitor:
    """A connection to the monitor socket of one QEMU. execute() from any thread."""

    def __init__(self, stream: socket.socket, limit_s: float = 30) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._client = QMPClient("rig")
        self._wait(self._client.connect(stream), limit_s)

    def _wait(self, coroutine, limit_s: float):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(limit_s)

    def execute(self, command: str, limit_s: float = 60, **arguments):
        """Run one QMP command, return its result; raises qemu.qmp.ExecuteError."""
        return self._wait(self._client.execute(command, arguments or None), limit_s)

    def human(self, line: str) -> str:
        """Run a command line of the human monitor, return its text."""
        return self.execute("human-monitor-command", **{"command-line": line})

    def close(self) -> None:
        """Disconnect; QEMU is not told anything."""
        # QEMU may be gone: any error means just that.
        with contextlib.suppress(Exception):
            self._wait(self._client.disconnect(), 5)
        self._loop.call_soon_threadsafe(self._loop.stop)
