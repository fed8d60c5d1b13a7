"""A forecast on a terminal, and as a picture: history, forecast and, where it is known, truth of a few sensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from socialx.drawing.canvas import BLUE, GREY, VERMILION, day, moment, picture, plain, time_ticks, title
from socialx.drawing.terminal import number, print_line, reported_minutes, step_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 6  # panels: more are too small to be read
COLUMNS = 3
PANEL = (5.0, 3.3)  # inches
SHOWN = 10  # sensors of a table that names none
STEPS, STEPS_WITH_INTERVALS = 6, 3  # the latest of those that are reported: more do not fit into 80 columns


@dataclass(frozen=True, eq=False)
class Panel:
    """One sensor.  seconds int64 [R] and observed [R], NaN where nothing was read; times int64 [W,P], values [W,P].

    issued int64 [W]: when each forecast was made.  mark, remark: a word and words on an incomplete history, else empty.
    lower, upper [W,P]: the ends of the intervals, None without.
    """

    sensor: str
    seconds: np.ndarray
    observed: np.ndarray
    issued: np.ndarray
    times: np.ndarray
    values: np.ndarray
    mark: str
    remark: str
    lower: np.ndarray | None = None
    upper: np.ndarray | None = None


def print_forecast(headline: str, panels: Sequence[Panel], step_minutes: int, console: Console | None = None) -> None:
    """The last issue, a row per sensor: its reading and what is forecast at the reported steps, with its interval."""
    out, first = console or Console(), panels[0]
    print_line(out, headline)
    shown = [minutes for minutes in reported_minutes(first.values.shape[1], step_minutes) if minutes]
    shown = shown[-(STEPS if first.lower is None else STEPS_WITH_INTERVALS) :]
    table = Table(show_edge=False)
    table.add_column("sensor", no_wrap=True)
    for head in ("reading", *map(step_name, shown)):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("input", no_wrap=True)
    for panel in panels:
        now = float(panel.observed[np.searchsorted(panel.seconds, panel.issued[-1])])
        cells = []
        for step in (minutes // step_minutes - 1 for minutes in shown):
            cells.append(f"{panel.values[-1, step]:.1f}")
            if panel.lower is not None and panel.upper is not None:
                low, high = panel.lower[-1, step], panel.upper[-1, step]
                digits = 0 if high >= 10 else 1
                cells[-1] += f" ({low:.{digits}f}-{high:.{digits}f})"
        table.add_row(escape(panel.sensor), number(None if np.isnan(now) else now, 1), *cells, panel.mark)
    out.print(table)


def plot_forecast(panels: Sequence[Panel], heading: str, what: str, path: Path, band: str = "") -> None:
    """Draw one panel per sensor into a .png, .svg or .pdf, atomically.

    what: quantity and unit, the label of the upright axis.  band: the name of the intervals.  Two renders of the same
    are equal, to the byte.
    """
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    with picture(path, (PANEL[0] * columns, PANEL[1] * rows + 0.8)) as figure:
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
        figure.suptitle(heading, fontsize=13)
        # One upright axis for all panels, so that sensors can be compared.
        parts = [part for each in panels for part in (each.observed, each.values, each.lower, each.upper)]
        shown = np.concatenate([part.ravel() for part in parts if part is not None])
        shown = shown[np.isfinite(shown)]
        low, high = (float(shown.min()), float(shown.max())) if len(shown) else (0.0, 1.0)
        pad = 0.06 * max(high - low, 1.0) if len(shown) else 0.0
        low, high = max(0.0, low - pad) if low >= 0 else low - pad, high + pad
        for place, axes in enumerate(grid.flat):
            if place >= len(panels):
                axes.set_visible(False)
                continue
            _draw(axes, panels[place], place % columns == 0, what, band)
            axes.set_ylim(low, high)
        handles, names = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)


def _draw(axes: Axes, panel: Panel, leftmost: bool, what: str, band: str) -> None:
    start = int(panel.seconds[0])
    end = int(max(panel.seconds[-1], panel.times.max()))
    known = panel.seconds <= panel.issued[-1]
    single = len(panel.issued) == 1
    x = panel.seconds - start
    axes.plot(x[known], panel.observed[known], color=GREY, linewidth=1.4, label="reading")
    if not known.all() and np.isfinite(panel.observed[~known]).any():
        later = x >= int(panel.issued[-1]) - start
        axes.plot(
            x[later], panel.observed[later], color=GREY, linewidth=1.4, linestyle=":", label="reading that came later"
        )
    for place, (issued, times, values) in enumerate(zip(panel.issued, panel.times, panel.values, strict=True)):
        label = ("forecast" if single else "forecasts") if place == 0 else None
        marker = "o" if single else None
        if panel.lower is not None and panel.upper is not None:
            ends = panel.lower[place], panel.upper[place]
            name = None if place else band
            axes.fill_between(times - start, *ends, color=VERMILION, alpha=0.18, linewidth=0, label=name)
        axes.plot(times - start, values, color=VERMILION, linewidth=1.8, marker=marker, markersize=3.5, label=label)
        if single:
            axes.axvline(int(issued) - start, color=BLUE, linewidth=1, linestyle="--", label="issued")
    date = moment(int(panel.issued[-1]))
    when = f"issued {day(int(panel.issued[-1]))} {date:%Y %H:%M}" if single else f"{len(panel.issued)} forecasts"
    title(axes, f"Sensor {panel.sensor}", f"{when}{f'; {panel.remark}' if panel.remark else ''}")
    ticks, texts, _ = time_ticks(start, end - start)
    keep = slice(None, None, 2) if len(ticks) > 6 else slice(None)
    axes.set_xticks(ticks[keep], texts[keep])
    axes.set_xlim(0, end - start)
    if leftmost:
        axes.set_ylabel(what)
    plain(axes, "y")
