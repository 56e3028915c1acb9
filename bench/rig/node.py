# SPDX-License-Identifier: Apache-2.0
"""A node as tests see it: commands on it, its console."""

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from rig.channel import Channel, Job, Result
from rig.console import Console
from rig.errors import CommandFailed, NodeEnded, RigError
from rig.link import CONNECT_S, Links
from rig.wait import SLOWNESS, wait_until

# Of one command of Node.wait(): some ten seconds' worth, as the node may end under it.
LOOKS = 30


def on_node(node: int, command: str, with_input: bool = False) -> str:
    """The command line for node 0 by which a user runs a shell command on a node (`make exec`)."""
    if node == 0:
        return command
    option = " --stdin" if with_input else ""
    return f"exec mintctl node exec{option} {node} -- sh -c {shlex.quote(command)}"


class Machine(Protocol):
    """What a node wants of its machine, emulated (rig.machine) or real (rig.remote)."""

    channel: Channel | None
    links: Links
    console: list[Console]


@dataclass(frozen=True)
class Node:
    """One node of a machine. Commands are run by the rig's own agent there, never by mintctl."""

    machine: Machine
    number: int
    connect_s: float = CONNECT_S  # how long to wait for its agent

    @property
    def console(self):
        """Its console log."""
        return self.machine.console[self.number]

    @property
    def channel(self) -> Channel:
        """To its agent; of nodes 1 and up, it waits for the agent of one that boots. Raises NodeEnded."""
        main = self.machine.channel
        return main if self.number == 0 else self.machine.links.channel(main, self.number, self.connect_s * SLOWNESS)

    def start(self, command: str, limit_s: float = 120, stdin: bytes | None = None) -> Job:
        """Start a shell command; it is killed after limit_s (0: never)."""
        return self.channel.start(command, limit_s * SLOWNESS, stdin)

    def run(
        self, command: str, limit_s: float = 120, stdin: bytes | None = None, check: bool = True
    ) -> Result:
        """Run a shell command to its end.

        Raises CommandFailed if check and its status is not 0, CommandTimeout
        after limit_s, NodeEnded if the node ends under it, MachineLost.
        """
        result = self.start(command, limit_s, stdin).wait()
        if check and result.status != 0:
            raise CommandFailed(f"node {self.number}: {command}", result)
        return result

    def out(self, command: str, limit_s: float = 120) -> str:
        """stdout of a command that must succeed, without the last newline."""
        return self.run(command, limit_s).out.rstrip("\n")

    def wait(self, what: str, condition: str, limit_s: float = 60) -> None:
        """Wait until a shell condition holds on the node; raises RigError after limit_s.

        The node itself looks, so that waiting takes little from what is waited for: another
        command every fraction of a second would keep both nodes' mintds busy, and even a
        process that sleeps takes its share of a core that is emulated.
        """
        loop = f"exec 9<> <(:); for ((look = 0; look < {LOOKS}; look++)); do {condition} && exit 0; read -rt 0.3 -u 9; done; exit 1"
        looks: list[Result | NodeEnded] = []

        def holds() -> bool:
            try:
                looks.append(self.run(loop, check=False))
            except NodeEnded as error:  # it may be started anew
                looks.append(error)
                return False
            return looks[-1].status == 0

        try:
            wait_until(f"node {self.number}: {what}", holds, limit_s, every_s=0.5)
        except RigError as error:
            # A note, so that a lost machine stays one.
            if looks:
                error.add_note(f"the last of {len(looks)} looks: {looks[-1]}")
            raise

    @contextmanager
    def undone(self, command: str, undo: str) -> Iterator[None]:
        """A shell command, and another at the end that takes it back, whatever happens in between."""
        self.run(command)
        try:
            yield
        finally:
            self.run(undo)

    def disk(self, serial: str) -> str:
        """Path of its disk with that serial number. Raises RigError if there is not exactly one."""
        found = self.out(f'for d in /sys/block/*; do [ "$(cat $d/serial 2>/dev/null)" = {serial} ] && echo /dev/${{d##*/}}; done; :')
        if not re.fullmatch(r"/dev/\w+", found):
            raise RigError(f"node {self.number} does not have the disk {serial}, but {found!r}")
        return found

    def read(self, path: str) -> str:
        """A file's text, without the last newline."""
        return self.out(f"cat {shlex.quote(path)}")

    def terminal(self, command: str, limit_s: float = 300) -> Job:
        """Start a command that has a terminal, and takes Job.input()."""
        return self.channel.start(command, limit_s, keep_input=True, terminal=True)
