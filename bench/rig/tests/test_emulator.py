# SPDX-License-Identifier: Apache-2.0
"""Nothing is run on a QEMU that is not mended."""

from pathlib import Path

import pytest

from rig import accel, emulator, paths
from rig.errors import RigError


def qemu(folder: Path, says: str) -> str:
    """A program that says this of its version."""
    program = folder / "qemu"
    program.write_text(f"#!/bin/sh\necho 'QEMU emulator version 10.0.13{says}'\necho 'Copyright (c) mint-rig'\n")
    program.chmod(0o755)
    return str(program)


def test_mended_qemu_is_run(tmp_path: Path):
    emulator.check_mended(qemu(tmp_path, f" {emulator.mended()}"))


@pytest.mark.parametrize("says", ["", " (Debian 1:10.0.13)", " (mint-rig)", " (mint-rig 000000000000)"])
def test_qemu_that_is_not_mended_is_not_run(tmp_path: Path, says: str):
    """With the reason, and what to do."""
    with pytest.raises(RigError, match="(?s)not mended.*MINT_RIG_QEMU") as caught:
        emulator.check_mended(qemu(tmp_path, says))
    assert str(tmp_path) in str(caught.value)
    assert "version 10.0.13" in str(caught.value)


def test_qemu_with_other_patches_is_not_run(monkeypatch, tmp_path: Path):
    """One that was built before a patch changed is not mended as the tests expect."""
    old = qemu(tmp_path, f" {emulator.mended()}")
    for path in paths.QEMU_PATCHES.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    patch = next(tmp_path.glob("*.patch"))
    patch.write_text(patch.read_text() + " ")
    monkeypatch.setattr(paths, "QEMU_PATCHES", tmp_path)
    with pytest.raises(RigError, match="not mended"):
        emulator.check_mended(old)


def test_qemu_that_is_not_there_is_not_run(tmp_path: Path):
    with pytest.raises(RigError, match="No such file"):
        emulator.check_mended(str(tmp_path / "nowhere"))


def test_qemu_that_was_built_is_mended(monkeypatch):
    """The script that builds it names the patches as the rig does."""
    monkeypatch.delenv("MINT_RIG_QEMU", raising=False)
    emulator.check_mended(emulator.choose())


def test_find_looks_whether_it_is_mended(monkeypatch, tmp_path: Path):
    """Under emulation only: KVM needs no mending."""
    monkeypatch.setenv("MINT_RIG_QEMU", qemu(tmp_path, ""))
    monkeypatch.setattr(accel, "use_kvm", lambda: True)
    emulator.find.cache_clear()
    assert emulator.find() == str(tmp_path / "qemu")
    monkeypatch.setattr(accel, "use_kvm", lambda: False)
    emulator.find.cache_clear()
    with pytest.raises(RigError, match="not mended"):
        emulator.find()
    emulator.find.cache_clear()
