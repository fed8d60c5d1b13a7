"""The map of the page of some runs: sensors by error, by attention, and through one day; a script moves it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from socialx.data.geo import to_plane
from socialx.report.canvas import DAY, HOUR, astray, day, moment
from socialx.report.page import DASH, NBSP, Axis, Html, between, number, plain, plot, section, tag
from socialx.report.run_report import RunReport
from socialx.scoring.days import Day
from socialx.scoring.results import SensorErrors

WIDE, HIGHEST, MARGIN = 640, 520, 14  # of the map, in its own units
LEVELS = 9  # of a colour scale
MOST_VALUES = 200_000  # of the readings of a day that a page holds, about 1 MB; a larger network has fewer times
TELLING = 0.005  # the share of values at either end that does not stretch a colour scale
FULL_SIZE = 250  # sensors: the dots of more are smaller
MODES = {"error": "MAE", "received": "attention", "day": "one day"}


@dataclass(frozen=True)
class Places:
    """Where the sensors are drawn, None where one is not; the height of the map, and how many units a km is."""

    points: tuple[tuple[int, int] | None, ...]
    height: int
    unit_per_km: float | None
    note: str


def map_data(report: RunReport) -> dict[str, Any]:
    """What the script reads: sensors, the worst first, colour scales, and readings and forecasts of one day."""
    found = report.explanation
    place = {sensor.id: k for k, sensor in enumerate(found.sensors)}
    sensors = [
        {
            "id": plain(sensor.id),
            "mae": _rounded(sensor.mae, 3),
            "received": _rounded(sensor.received, 3),
            "near": [[place[near.id], round(near.weight, 4), round(near.km, 1)] for near in sensor.neighbours],
        }
        for sensor in found.sensors
    ]
    column = {name: k for k, name in enumerate(report.sensors)}
    shown = _thinned(report.days[0], [column[sensor.id] for sensor in found.sensors])
    unit, low_is_dark = plain(found.unit), "speed" in found.target  # a jam is a low speed, and stands out
    scales = {
        "error": _scale([sensor.mae for sensor in found.sensors], unit),
        "received": _scale([sensor.received for sensor in found.sensors], ""),
        "day": _scale(shown.truth.ravel().tolist(), unit, low_is_dark),
    }
    return {"unit": unit, "sensors": sensors, "scales": scales, "day": _day(shown, low_is_dark, *_axes(report.days[0]))}


def map_section(report: RunReport, data: Mapping[str, Any]) -> Html | None:
    """The map, what moves it, and what is known of one sensor.  Without the script it shows the errors."""
    found = report.explanation
    places = _places(found.sensors)
    modes = [mode for mode in MODES if data["scales"][mode]]
    radios = (_radio(mode) for mode in modes)
    options = (
        tag("option", f"{sensor.id}: MAE {number(sensor.mae, digits=2) or DASH}", value=k)
        for k, sensor in enumerate(found.sensors)
    )
    controls = (
        tag("div", *radios, role="radiogroup", aria_label="what the map shows", class_="modes")
        if len(modes) > 1
        else None,
        tag("label", "Sensor ", tag("select", *options, id="sensor")),
    )
    size = {
        "viewBox": f"0 0 {WIDE} {places.height}",
        "style": f"--Dot:{min(1.0, (FULL_SIZE / len(found.sensors)) ** 0.5):.2f}",
    }
    heard = "Sensors, the darkest are the worst. Arrow keys move to the next sensor in that direction."
    dots = (_dot(k, places, found.sensors[k], data, found.unit) for k in reversed(range(len(found.sensors))))
    first = tag("svg", tag("g", class_="links"), *dots, class_="map", role="listbox", aria_label=heard, **size)
    second = tag("svg", class_="map", aria_hidden="true", **size)
    captions = [f"MAE of each sensor, {found.unit}", f"Forecast, made {report.days[0].minutes_ahead} minutes before"]
    figures = (
        tag("figure", tag("figcaption", captions[0], id="caption"), first, _bar(places), id="first"),
        tag("figure", tag("figcaption", captions[1]), second, id="second", hidden=""),
    )
    drawn = tag("div", *figures, _panel(report), id="map", data_mode="error")
    shown = tag("p", _note(report, places), class_="note")
    return section("Map", shown, tag("div", *controls, class_="controls"), _legend(data), _slider(data), drawn)


def _radio(mode: str) -> Html:
    chosen = "" if mode == "error" else None
    return tag("label", tag("input", type="radio", name="mode", value=mode, checked=chosen), f" {MODES[mode]}")


def _dot(k: int, places: Places, sensor: SensorErrors, data: Mapping[str, Any], unit: str) -> Html | None:
    point = places.points[k]
    if point is None:
        return None
    said = f"{sensor.id}, MAE {number(sensor.mae, digits=2) or DASH} {unit}"
    look, (x, y) = f"q{_level(sensor.mae, data['scales']['error'])}", point
    return tag("circle", cx=x, cy=y, class_=look, data_place=k, role="option", tabindex=-1, aria_label=said)


def _level(value: float | None, scale: Mapping[str, Any] | None) -> str:
    """The level of a colour scale, 0 to 8; ``n`` for no value.  The script does the same."""
    if value is None or scale is None:
        return "n"
    share = (value - scale["low"]) / (scale["high"] - scale["low"])
    return str(max(0, min(LEVELS - 1, math.floor(LEVELS * (1 - share if scale["invert"] else share)))))


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


def _thinned(shown: Day, columns: Sequence[int]) -> Day:
    """A day with its sensors in this order, and as many of its times as a page can hold."""
    every = max(1, math.ceil(shown.truth.size / MOST_VALUES))
    rows = slice(None, None, every)
    truth, forecast = shown.truth[rows][:, columns], shown.forecast[rows][:, columns]
    return Day(shown.minutes_ahead, shown.seconds[rows], truth, forecast)


def _day(shown: Day, low_is_dark: bool, x: Axis, y: Axis) -> dict[str, Any]:
    """Readings and forecasts as whole numbers of ``quantum``, a row of sensors for each time; null: no reading."""
    spread = float(np.nanmax(shown.truth) - np.nanmin(shown.truth)) if np.isfinite(shown.truth).any() else 0.0
    power = math.floor(math.log10(spread / 100)) if spread > 0 else 0
    levels = [np.rint(values / 10.0**power) for values in (shown.truth, shown.forecast)]
    truth, forecast = ([[int(v) if math.isfinite(v) else None for v in row] for row in each] for each in levels)
    means = np.array([np.nanmean(row) if np.isfinite(row).any() else np.nan for row in shown.truth])
    start = 0 if np.isnan(means).all() else int(np.nanargmin(means if low_is_dark else -means))
    return {
        "times": [moment(int(second)).strftime("%H:%M") for second in shown.seconds],
        "at": [round(1000 * x.share(second % DAY / HOUR)) for second in shown.seconds.tolist()],
        "span": [y.first, y.last],
        "quantum": 10.0**power,
        "digits": max(0, -power),
        "start": start,  # the time with the lowest mean speed, or the highest mean of another quantity
        "truth": truth,
        "forecast": forecast,
    }


def _axes(shown: Day) -> tuple[Axis, Axis]:
    """Of the plot of one sensor; the same for all of them."""
    hours = (shown.seconds % DAY / HOUR).tolist()
    first, last = hours[0], max(hours[-1], hours[0] + 0.1)
    ticks = {float(at): f"{at:02}:00" for at in range(2, 24, 4) if first <= at <= last}
    values = np.concatenate([shown.truth, shown.forecast])
    known = values[np.isfinite(values)]
    low, high = (min(float(known.min()), 0.0), float(known.max())) if len(known) else (0.0, 1.0)
    return Axis(first, last, ticks, ""), between(4, low, high, "")


def _places(sensors: Sequence[SensorErrors]) -> Places:
    """Sensors on a plane, or in rows by their error where no position is known."""
    degrees = np.array([[math.nan if d is None else d for d in (s.latitude, s.longitude)] for s in sensors])
    known = np.isfinite(degrees).all(axis=1)
    if not known.any():
        across = min(len(sensors), max(8, math.ceil(math.sqrt(2 * len(sensors)))))
        step = (WIDE - 2 * MARGIN) // across
        points = [
            (MARGIN + step // 2 + step * (k % across), MARGIN + step // 2 + step * (k // across))
            for k in range(len(sensors))
        ]
        note = "No sensor has a position: they stand in rows, the worst first."
        return Places(tuple(points), points[-1][1] + step // 2 + MARGIN, None, note)
    degrees[~known] = np.nan
    far = known & astray(to_plane(*degrees.T))
    degrees[far] = np.nan
    xy = to_plane(*degrees.T)  # around the centre of those that are drawn
    low, high = np.nanmin(xy, axis=0), np.nanmax(xy, axis=0)
    across, up = np.maximum(high - low, 0.5)
    scale = min((WIDE - 2 * MARGIN) / across, (HIGHEST - 2 * MARGIN) / up)
    height = math.ceil(scale * up + 2 * MARGIN)
    left = (WIDE - scale * across) / 2
    drawn = [
        (round(left + scale * (x - low[0])), round(height - MARGIN - scale * (y - low[1])))
        if math.isfinite(x + y)
        else None
        for x, y in xy.tolist()
    ]
    counts = {"without a position": int((~known).sum()), "far away": int(far.sum())}
    lost = " and ".join(f"{count} {what}" for what, count in counts.items() if count)
    return Places(tuple(drawn), height, scale, f"Not on the map: {lost}." if lost else "")


def _bar(places: Places) -> Html | None:
    """A bar as long as a round number of km."""
    if places.unit_per_km is None:
        return None
    km = next(
        (m * 10.0**p for p in range(3, -4, -1) for m in (5, 2, 1) if m * 10.0**p * places.unit_per_km <= WIDE / 4), 0
    )
    return tag("p", f"{km:g} km", class_="km", style=f"width:{100 * km * places.unit_per_km / WIDE:.2f}%")


def _note(report: RunReport, places: Places) -> str:
    weights = " Lines lead to the neighbours with the largest attention weights." if report.explanation.layers else ""
    return f"Point at a sensor, or choose it, to see what is known of it.{weights} {places.note}".strip()


def _legend(data: Mapping[str, Any]) -> Html:
    """The levels of the colour scale, from small to large."""
    scale = data["scales"]["error"]
    ends = scale["ends"] if scale else (DASH, DASH)
    dots = (tag("circle", cx=10 + 20 * k, cy=10, class_=f"q{k}") for k in range(LEVELS))
    ramp = tag("svg", *dots, viewBox=f"0 0 {20 * LEVELS} 20", class_="ramp", aria_hidden="true")
    return tag("p", tag("span", ends[0], id="low"), ramp, tag("span", ends[1], id="high"), class_="scale")


def _slider(data: Mapping[str, Any]) -> Html:
    """Time of the day that is shown."""
    last, start = len(data["day"]["times"]) - 1, data["day"]["start"]
    play = tag("button", "Play", type="button", id="play")
    moved = tag("input", type="range", id="time", min=0, max=last, value=start, aria_label="time of the day")
    return tag("div", play, moved, tag("output", id="at", for_="time"), id="slider", class_="controls", hidden="")


def _panel(report: RunReport) -> Html:
    """What is known of the sensor that is chosen; the script fills it."""
    heard = "Its neighbours with the largest attention weights:" if report.explanation.layers else None
    near = (tag("p", heard, class_="note"), tag("ol", id="near", class_="note"))
    x, y = _axes(report.days[0])
    date = day(int(report.days[0].seconds[0]))
    said = f"reading and forecast of the chosen sensor, {report.explanation.unit}"
    drawn = plot(date, said, {"now": "", "truth": "", "forecast": ""}, x, y)
    note = tag("p", f"{date}; thin: reading, thick: forecast", class_="note")
    known = tag("div", tag("h3", id="name"), tag("p", id="facts"), *near)
    return tag("div", known, tag("div", note, drawn), id="panel", aria_live="polite")


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
