# SPDX-License-Identifier: Apache-2.0
"""A data set says what it was measured on, to the last changed file."""

import subprocess
from pathlib import Path

import pytest

from report import facts
from rig import emulator, paths, record
from rig.errors import RigError


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone of something else."""
    for module in (paths, record):
        monkeypatch.setattr(module, "PROJECT", tmp_path)
    (tmp_path / "old").write_text("1")
    (tmp_path / ".gitignore").write_text("build\n")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "c"]):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    return tmp_path


def test_any_change_of_the_tree_is_seen(tree: Path):
    seen = [facts.changes()]
    assert seen == [""]
    for name, text in (("old", "2"), ("old", "3"), ("new", ""), ("new", "1"), ("näh", ""), ("old", "1")):
        (tree / name).write_text(text)
        seen.append(facts.changes())
    (tree / "new").rename(tree / "newer")
    seen.append(facts.changes())
    (tree / "newer").rename(tree / "new")
    assert len(set(seen)) == len(seen)
    (tree / "build").write_text("whatever")
    assert facts.changes() == seen[-2]
    for name in ("new", "näh"):
        (tree / name).unlink()
    assert facts.changes() == ""


def test_header_names_what_is_booted(tree: Path, monkeypatch: pytest.MonkeyPatch):
    kernel = tree / "build" / "bzImage"
    monkeypatch.setattr(paths, "kernel", lambda flavour: kernel)
    monkeypatch.setattr(emulator, "find", lambda: emulator.Emulator(("echo", "QEMU emulator version 11.1")))
    with pytest.raises(FileNotFoundError, match="is not built"):
        facts.header(quick=False, seed=1)
    kernel.parent.mkdir()
    kernel.write_bytes(b"one")
    first = facts.header(quick=False, seed=1)
    assert len(first.commit) == 40 and first.dirty == "" and first.qemu.startswith("QEMU emulator version 11.1")
    assert first.differences(facts.header(quick=False, seed=1)) == []
    kernel.write_bytes(b"two")
    (difference,) = first.differences(facts.header(quick=False, seed=1))
    assert difference.startswith("kernels was")
    kernel.write_bytes(b"one")
    monkeypatch.setattr(facts.accel, "use_kvm", lambda: True)
    (difference,) = first.differences(facts.header(quick=False, seed=1))
    assert "TCG" in difference and "KVM" in difference


def test_data_of_no_commit_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for module in (paths, record):
        monkeypatch.setattr(module, "PROJECT", tmp_path)
    with pytest.raises(RigError, match="measure in a clone"):
        facts.commit()
