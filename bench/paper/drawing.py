"""Every figure: small panels with curves, one legend below, the same inks everywhere."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogFormatter, NullLocator, StrMethodFormatter
from PIL import Image

from bench.paper import (
    adaptive_window,
    coverage,
    estimation,
    quality,
    retraining,
)
from bench.paper.experiment import Panels, Rows, select, values
from bench.paper.naming import BUDGET, CORRECTIONS, OURS, RULES, TESTS


@dataclass(frozen=True, slots=True)
class Ink:
    colour: str
    dash: str = "-"
    marker: str = "o"
    width: float = 1.5


# One ink for each role, the same in every figure; people who confuse red and green can tell them
# apart (Okabe and Ito, 2008).
OUR_BEST, OUR_OTHER = Ink("#0072B2"), Ink("#E69F00", marker="s")
PAPERS, FOIL = Ink("#D55E00", marker="^"), Ink("#8a8a8a", "-.", "v")
THIRD, FOURTH = Ink("#009E73", marker="P"), Ink("#CC79A7", marker="D")
TRUTH = Ink("#000000", "--", "")

INKS = {
    TESTS["oracle"]: TRUTH,
    TESTS["combined"]: OUR_BEST,
    TESTS["chi2"]: OUR_OTHER,
    TESTS["ks"]: PAPERS,
    estimation.TRUTH: TRUTH,
    estimation.HARD: PAPERS,
    estimation.SOFT: OUR_OTHER,
    estimation.REGULARISED: FOIL,
    estimation.DEFAULT: OUR_BEST,
    estimation.DEFAULT_HARD: THIRD,
    estimation.LIKELIHOOD: FOURTH,
    CORRECTIONS["plain"]: FOIL,
    CORRECTIONS["calibrated"]: OUR_OTHER,
    CORRECTIONS["paper"]: PAPERS,
    CORRECTIONS["always"]: replace(THIRD, marker="", width=4.0),  # the next often lies upon it
    CORRECTIONS["shrunken"]: OUR_BEST,
    CORRECTIONS["oracle"]: TRUTH,
    retraining.UNWEIGHTED: FOIL,
    retraining.PAPERS: PAPERS,
    retraining.DEFAULT: OUR_OTHER,
    retraining.RECOMMENDED: OUR_BEST,
    retraining.TRUE: TRUTH,
    quality.GOOD: OUR_BEST,
    quality.WEAK: OUR_OTHER,
    quality.DIGITS: THIRD,
    quality.BOUND: TRUTH,
    coverage.SOFT: OUR_BEST,
    coverage.HARD: OUR_OTHER,
    coverage.CONTROL: FOIL,
    OURS: OUR_BEST,
    BUDGET: TRUTH,
    RULES[0.05]: PAPERS,
    RULES[0.001]: OUR_OTHER,
    RULES[1e-5]: FOIL,
    adaptive_window.ADAPTIVE: OUR_BEST,
    adaptive_window.HOUR: OUR_OTHER,
    adaptive_window.DAY: PAPERS,
}

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "lines.markersize": 3.6,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    # The same bytes from the same numbers: no random identifiers, and text stays text.
    "svg.hashsalt": "shiftwatch",
    "svg.fonttype": "none",
}

WIDTH, HEIGHT = 8.4, 2.5
MOST_ACROSS, MOST_TICKS = 3, 6
DPI = 150


def draw(rows: Rows, panels: Panels) -> Figure:
    """A figure of these rows."""
    if panels.where:
        rows = select(rows, **{panels.where[0]: panels.where[1]})
    places = [
        (left, top) for top in _found(rows, panels.down) for left in _found(rows, panels.across)
    ]
    across = min(MOST_ACROSS, len(_found(rows, panels.across)))
    down = -(-len(places) // across)
    width = WIDTH if across > 1 else WIDTH * 0.62
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, HEIGHT * down + 0.7), layout="constrained")
        grid = figure.subplots(down, across, sharex=_shared_x(panels), sharey=True, squeeze=False)
        for axes, place in zip(grid.flat, places, strict=True):
            _panel(axes, rows, panels, place)
        _labels(grid, panels)
        _legend(figure, grid[0, 0])
    return figure


def save(figure: Figure, path: Path) -> None:
    """As PNG to look at and as SVG to look closely, without a date in either."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        lines, picture = io.StringIO(), io.BytesIO()
        figure.savefig(lines, format="svg", metadata={"Date": None})
        figure.savefig(picture, dpi=DPI)
    # A hundredth of a point is finer than any screen, and a third of the bytes are digits.
    path.with_suffix(".svg").write_text(re.sub(r"(\.\d\d)\d+", r"\1", lines.getvalue()))
    # Few colours are in it, and a palette takes a third of the bytes.
    palette = Image.open(picture).convert("RGB").quantize(64, dither=Image.Dither.NONE)
    palette.save(path.with_suffix(".png"), optimize=True)


