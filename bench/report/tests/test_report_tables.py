# SPDX-License-Identifier: Apache-2.0
"""Tables in documents are what a report says, or make lint fails."""

import json
import subprocess
from pathlib import Path

import pytest

from made_data import FIGURES, GOALS, data_set
from report import tables
from report.summary import as_json, summarise

DOCUMENT = """# A document

<!-- made: goals made -->
OUTDATED
<!-- /made -->

Between, `<!-- made: nothing -->` in a line is none.
<!-- made: figure made-rate-wall --><!-- /made -->
<!-- made: measured -->
<!-- /made -->
The end.
"""


def summary(**more) -> dict:
    return as_json(summarise(data_set(**more), GOALS, FIGURES))


def test_tables_are_made_between_their_marks():
    text = tables.fill(DOCUMENT, summary())
    assert "OUTDATED" not in text and text.startswith("# A document\n") and text.endswith("<!-- /made -->\nThe end.\n")
    assert "\nBetween, `<!-- made: nothing -->`" in text and text.count("<!-- /made -->") == 3
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(GOALS) + 2 + 3
    assert all(row.count("|") == 6 for row in rows)
    assert (
        "| a is as fast as b | 1.00 ± 0.02 | " in text
        and "null: b, and again" in text
        and "Commit 0123456789ab, QEMU" in text
    )


def test_judged_goals_are_those_of_this_place_without_null_comparisons():
    text = tables.fill("<!-- made: judged made -->\n<!-- /made -->\n", summary())
    assert [line.split(" | ")[0] for line in text.splitlines()[3:-1]] == ["| a is as fast as b", "| a is fast"]
    elsewhere = summary()
    elsewhere["goals"][0]["verdict"] = "not here"
    assert "as fast as" not in tables.fill("<!-- made: judged made -->\n<!-- /made -->\n", elsewhere)
    assert "relied" in tables.fill("<!-- made: judged made -->\n<!-- /made -->\n", summary(null_ratio=1.3))


def test_filling_again_changes_nothing():
    text = tables.fill(DOCUMENT, summary())
    assert tables.fill(text, summary()) == text and tables.fault(text, summary()) == ""


def test_number_that_was_changed_by_hand_is_a_fault():
    text = tables.fill(DOCUMENT, summary())
    assert tables.fault(text.replace("| holds |", "| missed |", 1), summary())
    assert tables.fault(text, summary(ratio=0.9))
    assert tables.fault("no marks\n", None) == ""


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("<!-- made: goals -->\n", "has no"),
        ("<!-- made: goals -->\n<!-- made: goals -->\n<!-- /made -->\n", "has no"),
        ("<!-- made: other -->\n<!-- /made -->\n", "measured, goals, judged, figure"),
        ("<!-- made: judged made other -->\n<!-- /made -->\n", "there is no group 'other': made"),
        ("<!-- made: goals other -->\n<!-- /made -->\n", "there is no group 'other': made"),
        ("<!-- made: figure other -->\n<!-- /made -->\n", "there is no figure 'other': made-rate-wall"),
    ],
)
def test_mark_that_cannot_be_filled_is_named(text: str, word: str):
    assert word in tables.fault(text, summary()) and "<!-- made: " in tables.fault(text, summary())


def test_marks_without_a_summary_are_a_fault():
    assert "make report" in tables.fault(DOCUMENT, None)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with such a document."""
    monkeypatch.setattr(tables, "TOP", tmp_path)
    monkeypatch.setattr(tables, "SUMMARY", tmp_path / "docs" / "figures" / "summary.json")
    (tmp_path / "a.md").write_text(DOCUMENT)
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", "-C", tmp_path, *words], check=True)
    return tmp_path


def written(path: Path, **more) -> str:
    path.write_text(json.dumps(summary(**more)))
    return str(path)


def test_summary_is_taken_over_and_documents_filled(tree: Path):
    assert tables.main([]) == 1
    assert tables.main([written(tree / "s.json")]) == 0
    assert json.loads(tables.SUMMARY.read_text()) == json.loads(json.dumps(summary()))
    assert tables.fault((tree / "a.md").read_text(), tables.load()) == ""
    assert tables.main([]) == 0


def of_group(group: str, commit: str, **more) -> dict:
    """A summary of the same goals and figures, by another name; of another commit."""
    made = json.loads(json.dumps(summary(**more)).replace('"made"', f'"{group}"').replace('"made-', f'"{group}-'))
    made["groups"][group]["commit"] = made["header"]["commit"] = commit
    return made


def test_group_that_was_not_measured_again_stays_with_what_it_was_measured_on(tree: Path):
    """Two groups measured on two commits: the second report knows both groups' goals, and has measured one."""
    first, second = of_group("one", "a" * 40), of_group("two", "b" * 40)
    unknown = [goal | {"found": None, "verdict": "not measured"} for goal in first["goals"]]
    both = tables.merged(first, second | {"goals": [*unknown, *second["goals"]]})
    assert both["goals"] == [*first["goals"], *second["goals"]]
    assert both["figures"] == [*first["figures"], *second["figures"]]
    assert {group: header["commit"][0] for group, header in both["groups"].items()} == {"one": "a", "two": "b"}
    text = tables.measured(both, "")
    assert "`one`: commit aaaaaaaaaaaa, QEMU" in text and "`two`: commit bbbbbbbbbbbb, QEMU" in text
    assert tables.measured(both, "two").startswith("Commit bbbbbbbbbbbb, QEMU")
    # measured again, a group has nothing of before
    again = of_group("one", "c" * 40, ratio=0.9)
    assert tables.merged(both, again)["groups"]["one"]["commit"][0] == "c"
    assert [one for one in tables.merged(both, again)["figures"] if one["group"] == "one"] == again["figures"]
    assert tables.merged(first | {"place": "server"}, second) == second


@pytest.mark.parametrize(
    ("more", "word"),
    [({"quick": True}, "quick run"), ({"dirty": "abc"}, "had changes")],
)
def test_summary_that_is_not_to_be_quoted_is_refused(tree: Path, capsys: pytest.CaptureFixture, more: dict, word: str):
    assert tables.main([written(tree / "s.json", **more)]) == 3
    assert word in capsys.readouterr().err
    assert not tables.SUMMARY.exists() and (tree / "a.md").read_text() == DOCUMENT


def test_null_comparison_that_does_not_hold_stands_before_its_groups_tables(tree: Path):
    assert tables.main([written(tree / "s.json", null_ratio=1.3)]) == 0
    text = (tree / "a.md").read_text()
    assert text.count("Nothing of `made` is to be relied on: b, and again: missed.\n\n| ") == 2
    assert "relied" not in tables.fill(DOCUMENT, summary())


def test_missing_summary_is_told(tree: Path, capsys: pytest.CaptureFixture):
    assert tables.main([str(tree / "none.json")]) == 1
    assert "make report" in capsys.readouterr().err
