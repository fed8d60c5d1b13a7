"""A file at a glance: where its sensors are, and one week of what they read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from socialx.data.geo import to_plane
from socialx.files.inspect import Report
from socialx.files.store import Store
from socialx.report.canvas import (
    BAR,
    DAY,
    DOT,
    VERMILION,
    day,
    km_axes,
    label,
    moment,
    picture,
    scale_and_north,
    time_ticks,
    title,
)
from socialx.report.tables import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WEEK = 604_800  # seconds
MOST_ROWS, MOST_COLUMNS = 400, 700  # cells of the heat map: about the pixels of its panel, 0.8 MB within an SVG
TELLING = 0.01  # the share of readings at either end that does not stretch the colours
COLOURS = 40  # of the heat map: steps below 2 mph, in two thirds of the bytes that 256 take
LABELLED = 3  # sensors of the map with their id
FEW_MISSING = 0.01  # share of the readings; a handful of lost rows is no alarm
DEAD = VERMILION


@dataclass(frozen=True, eq=False)
class _Span:
    """A stretch of time as a grid: cells float32 [C,N], NaN = no reading; column c starts ``start + c * width``."""

    start: int  # seconds of the wall time read as UTC
    length_s: int
    width: int  # seconds of a column
    cells: np.ndarray


def plot_report(store: Store, report: Report, path: Path) -> None:
    """Draw a map of the sensors and a heat map of a week into a .png, .svg or .pdf, atomically.

    report: of the same store.  Two renders of one file are equal, to the byte.  About 2 s.
    """
    with picture(path) as figure:
        left, right = figure.subplots(1, 2, width_ratios=(2, 3))
        figure.suptitle(_headline(report), fontsize=14)
        _draw_week(figure, right, store)
        _draw_map(figure, left, store, report)


def _headline(r: Report) -> str:
    missing = f"{percent(r.missing_share)} missing" if r.missing_share else "nothing missing"
    sensors = "1 sensor" if r.sensors == 1 else f"{r.sensors:,} sensors"
    return f"{r.dataset}: {sensors}, {r.rows:,} rows, {r.first_timestamp[:16]} to {r.last_timestamp[:16]}, {missing}"


def _draw_map(figure: Figure, axes: Axes, store: Store, report: Report) -> None:
    """Sensors in km, coloured by their share of missing readings, or by their mean reading.

    The mean is drawn where so few readings are missing that all sensors would have the same colour.
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ids, degrees = store.sensors.ids, np.stack([store.sensors.longitude, store.sensors.latitude], axis=1)
    missing = np.array([report.sensor_missing_share[vdid] for vdid in ids])
    dead, far = np.isin(ids, report.dead_sensors), np.isin(ids, report.outlier_sensors)
    known = np.isfinite(degrees).all(axis=1)
    shown = known & ~far if (known & ~far).any() else known  # one astray would press all others into one dot
    counts = {"without position": ~known, "far away, not drawn": known & ~shown, "without any reading (X)": dead}
    notes = [f"{flags.sum()} {what}" for what, flags in counts.items() if flags.any()]
    few, unit = report.missing_share < FEW_MISSING, _unit(store)
    what = f"mean {store.feature.replace('_', ' ')}, {unit}" if few else "share of rows without a valid reading"
    heading = "Sensors by their mean reading" if few else "Sensors by share of missing readings"
    title(axes, heading, "; ".join(notes) or "every sensor has a position and readings")
    if not shown.any():
        axes.text(0.5, 0.5, "no sensor has a position", ha="center", va="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
        return
    xy = np.full(degrees.shape, np.nan)
    xy[shown] = to_plane(*degrees[shown, ::-1].T)
    km_axes(axes, xy[shown])
    alive = np.flatnonzero(shown & ~dead)
    mean = np.array([np.nan if (found := report.sensor_mean[vdid]) is None else found for vdid in ids])
    worst = -mean if few else missing
    alive = alive[np.argsort(worst[alive], kind="stable")]  # the worst on top
    shade = mean if few else missing
    low, high = (float(np.nanmin(mean[alive])), float(np.nanmax(mean[alive]))) if few and len(alive) else (0.0, 0.0)
    high = high if few else float(missing[alive].max(initial=FEW_MISSING))
    x, y = xy.T
    edge: dict[str, Any] = {"edgecolors": "0.2", "linewidths": 0.5}
    size = DOT**2 * min(1.0, 300 / shown.sum())  # square points; thousands of dots still leave roads to see
    colours: dict[str, Any] = {"c": shade[alive], "vmin": low, "vmax": high, "cmap": "viridis" if few else "plasma_r"}
    dots = axes.scatter(x[alive], y[alive], s=max(4, size), zorder=3, **colours, **edge)
    axes.scatter(x[shown & dead], y[shown & dead], s=2 * DOT**2, c=DEAD, marker="X", zorder=4, **edge)
    texts = FuncFormatter(lambda value, _: f"{value:.3g}" if few else f"{100 * value:.3g}%")
    bar = figure.colorbar(dots, ax=axes, ticks=MaxNLocator(6), format=texts, **BAR)
    bar.set_label(what)
    figure.draw_without_rendering()  # lays the figure out, so that the limits are final
    figure.set_layout_engine("none")
    taken = scale_and_north(axes, xy[shown], [])
    worst_first = [*np.flatnonzero(shown & dead), *alive[::-1]]
    named = [place for place in worst_first if few or missing[place]][:LABELLED]
    label(axes, [ids[place] for place in named], xy[named], xy[shown], [taken])


def _unit(store: Store) -> str:
    return store.unit if store.unit != "unknown" else "unit not stored"


def _draw_week(figure: Figure, axes: Axes, store: Store) -> None:
    """What every sensor read in one week, as colours; missing readings stay grey."""
    from matplotlib import colormaps
    from matplotlib.ticker import FixedLocator

    span = _a_week(store)
    cells, group = _sorted_rows(span.cells)
    read = cells[np.isfinite(cells)]
    low, high = map(float, np.quantile(read, [TELLING, 1 - TELLING])) if len(read) else (0.0, 1.0)
    image = axes.imshow(
        cells.T,
        cmap=colormaps["viridis"].resampled(COLOURS).with_extremes(bad="0.72"),
        vmin=low,
        vmax=high if high > low else low + 1,
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        extent=(0, cells.shape[0] * span.width, 0, span.cells.shape[1]),
    )
    figure.colorbar(image, ax=axes, label=f"{store.feature.replace('_', ' ')}, {_unit(store)}", extend="both", **BAR)
    rows = "a row is one sensor" if group == 1 else f"a row is the mean of {group} sensors"
    means = "" if span.width == store.step_minutes * 60 else f"; means of {span.width // 60} minutes"
    most = ", the week with the most" if span.length_s == WEEK and span.start % WEEK == 4 * DAY else ""
    days = dict.fromkeys((day(span.start), day(span.start + span.length_s - 1)))
    title(
        axes,
        f"Readings of {' to '.join(days)} {moment(span.start).year}{most}",
        f"{rows}, the highest mean at the top{means}; grey: no reading",
    )
    axes.set_ylabel("sensors, in order of their mean in this period")
    axes.set_yticks([])
    ticks, texts, lines = time_ticks(span.start, span.length_s)
    axes.set_xticks(ticks, texts, ha="left" if span.length_s > 2 * DAY else "center")
    axes.xaxis.set_minor_locator(FixedLocator(lines))
    axes.vlines(lines, *axes.get_ylim(), colors="white", linewidth=0.6, alpha=0.7)


def _a_week(store: Store) -> _Span:
    """The week from a Monday 00:00 with the most readings, the first of equals; of a shorter file its first 7 days."""
    common = store.step_minutes * 60
    order = np.argsort(store.seconds, kind="stable")
    seconds = store.seconds[order]
    end = int(seconds[-1]) + common
    monday = -(-(int(seconds[0]) - 4 * DAY) // WEEK) * WEEK + 4 * DAY  # 1970-01-05 was one
    starts = np.arange(monday, end - WEEK + 1, WEEK)
    length_s = WEEK
    if len(starts):
        readings = np.concatenate([[0], np.cumsum(store.valid.sum(axis=1)[order])])
        first, last = np.searchsorted(seconds, starts), np.searchsorted(seconds, starts + WEEK)
        start = int(starts[np.argmax(readings[last] - readings[first])])
    else:
        start = int(seconds[0])
        length_s = min(WEEK, end - start)
    rows = order[slice(*np.searchsorted(seconds, [start, start + length_s]))]
    width = common * max(1, -(-length_s // (common * MOST_COLUMNS)))
    column, valid = (store.seconds[rows] - start) // width, store.valid[rows]
    shape = (-(-length_s // width), len(store.sensors.ids))
    total, count = np.zeros(shape), np.zeros(shape)
    np.add.at(total, column, np.where(valid, store.values[rows], 0.0))
    np.add.at(count, column, valid)
    return _Span(start, length_s, width, np.where(count > 0, total / np.maximum(count, 1), np.nan))


def _sorted_rows(cells: np.ndarray) -> tuple[np.ndarray, int]:
    """Cells [C,N] with the sensors in order of their mean, and as many of them averaged as leave 400 rows.

    A sensor without any reading comes first, at the bottom; missing cells do not count in an average.
    """
    count = np.isfinite(cells).sum(axis=0)
    mean = np.where(count > 0, np.nansum(cells, axis=0) / np.maximum(count, 1), -np.inf)
    cells = cells[:, np.argsort(mean, kind="stable")]
    group = -(-cells.shape[1] // MOST_ROWS)
    if group == 1:
        return cells, 1
    firsts = np.arange(0, cells.shape[1], group)
    read = np.add.reduceat(np.isfinite(cells), firsts, axis=1, dtype=np.int64)
    total = np.add.reduceat(np.nan_to_num(cells), firsts, axis=1)
    return np.where(read > 0, total / np.maximum(read, 1), np.nan), group
