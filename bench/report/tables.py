# SPDX-License-Identifier: Apache-2.0
"""make report-tables: the tables of README and docs, between marks, out of a report.

usage: python -m report.tables [SUMMARY.json]

With a file (make report-tables TAKE=1: that of make report) it first takes over what that has measured, into
docs/figures/summary.json: groups that it has not stay as they are, each with what it was measured on. Then it fills what stands between marks in every document; each begins a line:

<!-- made: measured GROUP … --> what these groups were measured on; without GROUP: all that were
<!-- made: goals GROUP -->     a group's goals with their verdicts; without GROUP: all
<!-- made: judged GROUP … -->  these groups' goals that were judged, in one table, without null comparisons
<!-- made: figure NAME -->     a figure's sides (NAME: of its SVG)
<!-- /made -->

Where a group's null comparison does not hold, that stands before its table. make lint fails where a table is
not what would be filled in. Exit: 0 done, 1 failed, 3 refused: a quick run's summary, or one of a tree with changes.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

from report.figure import number, written
from report.goals import NOT_HERE
from report.stats import Interval

TOP = Path(__file__).resolve().parents[2]
SUMMARY = TOP / "docs" / "figures" / "summary.json"
BEGIN, END = re.compile(r"^<!-- made: (.+?) -->", re.MULTILINE), "<!-- /made -->"


class TableError(Exception):
    """A mark that cannot be filled; the text names it and the way out."""


def markdown(heads: list[str], rows: list[list[str]]) -> str:
    """A table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def interval(found: dict | None) -> str:
    """As the page writes it."""
    return written(Interval(**found) if found else None)


def measured(summary: dict, groups: str) -> str:
    """What it was measured on: groups that were measured together, in one sentence."""
    known = [name for name in groups.split() or summary["groups"] if name in summary["groups"]]
    said: dict[str, list[str]] = {}
    for name in known:
        header = summary["groups"][name]
        measured_on = ", ".join(filter(None, (header["qemu"], header["host"])))
        said.setdefault(f"ommit {header['commit'][:12]}, {measured_on}; {summary['place']}.", []).append(f"`{name}`")
    if not said:
        raise TableError(f"none of these was measured: {', '.join(summary['groups'])} were")
    if len(said) == 1:
        return f"C{next(iter(said))}"
    return "\n\n".join(f"{', '.join(names)}: c{text}" for text, names in said.items())


def doubt(summary: dict, group: str) -> str:
    """What stands before a group's table if its null comparisons do not hold."""
    why = summary["doubts"].get(group)
    return f"Nothing of `{group}` is to be relied on: {'; '.join(why)}.\n\n" if why else ""


def goals(summary: dict, group: str) -> str:
    """Goals with their verdicts, the null comparisons behind them."""
    taken = [goal for goal in summary["goals"] if group in ("", goal["group"])]
    if not taken:
        raise TableError(f"there is no group {group!r}: {', '.join(dict.fromkeys(g['group'] for g in summary['goals']))}")
    rows = [
        [
            ("null: " if goal["null"] else "") + goal["name"],
            goal["bounds"],
            interval(goal["found"]),
            goal["verdict"],
            goal["clock"],
        ]
        for goal in sorted(taken, key=lambda goal: goal["null"])
    ]
    return doubt(summary, group) + markdown(["goal", "bounds", "found [95 %]", "verdict", "clock"], rows)


def judged(summary: dict, groups: str) -> str:
    """Goals of several groups that this place can judge, in short."""
    names = groups.split()
    for name in names or [""]:
        goals(summary, name)  # raises TableError where there is none
    doubts = "".join(doubt(summary, name) for name in names)
    rows = [
        [goal["name"], goal["bounds"], interval(goal["found"]), goal["verdict"]]
        for name in names
        for goal in summary["goals"]
        if goal["group"] == name and goal["found"] and not goal["null"] and goal["verdict"] != NOT_HERE
    ]
    return doubts + markdown(["goal", "bounds", "found [95 %]", "verdict"], rows)


