# SPDX-License-Identifier: Apache-2.0
"""make evidence: what was run on the rig, and how it ended, as a table in docs/evidence.md.

usage: evidence.py [--output FILE] [RESULTS.xml…]

Reads the results files that runs leave (default: build/rig/results*.xml, and those that were kept
of whole runs of other clones: ~/.cache/mint/results). One row a run:
a later one replaces an earlier one; the row of a run whose file is not here stays. A run
of a part of the tests, or by hand, makes no row.
Exit: 0 done, 1 a file is no results file, 2 usage.
"""

import argparse
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from rig.paths import PROJECT, RESULTS, RIG

HEAD = """<!-- SPDX-License-Identifier: Apache-2.0 -->
# Evidence

The last whole run of each kind, written by `make evidence` out of the runs' own results. A
`+` behind a commit: the tree had changes. "failed" counts lost machines, too.

"""


@dataclass(frozen=True)
class Row:
    """One run."""

    run: str
    kernel: str
    commit: str
    passed: str
    failed: str
    skipped: str
    minutes: str
    date: str  # ISO 8601, UTC or as the machine's clock says it


class NoResults(Exception):
    """A file is not what a run leaves."""


def read(path: Path) -> Row | None:
    """The row of a results file; None if it is of a part of the tests."""
    try:
        suite = next(ElementTree.parse(path).getroot().iter("testsuite"), None)
    except (ElementTree.ParseError, OSError) as error:
        raise NoResults(f"{path}: {error}") from error
    if suite is None:
        raise NoResults(f"{path}: it has no testsuite")
    said = {p.get("name"): p.get("value", "") for p in suite.iterfind("properties/property")}
    missing = {"run", "part", "kernel", "commit"} - said.keys()
    if missing:
        raise NoResults(f"{path}: it does not say its {', '.join(sorted(missing))}: written without -p rig.record?")
    if said["part"] or said["run"] == "by hand":
        return None
    count = {name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")}
    failed = count["failures"] + count["errors"]
    commit = said["commit"]
    return Row(
        said["run"],
        said["kernel"],
        commit[:12] + ("+" if commit.endswith("+") else ""),
        str(count["tests"] - failed - count["skipped"]),
        str(failed),
        str(count["skipped"]),
        f"{float(suite.get('time', '0')) / 60:.0f}",
        suite.get("timestamp", "")[:16],
    )


def known(text: str) -> list[Row]:
    """The rows of a document that was written here."""
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == len(fields(Row)) and not re.fullmatch("-+", cells[0]):
            rows.append(Row(*cells))
    return rows[1:]  # the first one is the head


def merge(old: list[Row], new: list[Row]) -> list[Row]:
    """One row a run, the latest; by name."""
    latest: dict[str, Row] = {}
    for row in [*old, *new]:
        if row.run not in latest or latest[row.run].date <= row.date:
            latest[row.run] = row
    return [latest[run] for run in sorted(latest)]


def document(rows: list[Row]) -> str:
    """The whole text."""
    names = [field.name for field in fields(Row)]
    lines = [names, ["---"] * len(names), *map(astuple, rows)]
    return HEAD + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser("evidence", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, default=PROJECT / "docs" / "evidence.md")
    parser.add_argument("results", nargs="*", type=Path)
    options = parser.parse_args()
    results = options.results or sorted([*RIG.glob("results*.xml"), *RESULTS.glob("*.xml")])
    rows = []
    try:
        for path in results:
            if (row := read(path)) is None:
                print(f"evidence: {path} is of a part of the tests: no row", file=sys.stderr)
            else:
                rows.append(row)
    except NoResults as error:
        print(f"evidence: {error}", file=sys.stderr)
        return 1
    if not rows:
        print("evidence: no whole run left results here: make test, make test-debug, make soak", file=sys.stderr)
        return 1
    old = known(options.output.read_text()) if options.output.exists() else []
    options.output.write_text(document(merge(old, rows)))
    print(f"evidence: {options.output}: {', '.join(row.run for row in rows)}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
