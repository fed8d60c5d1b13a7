"""A run at a glance: where it errs, on a map and by horizon, hour and sensor, and how far its heads reach."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from socialx.data.geo import to_plane
from socialx.report.canvas import BAR, BLUE, DOT, GREY, SMALL, VERMILION, astray, label, picture, plain, title
from socialx.report.explanation import WORST
from socialx.scoring.results import ErrorOf, Explanation, Layer, SensorErrors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


LABELLED = 3  # sensors of the map with their id
LINKS = 2  # neighbours of each sensor from which a wedge is drawn
WEDGE = 1 / 150  # half the width of the widest, in widths of the network
MOST_HEADS = 20  # with a number each
LINE, POINT = BLUE, VERMILION


def plot_explanation(found: Explanation, path: Path) -> None:
    """Draw an explanation into a .png or .svg, atomically.

    Two renders of the same are equal, SVGs to the byte.
    """
    radii = [layer for layer in found.layers if layer.heads]
    panels: list[Any] = [["map", "horizon", "radii" if radii else "horizon"], ["map", "hour", "worst"]]
    with picture(path) as figure:
        axes = figure.subplot_mosaic(panels, width_ratios=(3, 1.4, 1.4))
        count = f"{found.count:,} forecasts" if found.count else "no valid target"
        mae = "" if found.mae is None else f", MAE {found.mae:.3f} {found.unit}"
        name = f"{Path(found.run).name} on {found.protocol.dataset}"
        figure.suptitle(f"{name}: {found.target}, {found.part} part, {count}{mae}", fontsize=14)
        _draw_horizon(axes["horizon"], found.by_horizon, found.unit)
        _draw_hours(axes["hour"], found.by_hour, found.mae, found.unit)
        _draw_worst(axes["worst"], found.sensors, found.mae, found.unit)
        if radii:
            _draw_radii(axes["radii"], radii)
        _draw_map(figure, axes["map"], found)


def _draw_map(figure: Figure, axes: Axes, found: Explanation) -> None:
    """Sensors in km, coloured by their MAE, and wedges from the neighbours with the largest attention weights."""
    sensors, unit = found.sensors, found.unit
    heading = f"Sensors by MAE, {unit}"
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
    axes.set(xlabel="km east of the centre", ylabel="km north of the centre")
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.06)
    middle = np.median(xy[shown], axis=0)
    axes.update_datalim([middle - 1, middle + 1])  # 2 km even for one place alone
    axes.grid(color="0.93")
    axes.set_axisbelow(True)
    links = _draw_links(axes, sensors, xy, shown)
    scored, silent = np.flatnonzero(shown & np.isfinite(mae)), shown & np.isnan(mae)
    scored = scored[np.argsort(mae[scored], kind="stable")]  # the worst on top
    edge: dict[str, Any] = {"edgecolors": "0.2", "linewidths": 0.5}
    size = max(4, DOT**2 * min(1.0, 300 / shown.sum()))
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
    colours: dict[str, Any] = {"c": mae[scored], "vmin": low, "vmax": high, "cmap": "plasma_r"}
    dots = axes.scatter(east[scored], north[scored], s=size, zorder=3, **colours, **edge)
    extend = "max" if mae[scored].max() > high else "neither"
    figure.colorbar(dots, ax=axes, label=f"MAE, {unit}", extend=extend, **BAR)
    figure.draw_without_rendering()  # lays the figure out, so that the limits are final
    figure.set_layout_engine("none")
    worst = scored[::-1][:LABELLED]
    label(axes, [sensors[i].id for i in worst], xy[worst], xy[shown], [])


def _draw_links(axes: Axes, sensors: Sequence[SensorErrors], xy: np.ndarray, shown: np.ndarray) -> str:
    """Wedges from each sensor's strongest neighbours to it, wide and dark for a large weight -> what they are.

    A wedge that ends in a point shows its direction with less ink than an arrow (Holten and van Wijk 2009, CHI).
    """
    from matplotlib.collections import PolyCollection

    place = {s.id: i for i, s in enumerate(sensors)}
    links: list[tuple[float, int, int]] = [
        (near.weight, place[near.id], i)
        for i, sensor in enumerate(sensors)
        for near in sensor.neighbours[:LINKS]
        if place[near.id] != i and shown[i] and shown[place[near.id]]
    ]
    if not links:
        return ""
    links.sort()  # the strongest on top
    strongest = links[-1][0]
    share = np.array([weight / strongest for weight, _, _ in links])
    start, end = (xy[[int(link[column]) for link in links]] for column in (1, 2))
    along = end - start
    length = np.maximum(np.hypot(*along.T), 1e-9)[:, None]
    across = along[:, ::-1] * [-1, 1] / length * (np.ptp(xy[shown], axis=0).max() * WEDGE * share)[:, None]
    wedges = np.stack([start + across, start - across, end], axis=1)
    colours = np.column_stack([np.tile([0.0, 0.447, 0.698], (len(links), 1)), 0.15 + 0.6 * share])
    axes.add_collection(PolyCollection(list(wedges), facecolors=colours, edgecolors="none", zorder=2), autolim=False)
    return f"wedges: from the {LINKS} largest attention weights to the sensor; widest {strongest:.0%}"


def _draw_horizon(axes: Axes, rows: Sequence[ErrorOf[int]], unit: str) -> None:
    minutes, mae = [row.key for row in rows], [_nan(row.mae) for row in rows]
    axes.plot(minutes, mae, color=LINE, marker="o", markersize=4)
    title(axes, "MAE by horizon", unit)
    axes.set(xlabel="minutes ahead", xlim=(0, None), ylim=(0, None))
    axes.set_xticks([m for m in minutes if m % 15 == 0][:8] or minutes[:8])
    plain(axes, "both")


def _draw_hours(axes: Axes, rows: Sequence[ErrorOf[int]], mean: float | None, unit: str) -> None:
    axes.bar([row.key + 0.5 for row in rows], [_nan(row.mae) for row in rows], width=0.85, color=LINE)
    title(axes, "MAE by hour of the day", f"{unit}; dashed: all hours")
    if mean is not None:
        axes.axhline(mean, color=GREY, linestyle="--", linewidth=1)
    axes.set(xlabel="hour that is forecast", xlim=(0, 24), xticks=range(0, 25, 6))
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
    axes.barh(places, radius + softness - low, left=low, height=0.5, color=LINE, alpha=0.3)
    axes.scatter(radius, places, marker="|", s=90, color=LINE, linewidths=2)
    if np.isfinite(distance).any():
        axes.scatter(distance, places, marker="o", s=20, color=POINT, zorder=3)
    names = [name if len(rows) <= MOST_HEADS or len(name) > 2 else "" for name, _ in rows]
    axes.set_yticks(places, names, fontsize=SMALL if len(rows) <= 10 else SMALL - 3)
    axes.invert_yaxis()
    title(axes, "How far each head reaches", "bar: soft radius; dot: mean distance of the weights")
    axes.set(xlabel="km", ylabel="head", xlim=(0, None))
    plain(axes, "x")


def _nan(value: float | None) -> float:
    return np.nan if value is None else value
