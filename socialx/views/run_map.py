"""The map of the page of some runs: sensors in the colours of their errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from socialx.scoring.results import Explanation, SensorErrors
from socialx.views.map_picture import on_plane, round_length
from socialx.views.page import DASH, NBSP, number

WIDE, HIGHEST, MARGIN = 640, 520, 14  # of the map, in its own units
LEVELS = 9  # of the colour scale
TELLING = 0.005  # the share of errors at either end that does not stretch the scale
FULL_SIZE = 250  # sensors: the dots of more are smaller


@dataclass(frozen=True)
class ErrorMap:
    """What the template shows of a map.

    dots: place, level of the colour and what is said of it, the best first, so that the worst are drawn on top.  bar:
    length in km, and in percent of the width; None without positions.  ends: of the colour scale.
    """

    dots: list[tuple[int, int, str, str]]
    dot_size: float
    size: tuple[int, int]
    bar: tuple[float, float] | None
    note: str
    ends: tuple[str, str]


def error_map(explanation: Explanation) -> ErrorMap:
    """The sensors of a run, the worst first, where they stand."""
    sensors, unit = explanation.sensors, explanation.unit
    points, height, unit_per_km, note = _places(sensors)
    known = [sensor.mae for sensor in sensors if sensor.mae is not None]
    low, high = np.quantile(known, [TELLING, 1 - TELLING]) if known else (0.0, 1.0)
    high = high if high > low else low + 1
    dots = []
    for sensor, point in zip(sensors, points, strict=True):
        level = "n"  # no value
        if sensor.mae is not None:
            level = str(max(0, min(LEVELS - 1, math.floor(LEVELS * (sensor.mae - low) / (high - low)))))
        if point is not None:
            dots.append((*point, level, f"{sensor.id}, MAE {number(sensor.mae, digits=2)} {unit}"))
    digits = max(0, 2 - math.floor(math.log10(max(high, 1e-6))))
    ends = (f"\u2264{NBSP}{low:.{digits}f}", f"\u2265{NBSP}{high:.{digits}f}{NBSP}{unit}")
    km = None if unit_per_km is None else round_length(WIDE / 4 / unit_per_km)
    return ErrorMap(
        dots=dots[::-1],
        dot_size=min(1.0, (FULL_SIZE / len(sensors)) ** 0.5),
        size=(WIDE, height),
        bar=None if km is None or unit_per_km is None else (km, 100 * km * unit_per_km / WIDE),
        note=note,
        ends=ends if known else (DASH, DASH),
    )


def _places(
    sensors: Sequence[SensorErrors],
) -> tuple[list[tuple[int, int] | None], int, float | None, str]:
    """Where each sensor is drawn, the height of the map, how many of its units a km is, and a note on who is missing.

    Without any position the sensors stand in rows, and a km has no length.
    """
    xy, known, far = on_plane(np.array([(sensor.latitude, sensor.longitude) for sensor in sensors], float))
    if not known.any():
        across = min(len(sensors), max(8, math.ceil(math.sqrt(2 * len(sensors)))))
        step = (WIDE - 2 * MARGIN) // across
        first = MARGIN + step // 2
        points = [(first + step * (k % across), first + step * (k // across)) for k in range(len(sensors))]
        return [*points], points[-1][1] + first, None, "No sensor has a position: they stand in rows, the worst first."
    low, high = np.nanmin(xy, axis=0), np.nanmax(xy, axis=0)
    across_km, up_km = np.maximum(high - low, 0.5)
    scale = min((WIDE - 2 * MARGIN) / across_km, (HIGHEST - 2 * MARGIN) / up_km)
    height = math.ceil(scale * up_km + 2 * MARGIN)
    corner = np.array([(WIDE - scale * across_km) / 2, height - MARGIN])
    places = np.rint(corner + scale * (xy - low) * (1, -1)).tolist()
    counts = {"without a position": int((~known).sum()), "far away": int(far.sum())}
    lost = " and ".join(f"{count} {what}" for what, count in counts.items() if count)
    drawn = [(int(x), int(y)) if math.isfinite(x) else None for x, y in places]
    return drawn, height, scale, f"Not on the map: {lost}." if lost else ""
