"""Maps of sensors: pictures with axes in km, dots by a value and labels that avoid each other, and GeoJSON.

GeoJSON (RFC 7946) has degrees, longitude first; QGIS and web maps read GeoJSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from socialx.core.disk import atomic_write
from socialx.core.errors import Command, SocialxError
from socialx.data.geo import to_plane
from socialx.drawing.canvas import DOT, DPI, SMALL, VERMILION, title
from socialx.files.store.layout import Sensors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAR: dict[str, Any] = {"location": "bottom", "fraction": 0.05, "aspect": 40, "pad": 0.02}  # the colour bars
ERROR_COLOURS = "OrRd"  # of what is worse the more there is, apart from the scale of speeds
EDGE: dict[str, Any] = {"edgecolors": "0.2", "linewidths": 0.5}
FULL_SIZE = 200  # sensors: the dots of more are smaller, so that thousands still leave roads to see
LABELLED = 3  # sensors with their id
Place = tuple[float, float]  # longitude and latitude


@dataclass(frozen=True, eq=False)
class SensorMap:
    """The contents of a map.

    degrees [N,2]: latitude and longitude, NaN if unknown. values [N]: for colours, NaN if absent. worst: indices of
    sensors with a value, the worst first, drawn on top. colours: the scale. sizes [N]: dot sizes, 1 is usual. far [N]:
    sensors to leave out because of their distance; None: chosen by ``far_away``. crossed [N]: sensors drawn as a cross.
    named: indices, of which the first get a label. notes: text -> sensors [N] with that property. draw_below: draws
    below the dots, given locations [N,2] in km, and returns a note.
    """

    heading: str
    ids: Sequence[str]
    degrees: np.ndarray
    values: np.ndarray
    worst: np.ndarray
    colours: Mapping[str, Any]
    colour_bar: Mapping[str, Any]
    sizes: np.ndarray | float = 1.0
    far: np.ndarray | None = None
    crossed: np.ndarray | None = None
    named: Sequence[int] = ()
    notes: Mapping[str, np.ndarray] = field(default_factory=dict)
    otherwise: str = ""
    draw_below: Callable[[Axes, np.ndarray], str] = lambda axes, xy: ""


def draw_map(figure: Figure, axes: Axes, shown: SensorMap) -> None:
    """Draw a map of sensors on ``axes``, after all panels, because the layout is final afterwards."""
    xy, located, far = plane_locations(shown.degrees, shown.far)
    drawn = np.isfinite(xy).all(axis=1)
    counts = {"without position": ~located, "far away, not drawn": far, **shown.notes}
    notes = [f"{flags.sum()} {phrase}" for phrase, flags in counts.items() if flags.any()]
    if not drawn.any():
        title(axes, shown.heading, "; ".join(notes))
        axes.text(0.5, 0.5, "no sensor has a position", ha="center", va="center", transform=axes.transAxes)
        axes.set(xticks=[], yticks=[])
        return
    axes.set(xlabel="km east of the centre", ylabel="km north of the centre")
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.08)
    middle = np.median(xy[drawn], axis=0)
    axes.update_datalim([middle - 1, middle + 1])  # 2 km even for one place alone
    axes.grid(color="0.93")
    axes.set_axisbelow(True)
    below = shown.draw_below(axes, xy)
    title(axes, shown.heading, "; ".join([*([below] if below else []), *notes]) or shown.otherwise)
    crossed = np.zeros(len(drawn), bool) if shown.crossed is None else shown.crossed
    size = max(4, DOT**2 * min(1.0, FULL_SIZE / drawn.sum())) * np.broadcast_to(shown.sizes, len(drawn))

    def dot_sizes(sensors: np.ndarray) -> np.ndarray:
        """Return the dot sizes for some sensors, a single size where all are equal: an SVG writes that once."""
        return size[sensors][:1] if np.ndim(shown.sizes) == 0 else size[sensors]

    east, north = xy.T
    silent, crosses = drawn & np.isnan(shown.values) & ~crossed, drawn & crossed
    axes.scatter(east[silent], north[silent], s=dot_sizes(silent), c="0.8", zorder=3, **EDGE)
    axes.scatter(east[crosses], north[crosses], s=2 * DOT**2, c=VERMILION, marker="X", zorder=4, **EDGE)
    valued = shown.worst[drawn[shown.worst]][::-1]  # the worst on top
    if len(valued):
        places = {"s": dot_sizes(valued), "c": shown.values[valued], "zorder": 3}
        dots = axes.scatter(east[valued], north[valued], **places, **shown.colours, **EDGE)
        figure.colorbar(dots, ax=axes, **shown.colour_bar, **BAR)
    above: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "bottom", "fontsize": SMALL}
    axes.annotate("\u25b2\nN", (0.98, 1), (0, 3), "axes fraction", linespacing=1, **above)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(title="attention weight", loc="best", fontsize=SMALL, title_fontsize=SMALL)
    figure.draw_without_rendering()  # lays the figure out, and again with the labels of its final limits
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    legend, corner = axes.get_legend(), np.asarray(axes.bbox.extents)[[0, 1, 0, 1]]
    full = [(np.asarray(legend.get_window_extent().extents) - corner) * 72 / DPI] if legend else []
    named = [index for index in shown.named if drawn[index]][:LABELLED]
    place_labels(axes, [shown.ids[index] for index in named], xy[named], xy[drawn], full)


def plane_locations(degrees: np.ndarray, far: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return locations in km around the centre [N,2], masks of sensors with a location [N] and far away [N].

    degrees [N,2]: latitude and longitude. far [N]: the mask if given, None asks ``far_away``. A sensor far away gets
    the location NaN, unless all are far away.
    """
    located = np.isfinite(degrees).all(axis=1)
    if not located.any():
        return np.full(degrees.shape, np.nan), located, located
    kept = np.where(located[:, None], degrees, np.nan)
    far = located & (far_away(to_plane(*kept.T)) if far is None else far)
    far &= (located & ~far).any()
    kept[far] = np.nan
    return to_plane(*kept.T), located, far


