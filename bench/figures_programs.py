# SPDX-License-Identifier: Apache-2.0
"""What the figures run on nodes and in guests: built here, put there, its words read."""

import re
import subprocess
from pathlib import Path

from rig import paths
from rig.node import Node

HERE = Path(__file__).resolve().parent


def build(name: str) -> bytes:
    """The static program of micro/NAME.c."""
    program = paths.BUILD / "bin" / name
    program.parent.mkdir(parents=True, exist_ok=True)
    source = HERE / "micro" / f"{name}.c"
    subprocess.run(["gcc", "-std=gnu11", "-O2", "-Wall", "-static", "-o", program, source], check=True)
    return program.read_bytes()


def put(node: Node, path: str, data: bytes) -> None:
    """A program onto a node."""
    node.run(f"cat >{path} && chmod 755 {path}", stdin=data)


def guest_initrd(node: Node, program: bytes) -> str:
    """The guest image with "measure" in it."""
    return initrd_with(node, {"measure": program})


def initrd_with(node: Node, programs: dict[str, bytes]) -> str:
    """The guest image with these programs in it: cpios may follow one another."""
    node.run("rm -rf /tmp/extra; mkdir -p /tmp/extra/bin")
    for name, program in programs.items():
        put(node, f"/tmp/extra/bin/{name}", program)
    node.run("cd /tmp/extra && find . | cpio -o -H newc >../extra.cpio")
    node.run("cat /boot/guest.initrd /tmp/extra.cpio >/tmp/guest.initrd")
    return "/tmp/guest.initrd"


def number(text: str, what: str) -> float:
    """The number of a "measure WHAT NUMBER" line."""
    return float(re.search(rf"^measure {what} ([\d.]+)\r*$", text, re.MULTILINE)[1])


def seconds(text: str, what: str) -> list[float]:
    """Of lines "WHAT MICROSECONDS"."""
    return [int(us) / 1e6 for us in re.findall(rf"^{what} (\d+)$", text, re.MULTILINE)]
