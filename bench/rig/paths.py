# SPDX-License-Identifier: Apache-2.0
"""Where things are: the build outputs that the rig boots, and its own files."""

import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BUILD", PROJECT / "build")).absolute()
RIG = BUILD / "rig"

KERNELS = BUILD / "kernel"
NODE_INITRD = BUILD / "images" / "node.initrd"
GUEST_INITRD = BUILD / "images" / "guest.initrd"
DISK_BASE = BUILD / "images" / "disk-base.raw"
QEMU = BUILD / "qemu"
AGENT = BUILD / "bin" / "mint-rig-agent"


def kernel(flavour: str) -> Path:
    """bzImage of a kernel flavour: mint, rt, debug, off, stock."""
    return KERNELS / flavour / "bzImage"


def need(path: Path) -> Path:
    """path, if it is there; raises FileNotFoundError that says how to build it."""
    if not path.exists():
        raise FileNotFoundError(f"{path} is not built: run 'make all rig-agent'")
    return path
