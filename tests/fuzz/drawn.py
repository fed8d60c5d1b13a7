"""Drawn tables with a description: read as pandas reads them by the description, or refused; else proved or asked.

A table is drawn from (seed, number) alone.  What a description means is said once more here, by pandas.
"""

import gzip
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import pandas as pd

NAMES = {  # of columns, in several languages
    "time": "time timestamp Zeit fecha horodatage tijdstip",
    "sensor": "sensor station detector_id Messstelle punto meetpunt",
    "speed": "speed avg_speed Geschwindigkeit velocidad vitesse v_kfz",
    "flow": "flow volume count Verkehrsstaerke intensidad q_kfz",
    "lane": "lane Fahrstreifen carril voie",
    "way": "direction Richtung sentido dir",
}
FURTHER: dict[str, Callable[[int], Any]] = {  # columns without readings, by the number of a row
    "id": int,
    "uploaded_at": lambda row: "2030-01-01 00:00:00",
    "zone": lambda row: "ABC"[row % 3],
    "status": lambda row: int(row % 7 == 0),
    "speed_limit": lambda row: 50 + 30 * (row % 2),
    "quality": lambda row: 60 + row % 40,
    "temperature": lambda row: 12.5 + row % 9,
    "trucks": lambda row: row * 37 % 90,
}
FORMS = ("", "%d.%m.%Y %H:%M", "%m/%d/%Y %I:%M %p", "%Y/%m/%d %H:%M", "s")  # "" is ISO 8601
KINDS = ("csv", "csv", "csv", "csv.gz", "jsonl", "json", "parquet")
EVERY, SPEC, AT = "(?P<sensor>.+)", "table.yaml", "at.csv"
ABSENT = {
    "",
    "NA",
    "N/A",
    "n/a",
    "#N/A",
    "null",
    "NULL",
    "None",
    "none",
    "nan",
    "NaN",
    "NAN",
    "NaT",
    "-",
    "--",
    "?",
} | {"[]"}
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
Table = tuple[pd.DataFrame, dict[str, Any]]  # a table, and what its description says


@dataclass(frozen=True)
class Drawn:
    """A table and its description as JSON, which is YAML; how: a line that says what was drawn."""

    name: str
    content: bytes
    spec: dict[str, Any]
    ids: tuple[str, ...]
    how: str

    def files(self) -> dict[str, bytes]:
        """The table, its description and a table of positions."""
        places = "".join(f"{vdid},{48 + row / 97:.5f},11.5\n" for row, vdid in enumerate(self.ids))
        texts = {SPEC: json.dumps(self.spec), AT: f"sensor_id,latitude,longitude\n{places}"}
        return {name: text.encode() for name, text in texts.items()} | {self.name: self.content}


def differing(written: Path, table: Path, spec: Mapping[str, Any]) -> list[str]:
    """Where a file that ``convert`` wrote is not what pandas finds in the table."""
    with h5py.File(written) as file:
        ids, times = (file[f"metadata/{name}"].asstr()[:] for name in ("vdids", "timestamps"))
        found = pd.DataFrame(file["data/features"][:, :, 0], pd.to_datetime(times), ids)
    right = by_pandas(table, spec).astype(np.float32)
    if {*ids} != {*right.columns} or not {*right.index} <= {*found.index}:
        return [f"{found.shape} from {times[0]}, {ids[:4]} are not {right.shape}, {list(right.columns[:4])}"]
    right = right.reindex(found.index)[[*ids]]  # times that are not there have no readings
    other = np.argwhere(~((found == right) | (found.isna() & right.isna())).to_numpy())
    return [f"value at {row}, {at} is {found.iat[row, at]}, not {right.iat[row, at]}" for row, at in other[:1]]


