"""An explained run as terminal tables, as a picture and on a map: errors, and how far the heads reach."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from socialx.drawing.canvas import BLUE, DAYS, GREY, SMALL, VERMILION, draw_lines, headline, picture, plain, title
from socialx.drawing.map import ERROR_COLOURS, Place, SensorMap, draw_map, feature, point_features, write_features
from socialx.drawing.terminal import DASH, TextTable, lead_times, number, percent, print_line, unit_suffix
from socialx.scoring.metrics import ErrorRow, mae_values
from socialx.scoring.protocol import ScoringProtocol
from socialx.scoring.results import Explanation, Layer, SensorErrors
from socialx.scoring.tables import WORST, key_text, protocol_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINKS = 2  # arrows drawn to each of the worst sensors
WIDTHS = (0.8, 1.8, 3.0)  # points, for weights up to a third of the largest, two thirds, and above
MOST_HEADS = 20  # labelled with a number
TELLING = 0.005  # the share of errors at either end that does not stretch the colours
HOUR_STEPS = (15, 30, 45, 60)  # minutes with a label, of a horizon of an hour
LINE, POINT = BLUE, VERMILION
# Line styles of baselines, distinct even in greyscale.
REFERENCES: tuple[dict[str, Any], ...] = (
    {"color": VERMILION, "linestyle": "--", "linewidth": 1.4, "marker": ""},
    {"color": GREY, "linestyle": ":", "linewidth": 1.8, "marker": ""},
    {"color": GREY, "linestyle": "-.", "linewidth": 1.4, "marker": ""},
)


def print_explanation(explanation: Explanation, console: Console | None = None) -> None:
    """Print MAE by lead time, hour and worst sensor, each attention head's numbers, and the protocol."""
    out = console or Console()
    for table in _tables(explanation):
        table.print(out)
    lines = [f"no pooling: {explanation.no_pooling}"] if explanation.no_pooling else []
    for line in (*lines, *protocol_lines(explanation.protocol)):
        print_line(out, line)


def _tables(explanation: Explanation) -> Iterator[TextTable]:
    mae, steps = f"MAE{unit_suffix(explanation.unit)}", explanation.by_horizon
    rows = {row.key: row for row in (*steps, ErrorRow(None, explanation.mae, explanation.count))}
    cells: list[Sequence[str]] = [
        (text, number(rows[minutes].mae, 4), f"{rows[minutes].count:,}")
        for minutes, text in lead_times(len(steps), steps[0].key).items()
    ]
    name = f"{explanation.run}, {explanation.split} windows, {explanation.target}"
    yield TextTable(name, ("at", mae, "forecasts"), cells)
    hours = [(key_text("hour", row.key), number(row.mae, 3)) for row in explanation.by_hour]
    cells = [[cell for hour in hours[first::6] for cell in hour] for first in range(6)]
    yield TextTable("by the hour of the day that is forecast", ("from", mae) * 4, cells)
    cells = []
    for sensor in (scored := [sensor for sensor in explanation.sensors if sensor.mae is not None][:WORST]):
        largest = [(near.id, f"{near.weight:.3f}", f"{near.km:.1f}") for near in sensor.neighbours[:1]]
        cells.append((sensor.id, number(sensor.mae, 3), f"{sensor.count:,}", *(largest or [(DASH,) * 3])[0]))
    sensors = len(explanation.sensors)
    worst = f"the {len(scored)} worst of {sensors} sensors" if len(scored) < sensors else "sensors, the worst first"
    heads = ("sensor", mae, "forecasts", "neighbour", "weight", "km")
    yield TextTable(f"{worst}, and the neighbour with the largest weight", heads, cells)
    if explanation.layers:
        yield _heads(explanation.layers)


def _heads(layers: Sequence[Layer]) -> TextTable:
    trained, most, cells = "trained" if any(layer.trained for layer in layers) else "fixed", layers[0].neighbours, []
    for layer in layers:
        name = layer.name
        for row_name, head in [*((str(i), head) for i, head in enumerate(layer.heads, start=1)), ("all", layer.mean)]:
            km = (number(head.gate_radius_km, 2), number(head.softness_km, 2))
            rest = (number(head.entropy_nats, 2), number(head.distance_km, 2))
            cells.append((name, row_name, *km, percent(head.null_key), *rest))
            name = ""
    text = (
        f"entropy of the attention weights: 0 = one neighbour only, {math.log(most + 1):.2f} = uniform over {most} "
        "neighbours and none; the no-neighbour weight completes the sum of the weights to 1"
    )
    if any(layer.mean.null_key is None for layer in layers):
        text = "pooling.kind max has no weights: it takes the largest value of all neighbours"
    name = f"attention weights of each head: {trained} radii, up to {most} neighbours; km and nats"
    heads = ("layer", "head", "gate radius", "gate width", "no neighbour", "entropy", "distance")
    return TextTable(name, heads, cells, below=[text])


