# SPDX-License-Identifier: Apache-2.0
"""Plugins of QEMU's emulator: count.c counts instructions, pmu.c has performance counters, and caches for them."""

from pathlib import Path

from rig import accel, paths
from rig.errors import RigError


def arguments(plugin: Path, *words: str, **files: Path) -> list[str]:
    """Of QEMU: a plugin, and its own arguments: words without a comma, and files. Raises RigError if nothing is
    emulated, or a comma is in the way."""
    if accel.use_kvm():
        raise RigError("only the emulator counts each CPU's instructions: unset MINT_RIG_ACCEL")
    for path in (paths.need(plugin), *files.values()):
        if "," in str(path):
            raise RigError(f"{path}: QEMU would take the comma for the end of its name; build elsewhere (BUILD=...)")
    return ["-plugin", ",".join([str(plugin), *words, *(f"{name}={file}" for name, file in files.items())])]
