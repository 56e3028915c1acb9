# SPDX-License-Identifier: Apache-2.0
"""make report: measure, judge, draw.

usage: python -m report.run [--quick] [--seed N] [--draw] [--at SERVER --plan FILE] [GROUP…]   (default: all groups; --quick: those that are quick)

Writes build/report/ (--quick: build/report/quick/): data.jsonl, data.csv, summary.json,
index.html, and each picture as SVG and PNG. A run that was cut goes on where it stopped.
--draw measures nothing: it draws again what is there.
--at measures on a real server over ssh, with what the plan names of it, and writes to
build/report/SERVER/. It stops where another boot is needed, and goes on in that.

Exit: 0 done, whatever the goals' verdicts; 1 something was not measured, or a null comparison
does not hold (--quick: is missed; --draw: asks for neither); 2 usage, or no plan; 3 another run
writes there or is on the server, or the plan is not one for this server; 4 the rest takes another boot of the server.
"""

import argparse
import csv
import importlib
import json
import random
import subprocess
import sys
import time
from pathlib import Path

from report import at, facts, page, plots
from report.figure import written
from report.goals import HOLDS, MISSED, NOT_HERE, NOT_MEASURED, WORDS, tally, unmet
from report.recorder import Recorder, Refused, read
from report.samples import DataSet, SampleError
from report.summary import Summary, as_json, summarise
from report.tries import measured
from rig import paths
from rig.errors import RigError
from rig.plan import BadPlan

GROUPS = ("configs", "start", "ready", "partition", "network", "moves", "migrate",
          "split", "split_moves", "split_sort", "split_cache", "layout", "isolation", "scaling")  # fmt: skip
# Of these a quick run takes minutes each, too: it measures those that are named.
SLOW = ("migrate", "split", "split_moves", "split_sort", "split_cache", "layout")
OUT = paths.BUILD / "report"
ANOTHER_BOOT = 4


def module(group: str):
    """What measures a group: run(recorder), GOALS, FIGURES, and HEATMAPS if it has some."""
    return importlib.import_module(f"figures_{group}")


def say(text: str) -> None:
    """To who waits for it."""
    print(f"report: {text}", file=sys.stderr, flush=True)


def every(quick: bool) -> list[str]:
    """Groups that are measured if none is named."""
    return [group for group in GROUPS if not (quick and group in SLOW)]


def measure(recorder: Recorder, groups: list[str]) -> bool:
    """Each group; one that fails keeps no other from being measured. Gives whether none did."""
    good = True
    for group in groups:
        say(f"group {group}")
        begin = time.monotonic()
        good &= measured(recorder, group, lambda group=group: module(group).run(recorder), say)
        say(f"group {group} took {time.monotonic() - begin:.0f} s")
    return good


