# SPDX-License-Identifier: Apache-2.0
"""A daemon that stands still at a named step (node-manager/crates/mint-fault), so that something can be ended just
then."""

import contextlib
from collections.abc import Iterator

from rig.node import Node

FAULT = "/run/mint/fault"  # holds the name of the step; MINT_FAULT names it
HALTED = f"{FAULT}.halted"  # there while the daemon stands still
GO_ON = f"rm -f {HALTED}"  # it goes on, if it lives


def arm(node: Node, service: str) -> None:
    """The service looks at FAULT at each step, also after it was killed; not after its node was."""
    node.run(f"rm -f {FAULT} {HALTED}; MINT_FAULT={FAULT} mint-service restart {service}")


@contextlib.contextmanager
def armed(nodes: list[Node], service: str) -> Iterator[None]:
    """In here the service of these nodes looks at FAULT at each step."""
    try:
        for node in nodes:
            arm(node, service)
        yield
    finally:
        for node in nodes:
            node.run(f"rm -f {FAULT} {HALTED}; mint-service restart {service}")


def ask(node: Node, step: str, what: str = "halt") -> None:
    """Whoever comes to the step next, once, stands still there, or ends ("abort")."""
    node.run(f"echo {step} {what} >{FAULT}.new && mv {FAULT}.new {FAULT}")


def wait(node: Node, step: str, limit_s: float = 240) -> None:
    """Wait until it does: the proof that the step was reached."""
    node.wait(f"a halt at {step}", f"[ -e {HALTED} ]", limit_s)
