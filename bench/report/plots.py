# SPDX-License-Identifier: Apache-2.0
"""The pictures, by matplotlib: the same data draw the same bytes, and grey paper shows all of it.

Machines differ by marker, goals' bounds are hatched; no colour carries a meaning. A heat map
has the number in each cell, and its grey says the same.
"""

import io
import itertools
import math
from statistics import median

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from report.figure import number, short
from report.summary import Grid, Picture

STYLE = {
    "svg.hashsalt": "mint",  # names of parts inside a picture come of it, and by default of chance
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",  # comes with matplotlib, so it is the same everywhere
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.6,
}
MARKERS = "osD^vP*X<>ph"
DARK, MIDDLE, LIGHT = "#202020", "#6a6a6a", "#c8c8c8"
# From here on an axis is a logarithm's: the smaller values would lie on one another.
SPAN_FOR_LOG = 20
SPAN_FOR_DECADES = 1e4  # its numbers would stand on one another
# Cells of a heat map: inches, and from where on they are as dark as they get: a ratio, values of another unit.
CELL_WIDTH, CELL_HEIGHT, SIDE_LABELS = 0.4, 0.3, 1.9
DARK_RATIO, DARK_VALUE = 10, 1000


def marker_of(machines: list[str]) -> dict[str, str]:
    """A marker for each machine."""
    return {machine: MARKERS[index % len(MARKERS)] for index, machine in enumerate(machines)}


def _scale(axes, values: list[float], unit: str) -> None:
    if min(values) > 0 and max(values) / min(values) > SPAN_FOR_LOG:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if max(values) / min(values) < SPAN_FOR_DECADES else (1,)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6))
        if min(values) >= 0 and min(values) < max(values) / 2:
            axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.set_xlabel(unit)


