# SPDX-License-Identifier: Apache-2.0
"""A cable between two machines: a pair of datagram sockets, one datagram a frame.

The cards of each machine are on a hub of its own; the wire makes one of both. The rig keeps
both ends, so that a machine that ended can be followed by another one on the same wire.
"""

import contextlib
import socket

# QEMU's name of a machine's end.
NAME = "wire"


class Wire:
    """It lasts from its making to close()."""

    def __init__(self) -> None:
        self.ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)

    def close(self) -> None:
        """End it, after the machines."""
        for end in self.ends:
            end.close()


def arguments(end: socket.socket) -> list[str]:
    """Of the QEMU that has this end, handed over as a descriptor."""
    return [
        "-netdev", f"dgram,id={NAME},local.type=fd,local.str={end.fileno()}",
        "-netdev", f"hubport,id={NAME}-hub,hubid=0,netdev={NAME}",
    ]  # fmt: skip


def drain(end: socket.socket) -> None:
    """Drop what was sent to a machine that was not there: a cable holds nothing back."""
    with contextlib.suppress(BlockingIOError):
        while end.recv(1 << 16, socket.MSG_DONTWAIT):
            pass
