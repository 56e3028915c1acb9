# SPDX-License-Identifier: Apache-2.0
"""The QEMU that the other tests run on."""

import os
import subprocess

import pytest

from rig import accel, emulator


def test_qemu_is_mended():
    """rig/mend.c knows this QEMU; if not, guests may hang: look at its code, add the new shape (docs/testing.md)."""
    if accel.use_kvm():
        pytest.skip("the host's KVM runs the server")
    qemu = emulator.find()
    done = subprocess.run(
        [*qemu.command, "--version"], env=os.environ | qemu.environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == "qemu-mend: mended\n", done.stderr
