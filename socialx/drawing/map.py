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
from socialx.drawing.canvas import DOT, SMALL, VERMILION, title
from socialx.files.store.layout import Sensors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

BAR: dict[str, Any] = {"location": "bottom", "fraction": 0.05, "aspect": 40, "pad": 0.02}  # the colour bars
ERROR_COLOURS = "OrRd"  # of what is worse the more there is, apart from the scale of speeds
EDGE: dict[str, Any] = {"edgecolors": "0.2", "linewidths": 0.5}
FULL_SIZE = 200  # sensors: the dots of more are smaller, so that thousands still leave roads to see
LABELLED = 3  # sensors with their id
APART = 10  # points between a dot and its label
SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))  # of a dot: across, up
Place = tuple[float, float]  # longitude and latitude


@dataclass(frozen=True, eq=False)
class SensorMap:
    """The contents of a map, in a picture or on a page.

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

    def locations(self) -> tuple[np.ndarray, list[str]]:
        """Return locations in km around the centre [N,2], NaN for sensors to leave out, and notes with counts.

        A sensor far away is left out, unless all are far away.
        """
        located = np.isfinite(self.degrees).all(axis=1)
        kept, far = np.where(located[:, None], self.degrees, np.nan), np.zeros(len(located), bool)
        if located.any():
            far = located & (far_away(to_plane(*kept.T)) if self.far is None else self.far)
            far &= (located & ~far).any()
            kept[far] = np.nan
            kept = to_plane(*kept.T)
        counts = {"without position": ~located, "far away, not drawn": far, **self.notes}
        return kept, [f"{flags.sum()} {phrase}" for phrase, flags in counts.items() if flags.any()]


def draw_map(figure: Figure, axes: Axes, shown: SensorMap) -> None:
    """Draw a map of sensors on ``axes``, after all panels, because the layout is final afterwards."""
    xy, notes = shown.locations()
    drawn = np.isfinite(xy).all(axis=1)
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
    beside: dict[str, Any] = {"textcoords": "offset points", "ha": "left", "va": "top", "fontsize": SMALL}
    axes.annotate("\u25b2\nN", (1, 1), (4, 0), "axes fraction", linespacing=1, **beside)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(title="attention weight", loc="best", fontsize=SMALL, title_fontsize=SMALL)
    figure.draw_without_rendering()  # lays the figure out, and again with the labels of its final limits
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    named = [index for index in shown.named if drawn[index]][:LABELLED]
    place_labels(axes, [shown.ids[index] for index in named], xy[named], xy[drawn])


def far_away(xy: np.ndarray) -> np.ndarray:
    """Return a mask of sensors beyond 20 times the median distance (at least 1 km) from the centre; xy [N,2] in km."""
    gap = np.hypot(*(xy - np.nanmedian(xy, axis=0)).T)
    return gap > 20 * max(1.0, float(np.nanmedian(gap)))


def round_length(most: float) -> float:
    """Return the longest of 1, 2 and 5 times a power of ten up to ``most``, such as 5 for 7: for a scale bar."""
    power = 10.0 ** np.floor(np.log10(most))
    return float(power * max(factor for factor in (1, 2, 5) if factor * power <= most))


def place_labels(axes: Axes, texts: list[str], anchors: np.ndarray, dots: np.ndarray) -> None:
    """Write texts next to anchors [m,2], each on the side that hides the fewest other texts, and then dots [n,2].

    Anchors and dots are in data units. No layout changes afterwards.
    """
    legend, points = axes.get_legend(), axes.transData.transform(dots)
    taken = [legend.get_window_extent()] if legend else []
    look: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "boxstyle": "square,pad=0.15"}
    for text, anchor in zip(texts, anchors, strict=True):
        label = axes.annotate(text, anchor, (0, 0), textcoords="offset points", fontsize=SMALL, zorder=6, bbox=look)

        def put(side: tuple[int, int], label: Annotation = label) -> Bbox:
            across, up = side
            label.set(ha=("center", "left", "right")[across], va=("center", "bottom", "top")[up])
            label.xyann = across * APART, up * APART
            return label.get_window_extent()

        def crowding(side: tuple[int, int]) -> tuple[int, int]:
            box = put(side)
            cut = axes.bbox.count_contains(box.corners()) < len(box.corners())
            return box.count_overlaps(taken) + cut, box.count_contains(points)

        taken.append(put(min(SIDES, key=crowding)))


def sensor_places(sensors: Sensors, path: Path) -> dict[str, Place]:
    """Return longitude and latitude by sensor id, for sensors with a location.

    Raises SocialxError, which names ``path``, for a file without any location.
    """
    located = np.isfinite(sensors.latitude) & np.isfinite(sensors.longitude)
    if not located.any():
        problem = "no sensor has a position"
        raise SocialxError("places.none", path, problem, Command("backfill", path, meta_csv="LOCATIONS.csv"))
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
