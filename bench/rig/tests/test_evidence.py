# SPDX-License-Identifier: Apache-2.0
"""The table of runs: made of what pytest itself writes."""

import subprocess
import sys
from pathlib import Path

import pytest

import evidence
from rig.paths import PROJECT

TESTS = """
import pytest

def test_good():
    pass

def test_bad():
    assert False

@pytest.fixture
def broken():
    raise OSError

def test_without_its_fixture(broken):
    pass

@pytest.mark.skip
def test_skipped():
    pass
"""


def run_pytest(folder: Path, *words: str) -> Path:
    """The results file of a run of TESTS by pytest, recorded."""
    (folder / "test_these.py").write_text(TESTS)
    results = folder / "results.xml"
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "rig.record", "-p", "no:cacheprovider", f"--junitxml={results}",
         f"--rootdir={folder}", *words, folder / "test_these.py"],
        env={"PYTHONPATH": str(PROJECT / "bench"), "PATH": "/usr/bin:/bin", "MINT_RIG_FLAVOUR": "kasan",
             "MINT_CACHE": str(folder / "cache")},
        capture_output=True, check=False,
    )  # fmt: skip
    return results


def row(run: str, date: str, passed: str = "1") -> evidence.Row:
    """Some row."""
    return evidence.Row(run, "mint", "0123456789ab", passed, "0", "0", "3", date)


def test_row_counts_what_pytest_counted(tmp_path: Path):
    results = run_pytest(tmp_path, "--run-name=kasan")
    found = evidence.read(results)
    assert (found.run, found.kernel) == ("kasan", "kasan")
    # A test whose fixture failed has failed.
    assert (found.passed, found.failed, found.skipped) == ("1", "2", "1")
    head = subprocess.run(["git", "-C", PROJECT, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert found.commit.rstrip("+") == head.stdout[:12]
    assert len(found.date) == len("2000-01-01T00:00")
    # It outlives the clone.
    assert (tmp_path / "cache" / "results" / "kasan.xml").read_bytes() == results.read_bytes()


@pytest.mark.parametrize("words", [("--run-name=test", "--run-part=moves"), ("-k", "good"), ()])
def test_part_of_the_tests_makes_no_row(tmp_path: Path, words: tuple[str, ...]):
    assert evidence.read(run_pytest(tmp_path, *words)) is None
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("text", ["", "<x/>", "<testsuites><testsuite tests='1'/></testsuites>"])
def test_file_that_no_run_wrote_is_named(tmp_path: Path, text: str):
    path = tmp_path / "results.xml"
    path.write_text(text)
    with pytest.raises(evidence.NoResults, match="results.xml"):
        evidence.read(path)


def test_rows_are_read_back_as_written():
    rows = [row("soak", "2001-01-01T00:00"), row("test", "2001-01-02T00:00", passed="90")]
    assert evidence.known(evidence.document(rows)) == rows
    assert evidence.known("") == []


def test_later_run_replaces_an_earlier_one_and_others_stay():
    old = [row("kasan", "2001-01-01T00:00"), row("test", "2001-01-01T00:00")]
    new = [row("test", "2001-02-01T00:00", passed="7"), row("kasan", "2000-01-01T00:00", passed="9")]
    assert evidence.merge(old, new) == [old[0], new[0]]