def write_csv(path: Path, summary: Summary) -> None:
    """All samples as a table; the first row below its heads is row 1 of the page."""
    heads = ["row", "group", "case", "side", "value", "unit", "clock", "machine", "round", "order", "commit"]
    with path.open("w", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(heads)
        for row, s in enumerate(summary.rows, 1):
            lines.writerow(
                [
                    row,
                    s.group,
                    s.case,
                    s.side,
                    repr(s.value),
                    s.unit,
                    s.clock,
                    s.machine,
                    s.round,
                    s.order,
                    summary.header.tree,
                ]
            )


def draw(folder: Path, data: DataSet) -> Summary:
    """All files of a report but its data."""
    # All of them: a reader is to see what was not measured.
    modules = [module(group) for group in GROUPS]
    summary = summarise(
        data,
        [goal for one in modules for goal in one.GOALS],
        [figure for one in modules for figure in one.FIGURES],
        [heatmap for one in modules for heatmap in getattr(one, "HEATMAPS", ())],
    )
    for old in [*folder.glob("*.svg"), *folder.glob("*.png")]:
        old.unlink()
    pictures = {}
    named = {picture.figure.name: picture for picture in summary.pictures}
    for name, picture in (named | {grid.heatmap.name: grid for grid in summary.grids}).items():
        pictures[name] = plots.svg(picture)
        (folder / f"{name}.svg").write_text(pictures[name])
        (folder / f"{name}.png").write_bytes(plots.png(picture))
    write_csv(folder / "data.csv", summary)
    (folder / "summary.json").write_text(json.dumps(as_json(summary), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    (folder / "index.html").write_text(page.page(summary, pictures))
    return summary


def verdict_lines(summary: Summary) -> list[str]:
    """The verdicts, for a terminal: counts of each group, then what does not hold."""
    lines = []
    for group, words in tally(summary.verdicts).items():
        if set(words) - {NOT_HERE, NOT_MEASURED}:
            lines.append(f"{group}: " + ", ".join(f"{words[word]} {word}" for word in WORDS if words[word]))
    for verdict in unmet(summary.verdicts):
        why = f" ({verdict.why})" if verdict.why else ""
        lines.append(
            f"{verdict.word:8} {verdict.goal.name}: {written(verdict.found)}, goal {verdict.goal.bounds()},"
            f" {verdict.goal.clock}{why}"
        )
    return lines


def main(words: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser("report", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer machines and rounds, marked as such")
    parser.add_argument("--seed", type=int, help="of the order of turns (default: that of the data, or by chance)")
    parser.add_argument("--draw", action="store_true", help="draw again, measure nothing")
    parser.add_argument("--at", metavar="SERVER", help="measure on this server, by what ssh takes for it: root@server")
    parser.add_argument("--plan", metavar="FILE", type=Path, help="what of the server may be used (docs/report-plan.toml)")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    options = parser.parse_args(words)
    if unknown := [name for name in options.groups if name not in GROUPS]:
        print(f"report: {unknown[0]} is no group: give some of {', '.join(GROUPS)}, or none for all", file=sys.stderr)
        return 2
    if bool(options.at) != bool(options.plan) and not (options.draw and options.at):
        print("report: --at and --plan go together: a server, and what of it may be used", file=sys.stderr)
        return 2
    folder = OUT / at.folder_name(options.at) if options.at else OUT
    folder = folder / "quick" if options.quick else folder
    path = folder / "data.jsonl"
    groups = options.groups or every(options.quick)
    good, left = True, set()
    try:
        if not options.draw:
            seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
            there = at.prepare(options.at, options.plan) if options.at else None
            header = there.header(options.quick, seed) if there else facts.header(options.quick, seed)
            # A quick run beside a whole one would disturb it.
            lock = None if there else OUT / "lock"
            OUT.mkdir(parents=True, exist_ok=True)
            with Recorder(path, header, keep_seed=options.seed is None, lock=lock) as into:
                for text in into.said:
                    say(text)
                say(f"the turns' seed is {into.header.seed}")
                if there:
                    good, left = there.measure(into, [module(group) for group in groups], say)
                else:
                    good = measure(into, groups)
        summary = draw(folder, read(path))
    except KeyboardInterrupt:
        print("report: interrupted; it goes on when it is called again", file=sys.stderr)
        return 1
    except BadPlan as error:
        print(f"{error}\nreport: nothing was written", file=sys.stderr)
        return error.status
    except Refused as error:
        print(f"report: {error}", file=sys.stderr)
        return 3
    except FileNotFoundError as error:
        hint = ": measure first (make report)" if error.filename == str(path) else ""
        print(f"report: {error}{hint}", file=sys.stderr)
        return 1
    except (RigError, SampleError, subprocess.CalledProcessError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    print(*verdict_lines(summary), sep="\n")
    for text in page.warnings(summary):
        say(text)
    print(f"\n{folder / 'index.html'}")
    if options.draw:
        return 0
    nulls = {verdict.word for verdict in summary.verdicts if verdict.goal.null and verdict.found}
    # Few machines leave an interval wide, or none: a quick run is not blamed for that.
    broken = MISSED in nulls if options.quick else bool(nulls - {HOLDS})
    if not good or (broken and not left):
        return 1
    if left:
        say(at.next_boot(options.at, there.has.boot, left))
        return ANOTHER_BOOT
    return 0


if __name__ == "__main__":
    sys.exit(main())
