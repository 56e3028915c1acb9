# SPDX-License-Identifier: Apache-2.0
"""Commands on nodes 1 and up: the agent of such a node, through node 0's.

The agent listens on mint0. On node 0 a `nc` connects to it; its input and output
are the frames of the agent's protocol, which node 0's agent carries as those of
any command. mintd and mintctl, which tests are about, have no part in it.

A Link lasts as long as one boot of its node, and of node 0.
"""

import contextlib
import queue
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_network

from rig import channel as protocol
from rig.channel import Channel, frame
from rig.errors import CommandTimeout, MachineLost, NodeEnded

PORT = 7776
SUBNET = "10.77.0.0/24"  # of mint0, unless a machine's mint.toml names another
# For a node that boots: mint0 gets its address from its mintd.
CONNECT_S = 240
# Whatever is left of that: a connection that is refused says so at once, but its command may start late on a busy host.
TRY_S = 20


class Carrier:
    """A command of node 0's channel as a stream: what Channel wants of a socket."""

    def __init__(self, main: Channel, command: str) -> None:
        self._main = main
        self._parts: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._rest = b""
        self._ended = False
        self.said = ""
        self._number = main.adopt(self)
        main.send(frame(protocol.RUN, self._number, struct.pack("<I", 0) + command.encode(), protocol.RUN_INPUT))

    def deliver(self, kind: int, _flags: int, payload: bytes) -> None:
        """From node 0's channel."""
        if kind == protocol.OUTPUT:
            self._parts.put(payload)
        elif kind == protocol.ERROR:
            self.said += payload.decode(errors="replace")
        elif kind == protocol.EXIT or kind < 0:
            self._parts.put(b"")

    def recv(self, count: int) -> bytes:
        """Bytes from the node; none at the end."""
        if not self._rest and not self._ended:
            self._rest = self._parts.get()
            self._ended = not self._rest
        data, self._rest = self._rest[:count], self._rest[count:]
        return data

    def sendall(self, data: bytes) -> None:
        """Bytes to the node; raises MachineLost, OSError when it has ended."""
        if self._ended:
            raise OSError("the connection has ended")
        for at in range(0, len(data), protocol.INPUT_CHUNK):
            self._main.send(frame(protocol.INPUT, self._number, data[at : at + protocol.INPUT_CHUNK]))

    def shutdown(self, _how: int) -> None:
        """End it: whoever reads is told."""
        self._parts.put(b"")

    def close(self) -> None:
        """End the command on node 0, too, if that is still there."""
        with contextlib.suppress(MachineLost):
            self._main.send(frame(protocol.KILL, self._number, b"\x09"))


def address(node: int, subnet: str = SUBNET) -> str:
    """A node's on mint0, whether it is there now or not."""
    return str(ip_network(subnet)[10 + node])


def connect_command(node: int, subnet: str) -> str:
    """For node 0's shell: input and output are those of the node's agent. Ends if there is none."""
    to = address(node, subnet)
    # Or nc would wait for seconds, in growing steps, when the node has no address yet.
    return (
        f"for look in $(seq 20); do ping -q -c 1 -W 0.3 {to} >/dev/null 2>&1 && exec nc {to} {PORT}; done;"
        f" echo node {node} has no address on mint0 >&2; exit 1"
    )


@dataclass
class Link:
    """A connection to a node's agent."""

    channel: Channel
    of: tuple[int | None, str]  # the node's boots, and node 0's boot id


def over_mint0(subnet: str) -> Callable[[Channel, int], Carrier]:
    """To agents that listen there."""
    return lambda main, node: Carrier(main, connect_command(node, subnet))


class Links:
    """Connections to the agents of a machine's nodes, made when they are wanted, ended with their nodes.

    connect: begins one (None: over mint0, of the default subnet). look: says which nodes run, and in which boot, where nobody calls running().
    """

    def __init__(
        self,
        connect: Callable[[Channel, int], Carrier] | None = None,
        look: Callable[[], dict[int, int]] | None = None,
        again_s: float = 0.1,
    ) -> None:
        self._begin, self._look, self._again_s = connect or over_mint0(SUBNET), look, again_s
        self._links: dict[int, Link] = {}
        self._making: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
        self._boots: dict[int, int] = {}

    def channel(self, main: Channel, node: int, limit_s: float = CONNECT_S) -> Channel:
        """The channel to the agent of a node that runs, or is about to; raises NodeEnded after limit_s."""
        with self._making[node]:
            link = self._links.get(node)
            if link and link.of == (self._boots.get(node), main.boot_id) and not link.channel.over:
                return link.channel
            self._drop(node)
            return self._connect(main, node, limit_s)

    def _connect(self, main: Channel, node: int, limit_s: float) -> Channel:
        end = time.monotonic() + limit_s
        why = "it does not run"
        while True:
            if self._look:
                self._boots = self._look()
            of = self._boots.get(node), main.boot_id
            if of[0] is not None:
                carrier = self._begin(main, node)
                channel = Channel(carrier, lambda: f"node {node} ended, or the rig's connection to it", NodeEnded)
                with contextlib.suppress(CommandTimeout, NodeEnded):
                    channel.wait_ready(max(TRY_S, end - time.monotonic()))
                    self._links[node] = Link(channel, of)
                    return channel
                channel.close()
                why = carrier.said.strip() or "its agent says nothing"
            if time.monotonic() >= end:
                raise NodeEnded(f"no connection to node {node}'s agent within {limit_s:g} s: {why}")
            time.sleep(self._again_s)

    def _drop(self, node: int) -> None:
        if link := self._links.pop(node, None):
            link.channel.close()

    def running(self, boots: dict[int, int], main: Channel) -> None:
        """Which nodes run now, by id, and in which boot. Connections to others end, and with them the waiting
        for commands there."""
        self._boots = boots
        for node, link in list(self._links.items()):
            if link.of != (boots.get(node), main.boot_id):
                self._drop(node)
