"""A run at a glance: where it errs, on a map and by horizon, hour and sensor, and how far its heads reach."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from socialx.data.geo import to_plane
from socialx.report.canvas import (
    BAR,
    BLUE,
    DOT,
    GREY,
    SMALL,
    VERMILION,
    astray,
    emptiest_corner,
    km_axes,
    label,
    picture,
    plain,
    points,
    scale_and_north,
    title,
)
from socialx.report.explanation import WORST
from socialx.scoring.results import Explanation, Layer, SensorErrors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


LABELLED = 3  # sensors of the map with their id
LINKS = 2  # neighbours from which an arrow is drawn to each of the worst sensors
WIDTHS = (0.8, 1.8, 3.0)  # points, of arrows with weights up to a third of the strongest, two thirds, and above
LEGEND = (110, 74)  # points, of the legend of the arrows
MOST_HEADS = 20  # with a number each
LINE, POINT = BLUE, VERMILION
# Of reference forecasts: told apart without colours.
REFERENCES: tuple[dict[str, Any], ...] = (
    {"color": VERMILION, "linestyle": "--", "linewidth": 1.4},
    {"color": GREY, "linestyle": ":", "linewidth": 1.8},
)


def plot_explanation(found: Explanation, path: Path) -> None:
    """Draw an explanation into a .png, .svg or .pdf, atomically.

    Two renders of the same are equal, to the byte.
    """
    radii = [layer for layer in found.layers if layer.heads]
    panels: list[Any] = [["map", "horizon", "radii" if radii else "horizon"], ["map", "hour", "worst"]]
    with picture(path) as figure:
        axes = figure.subplot_mosaic(panels, width_ratios=(3, 1.4, 1.4))
        count = f"{found.count:,} forecasts" if found.count else "no valid target"
        mae = "" if found.mae is None else f", MAE {found.mae:.3f} {found.unit}"
        name = f"{Path(found.run).name} on {found.protocol.dataset}"
        times = "" if found.times is None else f", {found.times[0][:16]} to {found.times[1][:16]}"
        figure.suptitle(f"{name}: {found.target}, {found.part} part{times}, {count}{mae}", fontsize=14)
        _draw_horizon(axes["horizon"], found)
        _draw_hours(axes["hour"], found)
        _draw_worst(axes["worst"], found.sensors, found.mae, found.unit)
        if radii:
            _draw_radii(axes["radii"], radii)
        _draw_map(figure, axes["map"], found)


def _draw_map(figure: Figure, axes: Axes, found: Explanation) -> None:
    """Sensors in km, with colour and size by their MAE, and arrows from neighbours to the worst of them."""
    sensors, unit = found.sensors, found.unit
    heading = f"Sensors by MAE, {unit}: larger and darker is worse"
    degrees = np.array([[_nan(s.latitude), _nan(s.longitude)] for s in sensors])
    mae = np.array([_nan(s.mae) for s in sensors])
    xy = to_plane(*degrees.T)
    known = np.isfinite(xy).all(axis=1)
    if not known.any():
        title(axes, heading, "no sensor has a position: no map")
        axes.text(0.5, 0.5, "no sensor has a position", ha="center", va="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
        return
    shown = known & ~astray(xy)
    degrees[~shown] = np.nan
    xy = to_plane(*degrees.T)  # around the centre of those that are drawn
    km_axes(axes, xy[shown])
    links = _draw_links(axes, sensors, xy, shown)
    scored, silent = np.flatnonzero(shown & np.isfinite(mae)), shown & np.isnan(mae)
    scored = scored[np.argsort(mae[scored], kind="stable")]  # the worst on top
    edge: dict[str, Any] = {"edgecolors": "0.2", "linewidths": 0.5}
    size = max(4, DOT**2 * min(1.0, 150 / shown.sum()))
    east, north = xy.T
    axes.scatter(east[silent], north[silent], s=size, c="0.8", zorder=3, **edge)
    counts = {"without position": ~known, "far away, not drawn": known & ~shown, "without valid target (grey)": silent}
    notes = [f"{flags.sum()} {what}" for what, flags in counts.items() if flags.any()]
    links = links if found.layers else "no social pooling"
    title(axes, heading, "; ".join([*([links] if links else []), *notes]))
    if not len(scored):
        return
    low, high = np.quantile(mae[scored], [0, 0.99])  # one sensor alone does not take all colours
    high = high if high > low else low + 1
    sizes = size * (0.5 + 1.5 * np.clip((mae[scored] - low) / (high - low), 0, 1))
    colours: dict[str, Any] = {"c": mae[scored], "vmin": low, "vmax": high, "cmap": "plasma_r"}
    dots = axes.scatter(east[scored], north[scored], s=sizes, zorder=3, **colours, **edge)
    extend = "max" if mae[scored].max() > high else "neither"
    figure.colorbar(dots, ax=axes, label=f"MAE, {unit}", extend=extend, **BAR)
    figure.draw_without_rendering()  # lays the figure out, so that the limits are final
    figure.set_layout_engine("none")
    worst = scored[::-1][:LABELLED]
    full = _draw_legend(axes, xy[shown])
    full = [*full, scale_and_north(axes, xy[shown], full)]
    label(axes, [sensors[i].id for i in worst], xy[worst], xy[shown], full)


def _draw_links(axes: Axes, sensors: Sequence[SensorErrors], xy: np.ndarray, shown: np.ndarray) -> str:
    """Arrows to the worst sensors from the neighbours with the largest weights, in three widths -> what they are.

    Of every other sensor a thin line leads to the neighbour with the largest weight: a direction could not be read.
    """
    from matplotlib.collections import LineCollection

    place = {s.id: i for i, s in enumerate(sensors)}
    links = [
        (near.weight, place[near.id], i)
        for i, sensor in enumerate(sensors)
        for near in sensor.neighbours[: LINKS if i < WORST else 1]
        if place[near.id] != i and shown[i] and shown[place[near.id]]
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
    return (
        f"arrows: to the {min(WORST, len(sensors))} worst sensors from the {LINKS} neighbours with the largest weights"
    )


def _draw_legend(axes: Axes, xy: np.ndarray) -> list[np.ndarray]:
    """The widths of the arrows in the emptiest corner -> the boxes that are full, in points."""
    if not axes.get_legend_handles_labels()[0]:
        return []
    box, (_, size) = emptiest_corner(axes, xy, LEGEND, []), points(axes, xy)
    corner = tuple(box[:2] / size)
    axes.legend(title="attention weight", loc="lower left", bbox_to_anchor=corner, fontsize=SMALL, title_fontsize=SMALL)
    return [box]


def _draw_horizon(axes: Axes, found: Explanation) -> None:
    minutes = [row.key for row in found.by_horizon]
    for (name, reference), style in zip(found.references.items(), REFERENCES, strict=False):
        axes.plot(minutes, [_nan(row.mae) for row in reference.by_horizon], label=name, **style)
    axes.plot(minutes, [_nan(row.mae) for row in found.by_horizon], color=LINE, marker="o", markersize=4, label="run")
    title(axes, "MAE by horizon", found.unit)
    axes.set(xlabel="minutes ahead", xlim=(0, None), ylim=(0, None))
    axes.set_xticks([m for m in minutes if m % 15 == 0][:8] or minutes[:8])
    if found.references:
        axes.legend(fontsize=SMALL - 1, loc="lower right", frameon=False)
    plain(axes, "both")


def _draw_hours(axes: Axes, found: Explanation) -> None:
    axes.bar([row.key + 0.5 for row in found.by_hour], [_nan(row.mae) for row in found.by_hour], width=0.85, color=LINE)
    for reference, style in zip(found.references.values(), REFERENCES, strict=False):
        axes.plot([row.key + 0.5 for row in reference.by_hour], [_nan(row.mae) for row in reference.by_hour], **style)
    title(axes, "MAE by hour of the day", f"{found.unit}; dashed: all hours")
    if found.mae is not None:
        axes.axhline(found.mae, color=GREY, linestyle="--", linewidth=1)
    zone = found.protocol.timezone
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