def far_away(xy: np.ndarray) -> np.ndarray:
    """Return a mask of sensors beyond 20 times the median distance (at least 1 km) from the centre; xy [N,2] in km."""
    gap = np.hypot(*(xy - np.nanmedian(xy, axis=0)).T)
    return gap > 20 * max(1.0, float(np.nanmedian(gap)))


def round_length(most: float) -> float:
    """Return the longest of 1, 2 and 5 times a power of ten up to ``most``, such as 5 for 7: for a scale bar."""
    power = 10.0 ** np.floor(np.log10(most))
    return float(power * max(factor for factor in (1, 2, 5) if factor * power <= most))


def place_labels(axes: Axes, texts: list[str], anchors: np.ndarray, places: np.ndarray, full: list[np.ndarray]) -> None:
    """Write texts next to their anchors [m,2], where a text hides no text and the fewest dots (places [n,2]).

    Anchors and dots are in km, and the layout is final. full: boxes (left, bottom, right, top) in points to avoid.
    """
    dots, size = in_points(axes, places)
    margin = np.array([-4.0, -4.0, 4.0, 4.0])
    turns = np.radians(np.arange(0, 360, 30))
    for text, anchor in zip(texts, anchors, strict=True):
        half = np.array([0.34 * SMALL * len(text) + 2, 0.7 * SMALL])  # of its box; digits are 0.64 of their size wide
        at = in_points(axes, anchor[None])[0][0]
        choices = []
        for radius in (16, 34, 52, 76):
            for turn in turns:
                shift = np.array([np.cos(turn), np.sin(turn)]) * (half + radius)
                box = np.concatenate([at + shift - half, at + shift + half])
                clashes = count_overlaps(box, full) + bool((box[:2] < 4).any() or (box[2:] > size - 4).any())
                choices.append(((clashes, count_inside(dots, box + margin), radius), shift, box))
        _, shift, box = min(choices, key=lambda choice: choice[0])
        full = [*full, box]
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


def in_points(axes: Axes, xy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return locations [n,2] and the panel size [2] in points from the lower left corner, in a final layout."""
    size = np.array(axes.bbox.size) * 72 / DPI
    return axes.transAxes.inverted().transform(axes.transData.transform(xy)) * size, size


def count_inside(dots: np.ndarray, box: np.ndarray) -> int:
    """Return the number of dots [n,2] inside a box (left, bottom, right, top)."""
    return int(((dots >= box[:2]) & (dots <= box[2:])).all(axis=1).sum())


def count_overlaps(box: np.ndarray, others: Sequence[np.ndarray]) -> int:
    """Return how many ``others`` overlap a box; each box is (left, bottom, right, top)."""
    return sum(bool((box[:2] < other[2:]).all() and (other[:2] < box[2:]).all()) for other in others)


def sensor_places(sensors: Sensors, path: Path) -> dict[str, Place]:
    """Return longitude and latitude by sensor id, for sensors with a location.

    Raises SocialxError, which names ``path``, for a file without any location.
    """
    located = np.isfinite(sensors.latitude) & np.isfinite(sensors.longitude)
    if not located.any():
        raise SocialxError(path, "no sensor has a position", Command("backfill", path, meta_csv="LOCATIONS.csv"))
    return {
        sensors.ids[index]: (float(sensors.longitude[index]), float(sensors.latitude[index]))
        for index in np.flatnonzero(located)
    }


def point_features(where: Mapping[str, Place], unit: str, **by_id: Mapping[str, float | None]) -> list[dict[str, Any]]:
    """Return a GeoJSON point per sensor id in ``where``, with ``id``, ``unit`` and by_id: name -> id -> number."""
    return [
        feature("Point", location, id=vdid, **{name: values[vdid] for name, values in by_id.items()}, unit=unit)
        for vdid, location in where.items()
    ]


def feature(kind: str, coordinates: Sequence[Any], **properties: Any) -> dict[str, Any]:
    """Return a GeoJSON feature with properties; kind: of geometry, such as Point; coordinates: longitude first."""
    return {"type": "Feature", "geometry": {"type": kind, "coordinates": coordinates}, "properties": properties}


def write_features(path: Path, features: Iterable[Mapping[str, Any]]) -> None:
    """Write a GeoJSON file atomically, a feature per line."""
    lines = ",\n".join(json.dumps(geometry, allow_nan=False) for geometry in features)
    with atomic_write(path) as temporary:
        temporary.write_text(f'{{"type": "FeatureCollection", "features": [\n{lines}\n]}}\n', encoding="utf-8")
