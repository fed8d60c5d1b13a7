"""A ``Forecast`` on a terminal and as a picture: observations, forecast and, where known, truth for a few sensors."""

# Shape letters: W issues, P horizon steps, N sensors, G targets, R observed rows

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from socialx.core.errors import counted
from socialx.drawing.canvas import (
    BLUE,
    GREY,
    MOST_DOTS,
    SMALL,
    VERMILION,
    day,
    headline,
    moment,
    picture,
    plain,
    time_ticks,
    value_limits,
)
from socialx.drawing.terminal import lead_text, lead_times, number, print_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 6  # panels: more are too small to be read
COLUMNS = 3
PANEL = (3.0, 2.5)  # inches
TICKS, DATES = 5, 3  # of a time axis: times, or dates alone
SHOWN = 10  # sensors of a table that names none
# What a panel says of a sensor with incomplete input, by its mark.
REMARKS = {"partial": "lookback incomplete", "missing": "no reading in the lookback", "never": "never reported"}
STEPS, STEPS_WITH_INTERVALS = 6, 3  # the latest of those that are reported: more do not fit into 80 columns
STEPS_BESIDE_PROBABILITY = 4, 2  # the same


def print_forecast(forecast: Any, sensors: Sequence[str], console: Console | None = None) -> None:
    """Print a headline, then per sensor: observation, forecasts, intervals, highest probability below a threshold."""
    out, shown = console or Console(), forecast.select(sensors)
    print_line(out, forecast.headline())
    *leads, _ = lead_times(shown.values.shape[1], shown.step_minutes).items()
    most = (STEPS, STEPS_WITH_INTERVALS) if shown.below is None else STEPS_BESIDE_PROBABILITY
    leads = leads[-most[shown.lower is not None] :]
    heads = ["reading", *(text for _, text in leads), *([f"below {shown.below:g}"] if shown.below else ())]
    table = Table(show_edge=False)
    table.add_column("sensor", no_wrap=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("input", no_wrap=True)
    last, marks = shown.at_issue()[-1], shown.marks[-1]
    for column, sensor in enumerate(shown.sensors):
        cells = []
        for step in ((minutes or 0) // shown.step_minutes - 1 for minutes, _ in leads):
            cells.append(f"{shown.values[-1, step, column, 0]:.1f}")
            if shown.lower is not None and shown.upper is not None:
                low, high = (ends[-1, step, column, 0] for ends in (shown.lower, shown.upper))
                digits = 0 if high >= 10 else 1
                cells[-1] += f" ({low:.{digits}f}-{high:.{digits}f})"
        if shown.below is not None:
            highest, steps = (part[column].item() for part in shown.highest_probability())
            share = f"{100 * highest:.0f} %" if highest <= 0.99 else ">99 %"
            cells.append(f"{share} at {lead_text((steps + 1) * shown.step_minutes)}" if highest >= 0.01 else "<1 %")
        mark = marks[column] if marks[column] in REMARKS else ""
        table.add_row(escape(sensor), number(float(last[column]), 1), *cells, mark)
    out.print(table)


def plot_forecast(forecast: Any, sensors: str | Sequence[str], path: str | Path | None) -> Figure:
    """Draw a panel per sensor into a .png, .svg or .pdf, equal to the byte in every call; without a path, return it."""
    shown = replace(forecast.select(sensors), probability=None)
    columns = min(COLUMNS, len(shown.sensors))
    rows = -(-len(shown.sensors) // columns)
    with picture(path, (max(PANEL[0] * columns, 2 * PANEL[0]), PANEL[1] * rows + 1.0)) as figure:
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        zone = f", times of {shown.clock.name}" if shown.clock.name else ""
        headline(figure, _heading(forecast, len(shown.sensors)), f"{shown.dataset}, forecast by {shown.run}{zone}")
        # One upright axis for all panels, so that sensors can be compared.
        parts = [shown.observed.values[..., 0], *(part[..., 0] for part in shown.numbers().values())]
        limits = value_limits(np.concatenate([part.ravel() for part in parts]))
        for column, axes in enumerate(grid.flat):
            if column >= len(shown.sensors):
                axes.set_visible(False)
                continue
            _draw(axes, shown, column)
            if column % columns == 0:
                axes.set_ylabel(f"{shown.targets[0].replace('_', ' ')}, {shown.unit}")
            axes.set_ylim(limits)
        handles, names = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=2 * columns, frameon=False, fontsize=SMALL)
    return figure


def _heading(forecast: Any, shown: int) -> str:
    """Return the heading for a picture with ``shown`` sensors."""
    minutes, origins = forecast.step_minutes * forecast.values.shape[1], forecast.origin.astype(np.int64)
    first = int(forecast.clock.local(origins[0]))
    every = counted(len(forecast.sensors), "sensor")
    some = every if shown == len(forecast.sensors) else f"{shown} of {every}"
    length = "hour" if minutes == 60 else lead_text(minutes)
    several = f", and {len(origins) - 1} later ones" if len(origins) > 1 else ""
    return f"{some}, next {length} from {moment(first):%H:%M} on {day(first)} {moment(first).year}{several}"


def _draw(axes: Axes, forecast: Any, column: int) -> None:
    """Draw a panel, for a column's sensor: observations, forecasts and intervals."""
    seconds, times = (moments.astype(np.int64) for moments in (forecast.observed.times, forecast.times))
    start, origin = int(seconds[0]), int(forecast.origin[-1].astype(np.int64))
    observed, after = forecast.observed.values[:, column, 0], seconds - start
    single = len(forecast.origin) == 1
    until, later = seconds <= origin, seconds >= origin
    _draw_observed(axes, after[until], observed[until], label="observed")
    if np.isfinite(observed[later][1:]).any():
        _draw_observed(axes, after[later], observed[later], linestyle=":", label="observed later")
    parts = {name: values[..., column, 0] for name, values in forecast.numbers().items()}  # [W,P] each
    band = "" if forecast.interval is None else f"{100 * forecast.interval:g} % prediction interval"
    for rank, ahead in enumerate(times - start):
        if band:
            ends = parts["lower"][rank], parts["upper"][rank]
            label = None if rank else band
            axes.fill_between(ahead, *ends, color=VERMILION, alpha=0.18, linewidth=0, label=label)
        label = None if rank else "forecast" if single else "forecasts"
        dots: dict[str, Any] = {"marker": "o", "markersize": 2.5} if single and len(ahead) <= MOST_DOTS else {}
        axes.plot(ahead, parts["forecast"][rank], color=VERMILION, linewidth=1.8, label=label, **dots)
    if single:
        axes.axvline(origin - start, color=BLUE, linewidth=1, linestyle="--", label="forecast origin")
    remark = REMARKS.get(forecast.marks[-1, column], "")
    axes.set_title(f"Sensor {forecast.sensors[column]}{remark and f'{chr(10)}{remark}'}", fontsize=SMALL + 1)
    length = int(max(seconds[-1], times.max())) - start
    ticks, texts, _ = time_ticks(start, length, forecast.clock.local)
    every = -(-len(ticks) // (TICKS if ":" in texts[0] else DATES))
    midnight = next((index for index, text in enumerate(texts) if text.startswith("00:00")), 0)  # which has a date
    ticks, texts = ticks[midnight % every :: every], texts[midnight % every :: every]
    if "\n" in "".join(texts[1:2]):  # the first date would touch the second date
        texts[0] = texts[0].split("\n")[0]
    axes.set_xticks(ticks, texts)
    axes.set_xlim(0, length)
    axes.tick_params(labelsize=SMALL)
    plain(axes, "y")


def _draw_observed(axes: Axes, seconds: np.ndarray, values: np.ndarray, **look: Any) -> None:
    """Draw observations [R] as a line, and an observation between two gaps as a dot; look: line style."""
    axes.plot(seconds, values, color=GREY, linewidth=1.4, **look)
    gap = np.isnan(np.pad(values, 1, constant_values=np.nan))
    lonely = ~gap[1:-1] & gap[:-2] & gap[2:]
    axes.plot(seconds[lonely], values[lonely], color=GREY, marker="o", markersize=3, linestyle="none")
