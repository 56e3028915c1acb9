# SPDX-License-Identifier: Apache-2.0
"""Errors of the rig. A lost machine is an outcome of its own: the tests that
ran on it say nothing about what they test."""


class RigError(Exception):
    """The rig could not do what was asked; the machine may still be fine."""


class MachineLost(RigError):
    """QEMU ended although nobody asked it to (reset, triple fault, its own bug)."""


class NodeEnded(RigError):
    """A node ended, or there is none, where a command should run; the machine may be fine."""


class CommandTimeout(RigError):
    """A command on a node, or the wait for it, took longer than its limit."""


class CommandFailed(RigError):
    """A command on a node ended with a status other than 0."""

    def __init__(self, command: str, result) -> None:
        self.command, self.result = command, result
        super().__init__(
            f"status {result.status} from: {command}\n"
            f"--- stdout\n{result.out[-4000:]}\n--- stderr\n{result.err[-4000:]}"
        )