def draw(seed: int, number: int) -> Drawn:
    """The table of this number."""
    dice = Random(f"drawn:{seed}:{number}")
    shape, form, kind = dice.choice(list(SHAPES)), dice.choice(FORMS), dice.choice(KINDS)
    quantity = "flow" if shape == "lanes" else dice.choice(("speed", "flow"))
    names = {role: dice.choice(words.split()) for role, words in NAMES.items()}
    tidy = _tidy(dice, shape, quantity)
    table, spec = SHAPES[shape](tidy, names, quantity)
    if shape == "hours":
        form = "%Y-%m-%d"
    moments = table[names["time"]]
    table[names["time"]] = moments.astype("M8[s]").astype(int) if form == "s" else moments.dt.strftime(form or ISO)
    for each in dice.sample(list(FURTHER), dice.choice((0, 0, 1, 2, 3))):
        table.insert(dice.randint(0, len(table.columns)), each, [FURTHER[each](row) for row in range(len(table))])
        spec.setdefault("drop", []).append(each)
    if dice.random() < 0.4:
        table = table.sample(frac=1, random_state=number)
    spec |= {"time": [names["time"]], "form": "" if form == "%Y-%m-%d" else form, "missing": "none"}
    content, said = _written(dice, table, kind)
    how = f"{shape}, {quantity}, {form!a}, {kind} {said}: {', '.join(map(str, table.columns))}"
    ids = tidy["sensor"] + "-" + tidy["way"] if shape == "ways" else tidy["sensor"]
    return Drawn(f"data.{kind}", content, spec | said, tuple(dict.fromkeys(ids)), how)


ISO = "%Y-%m-%d %H:%M:%S"