def plot_explanation(explanation: Explanation, path: Path) -> None:
    """Draw an explanation into a .png, .svg or .pdf, atomically; two renders are equal to the byte."""
    radii = [layer for layer in explanation.layers if layer.heads]
    shown = error_map(explanation)
    xy = shown.locations()[0]
    xy = xy[np.isfinite(xy).all(axis=1)]
    panels: list[Any] = [["map", "map"]] * 2 + [["horizon", "radii" if radii else "horizon"], ["hour", "worst"]]
    if len(xy) and np.subtract(*np.ptp(xy, axis=0)) < 0:  # further from north to south than from west to east
        panels = [["map", "horizon"], ["map", "hour"], ["radii" if radii else "worst", "worst"]]
    with picture(path) as figure:
        axes = figure.subplot_mosaic(panels)
        count = f"{explanation.count:,} forecasts" if explanation.count else "no valid target"
        mae = "" if explanation.mae is None else f": MAE {explanation.mae:.3f} {explanation.unit}"
        name = f"{Path(explanation.run).name} on {explanation.protocol.dataset}"
        times = "" if explanation.times is None else f", {explanation.times[0][:16]} to {explanation.times[1][:16]}"
        times += f" ({zone})" if times and (zone := explanation.protocol.clock.name) else ""
        target = explanation.target.replace("_", " ")
        headline(figure, f"{name}{mae}", f"{target}, {explanation.split} windows{times}, {count}")
        for by in ("horizon", "hour"):
            _draw_errors(axes[by], explanation, by)
        _draw_worst(axes["worst"], explanation.sensors, explanation.mae, explanation.unit)
        if radii:
            _draw_radii(axes["radii"], radii)
        draw_map(figure, axes["map"], shown)


def error_map(explanation: Explanation) -> SensorMap:
    """Return the map with colour and size by MAE, and arrows from neighbours to the worst sensors."""
    mae = mae_values(explanation.sensors)
    scored = np.flatnonzero(np.isfinite(mae))
    worst = scored[np.argsort(-mae[scored], kind="stable")]
    low, high = np.quantile(mae[scored], [TELLING, 1 - TELLING]) if len(scored) else (0.0, 1.0)
    high = high if high > low else low + 1  # a single sensor

    def draw_below(axes: Axes, xy: np.ndarray) -> str:
        links = _draw_links(axes, explanation.sensors, xy)
        return links if explanation.layers else "no social pooling"

    return SensorMap(
        heading=f"Sensors by MAE, {explanation.unit}: larger and darker is worse",
        ids=[sensor.id for sensor in explanation.sensors],
        degrees=np.array([(sensor.latitude, sensor.longitude) for sensor in explanation.sensors], float),
        values=mae,
        worst=worst,
        colours={"vmin": low, "vmax": high, "cmap": ERROR_COLOURS},
        colour_bar={"label": f"MAE, {explanation.unit}", "extend": "both"},
        sizes=0.5 + 1.5 * np.clip(np.nan_to_num((mae - low) / (high - low), nan=1 / 3), 0, 1),
        named=worst.tolist(),
        notes={"without valid target (grey)": np.isnan(mae)},
        draw_below=draw_below,
    )


def _draw_links(axes: Axes, sensors: Sequence[SensorErrors], xy: np.ndarray) -> str:
    """Draw arrows in three widths from the strongest neighbours to the worst sensors; return a legend text.

    Every other sensor gets a thin line from the strongest neighbour, as a direction would be unreadable.  xy [N,2]:
    sensor locations in km, NaN for a hidden sensor.
    """
    from matplotlib.collections import LineCollection

    index, drawn = {sensor.id: i for i, sensor in enumerate(sensors)}, np.isfinite(xy).all(axis=1)
    links = [
        (near.weight, index[near.id], i)
        for i, sensor in enumerate(sensors)
        for near in sensor.neighbours[: LINKS if i < WORST else 1]
        if index[near.id] != i and drawn[i] and drawn[index[near.id]]
    ]
    lines = [xy[[near, i]] for _, near, i in links if i >= WORST]
    axes.add_collection(LineCollection(lines, colors=BLUE, linewidths=0.6, alpha=0.4, zorder=1), autolim=False)
    arrows = [link for link in links if link[2] < WORST]
    if not arrows:
        return ""
    thirds = max(weight for weight, _, _ in arrows) / 3
    for third, width in enumerate(WIDTHS, start=1):
        axes.plot([], [], color=BLUE, linewidth=width, label=f"up to {third * thirds:.0%}")
    for weight, near, i in arrows:
        width = WIDTHS[min(int(weight / thirds), len(WIDTHS) - 1)]
        look = {"arrowstyle": "-|>", "color": BLUE, "alpha": 0.85, "linewidth": width, "mutation_scale": 8 + 2 * width}
        axes.annotate("", xy[i], xy[near], arrowprops={**look, "shrinkA": 0, "shrinkB": 4}, zorder=2)
    return f"arrows: from the {LINKS} neighbours with most weight"


