# SPDX-License-Identifier: Apache-2.0
"""All results in short, from a data set, goals and figures: pure. Page and tables are made of it."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from statistics import median

from report.figure import Figure, HeatMap
from report.goals import EMULATOR, SERVER, Goal, Verdict, doubts, judge, values
from report.samples import DataSet, Header, Sample
from report.stats import Interval, by_machine, interval, percentile, ratios

PERCENTILES = (0.9, 0.99, 0.999)


@dataclass(frozen=True)
class Side:
    """What one side of a case gave."""

    side: str
    label: str
    found: Interval
    median: float  # of all samples
    lowest: float
    highest: float
    percentiles: dict[str, float]  # those that there are samples enough for: "p90" …
    machines: dict[str, list[float]]


@dataclass(frozen=True)
class Picture:
    """A figure with what there is for it."""

    figure: Figure
    sides: list[Side]
    ratios: list[tuple[Verdict, dict[str, list[float]]]]  # its goals that are ratios, with each machine's
    first_row: int  # in the table of samples, from 1
    last_row: int


@dataclass(frozen=True)
class Grid:
    """A heat map with what there is for it; cells that were not measured are not there."""

    heatmap: HeatMap
    cells: dict[tuple[str, tuple[str, str]], Interval]


@dataclass(frozen=True)
class Summary:
    """Everything."""

    header: Header
    place: str
    verdicts: list[Verdict]
    pictures: list[Picture]
    rows: list[Sample]  # in the order of the pictures
    cut: dict[tuple[str, str], str] = field(default_factory=dict)
    grids: list[Grid] = field(default_factory=list)
    absent: dict[tuple[str, str], str] = field(default_factory=dict)


def place_of(header: Header) -> str:
    """Where its samples were taken."""
    return EMULATOR if header.plan == EMULATOR else SERVER


def side_of(figure: Figure, side: str, samples: list[Sample]) -> Side:
    """A side of a figure."""
    taken = [sample.value for sample in samples]
    found = {f"p{p * 100:g}": percentile(taken, p) for p in PERCENTILES}
    machines = by_machine(samples)
    return Side(
        side, figure.label(side), interval(machines), median(taken), min(taken), max(taken),
        {name: value for name, value in found.items() if value is not None}, machines,
    )  # fmt: skip


def grid_of(heatmap: HeatMap, cases: dict[tuple[str, str, str], list[Sample]]) -> Grid:
    """A heat map, filled in."""
    found = {}
    for place, (case, side) in heatmap.cells.items():
        samples = cases.get((heatmap.group, case, heatmap.clock), [])
        if heatmap.to is None:
            values = by_machine(sample for sample in samples if sample.side == side)
        else:
            values = ratios(samples, side, heatmap.to)
        if (middle := interval(values, of_ratios=heatmap.to is not None)) is not None:
            found[place] = middle
    return Grid(heatmap, found)


def summarise(
    data: DataSet, goals: Iterable[Goal], figures: Iterable[Figure], heatmaps: Iterable[HeatMap] = ()
) -> Summary:
    """The summary of a data set. What no figure speaks of has one of its own; figures and heat maps without samples
    have none."""
    place = place_of(data.header)
    verdicts = [judge(goal, data.samples, place) for goal in goals]
    cases: dict[tuple[str, str, str], list[Sample]] = {}
    for sample in data.samples:
        cases.setdefault((sample.group, sample.case, sample.clock), []).append(sample)
    known = {figure.key: figure for figure in figures}
    pictures: list[Picture] = []
    rows: list[Sample] = []
    for key in [*(key for key in known if key in cases), *(key for key in cases if key not in known)]:
        samples = cases[key]
        group, case, clock = key
        figure = known.get(key) or Figure(group, case, f"{group}: {case}", samples[0].unit, clock=clock)
        names = list(dict.fromkeys([*figure.sides, *(sample.side for sample in samples)]))
        taken = {name: [sample for sample in samples if sample.side == name] for name in names}
        ratios = [
            (verdict, values(verdict.goal, samples))
            for verdict in verdicts
            if verdict.goal.to and verdict.found and (verdict.goal.group, verdict.goal.case, verdict.goal.clock) == key
        ]
        sides = [side_of(figure, name, these) for name, these in taken.items() if these]
        pictures.append(Picture(figure, sides, ratios, len(rows) + 1, len(rows) + len(samples)))
        rows += samples
    grids = [grid for grid in (grid_of(heatmap, cases) for heatmap in heatmaps) if grid.cells]
    return Summary(data.header, place, verdicts, pictures, rows, data.cut, grids, data.absent)


def as_json(summary: Summary) -> dict:
    """What documents' tables are made of: no single samples."""
    return {
        "header": asdict(summary.header),
        "groups": {group: asdict(summary.header) for group in dict.fromkeys(sample.group for sample in summary.rows)},
        "place": summary.place,
        "doubts": doubts(summary.verdicts),
        "goals": [
            {
                "name": verdict.goal.name,
                "group": verdict.goal.group,
                "case": verdict.goal.case,
                "clock": verdict.goal.clock,
                "null": verdict.goal.null,
                "bounds": verdict.goal.bounds(),
                "verdict": verdict.word,
                "why": verdict.why,
                "found": verdict.found and asdict(verdict.found),
            }
            for verdict in summary.verdicts
        ],
        "figures": [
            {
                "name": picture.figure.name,
                "group": picture.figure.group,
                "title": picture.figure.title,
                "unit": picture.figure.unit,
                "clock": picture.figure.clock,
                "sides": [
                    {
                        "side": side.side, "label": side.label, "median": side.median, "lowest": side.lowest,
                        "highest": side.highest, "found": asdict(side.found), **side.percentiles,
                    }
                    for side in picture.sides
                ],
            }
            for picture in summary.pictures
        ],
        "maps": [
            {
                "name": grid.heatmap.name,
                "group": grid.heatmap.group,
                "title": grid.heatmap.title,
                "clock": grid.heatmap.clock,
                "cells": [
                    {"row": row, "column": " · ".join(column), "found": asdict(found)}
                    for (row, column), found in grid.cells.items()
                ],
            }
            for grid in summary.grids
        ],
        "absent": [{"group": group, "what": what, "why": why} for (group, what), why in summary.absent.items()],
    }  # fmt: skip
