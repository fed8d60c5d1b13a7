"""A run at a glance: where it errs, on a map and by horizon, hour and sensor, and how far its heads reach."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from socialx.scoring.results import Explanation, Layer, SensorErrors
from socialx.views.canvas import BLUE, GREY, SMALL, VERMILION, picture, plain, title
from socialx.views.explanation_tables import WORST
from socialx.views.map_picture import SensorMap, draw_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


LINKS = 2  # neighbours from which an arrow is drawn to each of the worst sensors
WIDTHS = (0.8, 1.8, 3.0)  # points, of arrows with weights up to a third of the strongest, two thirds, and above
MOST_HEADS = 20  # with a number each
LINE, POINT = BLUE, VERMILION
# Of reference forecasts: told apart without colours.
REFERENCES: tuple[dict[str, Any], ...] = (
    {"color": VERMILION, "linestyle": "--", "linewidth": 1.4},
    {"color": GREY, "linestyle": ":", "linewidth": 1.8},
)


def plot_explanation(explanation: Explanation, path: Path) -> None:
    """Draw an explanation into a .png, .svg or .pdf, atomically.

    Two renders of the same are equal, to the byte.
    """
    radii = [layer for layer in explanation.layers if layer.heads]
    panels: list[Any] = [["map", "horizon", "radii" if radii else "horizon"], ["map", "hour", "worst"]]
    with picture(path) as figure:
        axes = figure.subplot_mosaic(panels, width_ratios=(3, 1.4, 1.4))
        count = f"{explanation.count:,} forecasts" if explanation.count else "no valid target"
        mae = "" if explanation.mae is None else f", MAE {explanation.mae:.3f} {explanation.unit}"
        name = f"{Path(explanation.run).name} on {explanation.protocol.dataset}"
        times = "" if explanation.times is None else f", {explanation.times[0][:16]} to {explanation.times[1][:16]}"
        figure.suptitle(f"{name}: {explanation.target}, {explanation.part} part{times}, {count}{mae}", fontsize=14)
        _draw_horizon(axes["horizon"], explanation)
        _draw_hours(axes["hour"], explanation)
        _draw_worst(axes["worst"], explanation.sensors, explanation.mae, explanation.unit)
        if radii:
            _draw_radii(axes["radii"], radii)
        _draw_map(figure, axes["map"], explanation)


def _draw_map(figure: Figure, axes: Axes, explanation: Explanation) -> None:
    """Sensors in km, with colour and size by their MAE, and arrows from neighbours to the worst of them."""
    mae = np.array([_nan(sensor.mae) for sensor in explanation.sensors])
    scored = np.flatnonzero(np.isfinite(mae))
    worst = scored[np.argsort(-mae[scored], kind="stable")]
    low, high = np.quantile(mae[scored], [0, 0.99]) if len(scored) else (0.0, 1.0)
    high = high if high > low else low + 1  # one sensor alone does not take all colours

    def draw_below(axes: Axes, xy: np.ndarray) -> str:
        links = _draw_links(axes, explanation.sensors, xy)
        return links if explanation.layers else "no social pooling"

    shown = SensorMap(
        heading=f"Sensors by MAE, {explanation.unit}: larger and darker is worse",
        ids=[sensor.id for sensor in explanation.sensors],
        degrees=np.array([(_nan(sensor.latitude), _nan(sensor.longitude)) for sensor in explanation.sensors]),
        values=mae,
        worst=worst,
        colours={"vmin": low, "vmax": high, "cmap": "plasma_r"},
        colour_bar={
            "label": f"MAE, {explanation.unit}",
            "extend": "max" if (mae[scored] > high).any() else "neither",
        },
        sizes=0.5 + 1.5 * np.clip(np.nan_to_num((mae - low) / (high - low), nan=1 / 3), 0, 1),
        named=worst.tolist(),
        notes={"without valid target (grey)": np.isnan(mae)},
        draw_below=draw_below,
    )
    draw_map(figure, axes, shown)


def _draw_links(axes: Axes, sensors: Sequence[SensorErrors], xy: np.ndarray) -> str:
    """Arrows to the worst sensors from the neighbours with the largest weights, in three widths -> what they are.

    Of every other sensor a thin line leads to the neighbour with the largest weight: a direction could not be read.
    xy [N,2]: where the sensors are, NaN where one is not drawn.
    """
    from matplotlib.collections import LineCollection

    place, drawn = {sensor.id: i for i, sensor in enumerate(sensors)}, np.isfinite(xy).all(axis=1)
    links = [
        (near.weight, place[near.id], i)
        for i, sensor in enumerate(sensors)
        for near in sensor.neighbours[: LINKS if i < WORST else 1]
        if place[near.id] != i and drawn[i] and drawn[place[near.id]]
    ]
    lines = [xy[[near, i]] for _, near, i in links if i >= WORST]
    axes.add_collection(LineCollection(lines, colors=BLUE, linewidths=0.6, alpha=0.4, zorder=1), autolim=False)
    arrows = [link for link in links if link[2] < WORST]
    if not arrows:
        return ""
    thirds = max(weight for weight, _, _ in arrows) / 3
    for number, width in enumerate(WIDTHS):
        axes.plot([], [], color=BLUE, linewidth=width, label=f"up to {(number + 1) * thirds:.0%}")
    for weight, near, i in arrows:
        width = WIDTHS[min(int(weight / thirds), len(WIDTHS) - 1)]
        look = {"arrowstyle": "-|>", "color": BLUE, "alpha": 0.85, "linewidth": width, "mutation_scale": 8 + 2 * width}
        axes.annotate("", xy[i], xy[near], arrowprops={**look, "shrinkA": 0, "shrinkB": 4}, zorder=2)
    worst = min(WORST, len(sensors))
    return f"arrows: to the {worst} worst sensors from the {LINKS} neighbours with the largest weights"


def _draw_horizon(axes: Axes, explanation: Explanation) -> None:
    minutes = [row.key for row in explanation.by_horizon]
    for (name, reference), style in zip(explanation.references.items(), REFERENCES, strict=False):
        axes.plot(minutes, [_nan(row.mae) for row in reference.by_horizon], label=name, **style)
    axes.plot(
        minutes, [_nan(row.mae) for row in explanation.by_horizon], color=LINE, marker="o", markersize=4, label="run"
    )
    title(axes, "MAE by horizon", explanation.unit)
    axes.set(xlabel="minutes ahead", xlim=(0, None), ylim=(0, None))
    axes.set_xticks([m for m in minutes if m % 15 == 0][:8] or minutes[:8])
    if explanation.references:
        axes.legend(fontsize=SMALL - 1, loc="lower right", frameon=False)
    plain(axes, "both")


def _draw_hours(axes: Axes, explanation: Explanation) -> None:
    axes.bar(
        [row.key + 0.5 for row in explanation.by_hour],
        [_nan(row.mae) for row in explanation.by_hour],
        width=0.85,
        color=LINE,
    )
    for reference, style in zip(explanation.references.values(), REFERENCES, strict=False):
        axes.plot([row.key + 0.5 for row in reference.by_hour], [_nan(row.mae) for row in reference.by_hour], **style)
    title(axes, "MAE by hour of the day", f"{explanation.unit}; dashed: all hours")
    if explanation.mae is not None:
        axes.axhline(explanation.mae, color=GREY, linestyle="--", linewidth=1)
    zone = explanation.protocol.clock
    axes.set(xlabel=f"hour that is forecast{f', {zone}' if zone else ''}", xlim=(0, 24), xticks=range(0, 25, 6))
    plain(axes, "y")


def _draw_worst(axes: Axes, sensors: Sequence[SensorErrors], mean: float | None, unit: str) -> None:
    worst = [s for s in sensors if s.mae is not None][:WORST]
    places = range(len(worst))
    axes.barh(places, [_nan(s.mae) for s in worst], color=LINE, height=0.75)
    axes.set_yticks(places, [s.id for s in worst], fontsize=SMALL)
    axes.invert_yaxis()
    title(axes, f"The {len(worst)} worst sensors", f"MAE, {unit}; dashed: all sensors")
    if mean is not None:
        axes.axvline(mean, color=GREY, linestyle="--", linewidth=1)
    axes.set(xlabel=f"MAE, {unit}")
    plain(axes, "x")


def _draw_radii(axes: Axes, layers: Sequence[Layer]) -> None:
    """Each head as a bar over the km in which its gate falls, its radius, and the mean distance of its weights."""
    rows = [
        (f"{layer.name}   {number}" if number == 1 else str(number), head)  # of a layer its first head is named
        for layer in layers
        for number, head in enumerate(layer.heads, start=1)
    ]
    places = np.arange(len(rows))
    radius, softness, distance = (
        np.array([_nan(getattr(head, key)) for _, head in rows]) for key in ("radius_km", "softness_km", "distance_km")
    )
    low = np.maximum(radius - softness, 0)
    axes.barh(places, radius + softness - low, left=low, height=0.5, color=LINE, alpha=0.3, label="soft radius")
    axes.scatter(radius, places, marker="|", s=90, color=LINE, linewidths=2)
    if np.isfinite(distance).any():
        axes.scatter(distance, places, marker="o", s=20, color=POINT, zorder=3, label="mean distance of the weights")
    names = [name if len(rows) <= MOST_HEADS or len(name) > 2 else "" for name, _ in rows]
    axes.set_yticks(places, names, fontsize=SMALL if len(rows) <= 10 else SMALL - 3)
    axes.invert_yaxis()
    title(axes, "How far each head reaches", "a head is one set of attention weights")
    axes.set(xlabel="km within which neighbours count", ylabel="head", xlim=(0, None))
    axes.legend(fontsize=SMALL - 1, loc="upper center", bbox_to_anchor=(0.5, -0.22), frameon=False)
    plain(axes, "x")


def _nan(value: float | None) -> float:
    return np.nan if value is None else value
