"""A forecast on a terminal and as a picture: observations, forecast and, where known, truth for a few sensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from socialx.drawing.canvas import BLUE, GREY, SMALL, VERMILION, headline, picture, plain, time_ticks, value_limits
from socialx.drawing.terminal import lead_times, number, print_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 6  # panels: more are too small to be read
COLUMNS = 3
PANEL = (3.0, 2.5)  # inches
TICKS = 3  # of a time axis
SHOWN = 10  # sensors of a table that names none
STEPS, STEPS_WITH_INTERVALS = 6, 3  # the latest of those that are reported: more do not fit into 80 columns


@dataclass(frozen=True, eq=False)
class Panel:
    """One sensor's observations and forecasts, for a table or picture: R rows, W forecast origins, P lead times.

    seconds int64 [R], observed [R]: NaN where missing. issued int64 [W]: forecast origins. times int64 [W,P], values
    [W,P]. mark, remark: a word and a phrase for incomplete input, else empty. lower, upper [W,P]: interval ends, or
    None. local: as in ``time_ticks``.
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
    local: Callable[[np.ndarray], np.ndarray] = np.asarray


def print_forecast(headline: str, panels: Sequence[Panel], step_minutes: int, console: Console | None = None) -> None:
    """Print a headline, then the forecast from the last origin, a row per sensor: observation, forecasts, intervals."""
    out, first = console or Console(), panels[0]
    print_line(out, headline)
    *shown, _ = lead_times(first.values.shape[1], step_minutes).items()
    shown = shown[-(STEPS if first.lower is None else STEPS_WITH_INTERVALS) :]
    table = Table(show_edge=False)
    table.add_column("sensor", no_wrap=True)
    for head in ("reading", *(text for _, text in shown)):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("input", no_wrap=True)
    for panel in panels:
        last = float(panel.observed[np.searchsorted(panel.seconds, panel.issued[-1])])
        cells = []
        for step in ((minutes or 0) // step_minutes - 1 for minutes, _ in shown):
            cells.append(f"{panel.values[-1, step]:.1f}")
            if panel.lower is not None and panel.upper is not None:
                low, high = panel.lower[-1, step], panel.upper[-1, step]
                digits = 0 if high >= 10 else 1
                cells[-1] += f" ({low:.{digits}f}-{high:.{digits}f})"
        table.add_row(escape(panel.sensor), number(last, 1), *cells, panel.mark)
    out.print(table)


def plot_forecast(
    panels: Sequence[Panel], heading: str, subheading: str, quantity: str, path: Path, band: str = ""
) -> None:
    """Draw a panel per sensor into a .png, .svg or .pdf, atomically and equal to the byte in every call.

    quantity: with the unit, the label on the upright axis. band: the name for intervals.
    """
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    with picture(path, (max(PANEL[0] * columns, 2 * PANEL[0]), PANEL[1] * rows + 1.0)) as figure:
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        headline(figure, heading, subheading)
        # One upright axis for all panels, so that sensors can be compared.
        parts = [part for panel in panels for part in (panel.observed, panel.values, panel.lower, panel.upper)]
        limits = value_limits(np.concatenate([part.ravel() for part in parts if part is not None]))
        for index, axes in enumerate(grid.flat):
            if index >= len(panels):
                axes.set_visible(False)
                continue
            _draw(axes, panels[index], index % columns == 0, quantity, band)
            axes.set_ylim(limits)
        handles, names = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=2 * columns, frameon=False, fontsize=SMALL)


def _draw(axes: Axes, panel: Panel, leftmost: bool, quantity: str, band: str) -> None:
    """Draw one panel: observations, forecasts and intervals; leftmost: whether to label the upright axis."""
    start, origin = int(panel.seconds[0]), int(panel.issued[-1])
    end = int(max(panel.seconds[-1], panel.times.max()))
    single = len(panel.issued) == 1
    _draw_observed(axes, panel, panel.seconds <= origin, label="observed")
    later = panel.seconds >= origin
    if np.isfinite(panel.observed[later][1:]).any():
        _draw_observed(axes, panel, later, linestyle=":", label="observed later")
    for rank, (times, values) in enumerate(zip(panel.times, panel.values, strict=True)):
        if panel.lower is not None and panel.upper is not None:
            ends = panel.lower[rank], panel.upper[rank]
            name = None if rank else band
            axes.fill_between(times - start, *ends, color=VERMILION, alpha=0.18, linewidth=0, label=name)
        label = None if rank else "forecast" if single else "forecasts"
        dots: dict[str, Any] = {"marker": "o", "markersize": 2.5} if single else {}
        axes.plot(times - start, values, color=VERMILION, linewidth=1.8, label=label, **dots)
    if single:
        axes.axvline(origin - start, color=BLUE, linewidth=1, linestyle="--", label="forecast origin")
    axes.set_title(f"Sensor {panel.sensor}{f', {panel.remark}' if panel.remark else ''}", fontsize=SMALL + 1)
    ticks, texts, _ = time_ticks(start, end - start, panel.local)
    keep = slice(None, None, -(-len(ticks) // TICKS))
    axes.set_xticks(ticks[keep], texts[keep])
    axes.set_xlim(0, end - start)
    axes.tick_params(labelsize=SMALL)
    if leftmost:
        axes.set_ylabel(quantity)
    plain(axes, "y")


def _draw_observed(axes: Axes, panel: Panel, rows: np.ndarray, **look: Any) -> None:
    """Draw observations at some rows [R] as a line, and an observation between two gaps as a dot; look: line style."""
    seconds, values = panel.seconds[rows] - panel.seconds[0], panel.observed[rows]
    axes.plot(seconds, values, color=GREY, linewidth=1.4, **look)
    gap = np.isnan(np.pad(values, 1, constant_values=np.nan))
    lonely = ~gap[1:-1] & gap[:-2] & gap[2:]
    axes.plot(seconds[lonely], values[lonely], color=GREY, marker="o", markersize=3, linestyle="none")
