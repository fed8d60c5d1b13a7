"""The map of the page of some runs: sensors by error, by attention, and through one day; a script moves it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from socialx.scoring.days import Day
from socialx.scoring.results import SensorErrors
from socialx.views.canvas import DAY, HOUR, day, moment
from socialx.views.map_picture import on_plane, round_length
from socialx.views.page import DASH, NBSP, number, plain
from socialx.views.page_picture import clock_axes, inline
from socialx.views.run_report import RunReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE, HIGHEST, MARGIN = 640, 520, 14  # of the map, in its own units
LEVELS = 9  # of a colour scale
MOST_VALUES = 200_000  # of the readings of a day that a page holds, about 1 MB; a larger network has fewer times
TELLING = 0.005  # the share of values at either end that does not stretch a colour scale
FULL_SIZE = 250  # sensors: the dots of more are smaller
MODES = {"error": "MAE", "received": "attention", "day": "one day"}


@dataclass(frozen=True)
class MovingMap:
    """What the template shows of a map before the script moves it.

    modes: what the colours can mean.  options: of the list of sensors.  dots: number of the sensor, place, level of
    its colour and what is said of it, the best first, so that the worst are drawn on top.  bar: length in km, and in
    percent of the width; None without positions.
    """

    modes: dict[str, str]
    options: list[str]
    dots: list[tuple[int, int, int, str, str]]
    dot_size: float
    size: tuple[int, int]
    bar: tuple[float, float] | None
    note: str
    ends: Sequence[str]
    date: str
    panel: Markup


def moving_map(report: RunReport) -> tuple[MovingMap, dict[str, Any]]:
    """The map, and what its script reads: sensors, the worst first, colour scales, readings and forecasts of a day."""
    explanation, first_day = report.explanation, report.days[0]
    number_of = {sensor.id: k for k, sensor in enumerate(explanation.sensors)}
    sensors = [
        {
            "id": plain(sensor.id),
            "mae": None if sensor.mae is None else round(sensor.mae, 3),
            "received": None if sensor.received is None else round(sensor.received, 3),
            "near": [[number_of[near.id], round(near.weight, 4), round(near.km, 1)] for near in sensor.neighbours],
        }
        for sensor in explanation.sensors
    ]
    every = max(1, math.ceil(first_day.truth.size / MOST_VALUES))
    column_of = {name: column for column, name in enumerate(report.sensors)}
    columns = [column_of[sensor.id] for sensor in explanation.sensors]
    truth, forecast = (values[::every, columns] for values in (first_day.truth, first_day.forecast))
    unit, low_is_dark = plain(explanation.unit), "speed" in explanation.target  # a jam is a low speed, and stands out
    scale = _scale([sensor.mae for sensor in explanation.sensors], unit)
    scales = {
        "error": scale,
        "received": _scale([sensor.received for sensor in explanation.sensors], ""),
        "day": _scale(truth.ravel().tolist(), unit, low_is_dark),
    }
    limits: list[float] = []

    def draw(axes: Axes) -> None:
        values = np.concatenate([first_day.truth, first_day.forecast])
        limits.extend(clock_axes(axes, first_day.seconds, values, explanation.unit))

    heard = f"reading and forecast of the chosen sensor, {explanation.unit}"
    panel = inline("The chosen sensor", heard, draw, moved=("now", "truth", "forecast"))
    shown = Day(first_day.minutes_ahead, first_day.seconds[::every], truth, forecast)
    data = {"unit": unit, "sensors": sensors, "scales": scales, "day": _day(shown, low_is_dark, *limits)}
    points, height, unit_per_km, note = _places(explanation.sensors)
    dots = []
    for k, (sensor, point) in enumerate(zip(explanation.sensors, points, strict=True)):
        level = "n"  # no value; the script computes the same
        if sensor.mae is not None and scale:
            share = LEVELS * (sensor.mae - scale["low"]) / (scale["high"] - scale["low"])
            level = str(max(0, min(LEVELS - 1, math.floor(share))))
        if point is not None:
            words = f"{sensor.id}, MAE {number(sensor.mae, digits=2)} {explanation.unit}"
            dots.append((k, *point, level, words))
    km = None if unit_per_km is None else round_length(WIDE / 4 / unit_per_km)
    return MovingMap(
        modes={mode: name for mode, name in MODES.items() if scales[mode]},
        options=[f"{sensor.id}: MAE {number(sensor.mae, digits=2)}" for sensor in explanation.sensors],
        dots=dots[::-1],
        dot_size=min(1.0, (FULL_SIZE / len(sensors)) ** 0.5),
        size=(WIDE, height),
        bar=None if km is None or unit_per_km is None else (km, 100 * km * unit_per_km / WIDE),
        note=note,
        ends=scale["ends"] if scale else (DASH, DASH),
        date=day(int(first_day.seconds[0])),
        panel=panel,
    ), data


def _scale(values: Sequence[float | None], unit: str, invert: bool = False) -> dict[str, Any] | None:
    """A colour scale that a few extreme values do not stretch: its ends, and what is written at the levels 0 and 8."""
    known = np.array([value for value in values if value is not None and math.isfinite(value)])
    if not len(known):
        return None
    low, high = (float(end) for end in np.quantile(known, [TELLING, 1 - TELLING]))
    high = high if high > low else low + 1
    digits = max(0, 2 - math.floor(math.log10(max(high, 1e-6))))
    texts = [f"\u2264{NBSP}{low:.{digits}f}", f"\u2265{NBSP}{high:.{digits}f}"]
    ends = texts[::-1] if invert else texts
    return {"low": low, "high": high, "invert": invert, "ends": [ends[0], f"{ends[1]}{NBSP}{unit}".strip()]}


def _day(shown: Day, low_is_dark: bool, left: float, right: float, bottom: float, top: float) -> dict[str, Any]:
    """Readings and forecasts as whole numbers of ``quantum``, a row of sensors for each time; null: no reading.

    at: thousandths of the way from the left to the right end of the axes.
    """
    spread = float(np.nanmax(shown.truth) - np.nanmin(shown.truth)) if np.isfinite(shown.truth).any() else 0.0
    power = math.floor(math.log10(spread / 100)) if spread > 0 else 0
    levels = [np.rint(values / 10.0**power) for values in (shown.truth, shown.forecast)]
    truth, forecast = ([[int(v) if math.isfinite(v) else None for v in row] for row in each] for each in levels)
    means = np.array([np.nanmean(row) if np.isfinite(row).any() else np.nan for row in shown.truth])
    start = 0 if np.isnan(means).all() else int(np.nanargmin(means if low_is_dark else -means))
    return {
        "times": [moment(int(second)).strftime("%H:%M") for second in shown.seconds],
        "at": np.rint(1000 * (shown.seconds % DAY / HOUR - left) / (right - left)).astype(int).tolist(),
        "span": [bottom, top],
        "quantum": 10.0**power,
        "digits": max(0, -power),
        "start": start,  # the time with the lowest mean speed, or the highest mean of another quantity
        "truth": truth,
        "forecast": forecast,
    }


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
