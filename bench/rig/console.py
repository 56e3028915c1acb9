# SPDX-License-Identifier: Apache-2.0
"""A node's console, which QEMU writes to a file: reading and waiting."""

import re
import time
from collections.abc import Callable
from pathlib import Path

from rig.errors import RigError
from rig.wait import SLOWNESS


class Console:
    """One console log. alive raises MachineLost when there is nothing to wait for."""

    def __init__(self, path: Path, alive: Callable[[], None] = lambda: None) -> None:
        self.path, self._alive = path, alive
        self._seen = 0

    def raw(self, start: int = 0) -> bytes:
        """Its bytes from number start on."""
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                return file.read()
        except FileNotFoundError:
            return b""

    def text(self, start: int = 0) -> str:
        """What it said from byte start on."""
        return self.raw(start).decode(errors="replace").replace("\r", "")

    def unread(self) -> str:
        """Whole lines that came since the last call of this."""
        data = self.raw(self._seen)
        data = data[: data.rfind(b"\n") + 1]
        self._seen += len(data)
        return data.decode(errors="replace").replace("\r", "")

    def skip_to_last(self, text: str) -> None:
        """For unread(): take as read what came before the last place of this text."""
        self._seen = max(self._seen, self.raw(0).rfind(text.encode()))

    def mark(self) -> int:
        """A position for text() and wait_for(): what comes from now on."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def wait_for(self, pattern: str, start: int = 0, limit_s: float = 120) -> re.Match:
        """Wait until the text from byte start on matches (multi-line); raises RigError."""
        end = time.monotonic() + limit_s * SLOWNESS
        compiled = re.compile(pattern, re.MULTILINE)
        while True:
            text = self.text(start)
            if match := compiled.search(text):
                return match
            self._alive()
            if time.monotonic() >= end:
                tail = "\n".join(text.splitlines()[-15:])
                raise RigError(
                    f"{self.path.name} did not say {pattern!r} within {limit_s:g} s; its end:\n{tail}"
                )
            time.sleep(0.05)
