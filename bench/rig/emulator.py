# SPDX-License-Identifier: Apache-2.0
"""Which QEMU the rig runs: its own, built with the patches of qemu-patches.

QEMU's emulated CPUs run side by side, and Debian's has faults there that a machine of
several busy kernels with KVM guests meets within minutes (docs/testing.md). A QEMU that
does not say that it has the patches is not run: guests would hang now and then, and
tests fail for nobody's fault. The host's KVM needs none of them.
"""

import functools
import hashlib
import os
import subprocess

from rig import accel, paths
from rig.errors import RigError


def mended() -> str:
    """What a QEMU with today's patches says of itself, as images/scripts/build-qemu lets it."""
    series = (paths.QEMU_PATCHES / "series").read_text().splitlines()
    patches = (paths.QEMU_PATCHES / name for name in series if name and not name.startswith("#"))
    digest = hashlib.sha256(b"".join(patch.read_bytes() for patch in patches))
    return f"(mint-rig {digest.hexdigest()[:12]})"


def choose() -> str:
    """The program: MINT_RIG_QEMU, or the rig's own."""
    return os.environ.get("MINT_RIG_QEMU") or str(paths.need(paths.QEMU))


@functools.cache
def find() -> str:
    """The QEMU to run. Raises RigError if it is to emulate, and not mended."""
    found = choose()
    if not accel.use_kvm():
        check_mended(found)
    return found


def check_mended(program: str) -> None:
    """Raises RigError unless this QEMU says that it has the patches."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        said = (done.stdout + done.stderr).strip() or f"nothing, exit status {done.returncode}"
    except OSError as error:
        said = str(error)
    if mended() not in said.partition("\n")[0]:
        raise RigError(
            f"this QEMU's emulator is not mended, and nothing is run on it: {program}\n"
            f"it said: {said}\n"
            f"and not: {mended()}\n"
            "Unset MINT_RIG_QEMU and run 'make images', which builds one with the patches of "
            "bench/rig/qemu-patches (docs/testing.md, \"What QEMU's emulator does wrong\")."
        )
