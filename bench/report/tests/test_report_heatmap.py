# SPDX-License-Identifier: Apache-2.0
"""A heat map: each cell has its number, in grey too, and the same data draw the same bytes."""

import hashlib
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from made_data import FIGURES, GOALS, HEADER, Group, data_set
from report import facts, page, plots, run
from report.figure import HeatMap, short
from report.samples import DataSet, Sample
from report.summary import Grid, Summary, as_json, summarise
from test_report_page import Balance

SVG = "{http://www.w3.org/2000/svg}"
ROWS = ("the <one> & more", "other")
COLUMNS = (("alone, here", "near"), ("alone, here", "far"), ("beside", "near"))
CELLS = {
    ("the <one> & more", COLUMNS[0]): ("rate", "a"),
    ("the <one> & more", COLUMNS[1]): ("rate", "b again"),
    ("other", COLUMNS[0]): ("rate", "not there"),
    ("other", COLUMNS[2]): ("no case", "a"),
}
RATIOS = HeatMap("made", "all", "All <of> it", ROWS, COLUMNS, CELLS, "b", note="What it is.")
VALUES = HeatMap("made", "values", "Its values", ROWS, COLUMNS, CELLS, None, unit="MB/s")


def summary(ratio: float = 3.0) -> Summary:
    """Of made data."""
    return summarise(data_set(ratio), GOALS, FIGURES, (RATIOS, VALUES))


def drawn() -> tuple[str, dict[str, str]]:
    """A page, and its pictures."""
    found = summary()
    pictures = {one.figure.name: plots.svg(one) for one in found.pictures}
    pictures |= {grid.heatmap.name: plots.svg(grid) for grid in found.grids}
    return page.page(found, pictures), pictures


def digest() -> str:
    """Of all that is drawn of one data set."""
    return hashlib.sha256(repr((drawn(), plots.png(summary().grids[0]))).encode()).hexdigest()


def words(svg: str) -> list[str]:
    """The texts in a picture."""
    return ["".join(text.itertext()).strip() for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_cells_are_ratios_or_values_of_machines():
    """Those of which there is nothing are left out."""
    ratios, values = summary().grids
    assert set(ratios.cells) == {("the <one> & more", COLUMNS[0]), ("the <one> & more", COLUMNS[1])}
    found = ratios.cells["the <one> & more", COLUMNS[0]]
    assert found.low < found.middle < found.high and found.middle == pytest.approx(3.0, rel=0.05)
    assert ratios.cells["the <one> & more", COLUMNS[1]].middle == pytest.approx(1.0, rel=0.01)
    assert values.cells["the <one> & more", COLUMNS[0]].middle == pytest.approx(300, rel=0.3)


def test_each_cell_has_its_number_in_it():
    _, pictures = drawn()
    found = words(pictures["made-all-wall-map"])
    middle = summary().grids[0].cells["the <one> & more", COLUMNS[0]].middle
    assert found.count(short(middle)) == 1 and found.count("1.00") == 1
    assert found.count("–") == len(ROWS) * len(COLUMNS) - 2
    assert set(ROWS) <= set(found) and found.count("near") == 2 and "alone,here" in "".join(found)


def test_more_is_darker_and_never_too_dark_or_too_light():
    """Also where a value is less than nothing."""
    by_ratio = [plots.darkness(value, True) for value in (0.2, 1.0, 1.1, 3.0, 10.0, 1e6)]
    assert by_ratio == sorted(by_ratio) and (by_ratio[0], by_ratio[1], by_ratio[-1]) == (0, 0, 1)
    by_value = [plots.darkness(value, False) for value in (-5.0, 0.0, 1.0, 100.0, 1e9)]
    assert by_value == sorted(by_value) and (by_value[0], by_value[1], by_value[-1]) == (0, 0, 1)


def test_numbers_of_cells_are_short():
    assert [short(v) for v in (0.0, 0.5, 1.0, 1.019, 9.994, 12.34, 123.4, 54321.0, -0.25, None)] == [
        "0", "0.50", "1.00", "1.02", "9.99", "12.3", "123", "54321", "-0.25", "–",
    ]  # fmt: skip


def test_same_data_draw_the_same_bytes():
    """By another Python, too, which orders sets otherwise; no time is in it."""
    code = "import test_report_heatmap as t; print(t.digest())"
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == digest()
    for text in drawn()[1].values():
        assert "dc:date" not in text and not re.search(r"20\d\d-\d\d-\d\d", text)


def test_page_has_it_before_the_groups_figures():
    text, _ = drawn()
    found = Balance(text)
    assert found.faults == [] and len(found.ids) == len(set(found.ids))
    assert found.count["svg"] == 3
    order = [text.index(part) for part in ("<h2>made", 'id="made-all-wall-map"', 'id="made-rate-wall"')]
    assert order == sorted(order)
    assert "All <of> it" in found.text and "What it is." in found.text and "side ÷ b" in found.text


def test_nothing_is_drawn_of_nothing():
    assert summarise(DataSet(HEADER), GOALS, FIGURES, (RATIOS,)).grids == []
    with pytest.raises(ValueError, match="no samples"):
        plots.svg(Grid(RATIOS, {}))


def test_one_machine_zeros_and_less_are_drawn():
    for value in (0.0, -3.0, 1e6):
        taken = [Sample("made", "rate", "a", value, "MB/s", "wall", "m", 0, 0)]
        (grid,) = summarise(DataSet(HEADER, taken), (), (), (VALUES,)).grids
        assert short(value) in [word.replace("−", "-") for word in words(plots.svg(grid))]


def test_short_summary_has_its_cells():
    maps = json.loads(json.dumps(as_json(summary()), allow_nan=False))["maps"]
    assert [one["name"] for one in maps] == ["made-all-wall-map", "made-values-wall-map"]
    assert maps[0]["cells"][0]["row"] == "the <one> & more" and maps[0]["cells"][0]["column"] == "alone, here · near"


def test_report_writes_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of a group that lists it."""
    group = Group()
    group.module.HEATMAPS = (RATIOS,)
    monkeypatch.setattr(run, "OUT", tmp_path)
    monkeypatch.setattr(facts, "header", lambda quick, seed: HEADER)
    monkeypatch.setattr(run, "GROUPS", ("made",))
    monkeypatch.setattr(run, "module", lambda name: group.module)
    assert run.main([]) == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert {"made-all-wall-map.svg", "made-all-wall-map.png", "made-rate-wall.svg"} <= names
    first = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert run.main(["--draw"]) == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == first
