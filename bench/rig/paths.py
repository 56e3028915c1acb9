# SPDX-License-Identifier: Apache-2.0
"""Where things are: the build outputs that the rig boots, and its own files."""

import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BUILD", PROJECT / "build")).absolute()
RIG = BUILD / "rig"
# What whole runs have left, of any clone of the project on this machine.
CACHE = Path(os.environ.get("MINT_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mint")
RESULTS = CACHE / "results"
# Folder of the rig in the background (make up); another name lets two run.
UP_NAME = "MINT_RIG_UP"
UP = RIG / os.environ.get(UP_NAME, "up")

KERNELS = BUILD / "kernel"
NODE_INITRD = BUILD / "images" / "node.initrd"
GUEST_INITRD = BUILD / "images" / "guest.initrd"
DEBIAN_GUEST = BUILD / "images" / "debian-guest.qcow2"
PROGRAMS = BUILD / "images" / "programs.cpio"
OTHER_SYSTEMS = BUILD / "images" / "other-systems"
DISK_BASE = BUILD / "images" / "rig-disk.raw"
RIG_LAYER = BUILD / "images" / "rig.squashfs"
PACK_LAYER = PROJECT / "images" / "scripts" / "pack-layer"
QEMU = BUILD / "qemu"
QEMU_MEND = BUILD / "bin" / "qemu-mend.so"
QEMU_FAULTS = BUILD / "bin" / "qemu-faults"
QEMU_COUNT = BUILD / "bin" / "qemu-count.so"
QEMU_PMU = BUILD / "bin" / "qemu-pmu.so"
COUNT_TEST = BUILD / "bin" / "count-test"
EVAL = BUILD / "bin" / "eval"
SCALE = BUILD / "bin" / "scale"
VICTIM = BUILD / "bin" / "victim"
AGGRESSOR = BUILD / "bin" / "aggressor"
PAGING = BUILD / "bin" / "paging"
TORTURE = BUILD / "bin" / "torture"
TURNS = BUILD / "bin" / "turns"
MISSES = BUILD / "bin" / "misses"
LAYOUT_PROGRAMS = {name: BUILD / "bin" / name for name in ("malloc_access", "cubic_calc")}
AGENT = BUILD / "bin" / "mint-rig-agent"
HOLD = BUILD / "bin" / "mint-rig-hold"
RAW = BUILD / "bin" / "mint-rig-raw"
NUMA = BUILD / "bin" / "mint-rig-numa"
STRESS_NG = BUILD / "bin" / "stress-ng.tar.gz"
PROMTOOL = BUILD / "bin" / "promtool"


def kernel(flavour: str) -> Path:
    """bzImage of a kernel flavour: mint, rt, grown, kunit, lockdep, kasan, server, off, stock."""
    return KERNELS / flavour / "bzImage"


def need(path: Path) -> Path:
    """path, if it is there; raises FileNotFoundError that says how to build it."""
    if not path.exists():
        raise FileNotFoundError(f"{path} is not built: run 'make all rig-agent'")
    return path
