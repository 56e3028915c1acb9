# SPDX-License-Identifier: Apache-2.0
"""index.html: one file that needs no other, goals first: pure."""

import re
from html import escape
from statistics import median

from report.figure import number, written
from report.goals import HOLDS, MISSED, NOT_HERE, OPEN, WORDS, Verdict, doubts, tally, unmet
from report.summary import Grid, Picture, Summary

SIGNS = {HOLDS: "✔", MISSED: "✘", OPEN: "?", NOT_HERE: "–"}
STYLE = """
body { font: 15px/1.5 sans-serif; color: #202020; background: #fff; max-width: 62em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: .6em 0 } th, td { padding: .15em .8em .15em 0; text-align: left; vertical-align: top }
th { border-bottom: 1px solid #888 } tr + tr td { border-top: 1px solid #ddd }
td.n { text-align: right; font-variant-numeric: tabular-nums }
p.warning { border: 2px solid #202020; padding: .5em .8em } .facts { color: #555; font-size: 90% }
figure { margin: 1.6em 0 } svg { max-width: 100%; height: auto } h2 { margin-top: 2em }
"""
KEY = """<p class="facts">Each mark is a sample, each kind of mark a machine. The thick line is where the middle is with
95 % confidence, by how machines differ; the stroke across it is the middle. Hatched: the goal.</p>"""


def table(heads: list[str], rows: list[list[str]], classes: dict[int, str] | None = None) -> str:
    """A table of texts; classes: of a column's cells."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    lines = [f"<table><thead><tr>{head}</tr></thead><tbody>"]
    for row in rows:
        cells = ""
        for column, text in enumerate(row):
            style = (classes or {}).get(column, "")
            cells += f'<td class="{style}">{escape(text)}</td>' if style else f"<td>{escape(text)}</td>"
        lines.append(f"<tr>{cells}</tr>")
    return "\n".join([*lines, "</tbody></table>"])


def goals(verdicts: list[Verdict]) -> str:
    """The goals' table."""
    heads = ["", "verdict", "goal", "bounds", "found [95 %]", "clock", "machines", "samples"]
    rows = []
    for verdict in verdicts:
        goal, found = verdict.goal, verdict.found
        word = verdict.word + (f": {verdict.why}" if verdict.why else "")
        counts = [str(found.machines), str(found.samples)] if found else ["0", "0"]
        rows.append([SIGNS[verdict.word], word, goal.name, goal.bounds(), written(found), goal.clock, *counts])
    return table(heads, rows, {6: "n", 7: "n"})


def glance(verdicts: list[Verdict]) -> str:
    """How the goals of each group ended, null comparisons apart."""
    rows = [[group, *(str(words[word] or "") for word in WORDS)] for group, words in tally(verdicts).items()]
    return table(["group", *WORDS], rows, dict.fromkeys(range(1, len(WORDS) + 1), "n"))


def by_group(verdicts: list[Verdict]) -> str:
    """All goals, each group's to be opened."""
    groups = dict.fromkeys(verdict.goal.group for verdict in verdicts)
    return "\n".join(
        f"<details><summary>All goals of {escape(group)}</summary>"
        + goals([verdict for verdict in verdicts if verdict.goal.group == group])
        + "</details>"
        for group in groups
    )


def warnings(summary: Summary) -> list[str]:
    """What a reader must know before a number."""
    found = []
    if why := doubts(summary.verdicts, summary.header.quick):
        of = "; ".join(f"{group}: {', '.join(texts)}" for group, texts in why.items())
        found.append(f"Null comparisons do not all hold; what was measured beside them is not to be trusted. {of}.")
    if summary.header.quick:
        found.append("QUICK=1: fewer machines and rounds than a report has. Not to be quoted.")
    if summary.header.dirty:
        found.append("The tree had changes that no commit has. Not to be quoted.")
    if summary.header.load > max(1, summary.header.cpus / 8):
        found.append(f"The host had other work when this began (load {summary.header.load:.1f}).")
    for (group, machine), why in summary.cut.items():
        found.append(f"{group}, {machine}: its samples are left out. {why.splitlines()[0]}")
    return found


def inline(svg: str, name: str) -> str:
    """A picture to stand inside a page: without its XML head, names of its parts its own."""
    svg = svg[svg.index("<svg") :]
    # Links out: names of licences and schemas in its description.
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}.', svg)
    svg = re.sub(r'href="#', f'href="#{name}.', svg)
    return re.sub(r"url\(#", f"url(#{name}.", svg)


