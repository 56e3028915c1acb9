# SPDX-License-Identifier: Apache-2.0
"""Which QEMU the rig runs: the host's, if it is new enough, else Debian 13's backport.

QEMU's emulated CPUs run side by side, and there are races that a machine of
several busy kernels with KVM guests finds within minutes:

* before 8.2, a CPU could see a new memory map before it had dropped what it
  knew of the old one: SIGSEGV when one CPU moves or resets a device;
* before 10.2, a CPU's set of pending interrupts was changed without atomic
  operations while an SVM guest came and went: interrupts were lost, and a
  halted CPU slept on with one pending in its APIC;
* in all, as far as known, an SVM guest may get an injected interrupt twice, and FPU
  restores of any CPU may bring back a flag of the first CPU that it is just clearing
  at the end of its SVM guest: mend.c, preloaded, mends both (docs/testing.md). A
  QEMU that it does not know is not run: guests would hang now and then, and tests
  fail for nobody's fault.

images/scripts/fetch-qemu unpacks the backport, with all libraries that it
needs; it is run through its own loader.
"""

import functools
import os
import re
import subprocess
from dataclasses import dataclass, field

from rig import accel, paths
from rig.errors import RigError

MINIMUM = (10, 2)
HOST_QEMU = "qemu-system-x86_64"
FETCHED_QEMU = "usr/bin/qemu-system-x86_64"
LOADER = "lib64/ld-linux-x86-64.so.2"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
# What mend.c says on stderr when it has done its work.
MENDED = "qemu-mend: mended"


@dataclass(frozen=True)
class Emulator:
    """How to run it: words before QEMU's own, and environment."""

    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


def version(command: tuple[str, ...]) -> tuple[int, int]:
    """Major and minor version; (0, 0) if it does not run."""
    try:
        text = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return 0, 0
    match = re.search(r"version (\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


@functools.cache
def find() -> Emulator:
    """The QEMU to run; MINT_RIG_QEMU names another. Raises RigError if it is emulated, and not mended."""
    found = choose()
    if not accel.use_kvm():
        check_mended(found)
    return found


def check_mended(emulator: Emulator) -> None:
    """Raises RigError unless mend.c has found what it mends in this QEMU."""
    try:
        done = subprocess.run(
            [*emulator.command, "--version"],
            env=os.environ | emulator.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        said = done.stderr.strip() or f"nothing, exit status {done.returncode}"
    except OSError as error:
        said = str(error)
    if MENDED not in said.splitlines():
        raise RigError(
            f"this QEMU's emulator is not mended, and nothing is run on it: {' '.join(emulator.command)}\n"
            f"it said: {said}\n"
            "Take another (MINT_RIG_QEMU=...; without it the rig takes one that is known), or teach "
            "bench/rig/mend.c this one's code (docs/testing.md, \"What QEMU's emulator does wrong\")."
        )


def choose(mended: bool = True) -> Emulator:
    """The host's QEMU if it is new enough, the fetched one, or MINT_RIG_QEMU; with mend.c, or as it is."""
    mend = () if accel.use_kvm() or not mended else ("env", f"LD_PRELOAD={paths.need(paths.QEMU_MEND)}")
    if chosen := os.environ.get("MINT_RIG_QEMU"):
        return Emulator((*mend, chosen))
    if version((HOST_QEMU,)) >= MINIMUM:
        return Emulator((*mend, HOST_QEMU))
    root = paths.need(paths.QEMU).resolve()
    # Subfolders too: some libraries have their own in one.
    folders = [root / LIBRARIES, *(path for path in (root / LIBRARIES).iterdir() if path.is_dir())]
    command = (
        *mend, str(root / LOADER), "--library-path", ":".join(map(str, folders)), str(root / FETCHED_QEMU),
        "-L", str(root / "usr/share/qemu"), "-L", str(root / "usr/share/seabios"),
    )  # fmt: skip
    # Or it would try the host's modules, which are another QEMU's.
    return Emulator(command, {"QEMU_MODULE_DIR": str(root / LIBRARIES / "qemu")})
