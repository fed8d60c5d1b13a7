"""Drawn tables: names, shapes and further columns of a known truth; ``convert`` gives the truth, or asks.

T times, N sensors.  A table is drawn from (seed, number) alone.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import pandas as pd

NAMES = {  # of columns, in several languages
    "time": "time timestamp datetime date_time Zeitstempel Zeit fecha horodatage tijdstip data_ora",
    "date": "date Datum fecha day dato",
    "clock": "clock time hour Uhrzeit hora heure",
    "sensor": "sensor sensor_id station detector_id vdid Messstelle id_punto punto compteur meetpunt",
    "speed": "speed avg_speed Geschwindigkeit velocidad_media vitesse snelheid v_kfz",
    "flow": "flow volume count Verkehrsstaerke intensidad debit intensiteit q_kfz",
    "lane": "lane Fahrstreifen carril voie rijstrook lane_no",
    "way": "direction Richtung sentido sens dir",
    "row": "id nr index # row record_id Unnamed:_0 idx objectid",
    "record": "record_id objectid measurement_id uuid serial gid fid key",
    "upload": "uploaded_at created import_time last_update ingested",
    "end": "end end_time until bis to",
    "lat": "lat latitude y",
    "lon": "lon longitude x",
    "class": "road_class type category zone kategorie",
    "label": "name street location descr place",
    "flag": "flag status valid quality_flag error",
    "weather": "temperature temp rain humidity wind_speed",
    "limit": "speed_limit maxspeed vmax limit",
    "lanes": "lanes n_lanes num_lanes lane_count",
    "quality": "quality percent_observed pct_valid coverage reliability",
    "calendar": "weekday hour day_of_week is_weekend month",
    "network": "network_id city_id project region_code",
    "total": "total sum avg mean",
}
FORMS = (
    *("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S+02:00"),
    *("%d.%m.%Y %H:%M", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M", "%m/%d/%Y %I:%M %p", "%Y/%m/%d %H:%M", "%Y%m%d%H%M"),
    *("epoch", "milliseconds", "split", "split"),
)
OF_WIDE = ("row", "upload", "end", "weather", "calendar", "network", "total", "flag")
OF_LONG = (*OF_WIDE[:-2], "record", "lat", "lon", "class", "label", "flag", "limit", "lanes", "quality")
STREETS = ("Main-St", "Oak_Ave", "Ringweg", "A9-Nord", "Rue-7", "Elm", "Quai-2", "Pont")


@dataclass(frozen=True)
class Drawn:
    """A table, how it was drawn, and the truth.  ids: what its sensors may be called, each list in the order of theirs."""

    name: str
    content: bytes
    how: str
    plain: bool  # all its names are those of a language
    ids: list[list[str]]
    times: list[str]
    values: np.ndarray  # float64 [T,N]

    def wrong(self, path: Path) -> list[str]:
        """What is not the truth in a file that ``convert`` wrote."""
        with h5py.File(path) as file:
            found = file["data/features"][:, :, 0]
            ids, times = ([each.decode() for each in file[f"metadata/{name}"][:]] for name in ("vdids", "timestamps"))
        if times != self.times:
            return [f"times {times[:2]}.. ({len(times)}) are not {self.times[:2]}.. ({len(self.times)})"]
        names = next((names for names in self.ids if sorted(names) == sorted(ids)), ids if len(ids) == 1 else None)
        if names is None or len(ids) != self.values.shape[1]:
            return [f"sensors {ids[:6]} ({len(ids)}) are not {self.ids[0][:6]} ({self.values.shape[1]})"]
        right = self.values[:, [names.index(each) for each in ids]].astype(np.float32)
        other = np.argwhere(~np.isclose(found, right, 1e-6, 0, equal_nan=True))
        return [f"value at {tuple(at)} is {found[tuple(at)]}, not {right[tuple(at)]}" for at in other[:1].tolist()]


def draw(seed: int, number: int) -> Drawn:
    """The table of this number."""
    dice = Random(f"drawn:{seed}:{number}")
    shape, odd = dice.choice(("long", "long", "long", "wide", "wide", "one", "lanes", "ways")), dice.random() < 0.4
    kind, step = dice.choice(("speed", "flow")), dice.choice((5, 15, 60))
    sensors, rows = 1 if shape == "one" else dice.randint(2, 7), dice.randint(12, 70)
    start = datetime(2015, 1, 1) + timedelta(minutes=step * dice.randrange(10 * 365 * 24 * 60 // step))
    moments = [start + timedelta(minutes=step * row) for row in range(rows)]
    parts = dice.randint(2, 3) if shape == "lanes" else 1
    values = np.array([[[_reading(dice, kind) for _ in range(parts)] for _ in range(sensors)] for _ in moments])
    values[np.array([dice.random() for _ in range(values.size)]).reshape(values.shape) < dice.choice((0, 0.1))] = np.nan
    values[:, 0] = np.where(np.isnan(values[:, 0]), 50, values[:, 0])  # each time has a row
    names, cells = _sensors(dice, sensors), dice.choice(("", "NA"))
    used: set[str] = set()

    def name(column: str, may_be_odd: bool = True) -> str:
        plain = dice.choice([each for each in NAMES[column].split() if each.lower() not in used]).replace("_0", " 0")
        found = "".join(dice.choices("bcdfgjkwz", k=4)) if odd and may_be_odd and dice.random() < 0.5 else plain
        used.add(found.lower())
        return found

    form = dice.choice(FORMS)
    timed = _times(moments, form, name, step)
    gaps = dice.choice(("cells", "rows"))
    wide = shape in ("wide", "one")
    columns: list[tuple[str, Callable[[int, int, int], Any]]] = [(each, lambda t, n, p, c=cells: c[t]) for each, cells in timed]
    ids = [names]
    if shape == "wide":
        columns += [(each, lambda t, n, p, at=at: values[t, at, 0]) for at, each in enumerate(names)]
    else:
        if shape == "ways":
            names = [f"{names[at // 2]}" for at in range(sensors)]
            ids = [[f"{each}-{'NS'[at % 2]}" for at, each in enumerate(names)], [f"{'NS'[at % 2]}-{each}" for at, each in enumerate(names)], ["N", "S"]]
            columns.append((name("way"), lambda t, n, p: "NS"[n % 2]))
        if shape != "one":
            columns.insert(dice.randint(0, len(columns)), (name("sensor"), lambda t, n, p: names[n]))
        if shape == "lanes":
            columns.append((name("lane", may_be_odd=False), lambda t, n, p: p + 1))
        columns.append((name(kind), lambda t, n, p: values[t, n, p]))
    for each in dice.sample(OF_WIDE if wide else OF_LONG, dice.choice((0, 0, 1, 2, 3))):
        cell = _further(dice, each, moments, sensors, step)
        if each == "label":
            ids.append([str(cell(0, n, 0)) for n in range(sensors)])
        columns.insert(dice.choice((0, len(columns), len(columns))), (name(each, may_be_odd=not wide), cell))
    order = [(t, n, p) for t in range(rows) for n in range(1 if wide else sensors) for p in range(parts)]
    how = dice.choice(("time", "time", "sensor", "shuffled"))
    if how != "time":
        order = dice.sample(order, len(order)) if how == "shuffled" else sorted(order, key=lambda each: each[1:])
    order = [at for at in order if wide or gaps == "cells" or not np.isnan(values[at])]
    table = [[cell(*at) for _, cell in columns] for at in order]
    for row, line in enumerate(table, 1):
        line[:] = [row if cell is ROW else cell for cell in line]
    file, content, written = _written(dice, [each for each, _ in columns], table, cells)
    total = values.sum(axis=2) if kind == "flow" else np.nanmean(np.where(np.isnan(values).all(axis=2, keepdims=True), 0, values), axis=2)
    total = np.where(np.isnan(values).all(axis=2), np.nan, total)
    shift = timedelta(hours=2) if form.endswith("+02:00") else timedelta()
    times = [str(each - shift) for each in moments]
    said = f"{shape}, by {how}, {kind}, {form}, {written}: {', '.join(each for each, _ in columns)}"
    return Drawn(file, content, said, not odd, ids, times, total)


ROW = object()  # stands for the number of the row


def _reading(dice: Random, kind: str) -> float:
    return round(dice.gauss(75, 15), 1) if kind == "speed" else float(dice.randrange(0, 900))


def _sensors(dice: Random, count: int) -> list[str]:
    digits = dice.randint(3, 15)
    first = dice.randrange(10 ** (digits - 1), 10**digits - 100)
    return dice.choice(
        (
            [f"S{at + 1}" for at in range(count)],
            [str(at + 1) for at in range(count)],
            [str(first + 7 * at) for at in range(count)],
            dice.sample([str(first + 3 * at) for at in range(30)], count),
            [f"VD-{dice.choice('NS')}-{at:03}" for at in range(count)],
            dice.sample(STREETS, count),
        )
    )


def _times(moments: list[datetime], form: str, name: Callable[..., str], step: int) -> list[tuple[str, list[Any]]]:
    """The columns of the times: one, or those of dates and of times of day."""
    if form == "split":
        clocks = [each.hour if step == 60 else f"{each:%H:%M}" for each in moments]
        return [(name("date"), [f"{each:%Y-%m-%d}" for each in moments]), (name("clock", step != 60), clocks)]
    if form in ("epoch", "milliseconds"):
        seconds = [int((each - datetime(1970, 1, 1)).total_seconds()) for each in moments]
        return [(name("time", False), [each * (1000 if form == "milliseconds" else 1) for each in seconds])]
    return [(name("time"), [each.strftime(form) for each in moments])]


def _further(dice: Random, column: str, moments: list[datetime], sensors: int, step: int) -> Callable[[int, int, int], Any]:
    """The cells of a column that holds no readings, by the numbers of the time, the sensor and the lane."""
    big, late = 10 ** dice.randint(6, 14), timedelta(minutes=dice.randint(1, 600))
    fixed = [dice.randint(0, 2) for _ in range(sensors)]
    random = Random(dice.random())
    weather = [round(dice.gauss(12, 5), 1) for _ in moments]
    rising = iter(range(big, 10 * big, random.randint(1, 9)))
    return {
        "row": lambda t, n, p: ROW,
        "record": dice.choice((lambda t, n, p: random.randrange(big, 10 * big), lambda t, n, p: next(rising))),
        "upload": dice.choice(
            (lambda t, n, p: f"{moments[t] + late:%Y-%m-%d %H:%M:%S}", lambda t, n, p: f"{moments[-1] + late:%Y-%m-%d}")
        ),
        "end": lambda t, n, p: f"{moments[t] + timedelta(minutes=step):%Y-%m-%d %H:%M:%S}",
        "lat": lambda t, n, p: round(48.1 + n / 97, 5),
        "lon": lambda t, n, p: round(11.5 + n / 89, 5),
        "class": dice.choice((lambda t, n, p: "ABC"[fixed[n]], lambda t, n, p: fixed[n] + 1)),
        "label": lambda t, n, p: f"{STREETS[n % 8]}:{n}",
        "flag": dice.choice((lambda t, n, p: random.choice((0, 0, 0, 1)), lambda t, n, p: "OK", lambda t, n, p: 0)),
        "weather": lambda t, n, p: weather[t],
        "limit": lambda t, n, p: (50, 80, 100)[fixed[n]],
        "lanes": lambda t, n, p: fixed[n] + 1,
        "quality": dice.choice((lambda t, n, p: random.randint(60, 100), lambda t, n, p: 100)),
        "calendar": lambda t, n, p: moments[t].weekday(),
        "network": lambda t, n, p: big,
        "total": lambda t, n, p: 100 + t,
    }[column]


def _written(dice: Random, names: list[str], rows: list[list[Any]], nothing: str) -> tuple[str, bytes, str]:
    """The name, the content and the kind of a file of these rows, in which NaN is written as no reading."""
    kind = dice.choice(("csv", "csv", "csv", "csv.gz", "jsonl", "json", "parquet"))
    rows = [[None if cell != cell else cell for cell in row] for row in rows]
    if kind == "parquet":
        stream = io.BytesIO()
        frame = pd.DataFrame(rows, columns=names)
        if dice.random() < 0.5:
            frame = frame.apply(lambda column: column.astype(str) if column.dtype == object else column)
        frame.to_parquet(stream)
        return "data.parquet", stream.getvalue(), kind
    if kind in ("json", "jsonl"):
        objects = [dict(zip(names, row, strict=True)) for row in rows]
        text = json.dumps(objects) if kind == "json" else "".join(json.dumps(each) + "\n" for each in objects)
        return f"data.{kind}", text.encode(), kind
    mark, decimal = dice.choice(((",", "."), (",", "."), (";", ","), (";", "."), ("\t", "."), ("\t", ",")))
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter=mark)
    writer.writerow(names)
    for row in rows:
        writer.writerow(nothing if cell is None else str(cell).replace(".", decimal) if isinstance(cell, float) else cell for cell in row)
    content = stream.getvalue().encode()
    return f"data.{kind}", gzip.compress(content, mtime=0) if kind == "csv.gz" else content, f"{kind} {mark!a} {decimal}"
