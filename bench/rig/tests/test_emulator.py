# SPDX-License-Identifier: Apache-2.0
"""Nothing is run on a QEMU that is not mended."""

from pathlib import Path

import pytest

from rig import accel, emulator
from rig.emulator import Emulator
from rig.errors import RigError


def qemu(folder: Path, says: str) -> Emulator:
    """A program that says this on stderr, whatever it is asked."""
    program = folder / "qemu"
    program.write_text(f"#!/bin/sh\nprintf '%b' '{says}' >&2\necho 'QEMU emulator version 99.0'\n")
    program.chmod(0o755)
    return Emulator((str(program),))


def test_mended_qemu_is_run(tmp_path: Path):
    emulator.check_mended(qemu(tmp_path, r"a warning of another library\nqemu-mend: mended\n"))


@pytest.mark.parametrize("says", ["", r"qemu-mend: not the code that is known: left as it is\n"])
def test_qemu_that_is_not_mended_is_not_run(tmp_path: Path, says: str):
    """With the reason, and what to do."""
    with pytest.raises(RigError, match="(?s)not mended.*MINT_RIG_QEMU") as caught:
        emulator.check_mended(qemu(tmp_path, says))
    assert str(tmp_path) in str(caught.value)


def test_qemu_that_is_not_there_is_not_run(tmp_path: Path):
    with pytest.raises(RigError, match="No such file"):
        emulator.check_mended(Emulator((str(tmp_path / "nowhere"),)))


def test_find_looks_whether_it_is_mended(monkeypatch, tmp_path: Path):
    """Under emulation only: KVM needs no mending."""
    monkeypatch.setattr(emulator, "choose", lambda: qemu(tmp_path, ""))
    monkeypatch.setattr(accel, "use_kvm", lambda: True)
    emulator.find.cache_clear()
    assert emulator.find().command
    monkeypatch.setattr(accel, "use_kvm", lambda: False)
    emulator.find.cache_clear()
    with pytest.raises(RigError, match="not mended"):
        emulator.find()
    emulator.find.cache_clear()
