"""A file report, and what backfill would do, as terminal tables, and a picture of a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table

from socialx.core.errors import Argument, counted, sample
from socialx.drawing.canvas import DAY, day, headline, moment, picture, time_ticks, title
from socialx.drawing.map import BAR, ERROR_COLOURS, SensorMap, draw_map
from socialx.drawing.terminal import IMPUTED, percent
from socialx.files.sources.backfill import Completion
from socialx.files.sources.positions.locations import format_position
from socialx.files.store.store import Store
from socialx.inspection.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEATURES_LISTED = 30  # a file may declare hundreds of thousands
WEEK = 604_800  # seconds
MOST_ROWS, MOST_COLUMNS = 400, 700  # heat map cells, about one per pixel: 0.8 MB in an SVG
TELLING = 0.01  # share of observations clipped at either end of the colour scale
COLOURS = 40  # in the heat map: steps below 2 mph, two thirds of the bytes for 256
FEW_MISSING = 0.01  # share of observations; a handful of lost rows is fine


def print_report(report: Report, kind: str = "", console: Console | None = None) -> None:
    """Print a file report, a line per fact, such as rows or gaps; kind: kind of file, a line on top unless empty."""
    table = Table(show_header=False, show_edge=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    if kind:
        table.add_row("kind", kind)
    for name, value in (_about_file(report) | _about_times(report) | _about_readings(report)).items():
        table.add_row(name, value.rstrip())
    out = console or Console()
    out.print(table, highlight=False, markup=False)
    out.print(f"checksum         {report.checksum}", highlight=False, soft_wrap=True)  # longer than a narrow terminal


def _about_file(r: Report) -> dict[str, str]:
    lost = len(r.without_position)
    shared, far = sum(map(len, r.duplicate_positions)), len(r.outlier_sensors)
    extent = "none" if r.extent_km is None else f"{r.extent_km[0]:.1f} x {r.extent_km[1]:.1f} km"
    extent += "" if r.centre is None or r.extent_km is None else f" {format_position((r.centre[0], r.centre[1]))}"
    others = sample([f"{name} {r.units[name]}" for name in r.features if name != r.feature], FEATURES_LISTED)
    return {
        "file": r.path,
        "data": f"{r.dataset}, {r.feature} in {r.unit}{IMPUTED[r.imputed]}",
        "also": others or "no other feature",
        "sensors": f"{r.sensors}, {'all' if not lost else r.sensors - lost} with a location",
        "coordinates": f"{extent}; {shared} share a location, {far} far from all others",
    }


def _about_times(r: Report) -> dict[str, str]:
    gaps = counted(r.gaps, "gap") + (f", the largest {r.largest_gap_minutes:g} min" if r.gaps else "")
    clock = "time zone not stored" if r.timezone is None else f"time zone {r.timezone} not known here"
    if r.nonexistent_rows is not None:
        skipped = f"{counted(r.nonexistent_rows, 'row')} in skipped hours"
        clock = f"{skipped}, {r.nonexistent_rows_read} of them with a reading; {r.ambiguous_rows} in repeated hours"
    zone = f"{r.clock.name or ''}{f', stored in {r.timezone}' if r.local_zone else ''}"
    span = f"{r.clock.stored(r.first_timestamp)} .. {r.clock.stored(r.last_timestamp)}"
    without = f", {r.failed_rows} without a time" if r.failed_rows else ""
    odd = f"{counted(r.duplicates, 'duplicate')}, {counted(r.irregular_steps, 'irregular step')}"
    return {
        "rows": f"{r.rows:,}, every {r.step_minutes} min, {span} {zone}",
        "time axis": f"{gaps}, {odd}{without}",
        "daylight saving": clock,
    }


def _about_readings(r: Report) -> dict[str, str]:
    missing = "not finite" if r.missing is None else f"not finite or {r.missing:g}"
    worst = [f"{sensor} {percent(share)}" for sensor, share in r.worst_sensors.items() if share]
    stuck = [f"{sensor} {hours:.1f} h" for sensor, hours in r.stuck_sensors.items()]
    unusual = [f"{date} like a {like}" for date, like in r.unusual_days.items()]
    longest, dark = "none", counted(r.all_missing_rows, "row")
    if r.sensor_longest_outage is not None:
        outage = r.sensor_longest_outage
        steps = int(outage["steps"])
        length = f"{counted(steps, 'row')} ({steps * r.step_minutes / 60:.1f} h)"
        longest = f"sensor {outage['sensor']}, {length} from {r.clock.stored(outage['first_timestamp'])}"
    numbers = {name: getattr(r, name) for name in ("lowest", "median", "mean", "highest")}
    between = [f"{name} {value:.4g}" for name, value in numbers.items() if value is not None]
    return {
        "readings": f"{', '.join(between)} {r.unit if r.unit != 'unknown' else ''}" if between else "none",
        "missing": f"{percent(r.missing_share)} ({missing}); zeros {percent(r.zero_share)}",
        "worst sensors": ", ".join(worst) or "none",
        "dead sensors": f"{len(r.dead_sensors)}: {sample(r.dead_sensors)}" if r.dead_sensors else "none",
        "stuck sensors": f"{len(stuck)}: {sample(stuck)}" if stuck else "none",
        "unusual days": sample(unusual) if unusual else "none",
        "outages": f"{dark} without any reading, the longest run {counted(r.longest_outage_steps, 'row')}",
        "longest outage": longest,
    }


def print_plans(plans: Sequence[Completion]) -> None:
    """Print what backfill (completing old files) would do with each file."""
    table = Table(show_edge=False)
    table.add_column("file", overflow="fold")
    for head in ("is", "rows", "sensors", "to do"):
        table.add_column(head, justify="right" if head in ("rows", "sensors") else "left", overflow="fold")
    for plan in plans:
        todo = list(plan.actions) or ([] if plan.unplaced else ["nothing is missing"])
        if plan.unplaced:
            fails = "stay" if plan.without_positions else "fails"
            many = counted(len(plan.unplaced), "sensor")
            todo.append(f"{fails}: {many} without a location ({sample(plan.unplaced)})")
        if plan.variant.rewrite and not plan.given.rewrite:
            todo.append(f"fails: needs {Argument('rewrite', True)}")
        kind = f"{plan.variant.name}: {plan.variant.description}"
        table.add_row(str(plan.path), kind, f"{plan.rows:,}", f"{plan.sensors:,}", "\n".join(todo), end_section=True)
    Console().print(table, markup=False)


def plot_report(store: Store, report: Report, path: Path) -> None:
    """Draw a sensor map and a weekly heat map into a .png, .svg or .pdf, atomically, in about 2 s.

    report: on the same store.  Two renders are equal to the byte.
    """
    with picture(path) as figure:
        upper, lower = figure.subplots(2, 1, height_ratios=(1, 1))
        missing = f"{percent(report.missing_share)} missing" if report.missing_share else "nothing missing"
        first, last = (report.clock.stored(time)[:16] for time in (report.first_timestamp, report.last_timestamp))
        times = f"{report.rows:,} rows, {first} to {last}{f' ({report.clock.name})' if report.clock.name else ''}"
        headline(figure, f"{report.dataset}: {counted(report.sensors, 'sensor')}, {missing}", times)
        _draw_week(figure, lower, store)
        _draw_map(figure, upper, store, report)


def _draw_map(figure: Figure, axes: Axes, store: Store, report: Report) -> None:
    """Draw the sensors in km, coloured by share of missing values, or by mean observation.

    The mean is drawn if under 1 % of the values are missing, as all sensors would have the same colour.
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ids, few = store.sensors.ids, report.missing_share < FEW_MISSING
    missing = np.array([report.sensor_missing_share[vdid] for vdid in ids])
    mean = np.array([report.sensor_mean[vdid] for vdid in ids], float)
    dead = np.isin(ids, report.dead_sensors)
    alive = np.flatnonzero(~dead)
    worst = alive[np.argsort(mean[alive] if few else -missing[alive], kind="stable")]
    if few:
        heading, label = "Sensors by their mean reading", f"mean {store.feature.replace('_', ' ')}, {_unit(store)}"
        colours = {"vmin": mean[alive].min(), "vmax": mean[alive].max(), "cmap": "viridis"}
    else:
        heading, label = "Sensors by share of missing readings", "share of rows without a valid reading"
        colours = {"vmin": 0.0, "vmax": missing[alive].max(initial=FEW_MISSING), "cmap": ERROR_COLOURS}
    texts = FuncFormatter(lambda value, _: f"{value:.3g}" if few else f"{100 * value:.3g}%")
    shown = SensorMap(
        heading=heading,
        ids=ids,
        degrees=np.stack([store.sensors.latitude, store.sensors.longitude], axis=1),
        values=np.where(dead, np.nan, mean if few else missing),
        worst=worst,
        colours=colours,
        colour_bar={"label": label, "ticks": MaxNLocator(6), "format": texts},
        far=np.isin(ids, report.outlier_sensors),
        crossed=dead,
        named=[*np.flatnonzero(dead), *(sensor for sensor in worst if few or missing[sensor])],
        notes={"without any reading (X)": dead},
        otherwise="every sensor has a location and readings",
    )
    draw_map(figure, axes, shown)