def division(by: str, rows: Sequence[ErrorRow], protocol: ScoringProtocol) -> tuple[str, Any, dict[str, Any]]:
    """Return how errors by horizon, hour or weekday are drawn: a heading, the place of each row, and the axis below."""
    last = protocol.horizon * protocol.step_minutes
    steps = (
        [minutes for minutes in HOUR_STEPS if minutes % protocol.step_minutes == 0] if last == HOUR_STEPS[-1] else []
    )
    zone, days = protocol.clock.name, (*DAYS, "hol.")[: len(rows)]
    middles = np.arange(len(rows)) + 0.5
    hour = f"target hour{f', {zone}' if zone else ''}"
    divisions: dict[str, tuple[str, Any, dict[str, Any]]] = {
        "horizon": (
            "By lead time",
            [row.key for row in rows],
            {"xlabel": "minutes ahead", "xlim": (0, last)} | ({"xticks": steps} if steps else {}),
        ),
        "hour": ("By hour of the day", middles, {"xlabel": hour, "xlim": (0, 24), "xticks": range(0, 25, 6)}),
        "weekday": ("By weekday", middles, {"xlim": (0, len(rows)), "xticks": middles, "xticklabels": days}),
    }
    return divisions[by]


def _draw_errors(axes: Axes, explanation: Explanation, by: str) -> None:
    run = Path(explanation.run).name
    rows: dict[str, Sequence[ErrorRow]] = {
        name: getattr(errors, f"by_{by}") for name, errors in {**explanation.references, run: explanation}.items()
    }
    heading, places, below = division(by, rows[run], explanation.protocol)
    looks = [*REFERENCES[: len(rows) - 1], {"color": LINE}]
    lines = zip(rows.items(), looks, strict=True)
    drawn = [(places, mae_values(table), {"label": name} | look) for (name, table), look in lines]
    draw_lines(axes, drawn, ylim=(0, None), **below)
    title(axes, f"MAE {heading[0].lower()}{heading[1:]}", explanation.unit)
    if by == "horizon" and explanation.references:
        axes.legend(fontsize=SMALL - 1, frameon=False)
    plain(axes, "both")


def _draw_worst(axes: Axes, sensors: Sequence[SensorErrors], mean: float | None, unit: str) -> None:
    worst = [s for s in sensors if s.mae is not None][:WORST]
    bars = range(len(worst))
    axes.barh(bars, mae_values(worst), color=LINE, height=0.75)
    axes.set_yticks(bars, [s.id for s in worst], fontsize=SMALL)
    axes.invert_yaxis()
    title(axes, f"The {len(worst)} worst sensors", f"MAE, {unit}; dashed: all sensors")
    if mean is not None:
        axes.axvline(mean, color=GREY, linestyle="--", linewidth=1)
    axes.set(xlabel=f"MAE, {unit}")
    plain(axes, "x")


def _draw_radii(axes: Axes, layers: Sequence[Layer]) -> None:
    """Draw each head as a bar over the km in which the gate falls, with the radius and the mean distance."""
    rows = [
        (f"{layer.name}   {number}" if number == 1 else str(number), head)  # only the first head names the layer
        for layer in layers
        for number, head in enumerate(layer.heads, start=1)
    ]
    bars = np.arange(len(rows))
    radius, softness, distance = (
        np.array([getattr(head, key) for _, head in rows], float)
        for key in ("gate_radius_km", "softness_km", "distance_km")
    )
    low = np.maximum(radius - softness, 0)
    axes.barh(bars, radius + softness - low, left=low, height=0.5, color=LINE, alpha=0.3, label="gate width")
    axes.scatter(radius, bars, marker="|", s=90, color=LINE, linewidths=2)
    if np.isfinite(distance).any():
        axes.scatter(distance, bars, marker="o", s=20, color=POINT, zorder=3, label="mean distance of the weights")
    names = [name if len(rows) <= MOST_HEADS or len(name) > 2 else "" for name, _ in rows]
    axes.set_yticks(bars, names, fontsize=SMALL if len(rows) <= 10 else SMALL - 3)
    axes.invert_yaxis()
    title(axes, "How far each head reaches", "a head is one set of attention weights")
    axes.set(xlabel="km within which neighbours count", ylabel="head", xlim=(0, None))
    axes.legend(fontsize=SMALL - 1, loc="upper center", bbox_to_anchor=(0.5, -0.28), frameon=False)
    plain(axes, "x")


def write_explanation(explanation: Explanation, where: Mapping[str, Place], path: Path) -> None:
    """Write GeoJSON: a point for each sensor, and a line from each of the strongest neighbours.

    where: id -> sensor location.  A point has ``id``, ``mae``, ``forecasts`` and ``unit``.  A line goes ``from`` the
    neighbour ``to`` the sensor, with the attention ``weight`` and the length in ``km``.
    """
    where = {sensor.id: where[sensor.id] for sensor in explanation.sensors if sensor.id in where}
    maes, counts = ({sensor.id: getattr(sensor, name) for sensor in explanation.sensors} for name in ("mae", "count"))
    lines = [
        feature("LineString", [where[near.id], where[sensor.id]], **ends, weight=near.weight, km=near.km)
        for sensor in explanation.sensors
        for near in sensor.neighbours
        if near.id != sensor.id and {near.id, sensor.id} <= where.keys()
        for ends in ({"from": near.id, "to": sensor.id},)
    ]
    write_features(path, [*point_features(where, explanation.unit, mae=maes, forecasts=counts), *lines])
