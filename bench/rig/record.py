# SPDX-License-Identifier: Apache-2.0
"""pytest plugin (`-p rig.record`): a run's results file says what was run.

Properties of the JUnit file: `run` (test, lockdep, soak…), `part` (what of it was
chosen; empty: all), `kernel` (flavour of the nodes' kernel), `commit` (with "+" when the
tree had changes). bench/evidence.py reads them. A copy of a whole run's file outlives the clone that it was of.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from rig.machine import DEFAULT_FLAVOUR
from rig.paths import PROJECT, RESULTS


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of make's rules."""
    parser.addoption("--run-name", default="", help="what this run is called in the results (default: by hand)")
    parser.addoption("--run-part", default="", help="what of it was chosen")


def git(*words: str) -> str:
    """git's answer in the project; "" where there is no git."""
    done = subprocess.run(["git", "-C", PROJECT, *words], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def facts(config: pytest.Config) -> dict[str, str]:
    """What is run: names and values of the properties."""
    run, part = config.getoption("--run-name"), config.getoption("--run-part")
    if not run:
        # Not one of make's rules: whatever was chosen by pytest's own words.
        run, part = "by hand", part or config.getoption("keyword") or " ".join(config.args)
    changed = "+" if git("status", "--porcelain") else ""
    return {"run": run, "part": part, "kernel": DEFAULT_FLAVOUR, "commit": git("rev-parse", "HEAD") + changed}


@pytest.fixture(scope="session", autouse=True)
def recorded(request: pytest.FixtureRequest, record_testsuite_property) -> None:
    """Writes the facts, as they are when the run begins, into the results file."""
    for name, value in facts(request.config).items():
        record_testsuite_property(name, value)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Once the results file is written: of a whole run that came to its end a copy is kept."""
    said, path = facts(session.config), session.config.getoption("xmlpath", None)
    if path and not said["part"] and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        RESULTS.mkdir(parents=True, exist_ok=True)
        new = RESULTS / f".{said['run']}.new"
        shutil.copyfile(Path(path), new)
        new.rename(RESULTS / f"{said['run']}.xml")
