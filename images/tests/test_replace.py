# SPDX-License-Identifier: Apache-2.0
"""Files of a node that are written anew are whole whenever it is killed."""

import os
import subprocess
from pathlib import Path

REPLACE = Path(__file__).resolve().parents[1] / "layer/usr/lib/mint/replace"


def replace(file: Path, content: bytes, tmp_path: Path, *words: str) -> subprocess.CompletedProcess:
    """Run it; what it does to the file, and in which order, is in tmp_path/done."""
    bin_ = tmp_path / "bin"
    bin_.mkdir(exist_ok=True)
    for name in ("cat", "sync", "mv"):
        stub = bin_ / name
        stub.write_text(f'#!/bin/sh\necho {name} "$@" >>{tmp_path}/done\nexec /bin/{name} "$@"\n')
        stub.chmod(0o755)
    return subprocess.run(
        [REPLACE, file, *words], input=content, capture_output=True, check=False, env={"PATH": f"{bin_}:{os.environ['PATH']}"}
    )


def test_content_is_on_the_disk_before_its_name_is(tmp_path):
    file = tmp_path / "settings"
    file.write_text("old")
    assert replace(file, b"new\n", tmp_path).returncode == 0
    assert file.read_bytes() == b"new\n" and not (tmp_path / "settings.new").exists()
    done = (tmp_path / "done").read_text().splitlines()
    assert done == ["cat", f"sync {file}.new", f"mv {file}.new {file}"]


def test_what_cannot_be_written_changes_nothing(tmp_path):
    there = tmp_path / "there"
    there.write_text("old")
    (tmp_path / "there.new").mkdir()
    assert replace(there, b"new", tmp_path).returncode != 0
    assert there.read_text() == "old"
    assert replace(there, b"", tmp_path, "another").returncode == 2
