# SPDX-License-Identifier: Apache-2.0
"""A reset of the whole machine, after which it starts again."""

from rig.server import Server
from rig.wait import wait_until


class Reset:
    """While it is entered, the end of the machine by a reset is a pause; finish() starts the machine again.

    RAM outlives a reset here, so the control area that was would still be found, beside the new one or in its stead,
    wherever node 0's kernel comes to lie: finish() takes the mark off it in the pause.
    """

    def __init__(self, server: Server) -> None:
        self._server, self._monitor = server, server.machine.monitor

    def __enter__(self) -> "Reset":
        self._monitor.execute("set-action", shutdown="pause")
        return self

    def finish(self, limit_s: float = 120) -> None:
        """Wait until the machine has reset itself, and let it start."""
        self._wait("shutdown", limit_s)
        self._server.forget_area()
        self._monitor.execute("set-action", reboot="reset")
        self._monitor.execute("system_reset")
        self._wait("prelaunch", limit_s)
        self._monitor.execute("cont")

    def _wait(self, state: str, limit_s: float) -> None:
        wait_until(f"QEMU to be in state {state}", lambda: self._monitor.execute("query-status")["status"] == state, limit_s)

    def __exit__(self, *exception) -> None:
        self._monitor.execute("set-action", reboot="shutdown", shutdown="poweroff")
