# SPDX-License-Identifier: Apache-2.0
"""What the figures run on nodes and in guests: built here, put there, its words read."""

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from rig import paths
from rig.bootstrap import WRITTEN, ZERO_WRITTEN
from rig.errors import RigError
from rig.inventory import DISKS_OF
from rig.node import Node

HERE = Path(__file__).resolve().parent
# Where things are put on a node, as its shell spells it: with an agent that was brought along, in the
# folder that goes with it (rig.bootstrap).
FOLDER, TMP = "${MINT_RIG_FOLDER:-/root}", "${MINT_RIG_FOLDER:-/tmp}"
GUEST_IMAGE = "${MINT_RIG_FOLDER:-/boot}/guest.initrd"
# What guests with a program in them take of a server.
GUESTS_TAKE = ("mint-guest", "virsh", "/dev/kvm", "/boot/vmlinuz-mint", "cpio")
# Of what was killed.
END_S = 60


def build(name: str) -> bytes:
    """The static program of micro/NAME.c."""
    program = paths.BUILD / "bin" / name
    program.parent.mkdir(parents=True, exist_ok=True)
    source = HERE / "micro" / f"{name}.c"
    subprocess.run(["gcc", "-std=gnu11", "-O2", "-Wall", "-static", "-o", program, source], check=True)
    return program.read_bytes()


def put(node: Node, path: str, data: bytes) -> None:
    """A program onto a node. One that runs there cannot be written to: the new file takes its name."""
    node.run(f"cat >{path}.new && chmod 755 {path}.new && mv {path}.new {path}", stdin=data)


def function_disk(node: Node, function: str) -> str:
    """What a node calls the disk of a function. Raises RigError if it does not have it, or has several."""
    found = node.out(DISKS_OF.format(function=function)).split()
    if len(found) != 1:
        raise RigError(f"node {node.number} has {len(found)} disks behind {function}, not one: {found}")
    return f"/dev/{found[0]}"


@contextlib.contextmanager
def beside(node: Node, command: str) -> Iterator[None]:
    """A shell command that goes on beside what follows, until the end: on a server, nothing else ends it before the
    next pass."""
    job = node.start(command, limit_s=0)
    try:
        yield
    finally:
        job.kill(9)
        job.wait(END_S)


@contextlib.contextmanager
def written(node: Node, disk: str, mib: int) -> Iterator[None]:
    """The first MiB of a disk are written to until the end, then they are zero: where the connection is lost, by its end
    on the node. Only with an agent that was brought along."""
    node.run(f"echo {disk} {mib} >>{WRITTEN}")
    try:
        yield
    finally:
        node.run(ZERO_WRITTEN)


def guest_initrd(node: Node, program: bytes) -> str:
    """The guest image with "measure" in it."""
    return initrd_with(node, {"measure": program})


def initrd_with(node: Node, programs: dict[str, bytes]) -> str:
    """The guest image with these programs in it: cpios may follow one another."""
    if node.run(f"[ -e {GUEST_IMAGE} ]", check=False).status:
        node.run(f"cat >{GUEST_IMAGE}", stdin=paths.need(paths.GUEST_INITRD).read_bytes())
    node.run(f"rm -rf {TMP}/extra; mkdir -p {TMP}/extra/bin")
    for name, program in programs.items():
        put(node, f"{TMP}/extra/bin/{name}", program)
    node.run(f"cd {TMP}/extra && find . | cpio -o -H newc >../extra.cpio")
    node.run(f"cat {GUEST_IMAGE} {TMP}/extra.cpio >{TMP}/with-programs.initrd")
    return f"{TMP}/with-programs.initrd"


def number(text: str, what: str) -> float:
    """The number of a "measure WHAT NUMBER" line."""
    return float(re.search(rf"^measure {what} ([\d.]+)\r*$", text, re.MULTILINE)[1])


def seconds(text: str, what: str) -> list[float]:
    """Of lines "WHAT MICROSECONDS"."""
    return [int(us) / 1e6 for us in re.findall(rf"^{what} (\d+)$", text, re.MULTILINE)]