def picture_part(summary: Summary, picture: Picture, svg: str) -> str:
    """One figure with all that belongs to it."""
    figure = picture.figure
    extra = sorted({name for side in picture.sides for name in side.percentiles}, key=lambda name: float(name[1:]))
    rows = [
        [side.label, str(side.found.samples), str(side.found.machines), number(side.median),
         f"{number(side.lowest)} … {number(side.highest)}", written(side.found),
         *(number(side.percentiles.get(name)) for name in extra)]
        for side in picture.sides
    ]  # fmt: skip
    heads = [figure.unit, "samples", "machines", "median", "lowest … highest", "middle of machines [95 %]", *extra]
    machine_heads = ["", "machine", "samples", f"median, {figure.unit}"]
    machines = [
        [side.label, machine, str(len(values)), number(median(values))]
        for side in picture.sides
        for machine, values in side.machines.items()
    ]
    facts = (
        f"clock: {figure.clock} · commit {summary.header.tree} · {summary.header.command(figure.group)}"
        f" · rows {picture.first_row} to {picture.last_row} of data.csv"
    )
    return "\n".join([
        f'<figure id="{escape(figure.name)}"><h3>{escape(figure.title)}</h3>',
        f"<p>{escape(figure.note)}</p>" if figure.note else "",
        inline(svg, figure.name),
        table(heads, rows, dict.fromkeys((1, 2, 3), "n")),
        f'<figcaption class="facts">{escape(facts)}</figcaption>',
        f"<details><summary>Each machine</summary>{table(machine_heads, machines)}</details>",
        "</figure>",
    ])  # fmt: skip


def grid_part(summary: Summary, grid: Grid, svg: str) -> str:
    """One heat map with all that belongs to it."""
    heatmap = grid.heatmap
    what = f"side ÷ {heatmap.to}" if heatmap.to else heatmap.unit
    rows = [
        [row, *column, *heatmap.cells[row, column], written(found), str(found.machines), str(found.samples)]
        for (row, column), found in grid.cells.items()
    ]
    heads = ["", "", "", "case", "side", f"{what}, middle of machines [95 %]", "machines", "samples"]
    facts = (
        f"each cell: {what}, the middle of the machines; the darker, the more; –: not measured · clock: {heatmap.clock}"
        f" · commit {summary.header.tree} · {summary.header.command(heatmap.group)} · rows of data.csv: those of its cases"
    )
    return "\n".join([
        f'<figure id="{escape(heatmap.name)}"><h3>{escape(heatmap.title)}</h3>',
        f"<p>{escape(heatmap.note)}</p>" if heatmap.note else "",
        inline(svg, heatmap.name),
        f'<figcaption class="facts">{escape(facts)}</figcaption>',
        f"<details><summary>Each cell</summary>{table(heads, rows, {6: 'n', 7: 'n'})}</details>",
        "</figure>",
    ])  # fmt: skip


def page(summary: Summary, pictures: dict[str, str]) -> str:
    """The whole page; pictures: SVG by the name of the figure or heat map. A group's heat maps stand before its
    figures."""
    header = summary.header
    asked = [verdict for verdict in summary.verdicts if not verdict.goal.null]
    nulls = [verdict for verdict in summary.verdicts if verdict.goal.null]
    facts = [
        ["commit", header.commit + (f" and changes {header.dirty}" if header.dirty else "")],
        ["place", summary.place if summary.place == header.plan else f"{summary.place}: {header.plan}"],
        *([["QEMU", header.qemu]] if header.qemu else []),
        ["kernels", ", ".join(f"{name} {digest}" for name, digest in sorted(header.kernels.items()))],
        ["host", header.host],
        ["load at the beginning", f"{header.load:.2f}"],
        ["seed of the turns", str(header.seed)],
    ]
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>Mint: what was measured</title>',
        '<meta name="viewport" content="width=device-width">',
        f"<style>{STYLE}</style></head><body>",
        "<h1>Mint: what was measured</h1>",
        *(f'<p class="warning">{escape(text)}</p>' for text in warnings(summary)),
        "<h2>Goals</h2>",
        glance(asked),
        *(["<h3>Measured, and not met</h3>", goals(unmet(asked))] if unmet(asked) else []),
        by_group(asked),
        "<h2>Null comparisons</h2><p>One configuration as both sides, measured the same way: what differs here is the"
        " measurement's own.</p>",
        glance(nulls),
        by_group(nulls),
        '<p class="facts">holds: the interval lies within the bounds. missed: it lies outside of them. open: it spans a'
        " bound, or there is none. not here: what is asked does not show in this place.</p>",
        "<h2>Measured on</h2>",
        table(["", ""], facts),
    ]
    if summary.place == "emulator":
        parts.append(
            "<p>Times are those of an emulated server: they compare sides, and say nothing about a real server.</p>"
        )
    else:
        parts.append(
            "<p>A machine here is a pass: all nodes and guests are made anew for it, the server is not booted anew. The"
            " intervals say how passes differ, not how boots do. Sides of different boots (Linux, Mint) were measured at"
            " different times.</p>"
        )
    if summary.absent:
        rows = [[group, what, why] for (group, what), why in summary.absent.items()]
        parts += ["<h2>Not measured here</h2>", table(["group", "what", "why"], rows)]
    group = None
    for picture in summary.pictures:
        if picture.figure.group != group:
            group = picture.figure.group
            parts.append(f"<h2>{escape(group)}</h2>")
            grids = [grid for grid in summary.grids if grid.heatmap.group == group]
            parts += [grid_part(summary, grid, pictures[grid.heatmap.name]) for grid in grids]
            parts.append(KEY)
        parts.append(picture_part(summary, picture, pictures[picture.figure.name]))
    return "\n".join([*parts, "</body></html>"]) + "\n"
