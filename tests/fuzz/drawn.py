"""Drawn tables: names, shapes and further columns of a known truth, which ``convert`` gives, or it asks.

A table is drawn from (seed, number) alone.  T times, N sensors; a place is the numbers of a time, a sensor and a lane.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import warnings
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import pandas as pd

NAMES = {  # of columns, in several languages
    "time": "time timestamp datetime Zeitstempel Zeit fecha horodatage tijdstip data_ora",
    "date": "date Datum fecha day dato",
    "clock": "clock time hour Uhrzeit hora heure",
    "sensor": "sensor sensor_id station detector_id vdid Messstelle id_punto punto compteur meetpunt",
    "speed": "speed avg_speed Geschwindigkeit velocidad_media vitesse snelheid v_kfz",
    "flow": "flow volume count Verkehrsstaerke intensidad debit intensiteit q_kfz",
    "lane": "lane Fahrstreifen carril voie rijstrook lane_no",
    "way": "direction Richtung sentido sens dir",
    "row": "id nr index # row record_id objectid",
    "record": "record_id objectid measurement_id uuid serial gid key",
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
    "heavy": "trucks lkw heavy_vehicles hgv bus",
    "share": "occupancy occ Belegung ocupacion",
}
FORMS = (
    *("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S+02:00"),
    *("%d.%m.%Y %H:%M", "%d/%m/%Y %H:%M", "%m/%d/%Y %I:%M %p", "%Y/%m/%d %H:%M", "%Y%m%d%H%M", "%s", "%s000"),
)
SHAPES = ("long", "long", "long", "wide", "wide", "one", "lanes", "ways", "days")
BESIDE = ("row", "upload", "end", "weather", "calendar", "network", "total", "flag")  # sensors that are columns
FURTHER = (*BESIDE, "record", "lat", "lon", "class", "label", "limit", "lanes", "quality")
STREETS = ("Main-St", "Oak_Ave", "Ringweg", "A9-Nord", "Rue-7", "Elm", "Quai-2", "Pont")
At = tuple[int, int, int]


@dataclass(frozen=True)
class Drawn:
    """A table, how it was drawn, and the truth: float64 [T,N].  ids: lists of what its sensors may be called."""

    name: str
    content: bytes
    how: str
    plain: bool  # all its names are words of a language
    said: tuple[str, ...]  # options of the command
    ids: list[list[str]]
    times: list[str]
    values: np.ndarray

    def wrong(self, path: Path) -> list[str]:
        """What is not the truth in a file that ``convert`` wrote."""
        with h5py.File(path) as file:
            found = file["data/features"][:, :, 0]
            ids, times = ([each.decode() for each in file[f"metadata/{name}"][:]] for name in ("vdids", "timestamps"))
        if times != self.times:
            return [f"times {times[:2]}.. ({len(times)}) are not {self.times[:2]}.. ({len(self.times)})"]
        names = ids if len(ids) == 1 else next((each for each in self.ids if sorted(each) == sorted(ids)), [])
        if len(names) != self.values.shape[1]:
            return [f"sensors {ids[:6]} ({len(ids)}) are not {self.ids[0][:6]} ({self.values.shape[1]})"]
        right = self.values[:, [names.index(each) for each in ids]]
        other = np.argwhere(~np.isclose(found, right, 1e-6, 0, equal_nan=True))
        return [f"value at {at} is {found[tuple(at)]}, not {right[tuple(at)]}" for at in other[:1].tolist()]


def draw(seed: int, number: int) -> Drawn:
    """The table of this number."""
    dice = Random(f"drawn:{seed}:{number}")
    shape, odd, kind, form = (
        dice.choice(SHAPES),
        dice.random() < 0.4,
        dice.choice(("speed", "flow")),
        dice.choice(FORMS),
    )
    beside, by_day, used = shape in ("wide", "one", "days"), shape == "days", set[str]()
    step, count = 60 if by_day else dice.choice((5, 15, 60)), 1 if shape == "one" else dice.randint(2, 7)
    start = datetime(2015, 1, 1) + timedelta(minutes=step * dice.randrange(3650 * 1440 // step))
    start, rows = (
        start.replace(hour=0) if by_day else start,
        24 * dice.randint(2, 12) if by_day else dice.randint(12, 70),
    )
    moments = [start + timedelta(minutes=step * row) for row in range(rows)]
    values = _readings(dice, kind, (rows, count, dice.randint(2, 3) if shape == "lanes" else 1))
    names, by_rows, by = _sensors(dice, count), dice.random() < 0.5, dice.choice(("time", "sensor", "shuffled"))
    order = [at for at in np.ndindex(*values.shape) if beside or not (by_rows and np.isnan(values[at]))]
    order = [at for at in order if not (at[1] and shape in ("wide", "one")) and not (at[0] % 24 and by_day)]
    order = sorted(order, key=lambda at: at[1:]) if by == "sensor" else order
    order = dice.sample(order, len(order)) if by == "shuffled" else order

    def name(column: str, *, plain: bool = False) -> str:
        free = [each for each in NAMES[column].split() if each.lower() not in used]
        found = (
            "".join(dice.choices("bcdfgjkwz", k=4)) if odd and not plain and dice.random() < 0.5 else dice.choice(free)
        )
        used.add(found.lower())
        return found

    columns, ids = list[tuple[str, list[Any]]](), list[list[str]]()
    if by_day or dice.random() < 0.15:
        form = "%Y-%m-%d"
        columns.append((name("date"), [f"{moments[t]:{form}}" for t, _, _ in order]))
        clocks = [moments[t].hour if step == 60 else f"{moments[t]:%H:%M}" for t, _, _ in order]
        columns += [] if by_day else [(name("clock", plain=step == 60), clocks)]
    else:
        since = "%s" in form
        texts = [
            each.strftime(form.replace("%s", str(int((each - datetime(1970, 1, 1)).total_seconds()))))
            for each in moments
        ]
        columns.append((name("time", plain=since), [int(texts[t]) if since else texts[t] for t, _, _ in order]))
    if shape == "wide":
        columns += [(each, [values[t, n, 0] for t, _, _ in order]) for n, each in enumerate(names)]
    if shape == "ways":
        ways = ["NS"[n % 2] for n in range(count)]
        names = [names[n // 2] for n in range(count)]
        ids += [[f"{one}-{way}" for one, way in zip(*pair, strict=True)] for pair in ((names, ways), (ways, names))]
        columns.append((name("way"), [ways[n] for _, n, _ in order]))
    if shape not in ("wide", "one"):
        columns.insert(dice.randint(0, len(columns)), (name("sensor"), [names[n] for _, n, _ in order]))
    if shape == "lanes":
        columns.append((name("lane", plain=True), [p + 1 for _, _, p in order]))
    if by_day:
        columns += [(f"{hour:02}:00", [values[t + hour, n, 0] for t, n, _ in order]) for hour in range(24)]
    elif shape != "wide":
        columns.append((name(kind), [values[at] for at in order]))
    more = () if odd or beside else ("heavy", "share", *(("flow",) if kind == "speed" and shape != "lanes" else ()))
    for each in dice.sample((*more, *(BESIDE if beside else FURTHER)), dice.choice((0, 0, 1, 2, 3))):
        cells = _further(dice, each, order, moments, step)
        columns.insert(dice.choice((0, len(columns), len(columns))), (name(each, plain=beside), cells))
    with warnings.catch_warnings(action="ignore"):  # where no lane has a reading
        truth = values.sum(axis=2) if kind == "flow" else np.nanmean(values, axis=2)
    for _, cells in columns:  # any column that tells the sensors apart may name them
        pairs = {(n, str(cell)) for (_, n, _), cell in zip(order, cells, strict=True)}
        called = dict(pairs)
        ids += [[called[n] for n in range(count)]] if len(pairs) == len({*called.values()}) == count else []
    ids = [names] if shape == "wide" else ids or [names]
    file, content, written = _written(
        dice, [each for each, _ in columns], list(zip(*(each for _, each in columns), strict=True))
    )
    times = [str(each - timedelta(hours=2 * form.endswith("+02:00"))) for each in moments]
    how = f"{shape} by {by}, {kind}, {form}, {written}: {', '.join(each for each, _ in columns)}"
    said = ("--quantity", kind) if by_day or (odd and dice.random() < 0.5) else ()
    return Drawn(file, content, how, not odd, said, ids, times, truth)


def _readings(dice: Random, kind: str, shape: At) -> np.ndarray:
    """Speeds or flows [T,N,lanes] with gaps; the first sensor has none."""
    gaps, size = dice.choice((0, 0.1)), int(np.prod(shape))
    found = [round(dice.gauss(75, 15), 1) if kind == "speed" else float(dice.randrange(900)) for _ in range(size)]
    values = np.array([np.nan if dice.random() < gaps else each for each in found]).reshape(shape)
    values[:, 0] = np.where(np.isnan(values[:, 0]), 50, values[:, 0])
    return values


def _sensors(dice: Random, count: int) -> list[str]:
    digits = dice.randint(3, 15)
    first = dice.randrange(10 ** (digits - 1), 10**digits - 300)
    rising = [str(first + 7 * at) for at in range(30)]
    words = [f"VD-{dice.choice('NS')}-{at:03}" for at in range(count)]
    few = [str(at + 1) for at in range(count)]
    ways = (
        [f"S{each}" for each in few],
        few,
        rising[:count],
        dice.sample(rising, count),
        words,
        dice.sample(STREETS, count),
    )
    return dice.choice(ways)


def _further(dice: Random, column: str, order: list[At], moments: list[datetime], step: int) -> list[Any]:
    """The cells of a column that holds no readings."""
    big, late, fixed = 10 ** dice.randint(6, 14), timedelta(minutes=dice.randint(1, 600)), dice.choices(range(3), k=9)
    weather, places = [round(dice.gauss(12, 5), 1) for _ in moments], [n for _, n, _ in order]
    last, short = f"{moments[-1] + late:%Y-%m-%d}", dice.random() < 0.5
    return {
        "row": list(range(1, len(order) + 1)),
        "record": [big + 3 * row if short else dice.randrange(big, 10 * big) for row in range(len(order))],
        "upload": [last if short else str(moments[t] + late) for t, _, _ in order],
        "end": [str(moments[t] + timedelta(minutes=step)) for t, _, _ in order],
        "lat": [round(48.1 + n / 97, 5) for n in places],
        "lon": [round(11.5 + n / 89, 5) for n in places],
        "class": ["ABC"[fixed[n]] if short else fixed[n] + 1 for n in places],
        "label": [f"{STREETS[n]}:{n}" for n in places],
        "flag": ["OK" if short else dice.choice((0, 0, 0, 1)) for _ in order],
        "weather": [weather[t] for t, _, _ in order],
        "limit": [(50, 80, 100)[fixed[n]] for n in places],
        "lanes": [fixed[n] + 1 for n in places],
        "quality": [100 if short else dice.randint(60, 100) for _ in order],
        "calendar": [moments[t].weekday() for t, _, _ in order],
        "network": [big for _ in order],
        "total": [100 + t for t, _, _ in order],
        "heavy": [dice.randrange(90) for _ in order],
        "flow": [dice.randrange(900) for _ in order],
        "share": [round(dice.random() * 100, 1) for _ in order],
    }[column]


def _written(dice: Random, names: list[str], rows: list[tuple[Any, ...]]) -> tuple[str, bytes, str]:
    """The name, the content and the kind of a file of these rows, in which NaN stands for no reading."""
    kind, stream = dice.choice(("csv", "csv", "csv", "csv.gz", "jsonl", "json", "parquet")), io.BytesIO()
    rows = [tuple(None if cell != cell else cell for cell in row) for row in rows]
    if kind == "parquet":
        pd.DataFrame(rows, columns=names).to_parquet(stream)
        return f"data.{kind}", stream.getvalue(), kind
    if kind in ("json", "jsonl"):
        objects = [dict(zip(names, row, strict=True)) for row in rows]
        text = json.dumps(objects) if kind == "json" else "".join(json.dumps(each) + "\n" for each in objects)
        return f"data.{kind}", text.encode(), kind
    mark, decimal = dice.choice(((",", "."), (",", "."), (";", ","), (";", "."), ("\t", "."), ("\t", ",")))
    nothing, whole, lines = dice.choice(("", "NA")), dice.random() < 0.8, io.StringIO(newline="")
    writer = csv.writer(lines, delimiter=mark)
    writer.writerow(names)
    for row in rows:
        texts = [nothing if cell is None else str(cell) for cell in row]
        texts = [text.removesuffix(".0") if whole else text for text in texts]
        writer.writerow(
            text.replace(".", decimal) if isinstance(cell, float) else text
            for cell, text in zip(row, texts, strict=True)
        )
    content = lines.getvalue().encode()
    return (
        f"data.{kind}",
        gzip.compress(content, mtime=0) if kind == "csv.gz" else content,
        f"{kind} {mark!a} {decimal}",
    )