def _rows(axes, labels: list[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=LIGHT, linewidth=0.5)
    axes.set_axisbelow(True)


def _interval(axes, row: int, found) -> None:
    if found.low is not None:
        axes.plot([found.low, found.high], [row + 0.33] * 2, color=DARK, linewidth=2.2, solid_capstyle="butt")
    axes.plot([found.middle], [row + 0.33], marker="|", markersize=9, markeredgewidth=2.2, color=DARK)


def _samples(axes, picture: Picture, markers: dict[str, str]) -> None:
    everything: list[float] = []
    for row, side in enumerate(picture.sides):
        for machine, values in side.machines.items():
            place = list(markers).index(machine)
            # Each machine has a line of its own within the side's.
            lines = max(1, len(markers) - 1)
            height = row - 0.3 + 0.45 * place / lines
            axes.plot(values, [height] * len(values), linestyle="", marker=markers[machine], markersize=3.6,
                      markerfacecolor="none", markeredgecolor=MIDDLE, markeredgewidth=0.7)  # fmt: skip
            everything += values
        _interval(axes, row, side.found)
        everything += [value for value in (side.found.low, side.found.high) if value is not None]
    _rows(axes, [side.label for side in picture.sides])
    _scale(axes, everything, picture.figure.unit)


def _ratios(axes, picture: Picture, markers: dict[str, str]) -> None:
    everything = [1.0]
    for row, (verdict, machines) in enumerate(picture.ratios):
        for machine, values in machines.items():
            axes.plot([median(values)], [row - 0.05], linestyle="", marker=markers[machine], markersize=4.4,
                      markerfacecolor="none", markeredgecolor=MIDDLE, markeredgewidth=0.8)  # fmt: skip
            everything.append(median(values))
        _interval(axes, row, verdict.found)
        goal = verdict.goal
        bounds = [bound for bound in (goal.low, goal.high) if bound is not None]
        everything += [*bounds, *(value for value in (verdict.found.low, verdict.found.high) if value is not None)]
    _rows(axes, [f"{verdict.goal.side} ÷ {verdict.goal.to}: {verdict.word}" for verdict, _ in picture.ratios])
    axes.axvline(1, color=DARK, linewidth=0.8)
    _scale(axes, everything, "ratio; hatched: the goal")
    # Bounds are in sight, also where no sample is near.
    room = (max(everything) / min(everything)) ** 0.06
    left, right = min(everything) / room, max(everything) * room
    for row, (verdict, _) in enumerate(picture.ratios):
        low = left if verdict.goal.low is None else verdict.goal.low
        high = right if verdict.goal.high is None else verdict.goal.high
        axes.barh(
            row, high - low, left=low, height=0.84, facecolor="none", edgecolor=LIGHT, hatch="///", linewidth=0.6, zorder=0
        )
    axes.set_xlim(left, right)


def draw(picture: Picture) -> Canvas:
    """A picture: samples by side, below them its ratios. Raises ValueError if there is nothing to draw."""
    if not picture.sides:
        raise ValueError(f"{picture.figure.name}: no samples to draw")
    heights = [len(picture.sides), len(picture.ratios)] if picture.ratios else [len(picture.sides)]
    markers = marker_of(list(dict.fromkeys(machine for side in picture.sides for machine in side.machines)))
    canvas = Canvas(figsize=(8, 0.9 * len(heights) + 0.52 * sum(heights)), layout="constrained")
    parts = canvas.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    _samples(parts[0], picture, markers)
    if picture.ratios:
        _ratios(parts[1], picture, markers)
    return canvas


def darkness(value: float, is_ratio: bool) -> float:
    """Of a heat map's cell, from 0 to 1, by the logarithm: a ratio of 1 and a value of 0 are white, and so is less."""
    by = math.log(max(value, 1)) / math.log(DARK_RATIO) if is_ratio else math.log1p(max(value, 0)) / math.log1p(DARK_VALUE)
    return min(by, 1.0)


def draw_grid(grid: Grid) -> Canvas:
    """A heat map. Raises ValueError if there is nothing to draw."""
    heatmap = grid.heatmap
    if not grid.cells:
        raise ValueError(f"{heatmap.name}: no samples to draw")
    rows, columns = heatmap.rows, heatmap.columns
    size = (SIDE_LABELS + CELL_WIDTH * len(columns), 1.6 + CELL_HEIGHT * len(rows))
    canvas = Canvas(figsize=size, layout="constrained")
    axes = canvas.subplots()
    for (row, name), (place, column) in itertools.product(enumerate(rows), enumerate(columns)):
        found = grid.cells.get((name, column))
        dark = darkness(found.middle, heatmap.to is not None) if found else 0.0
        axes.add_patch(Rectangle((place, row), 1, 1, facecolor=str(1 - 0.8 * dark), edgecolor=LIGHT, linewidth=0.5))
        axes.text(place + 0.5, row + 0.5, short(found.middle) if found else "–", ha="center", va="center", fontsize=7,
                  color="white" if dark > 0.55 else DARK)  # fmt: skip
    for head, some in itertools.groupby(range(len(columns)), key=lambda place: columns[place][0]):
        places = list(some)
        axes.text((places[0] + places[-1] + 1) / 2, -0.25, head.replace(", ", ",\n"), ha="center", va="bottom", fontsize=8)
        axes.plot([places[-1] + 1] * 2, [0, len(rows)], color=DARK, linewidth=0.9)
    axes.set_xlim(0, len(columns))
    axes.set_ylim(len(rows), -1.4)
    axes.set_xticks([place + 0.5 for place in range(len(columns))], [own for _, own in columns], rotation=90)
    axes.set_yticks([row + 0.5 for row in range(len(rows))], rows)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return canvas


def _drawn(picture: Picture | Grid) -> tuple[Canvas, str]:
    """With its title."""
    if isinstance(picture, Grid):
        return draw_grid(picture), picture.heatmap.title
    return draw(picture), picture.figure.title


def svg(picture: Picture | Grid) -> str:
    """The picture as SVG, without a date."""
    with rc_context(STYLE):
        canvas, title = _drawn(picture)
        data = io.StringIO()
        FigureCanvasSVG(canvas).print_svg(data, metadata={"Date": None, "Creator": None, "Title": title})
    return "\n".join(line.rstrip() for line in data.getvalue().splitlines()) + "\n"


def png(picture: Picture | Grid) -> bytes:
    """The picture as PNG."""
    with rc_context(STYLE):
        canvas, _ = _drawn(picture)
        canvas.set_dpi(144)
        data = io.BytesIO()
        FigureCanvasAgg(canvas).print_png(data, metadata={"Software": None})
    return data.getvalue()
