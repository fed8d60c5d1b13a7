"""A file at a glance: where its sensors are, and one week of what they read.  matplotlib is loaded when asked for."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from socialx.data.files import replacing
from socialx.data.geo import EARTH_RADIUS_KM
from socialx.data.inspect import Report
from socialx.data.store import Store
from socialx.errors import SettingsError, SocialxError
from socialx.report.tables import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
SIZE, DPI = (15.0, 7.2), 100  # inches, pixels per inch
HOUR, DAY, WEEK = 3_600, 86_400, 604_800  # seconds
MOST_ROWS, MOST_COLUMNS = 400, 700  # cells of the heat map: about the pixels of its panel, 0.8 MB within an SVG
COLOURS = 40  # of the heat map: steps below 2 mph, in two thirds of the bytes that 256 take
LABELLED = 3  # sensors of the map with their id
SMALL, DOT = 10, 6.0  # points
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")  # in English whatever the locale
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
DEAD = "#d55e00"  # vermilion of Okabe and Ito's palette, told apart from the colours of the shares by everybody
BAR: dict[str, Any] = {"location": "bottom", "fraction": 0.05, "aspect": 40, "pad": 0.02}  # the colour bars
# Everything else is matplotlib's default, whatever a matplotlibrc says.  Text of an SVG stays text, its ids are fixed.
STYLE: dict[str, Any] = {
    "svg.hashsalt": "socialx",
    "svg.fonttype": "none",
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
}


@dataclass(frozen=True, eq=False)
class _Span:
    """A stretch of time as a grid: cells float32 [C,N], NaN = no reading; column c starts ``start + c * width``."""

    start: int  # seconds of the wall time read as UTC
    seconds: int
    width: int  # seconds of a column
    cells: np.ndarray


def plot_report(store: Store, report: Report, path: Path) -> None:
    """Draw a map of the sensors and a heat map of a week into a .png or .svg, atomically.

    report: of the same store.  Two renders of one file are equal, SVGs to the byte.  About 2 s.
    """
    with picture(path) as figure:
        left, right = figure.subplots(1, 2, width_ratios=(2, 3))
        figure.suptitle(_headline(report), fontsize=14)
        _draw_week(figure, right, store)
        _draw_map(figure, left, store, report)


def check_picture(path: Path) -> None:
    """Refuse a name that no picture can have."""
    if path.suffix.lower() not in FORMATS:
        raise SettingsError(f"{path}: a picture cannot end in {path.suffix.lower()!r}: name it .png or .svg")


@contextmanager
def picture(path: Path, size: tuple[float, float] = SIZE) -> Iterator[Figure]:
    """An empty figure of so many inches, in the style of all pictures; it is written when the block ends well."""
    check_picture(path)
    kind = path.suffix.lower()
    try:
        from matplotlib import style
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ModuleNotFoundError as error:
        raise SocialxError(f"{path}: drawing needs the package {error.name}: pip install matplotlib") from None
    drawn = io.BytesIO()
    with style.context(["default", STYLE]):  # undone at the end
        figure = Figure(figsize=size, dpi=DPI, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08))
        yield figure
        figure.savefig(drawn, format=kind[1:], dpi=DPI, metadata={"Date": None} if kind == ".svg" else {})
    with replacing(path) as temporary:
        temporary.write_bytes(drawn.getvalue())


def _headline(r: Report) -> str:
    missing = f"{percent(r.missing_share)} missing" if r.missing_share else "nothing missing"
    sensors = "1 sensor" if r.sensors == 1 else f"{r.sensors:,} sensors"
    return f"{r.dataset}: {sensors}, {r.rows:,} rows, {r.first_stamp[:16]} to {r.last_stamp[:16]}, {missing}"


def _draw_map(figure: Figure, axes: Axes, store: Store, report: Report) -> None:
    """Sensors by longitude and latitude, coloured by their share of missing readings."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ids, degrees = store.sensors.ids, np.stack([store.sensors.longitude, store.sensors.latitude], axis=1)
    missing = np.array([report.sensor_missing_share[vdid] for vdid in ids])
    dead, far = np.isin(ids, report.dead_sensors), np.isin(ids, report.outlier_sensors)
    known = np.isfinite(degrees).all(axis=1)
    shown = known & ~far if (known & ~far).any() else known  # one astray would press all others into one dot
    counts = {"without position": ~known, "far away, not drawn": known & ~shown, "without any reading (X)": dead}
    notes = [f"{flags.sum()} {what}" for what, flags in counts.items() if flags.any()]
    title(axes, "Sensors by share of missing readings", "; ".join(notes) or "every sensor has a position and readings")
    if not shown.any():
        axes.text(0.5, 0.5, "no sensor has a position", ha="center", va="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
        return
    squeeze = max(0.05, float(np.cos(np.radians(np.median(degrees[shown, 1])))))  # a degree of longitude / of latitude
    axes.set(xlabel="longitude, degrees", ylabel="latitude, degrees")
    axes.set_aspect(1 / squeeze, adjustable="datalim")
    axes.margins(0.1)
    middle, reach = np.median(degrees[shown], axis=0), np.array([0.01 / squeeze, 0.01])
    axes.update_datalim([middle - reach, middle + reach])  # 2 km even for one place alone
    axes.grid(color="0.93")
    axes.ticklabel_format(useOffset=False)
    axes.locator_params(nbins=5)
    alive = np.flatnonzero(shown & ~dead)
    alive = alive[np.argsort(missing[alive], kind="stable")]  # the worst on top
    highest = max(float(missing[alive].max(initial=0)), 0.01)  # a handful of lost rows is no alarm
    x, y = degrees.T
    edge: dict[str, Any] = {"edgecolors": "0.2", "linewidths": 0.5}
    size = DOT**2 * min(1.0, 300 / shown.sum())  # square points; thousands of dots still leave roads to see
    colours: dict[str, Any] = {"c": missing[alive], "vmin": 0, "vmax": highest, "cmap": "plasma_r"}
    dots = axes.scatter(x[alive], y[alive], s=max(4, size), zorder=3, **colours, **edge)
    axes.scatter(x[shown & dead], y[shown & dead], s=2 * DOT**2, c=DEAD, marker="X", zorder=4, **edge)
    shares = FuncFormatter(lambda share, _: f"{100 * share:.3g}%")
    bar = figure.colorbar(dots, ax=axes, ticks=MaxNLocator(6), format=shares, **BAR)
    bar.set_label("share of rows without a valid reading")
    figure.draw_without_rendering()  # lays the figure out, so that the limits are final
    figure.set_layout_engine("none")
    bar_box = _scale_bar(axes, degrees[shown], squeeze)
    order = np.argsort(-missing, kind="stable")
    worst = [place for place in order if shown[place] and missing[place]][:LABELLED]
    label(axes, [ids[place] for place in worst], degrees[worst], degrees[shown], [bar_box])


def _scale_bar(axes: Axes, degrees: np.ndarray, squeeze: float) -> np.ndarray:
    """A bar of 1, 2 or 5 times a power of ten km in the emptiest corner -> the box it takes, in points.

    degrees [n,2] of the sensors drawn, longitude first; squeeze: a degree of longitude / a degree of latitude.
    """
    dots, size = _points(axes, degrees)
    span = np.ptp(axes.get_xlim()) * np.radians(1) * EARTH_RADIUS_KM * squeeze  # km
    power = 10.0 ** np.floor(np.log10(span / 3))
    length = power * max(factor for factor in (1, 2, 5) if factor * power <= span / 3)
    width, (right, top) = length / span * size[0], size - [8, 34]
    corners = [(x, y) for y in (8, top) for x in (8, right - width - 20)]
    boxes = [np.array([x, y, x + width + 20, y + 26]) for x, y in corners]
    box = min(boxes, key=lambda box: _inside(dots, box))  # the first of the emptiest
    place: dict[str, Any] = {"transform": axes.transAxes, "zorder": 5}
    ends, y = (box[[0, 2]] + [10, -10]) / size[0], (box[1] + 6) / size[1]
    axes.plot(ends, [y, y], color="black", linewidth=3, solid_capstyle="butt", **place)
    axes.text(ends.mean(), y + 4 / size[1], f"{length:g} km", ha="center", va="bottom", fontsize=SMALL, **place)
    return box


def label(axes: Axes, texts: list[str], anchors: np.ndarray, degrees: np.ndarray, taken: list[np.ndarray]) -> None:
    """Write texts beside their anchors [m,2], each where it hides no other text and the fewest of the dots [n,2].

    Anchors and dots in units of the axes, whose layout is final.  taken: the boxes in points that are full already.
    """
    dots, size = _points(axes, degrees)
    margin = np.array([-4.0, -4.0, 4.0, 4.0])
    turns = np.radians(np.arange(0, 360, 30))
    for text, anchor in zip(texts, anchors, strict=True):
        half = np.array([0.34 * SMALL * len(text) + 2, 0.7 * SMALL])  # of its box; digits are 0.64 of their size wide
        at = _points(axes, anchor[None])[0][0]
        choices = []
        for radius in (16, 34, 52, 76):
            for turn in turns:
                shift = np.array([np.cos(turn), np.sin(turn)]) * (half + radius)
                box = np.concatenate([at + shift - half, at + shift + half])
                clashes = sum(bool((box[:2] < other[2:]).all() and (other[:2] < box[2:]).all()) for other in taken)
                clashes += bool((box[:2] < 4).any() or (box[2:] > size - 4).any())
                choices.append(((clashes, _inside(dots, box + margin), radius), shift, box))
        _, shift, box = min(choices, key=lambda choice: choice[0])
        taken = [*taken, box]
        axes.annotate(
            text,
            anchor,
            shift,
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=SMALL,
            zorder=6,
            bbox={"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
            arrowprops={"arrowstyle": "-", "color": "black", "linewidth": 0.8, "shrinkA": 0, "shrinkB": 2},
        )


def _points(axes: Axes, degrees: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places [n,2] and the size [2] of the panel in points from its lower left corner; its layout is final."""
    size = np.array(axes.bbox.size) * 72 / DPI
    return axes.transAxes.inverted().transform(axes.transData.transform(degrees)) * size, size


def _inside(dots: np.ndarray, box: np.ndarray) -> int:
    """How many dots [n,2] lie in a box of left, bottom, right, top."""
    return int(((dots >= box[:2]) & (dots <= box[2:])).all(axis=1).sum())


def _draw_week(figure: Figure, axes: Axes, store: Store) -> None:
    """What every sensor read in one week, as colours; missing readings stay grey."""
    from matplotlib import colormaps
    from matplotlib.ticker import FixedLocator

    span = _a_week(store)
    cells, group = _sorted_rows(span.cells)
    read = cells[np.isfinite(cells)]
    low, high = (min(0.0, float(read.min())), float(np.quantile(read, 0.999))) if len(read) else (0.0, 1.0)
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
    unit = store.unit if store.unit != "unknown" else "unit not stored"
    figure.colorbar(image, ax=axes, label=f"{store.feature.replace('_', ' ')}, {unit}", **BAR)
    rows = "a row is one sensor" if group == 1 else f"a row is the mean of {group} sensors"
    means = "" if span.width == store.step_minutes * 60 else f"; means of {span.width // 60} minutes"
    days = dict.fromkeys((_day(span.start), _day(span.start + span.seconds - 1)))
    title(
        axes,
        f"Readings of {' to '.join(days)} {_moment(span.start).year}",
        f"{rows}, the highest mean at the top{means}; grey: no reading",
    )
    axes.set_ylabel("sensors, in order of their mean in this period")
    axes.set_yticks([])
    ticks, texts, lines = _time_ticks(span.start, span.seconds)
    axes.set_xticks(ticks, texts, ha="left" if span.seconds > 2 * DAY else "center")
    axes.xaxis.set_minor_locator(FixedLocator(lines))
    axes.vlines(lines, *axes.get_ylim(), colors="white", linewidth=0.6, alpha=0.7)


def _a_week(store: Store) -> _Span:
    """The week from a Monday 00:00 with the most readings, the first of equals; of a shorter file its first 7 days."""
    common = store.step_minutes * 60
    order = np.argsort(store.epochs, kind="stable")
    epochs = store.epochs[order]
    end = int(epochs[-1]) + common
    monday = -(-(int(epochs[0]) - 4 * DAY) // WEEK) * WEEK + 4 * DAY  # 1970-01-05 was one
    starts = np.arange(monday, end - WEEK + 1, WEEK)
    seconds = WEEK
    if len(starts):
        readings = np.concatenate([[0], np.cumsum(store.valid.sum(axis=1)[order])])
        first, last = np.searchsorted(epochs, starts), np.searchsorted(epochs, starts + WEEK)
        start = int(starts[np.argmax(readings[last] - readings[first])])
    else:
        start = int(epochs[0])
        seconds = min(WEEK, end - start)
    rows = order[slice(*np.searchsorted(epochs, [start, start + seconds]))]
    width = common * max(1, -(-seconds // (common * MOST_COLUMNS)))
    column, valid = (store.epochs[rows] - start) // width, store.valid[rows]
    shape = (-(-seconds // width), len(store.sensors.ids))
    total, count = np.zeros(shape), np.zeros(shape)
    np.add.at(total, column, np.where(valid, store.values[rows], 0.0))
    np.add.at(count, column, valid)
    return _Span(start, seconds, width, np.where(count > 0, total / np.maximum(count, 1), np.nan))


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


def _time_ticks(start: int, seconds: int) -> tuple[list[int], list[str], list[int]]:
    """Seconds since the start and texts of the labels, and where lines are drawn: at every midnight in between."""
    midnights = list(range(-(-start // DAY) * DAY, start + seconds, DAY))
    lines = [moment - start for moment in midnights if moment > start]
    if seconds > 2 * DAY:
        return [moment - start for moment in midnights], [_day(moment) for moment in midnights], lines
    step = next(s for s in (300, 900, 1800, HOUR, 3 * HOUR, 6 * HOUR) if seconds / s <= 9)
    moments = list(range(-(-start // step) * step, start + seconds, step)) or [start]
    texts = [_moment(moment).strftime("%H:%M") for moment in moments]
    for place, moment in enumerate(moments):
        if place == 0 or moment % DAY == 0:
            texts[place] += f"\n{_day(moment)}"
    return [moment - start for moment in moments], texts, lines


def _moment(epoch: int) -> datetime:
    return datetime.fromtimestamp(epoch, UTC)


def _day(epoch: int) -> str:
    """``Mon 5 Mar``."""
    moment = _moment(epoch)
    return f"{DAYS[moment.weekday()]} {moment.day} {MONTHS[moment.month - 1]}"


def title(axes: Axes, first: str, second: str) -> None:
    """A heading, and in smaller letters what there is to know before one looks."""
    axes.set_title(first, pad=22)
    axes.annotate(second, (0, 1), (0, 6), xycoords="axes fraction", textcoords="offset points", fontsize=SMALL)