def _tidy(dice: Random, shape: str, quantity: str) -> pd.DataFrame:
    """A row for each time, sensor and lane, some without a reading."""
    step, count = 60 if shape == "hours" else dice.choice((5, 15, 60)), 1 if shape == "one" else dice.randint(2, 6)
    first = pd.Timestamp("2015-01-01") + pd.Timedelta(minutes=step * dice.randrange(3650 * 1440 // step))
    rows = 24 * dice.randint(2, 6) if shape == "hours" else dice.randint(12, 60)
    times = pd.date_range(first.normalize() if shape == "hours" else first, periods=rows, freq=f"{step}min")
    start, mark = dice.randrange(100, 10**9), dice.choice(("", "S", "VD-", "A 9/"))
    ids = [f"{mark}{start + 7 * at}".replace(" ", "_").replace("/", "_") for at in range(count)]
    lanes = range(1, 3 if shape == "lanes" else 2)
    cells = [
        (time, ids[at // 2 if shape == "ways" else at], "NS"[at % 2], lane)
        for time in times
        for at in range(count)
        for lane in lanes
    ]
    tidy, gaps = pd.DataFrame(cells, columns=["time", "sensor", "way", "lane"]), dice.choice((0, 0.1))
    speeds = [round(min(150, max(2, dice.gauss(75, 15))), 1) for _ in cells]
    readings = speeds if quantity == "speed" else [float(dice.randrange(1, 900)) for _ in cells]
    return tidy.assign(value=np.where([dice.random() >= gaps or row[1] == ids[0] for row in cells], readings, np.nan))


def _wide(tidy: pd.DataFrame, names: dict[str, str], quantity: str) -> Table:
    table = tidy.pivot(index="time", columns="sensor", values="value").reset_index()
    return table.rename(columns={"time": names["time"]}).rename_axis(columns=None), {"values": {quantity: EVERY}}


def _rows(*roles: str) -> Callable[..., Table]:
    def make(tidy: pd.DataFrame, names: dict[str, str], quantity: str) -> Table:
        table = tidy[["time", *roles, "value"]].rename(columns={**names, "value": names[quantity]})
        sensor = {"sensor": [names[role] for role in roles if role != "lane"]} if roles else {"name": "data"}
        return table, {"values": {quantity: names[quantity]}} | sensor | (
            {"lane": [names["lane"]]} if "lane" in roles else {}
        )

    return make


def _hours(tidy: pd.DataFrame, names: dict[str, str], quantity: str) -> Table:
    rows = tidy.assign(hour=tidy["time"].dt.strftime("H%H"), time=tidy["time"].dt.normalize())
    table = rows.pivot(index=["time", "sensor"], columns="hour", values="value").reset_index()
    spec = {"values": {quantity: r"H(?P<time>\d\d)"}, "slot_s": 3600, "sensor": [names["sensor"]]}
    return table.rename(columns=names).rename_axis(columns=None), spec


SHAPES: dict[str, Callable[..., Table]] = {
    **{"wide": _wide, "rows": _rows("sensor"), "one": _rows(), "ways": _rows("sensor", "way")},
    **{"lanes": _rows("sensor", "lane"), "hours": _hours},
}


def _written(dice: Random, table: pd.DataFrame, kind: str) -> tuple[bytes, dict[str, Any]]:
    """The content of a file, and what its description says of the signs."""
    if kind == "parquet":
        stream = io.BytesIO()
        table.to_parquet(stream, index=False)
        return stream.getvalue(), {}
    if kind in ("json", "jsonl"):
        return table.to_json(orient="records", lines=kind == "jsonl", double_precision=15).encode(), {}
    mark, decimal = dice.choice(((",", "."), (";", ","), (";", "."), ("\t", ",")))
    text = table.to_csv(index=False, sep=mark, decimal=decimal, na_rep=dice.choice(("", "NA"))).encode()
    content = gzip.compress(text, mtime=0) if kind == "csv.gz" else text
    return content, {"separator": mark, "decimal": decimal}


def by_pandas(path: Path, spec: Mapping[str, Any]) -> pd.DataFrame:
    """Readings [T,N] of the first quantity of a table, as its description says."""
    texts: dict[str, Any] = {"dtype": str, "keep_default_na": False}
    if path.suffix == ".parquet":
        table = pd.read_parquet(path).astype(object)
    elif path.suffix in (".json", ".jsonl"):
        text = path.read_text("utf-8")
        lines = [line for line in text.splitlines() if line.strip()] if path.suffix == ".jsonl" else []
        table = pd.DataFrame([json.loads(line) for line in lines] or json.loads(text))
    else:
        marked = path.read_bytes()[:2] in (b"\xff\xfe", b"\xfe\xff")
        texts |= {"encoding": "utf-16" if marked else "utf-8-sig", "encoding_errors": "replace"}
        cells = pd.read_csv(path, sep=spec.get("separator", ","), header=None, **texts)
        table = cells[1:].set_axis(cells.iloc[0].str.strip(), axis=1)
    table = table.fillna("").astype(str).map(str.strip)
    (pattern,) = (each if "(?P<" in each else re.escape(each) for each in spec["values"].values())
    clocks = [table.columns[0]] if spec["time"] == [""] else spec["time"]
    times = table[clocks].agg(" ".join, axis=1)
    said = {"unit": "s"} if spec.get("form") == "s" else {"format": spec.get("form") or "ISO8601"}
    moments = pd.to_datetime(times.astype(int) if "unit" in said else times, **said)
    own = table[spec.get("sensor", [])].agg("-".join, axis=1) if spec.get("sensor") else spec.get("name", "")
    taken, parts = {*clocks, *spec.get("sensor", []), *spec.get("lane", []), *spec.get("drop", [])}, []
    for name in table.columns:
        if name not in taken and (match := re.fullmatch(pattern, name)):
            groups = match.groupdict()
            later = pd.Timedelta(seconds=spec.get("slot_s", 0) * int(groups.get("time", 0)))
            cells = {
                "time": moments + later,
                "sensor": groups.get("sensor", own),
                "value": table[name].map(lambda cell: _number(cell, spec)),
            }
            parts.append(pd.DataFrame(cells).assign(lane=table[spec["lane"][0]] if "lane" in spec else ""))
    rows = pd.concat(parts).drop_duplicates()
    if rows.duplicated(["time", "sensor", "lane"]).any():
        raise ValueError("two readings of one time")
    lanes = rows.pivot(index="time", columns=["sensor", "lane"], values="value")
    return lanes.T.groupby("sensor").sum(min_count=1).T.where(lanes.notna().T.groupby("sensor").all().T)


def _number(cell: str, spec: Mapping[str, Any]) -> float:
    text = cell.replace(",", ".") if spec.get("decimal") == "," else cell
    if cell not in ABSENT and not NUMBER.fullmatch(text):
        raise ValueError(f"{cell!a} is no number")
    return np.nan if cell in ABSENT else float(text)
