# SPDX-License-Identifier: Apache-2.0
"""The report as files: the same data draw the same bytes, nothing is empty, broken or leads elsewhere."""

import csv
import hashlib
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from made_data import FIGURES, GOALS, HEADER, Group, data_set
from report import facts, page, plots, run
from report.figure import Figure, number, written
from report.goals import tally, unmet
from report.samples import DataSet, Sample
from report.stats import Interval
from report.summary import summarise

SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Balance(HTMLParser):
    """Notes what is not closed, links, ids, and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.faults: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.count: dict[str, int] = {}
        self.feed(text)
        self.close()
        self.faults += [f"{tag} is not closed" for tag in self.open]

    def handle_starttag(self, tag, attrs) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag not in VOID:
            self.open.append(tag)
        self.handle_startendtag(tag, attrs, count=False)

    def handle_startendtag(self, tag, attrs, count=True) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "xlink:href", "src"):
                self.links.append(value)

    def handle_endtag(self, tag) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes something else, line {self.getpos()[0]}")

    def handle_data(self, data) -> None:
        self.text += data


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """make report writes here, and asks no git, no QEMU."""
    monkeypatch.setattr(run, "OUT", tmp_path)
    monkeypatch.setattr(facts, "header", lambda quick, seed: replace(HEADER, quick=quick, seed=seed))
    monkeypatch.setattr(run, "GROUPS", ("made",))
    return tmp_path


def report(monkeypatch: pytest.MonkeyPatch, group: Group, *words: str) -> int:
    """make report with such a group."""
    monkeypatch.setattr(run, "module", lambda name: group.module)
    return run.main(list(words))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def drawn(data: DataSet) -> tuple[str, dict[str, str]]:
    summary = summarise(data, GOALS, FIGURES)
    pictures = {picture.figure.name: plots.svg(picture) for picture in summary.pictures}
    return page.page(summary, pictures), pictures


def digest() -> str:
    """Of all that is drawn of one data set."""
    text, pictures = drawn(data_set())
    image = plots.png(summarise(data_set(), GOALS, FIGURES).pictures[0])
    return hashlib.sha256(repr((text, pictures, image)).encode()).hexdigest()


def test_report_has_all_its_files(out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    assert report(monkeypatch, Group()) == 0
    names = {"data.jsonl", "data.csv", "summary.json", "index.html", "made-rate-wall.svg", "made-rate-wall.png", "lock"}
    assert set(files(out)) == names
    said = capsys.readouterr()
    assert said.out.startswith("made: 3 holds\n\n") and "seed" in said.err
    rows = list(csv.DictReader((out / "data.csv").open()))
    assert len(rows) == 5 * 12 and rows[0]["commit"] == HEADER.commit[:12] and rows[-1]["row"] == "60"
    assert json.loads((out / "summary.json").read_text())["header"]["commit"] == HEADER.commit


def test_same_data_draw_the_same_bytes(out: Path, monkeypatch: pytest.MonkeyPatch):
    report(monkeypatch, Group(), "--seed", "5")
    first = files(out)
    assert report(monkeypatch, Group(), "--draw") == 0
    assert files(out) == first
    # By another Python, too, which orders sets otherwise.
    code = "import test_report_page as t; print(t.digest())"
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == digest()


def test_pictures_hold_no_time_and_no_chance():
    _, pictures = drawn(data_set())
    for text in pictures.values():
        assert "dc:date" not in text
        assert not re.search(r"20\d\d-\d\d-\d\d", text)


def test_page_is_one_well_formed_file_without_links_out():
    text, _ = drawn(data_set())
    found = Balance(text)
    assert found.faults == []
    assert len(found.ids) == len(set(found.ids))
    assert all(link.startswith("#") and link[1:] in found.ids for link in found.links)
    assert found.count["svg"] == 1 and "the <b> & more" in found.text
    names_of_languages = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert "http" not in names_of_languages and "@import" not in text


def test_balance_sees_faults():
    """The check of the check."""
    assert Balance("<p><b>x</p></b>").faults and Balance("<table><tr></table>").faults and Balance("<p>").faults
    assert not Balance("<p><b>x</b></p><meta charset='utf-8'>").faults


def test_goals_come_first():
    text, _ = drawn(data_set())
    order = [text.index(part) for part in ("<h2>Goals", "<h2>Null comparisons", "<h2>made", "<figure")]
    assert order == sorted(order)


def test_goal_that_is_not_met_stands_out_and_its_group_is_counted():
    """The rest is there, to be opened."""
    summary = summarise(data_set(ratio=1.05), [*GOALS, replace(GOALS[0], group="other")], FIGURES)
    assert tally(summary.verdicts) == {"made": {"holds": 2, "missed": 1}, "other": {"not measured": 1}}
    assert [verdict.goal for verdict in unmet(summary.verdicts)] == [GOALS[0]]
    text = page.page(summary, {picture.figure.name: plots.svg(picture) for picture in summary.pictures})
    shown = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
    assert "✘" in shown and "a is as fast as b" in shown and "a is fast" not in shown
    assert "a is fast" in text and Balance(text).faults == []
    lines = run.verdict_lines(summary)
    assert lines[0] == "made: 2 holds, 1 missed" and len(lines) == 2
    assert lines[1].startswith("missed   a is as fast as b: 1.05")


def test_missed_goal_tells_what_is_known_of_it():
    """A goal that holds does not; nor is what was found on an emulator told of a server."""
    server = "root@server, plan cafe"
    for ratio, plan, there in ((1.05, "emulator", True), (1.0, "emulator", False), (1.05, server, False)):
        summary = summarise(data_set(ratio=ratio, plan=plan), [replace(GOALS[0], reason="memory is zeroed"), *GOALS[1:]], FIGURES)
        text = page.page(summary, {picture.figure.name: plots.svg(picture) for picture in summary.pictures})
        assert ("memory is zeroed" in text) == there


@pytest.mark.parametrize(("change", "command"), [
    ({}, "make report G=made"), ({"quick": True}, "make report G=made QUICK=1"),
    ({"plan": "root@server, plan cafe"}, "make report G=made AT=root@server PLAN=FILE"),
])  # fmt: skip
def test_figure_has_the_command_that_measures_it(change: dict, command: str):
    assert f" · {command} · rows" in Balance(drawn(data_set(**change))[0]).text


def test_host_is_busy_by_the_number_of_its_processors():
    for host, busy in (("2 × a processor", True), ("256 × a processor", False)):
        assert ("had other work" in drawn(data_set(load=4.0, host=host))[0]) == busy


@pytest.mark.parametrize("data", [data_set(), data_set(0.5), DataSet(HEADER)], ids=["equal", "half", "none"])
def test_no_nan_and_no_empty_picture(data: DataSet):
    text, pictures = drawn(data)
    for whole in (text, *pictures.values()):
        assert not re.search(r"\b(nan|inf|None)\b", whole)
    assert len(pictures) == bool(data.samples)
    for picture in pictures.values():
        root = ElementTree.fromstring(picture)
        marks = list(root.iter(f"{SVG}use"))
        assert len(marks) >= len(data.samples)
        lines = [path for path in root.iter(f"{SVG}path") if path.get("d")]
        assert len(lines) > 10


def test_nothing_is_drawn_of_nothing():
    picture = summarise(data_set(), GOALS, FIGURES).pictures[0]
    with pytest.raises(ValueError, match="no samples"):
        plots.svg(replace(picture, sides=[]))


def test_one_machine_one_value_and_zeros_are_drawn():
    for values in ([1.0], [0.0, 0.0], [-1.0, 2.0], [1e-6, 5e6]):
        taken = [Sample("g", "c", "s", value, "s", "wall", "m", n, 0) for n, value in enumerate(values)]
        text, pictures = drawn(DataSet(HEADER, taken))
        assert Balance(text).faults == [] and len(pictures) == 1
        assert not re.search(r"\bnan\b", text)


def test_many_machines_have_a_marker_each_time():
    markers = plots.marker_of([f"machine {n}" for n in range(30)])
    assert len(markers) == 30 and len(set(markers.values())) == len(plots.MARKERS)


def test_case_without_a_figure_is_shown_all_the_same():
    data = data_set()
    extra = [replace(s, case="surprise") for s in data.samples]
    summary = summarise(replace(data, samples=[*data.samples, *extra]), GOALS, FIGURES)
    assert [p.figure.case for p in summary.pictures] == ["rate", "surprise"]
    assert [(p.first_row, p.last_row) for p in summary.pictures] == [(1, 75), (76, 150)]


@pytest.mark.parametrize(
    ("change", "word"),
    [({"quick": True}, "QUICK=1"), ({"dirty": "abc"}, "changes that no commit has"), ({"load": 4.0}, "had other work")],
)
def test_reader_is_told_what_spoils_the_data(change: dict, word: str):
    assert word in Balance(drawn(data_set(**change))[0]).text
    assert word not in Balance(drawn(data_set())[0]).text


def test_null_comparison_that_does_not_hold_is_the_first_word():
    text, _ = drawn(data_set(null_ratio=1.3))
    assert text.index("Null comparisons do not all hold") < text.index("<h2>Goals")
    assert "Null comparisons do not all hold" not in drawn(data_set())[0]


def test_report_fails_if_its_null_comparison_does(out: Path, monkeypatch: pytest.MonkeyPatch):
    assert report(monkeypatch, Group(null_ratio=1.3)) == 1
    assert report(monkeypatch, Group(), "--draw") == 0


def test_null_comparison_of_a_quick_run_may_be_open(out: Path, monkeypatch: pytest.MonkeyPatch):
    # The interval spans the bound.
    group = Group(null_ratio=1.09, null_noise=0.03)
    assert report(monkeypatch, group, "--quick") == 0
    assert "open" in (out / "quick" / "index.html").read_text() and group.measured == ["machine 1", "machine 2"]
    assert report(monkeypatch, Group(null_ratio=1.09, null_noise=0.03)) == 1


def test_one_machine_of_a_quick_run_is_not_judged():
    """Its goals are open, and no list of them hides what matters."""
    whole = data_set(ratio=1.05, null_ratio=1.3, quick=True)
    data = replace(whole, samples=[sample for sample in whole.samples if sample.machine == "machine 1"])
    summary = summarise(data, GOALS, FIGURES)
    assert run.verdict_lines(summary) == ["made: 3 open"]
    assert not [text for text in page.warnings(summary) if "Null" in text]
    two = replace(whole, samples=[sample for sample in whole.samples if sample.machine != "machine 1"])
    assert [text for text in page.warnings(summarise(two, GOALS, FIGURES)) if "b, and again: missed" in text]


def test_quick_data_is_not_the_reports(out: Path, monkeypatch: pytest.MonkeyPatch):
    report(monkeypatch, Group())
    before = files(out)
    report(monkeypatch, Group(), "--quick")
    assert files(out) == before and "QUICK=1" in (out / "quick" / "index.html").read_text()


def test_quick_run_beside_a_whole_one_is_refused(out: Path, monkeypatch: pytest.MonkeyPatch):
    """It would disturb it."""
    group = Group()
    whole = group.run

    def run_both(recorder) -> None:
        status.append(run.main(["--quick"]))
        whole(recorder)

    status: list[int] = []
    group.module.run = run_both
    assert report(monkeypatch, group) == 0 and status == [3]
    assert not (out / "quick" / "data.jsonl").exists()


def test_group_that_fails_keeps_no_other_from_being_measured(out: Path, monkeypatch: pytest.MonkeyPatch):
    class Broken(Group):
        def run(self, recorder) -> None:
            with recorder.machine("broken", "machine 1"):
                # As where a pattern does not match what a node says.
                raise TypeError("no QEMU")

    groups = {"broken": Broken(), "made": Group()}
    groups["broken"].module.run = groups["broken"].run
    groups["broken"].module.GOALS = groups["broken"].module.FIGURES = ()
    monkeypatch.setattr(run, "GROUPS", tuple(groups))
    monkeypatch.setattr(run, "module", lambda name: groups[name].module)
    assert run.main([]) == 1
    text = Balance((out / "index.html").read_text()).text
    assert "broken, machine 1: its samples are left out" in text and "no QEMU" in text and "a is as fast as b" in text


def test_machine_that_fails_keeps_no_other_from_being_measured(out: Path, monkeypatch: pytest.MonkeyPatch):
    """It is measured when the report is called again."""
    group = Group(machines=3, fails="machine 2")
    assert report(monkeypatch, group) == 1
    assert group.measured == ["machine 1", "machine 2", "machine 3"]
    assert report(monkeypatch, group) == 0
    assert group.measured[3:] == ["machine 2"]


def test_goal_of_what_was_not_measured_is_shown_open(out: Path, monkeypatch: pytest.MonkeyPatch):
    assert report(monkeypatch, Group(machines=0)) == 0
    text = Balance((out / "index.html").read_text()).text
    assert text.count("open: not measured") == len(GOALS)


def test_wrong_words_are_told_with_the_right_ones(out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    assert report(monkeypatch, Group(), "nothing") == 2
    assert "nothing is no group: give some of made" in capsys.readouterr().err
    assert report(monkeypatch, Group(), "--draw") == 1
    assert "measure first (make report)" in capsys.readouterr().err


def test_run_that_is_interrupted_says_how_to_go_on(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    assert report(monkeypatch, Group(dies_before=20)) == 1
    assert "goes on when it is called again" in capsys.readouterr().err
    assert report(monkeypatch, Group()) == 0


def test_second_run_is_refused(out: Path, monkeypatch: pytest.MonkeyPatch):
    with run.Recorder(out / "data.jsonl", HEADER):
        assert report(monkeypatch, Group()) == 3


def test_numbers_are_short_and_keep_their_digits():
    assert [number(v) for v in (0.0, 0.00123, 0.128, 1.0, 0.999, 2.55, 50.25, 288.4, 5736.2, None)] == [
        "0", "0.0012", "0.128", "1", "0.999", "2.55", "50.25", "288", "5736", "–",
    ]  # fmt: skip


def test_interval_shows_how_well_it_is_known():
    def text(low, middle, high) -> str:
        return written(Interval(low, middle, high, 5, 25))

    assert text(0.99951, 1.00002, 1.0005) == "1.00002 [0.99951 … 1.00050]"
    assert text(0.212, 0.26, 0.31) == "0.260 [0.212 … 0.310]"
    assert text(261.2, 288.3, 309.9) == "288 [261 … 310]"
    assert text(2.0, 2.0, 2.0) == "2 [2 … 2]" and text(None, 0.5, None) == "0.5" and written(None) == "–"


def test_sides_are_in_the_figures_order():
    summary = summarise(data_set(), (), (Figure("made", "rate", "t", "MB/s", {"b": "B", "a": "A"}),))
    assert [side.label for side in summary.pictures[0].sides] == ["B", "A", "b again"]
