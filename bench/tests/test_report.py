# SPDX-License-Identifier: Apache-2.0
"""make report, quick: every group measures on the emulated server, and all is drawn."""

import importlib
import json
from pathlib import Path

import pytest

from report import run
from report.goals import NOT_HERE
from report.recorder import read

MACHINES = {
    *((group, "machine 1") for group in run.GROUPS if group != "partition"),
    ("partition", "counted 1"),
    ("scaling", "starts 1"),
}
# A quick run leaves out most of these groups' sides, and the clock of others.
IN_PART = ("configs", "isolation", "partition")


def test_report_runs_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """What each group gives is there, for each of its goals that a quick run asks for."""
    monkeypatch.setattr(run, "OUT", tmp_path)
    assert run.main(["--quick"]) == 0
    folder = tmp_path / "quick"
    data = read(folder / "data.jsonl")
    assert data.ended == MACHINES and not data.cut
    summary = json.loads((folder / "summary.json").read_text())
    goals = [goal for group in run.GROUPS for goal in importlib.import_module(f"figures_{group}").GOALS]
    assert [goal["name"] for goal in summary["goals"]] == [goal.name for goal in goals]
    lacking = {
        (goal["group"], goal["name"])
        for goal in summary["goals"]
        if goal["found"] is None and goal["verdict"] != NOT_HERE and goal["group"] not in IN_PART
    }
    assert not lacking
    assert {goal["group"] for goal in summary["goals"] if goal["found"]} == set(run.GROUPS)
    for name in [*(figure["name"] for figure in summary["figures"]), *(grid["name"] for grid in summary["maps"])]:
        assert (folder / f"{name}.svg").stat().st_size and (folder / f"{name}.png").stat().st_size
    text = (folder / "index.html").read_text()
    assert "QUICK=1" in text and all(f"<h2>{group}</h2>" in text for group in run.GROUPS)