def _found(rows: Rows, column: str) -> list[str | float]:
    return values(rows, column) if column else [""]


def _shared_x(panels: Panels) -> bool:
    # Settings of one figure may reach over different ranges; samples of 20,000 show less of δ.
    return panels.across != "setting"


def _panel(axes: Axes, rows: Rows, panels: Panels, place: tuple[str | float, str | float]) -> None:
    wanted = dict(zip((panels.across, panels.down), place, strict=True))
    wanted.pop("", None)
    here = select(rows, **wanted)
    axes.set_title("\n".join(_title(name, wanted[name]) for name in reversed(wanted)))
    for name in values(here, panels.line):
        if name == panels.hidden:
            continue
        _curve(axes, str(name), select(here, **{panels.line: name}), panels)
    _scales(axes, here, panels)
    _guide(axes, panels)


def _title(column: str, value: str | float) -> str:
    return f"{value} classifier" if column == "classifier" else str(value)


def _curve(axes: Axes, name: str, rows: Rows, panels: Panels) -> None:
    ink = INKS[name]
    points = sorted((float(row[panels.x]), float(row[panels.y])) for row in rows)
    x, y = np.array(points).T
    axes.plot(
        x,
        np.where(np.isfinite(y), y, np.nan),
        color=ink.colour,
        linestyle=ink.dash,
        linewidth=ink.width,
        marker=ink.marker if panels.markers else "",
        label=name,
    )


def _scales(axes: Axes, rows: Rows, panels: Panels) -> None:
    if "x" in panels.log:
        axes.set_xscale("log")
        _ticks_at(axes, [float(value) for value in values(rows, panels.x)])
    if "y" in panels.log:
        axes.set_yscale("log")
    if panels.y_limits:
        axes.set_ylim(*panels.y_limits)
    low, high = axes.get_ylim()
    if "y" in panels.log and high > 100.0 * low:
        axes.yaxis.set_minor_locator(NullLocator())  # decades suffice, and an SVG holds every tick
    elif "y" in panels.log:
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2.0, 0.4)))


def _ticks_at(axes: Axes, at: Sequence[float]) -> None:
    """The sizes that were measured, if they are few; a logarithmic axis would name hardly any."""
    if all(value.is_integer() for value in at):
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        if len(at) <= MOST_TICKS:
            axes.xaxis.set_major_locator(FixedLocator(list(at)))
            axes.xaxis.set_minor_locator(NullLocator())


def _guide(axes: Axes, panels: Panels) -> None:
    if panels.guide == "diagonal":
        axes.plot([0.0, 1.0], [0.0, 1.0], color=FOIL.colour, linewidth=0.8, linestyle=":", zorder=0)
    elif isinstance(panels.guide, float):
        axes.axhline(panels.guide, color=FOIL.colour, linewidth=1.0, linestyle=":", zorder=0)


def _labels(grid: np.ndarray[tuple[int, int], np.dtype[np.object_]], panels: Panels) -> None:
    for axes in grid[-1]:
        axes.set_xlabel(panels.x_label)
    for axes in grid[:, 0]:
        axes.set_ylabel(panels.y_label)


def _legend(figure: Figure, axes: Axes) -> None:
    lines, names = axes.get_legend_handles_labels()
    columns = 3 if len(names) in (5, 6) else 4
    if figure.get_figwidth() < WIDTH:
        columns = 2
    figure.legend(lines, names, loc="outside lower center", ncols=min(columns, len(names)))