def figure(summary: dict, name: str) -> str:
    """A figure's sides."""
    found = [one for one in summary["figures"] if one["name"] == name]
    if not found:
        raise TableError(f"there is no figure {name!r}: {', '.join(one['name'] for one in summary['figures'])}")
    rows = [
        [side["label"], number(side["median"]), f"{number(side['lowest'])} … {number(side['highest'])}",
         interval(side["found"]), f"{side['found']['machines']}, {side['found']['samples']}"]
        for side in found[0]["sides"]
    ]  # fmt: skip
    title = f"{found[0]['title']}, {found[0]['unit']} ({found[0]['clock']})"
    return doubt(summary, found[0]["group"]) + markdown([title, "median", "lowest … highest", "middle of machines [95 %]", "machines, samples"], rows)


MAKERS = {"measured": measured, "goals": goals, "judged": judged, "figure": figure}


def fill(text: str, summary: dict | None) -> str:
    """The document with its tables made anew. Raises TableError that names the mark."""
    parts, place = [], 0
    while begin := BEGIN.search(text, place):
        end, following = text.find(END, begin.end()), BEGIN.search(text, begin.end())
        if end < 0 or (following and following.start() < end):
            raise TableError(f"{begin[0]} has no {END}")
        if summary is None:
            raise TableError(f"{begin[0]}: there is no {SUMMARY.relative_to(TOP)}: make report, make report-tables TAKE=1")
        kind, _, which = begin[1].partition(" ")
        if kind not in MAKERS:
            raise TableError(f"{begin[0]}: made can be {', '.join(MAKERS)}")
        try:
            made = MAKERS[kind](summary, which)
        except TableError as error:
            raise TableError(f"{begin[0]}: {error}") from error
        parts += [text[place : begin.end()], f"\n{made}\n", END]
        place = end + len(END)
    return "".join(parts) + text[place:]


def fault(text: str, summary: dict | None) -> str:
    """Why a document's tables are not what would be filled in; "" if they are."""
    try:
        return "" if fill(text, summary) == text else "a made table is not what the summary says: make report-tables"
    except TableError as error:
        return str(error)


def load(path: Path | None = None) -> dict | None:
    """A summary, by default the documents'; None if there is none."""
    path = path or SUMMARY
    return json.loads(path.read_text()) if path.exists() else None


def merged(old: dict | None, new: dict) -> dict:
    """What stands in documents, with what a report has measured in the place of what there was of its groups."""
    if old is None or old["place"] != new["place"]:
        return new
    before = {(goal["group"], goal["name"]): goal for goal in old["goals"] if goal["group"] not in new["groups"]}

    def kept(part: str) -> list[dict]:
        return [*(one for one in old[part] if one["group"] not in new["groups"]), *new[part]]

    return new | {
        "groups": old["groups"] | new["groups"],
        "doubts": {group: why for group, why in old["doubts"].items() if group not in new["groups"]} | new["doubts"],
        # what there is to judge is as the report says, also of groups that it has not measured
        "goals": [before.get((goal["group"], goal["name"]), goal) for goal in new["goals"]],
        "figures": kept("figures"),
        "maps": kept("maps"),
        "absent": kept("absent"),
    }


def why_not(summary: dict) -> list[str]:
    """Why a summary is not to stand in documents."""
    header = summary["header"]
    return [
        *(["it is of a quick run: make report without QUICK"] if header["quick"] else []),
        *(["its tree had changes: commit them, make report"] if header["dirty"] else []),
    ]


def main(words: list[str] | None = None) -> int:
    """Entry point."""
    words = sys.argv[1:] if words is None else words
    if words:
        if (taken := load(Path(words[0]))) is None:
            print(f"report: {words[0]} is not there: make report", file=sys.stderr)
            return 1
        if why := why_not(taken):
            print(*(f"report: {words[0]} is not taken over: {text}" for text in why), sep="\n", file=sys.stderr)
            return 3
        SUMMARY.parent.mkdir(parents=True, exist_ok=True)
        SUMMARY.write_text(json.dumps(merged(load(), taken), indent=1, ensure_ascii=False) + "\n")
    summary, good = load(), True
    listing = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=TOP, check=True, capture_output=True, text=True)
    for path in (TOP / name for name in listing.stdout.split("\0") if name):
        text = path.read_text()
        try:
            new = fill(text, summary)
        except TableError as error:
            print(f"report: {path.relative_to(TOP)}: {error}", file=sys.stderr)
            good = False
            continue
        if new != text:
            path.write_text(new)
            print(f"report: {path.relative_to(TOP)} is filled anew", file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
