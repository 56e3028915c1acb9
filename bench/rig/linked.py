# SPDX-License-Identifier: Apache-2.0
"""Two machines of the rig that are linked, as an administrator links them: a calls the other one b, b calls it a."""

import contextlib
from collections.abc import Iterator

from rig import two
from rig.errors import RigError
from rig.server import Server
from rig.two import TwoMachines

NAMES = "ba"  # of the other one


def link(here: Server, name: str, there: Server) -> dict:
    """Carry over what a machine says of itself, and link it; gives what mintctl says."""
    introduction = there.zero.out("mintctl machine introduce")
    if "PRIVATE" in introduction:
        raise RigError(f"an introduction carries a private key:\n{introduction}")
    here.zero.run(f"cat >/run/{name}.json", stdin=introduction.encode())
    at = two.ADDRESSES[there.machine.config.number]
    return here.mintctl("machine", "link", name, "--address", at, "--ca", f"/run/{name}.json")


def wait_up(server: Server, name: str, is_up: bool = True) -> None:
    """Until a machine says that its link is up, or down."""
    word = "true" if is_up else "false"
    server.zero.wait(f"link to {name}: up is {word}", f"mintctl machine show --json | grep -q '\"is_up\": *{word}'")


@contextlib.contextmanager
def linked(machines: TwoMachines) -> Iterator[TwoMachines]:
    """They are linked meanwhile.

    Raises RigError if a link is up before both sides have it, or is left at the end.
    """
    for server in machines.servers:
        server.wait_ready(server.zero)
    if link(machines.a, "b", machines.b)["is_up"]:
        raise RigError("b knows nothing of a yet, and a says that the link is up")
    if not link(machines.b, "a", machines.a)["is_up"]:
        raise RigError("both know each other, and b says that the link is down")
    wait_up(machines.a, "b")
    yield machines
    for server, name in zip(machines.servers, NAMES, strict=True):
        if server.machine.alive():
            server.mintctl("machine", "unlink", name)
            if server.mintctl("machine", "show")["links"]:
                raise RigError(f"the link to {name} is left")
            server.zero.wait("the machine's routes alone", "! ip route | grep -q 'proto 178'")
            server.zero.wait("the guests' Ethernet back alone", "! test -e /sys/class/net/mintvx")