def _unit(store: Store) -> str:
    return store.unit if store.unit != "unknown" else "unit not stored"


def _draw_week(figure: Figure, axes: Axes, store: Store) -> None:
    """Draw every sensor's observations in one week as colours, with grey for missing values.

    The week starts on a Monday 00:00 and has the most observations; a shorter file shows the first 7 days.
    """
    from matplotlib import colormaps
    from matplotlib.ticker import FixedLocator

    common = store.step_minutes * 60
    wall = store.clock.local(store.seconds)
    order = np.argsort(wall, kind="stable")
    seconds = wall[order]
    end = int(seconds[-1]) + common
    monday = -(-(int(seconds[0]) - 4 * DAY) // WEEK) * WEEK + 4 * DAY  # 1970-01-05 was a Monday
    starts = np.arange(monday, end - WEEK + 1, WEEK)
    start = int(seconds[0])  # wall time read as UTC
    length_s = min(WEEK, end - start)
    if len(starts):
        readings = np.concatenate([[0], np.cumsum(store.valid.sum(axis=1)[order])])
        first, last = np.searchsorted(seconds, starts), np.searchsorted(seconds, starts + WEEK)
        start, length_s = int(starts[np.argmax(readings[last] - readings[first])]), WEEK
    rows = order[slice(*np.searchsorted(seconds, [start, start + length_s]))]
    width = common * max(1, -(-length_s // (common * MOST_COLUMNS)))  # seconds per column
    column, valid = (wall[rows] - start) // width, store.valid[rows]
    total, count = (np.zeros((-(-length_s // width), len(store.sensors.ids))) for _ in range(2))
    np.add.at(total, column, np.where(valid, store.values[rows], 0.0))
    np.add.at(count, column, valid)
    cells, group = _sorted_rows(np.where(count > 0, total / np.maximum(count, 1), np.nan))
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
        extent=(0, cells.shape[0] * width, 0, total.shape[1]),
    )
    figure.colorbar(image, ax=axes, label=f"{store.feature.replace('_', ' ')}, {_unit(store)}", extend="both", **BAR)
    each_row = "a row is one sensor" if group == 1 else f"a row is the mean of {group} sensors"
    means = "" if width == common else f"; means of {width // 60} minutes"
    most = ", the week with the most" if length_s == WEEK and start % WEEK == 4 * DAY else ""
    days = dict.fromkeys((day(start), day(start + length_s - 1)))
    heading = f"Readings of {' to '.join(days)} {moment(start).year}{most}"
    title(axes, heading, f"{each_row}, the highest mean at the top{means}; grey: no reading")
    axes.set_ylabel("sensors, in order of their mean in this period")
    axes.set_yticks([])
    ticks, texts, lines = time_ticks(start, length_s)
    axes.set_xticks(ticks, texts, ha="left" if length_s > 2 * DAY else "center")
    axes.xaxis.set_minor_locator(FixedLocator(lines))
    axes.vlines(lines, *axes.get_ylim(), colors="white", linewidth=0.6, alpha=0.7)


def _sorted_rows(cells: np.ndarray) -> tuple[np.ndarray, int]:
    """Return cells [C,N] (C columns of the heat map, N sensors) with sensors sorted by mean, and the group size.

    More than 400 sensors are averaged in groups.  A silent sensor comes first, at the bottom; averages skip missing
    cells.
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
