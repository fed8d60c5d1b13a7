"""Exports as cities, offices and databases write them: each is converted by one command, number by number.

The texts are written here by hand, without pandas, and the output is read with h5py alone.
"""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.commands import works

IDS = ("S1", "S2", "S3", "S4")
START, ROWS = datetime(2024, 1, 30, 22), 60
TIMES = [START + timedelta(minutes=5 * row) for row in range(ROWS)]
_random = np.random.default_rng(29)
SPEEDS = np.round(_random.uniform(20, 110, (ROWS, len(IDS))), 1)
SPEEDS[_random.random(SPEEDS.shape) < 0.05] = np.nan
SPEEDS[0] = (71.1, 65.0, 88.4, 30.2)
FLOWS = _random.integers(60, 1900, SPEEDS.shape).astype(float)
ISO, GERMAN = "%Y-%m-%d %H:%M:%S", "%d.%m.%Y %H:%M"

Export = Callable[[Path], Sequence[str | Path]]
EXPORTS: dict[str, tuple[Export, np.ndarray, list[datetime]]] = {}


def export(name: str, values: np.ndarray = SPEEDS, times: list[datetime] = TIMES) -> Callable[[Export], Export]:
    """Enter a function that writes an export into a folder and returns what stands behind ``socialx convert auto``."""

    def enter(function: Export) -> Export:
        EXPORTS[name] = (function, values, times)
        return function

    return enter


def text(value: float, comma: bool = False, missing: str = "") -> str:
    return missing if np.isnan(value) else f"{value:g}".replace(".", "," if comma else ".")


def lines(path: Path, rows: Iterable[Sequence[str]], mark: str = ",") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(mark.join(row) for row in rows) + "\n", encoding="utf-8")
    return path


def places(folder: Path) -> Path:
    return lines(
        folder / "at.csv", [["id", "lat", "lon"], *([s, f"48.{n}1", f"11.{n}2"] for n, s in enumerate(IDS, 1))]
    )


def wide_rows(
    head: str = "time", form: str = ISO, comma: bool = False, ids: Sequence[str] = IDS, missing: str = ""
) -> list[list[str]]:
    rows = zip(TIMES, SPEEDS, strict=True)
    return [[head, *ids], *([t.strftime(form), *(text(v, comma, missing) for v in row)] for t, row in rows)]


def long(head: Sequence[str] = ("time", "sensor", "speed", "flow")) -> list[list[str]]:
    cells = ((t, s) for t in range(ROWS) for s in range(len(IDS)))
    return [list(head), *([f"{TIMES[t]:{ISO}}", IDS[s], text(SPEEDS[t, s]), text(FLOWS[t, s])] for t, s in cells)]


@export("offset from UTC, the zone named")
def _(folder: Path) -> Sequence[str | Path]:
    return [lines(folder / "a.csv", wide_rows(form="%Y-%m-%dT%H:%M:%S+01:00")), "--timezone", "Europe/Berlin"]


@export("measuring intervals with a begin and an end")
def _(folder: Path) -> Sequence[str | Path]:
    head = ["meetlocatie", "start_meetperiode", "eind_meetperiode", "intensiteit", "gem_snelheid"]
    cells = ((t, s) for t in range(ROWS) for s in range(len(IDS)))
    begins = {t: [f"{TIMES[t] + timedelta(minutes=minutes):{ISO}}" for minutes in (0, 5)] for t in range(ROWS)}
    rows = [[IDS[s], *begins[t], text(FLOWS[t, s]), text(SPEEDS[t, s])] for t, s in cells]
    return [lines(folder / "ndw.csv", [head, *rows])]


def until(times: list[datetime], form: str, mark: str) -> list[str]:
    """Measuring intervals as one text each."""
    return [f"{t:{form}}{mark}{t + timedelta(minutes=5):{form}}" for t in times]


@export("dates, and intervals of the day with AM and PM")
def _(folder: Path) -> Sequence[str | Path]:
    periods = until(TIMES, "%I:%M %p", " to ")
    rows = [[f"{t:%m/%d/%Y}", p, *map(text, row)] for t, p, row in zip(TIMES, periods, SPEEDS, strict=True)]
    return [lines(folder / "a.csv", [["Day", "Period", *IDS], *rows])]


@export("intervals in one cell that could be offsets from UTC", times=[t + timedelta(hours=2) for t in TIMES])
def _(folder: Path) -> Sequence[str | Path]:
    times = [t + timedelta(hours=2) for t in TIMES]
    cells = [f"{t:{GERMAN}}-{end[-5:]}" for t, end in zip(times, until(times, "%H:%M", "-"), strict=True)]
    rows = ([cell, *map(text, row)] for cell, row in zip(cells, SPEEDS, strict=True))
    return [lines(folder / "a.csv", [["Intervall", *IDS], *rows], ";")]


@export("the two times of an interval in one cell")
def _(folder: Path) -> Sequence[str | Path]:
    rows = ([cell, *map(text, row)] for cell, row in zip(until(TIMES, ISO, " \u2013 "), SPEEDS, strict=True))
    return [lines(folder / "a.csv", [["t", *IDS], *rows])]


@export("offsets from UTC in the hour of the offset", times=[t + timedelta(hours=15, minutes=25) for t in TIMES])
def _(folder: Path) -> Sequence[str | Path]:
    times = [f"{t + timedelta(hours=8, minutes=25):%Y-%m-%dT%H:%M}-07:00" for t in TIMES]
    return [lines(folder / "a.csv", [["t", *IDS], *([t, *map(text, r)] for t, r in zip(times, SPEEDS, strict=True))])]


@export("a unit behind every reading, and decimal commas")
def _(folder: Path) -> Sequence[str | Path]:
    cells = ((t, s) for t in range(ROWS) for s in range(len(IDS)))
    rows = [[f"{TIMES[t]:{GERMAN}}", IDS[s], f"{text(SPEEDS[t, s], comma=True, missing='-')} km/h"] for t, s in cells]
    rows = [[*row[:2], row[2].replace("- km/h", "-")] for row in rows]
    return [lines(folder / "a.csv", [["Zeit", "Messstelle", "v"], *rows], ";"), "--units", "km/h"]


@export("a zip of days in names, a row per sensor and time of day")
def _(folder: Path) -> Sequence[str | Path]:
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for day in sorted({t.date() for t in TIMES}):
            rows = [(t, s) for t in range(ROWS) for s in range(len(IDS)) if TIMES[t].date() == day]
            cells = [[f"{TIMES[t]:%I:%M:%S %p}", IDS[s], text(SPEEDS[t, s])] for t, s in rows]
            archive.writestr(f"v_{day:%Y%m%d}.txt", "\n".join(map("\t".join, [["clock", "id", "speed"], *cells])))
    return [folder / "a.zip"]


@export("a workbook of stations merged over their rows, and dates over those of a day")
def _(folder: Path) -> Sequence[str | Path]:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append(["Station", "Date", "Time", "Speed"])
    for s, vdid in enumerate(IDS):
        for t, (moment, value) in enumerate(zip(TIMES, SPEEDS[:, s], strict=True)):
            day = moment.date() if t in (0, 24) else None
            sheet.append([None if t else vdid, day, moment.time(), None if np.isnan(value) else float(value)])
        first = 2 + s * ROWS
        for column, begin, end in (("A", 0, ROWS), ("B", 0, 24), ("B", 24, ROWS)):
            sheet.merge_cells(f"{column}{first + begin}:{column}{first + end - 1}")
    book.save(folder / "a.xlsx")
    return [folder / "a.xlsx"]


@export("quoted, with a type column, as in Madrid")
def _(folder: Path) -> Sequence[str | Path]:
    head = ["id", "fecha", "tipo_elem", "intensidad", "ocupacion", "carga", "vmed", "error"]
    cells = ((t, s) for s in range(len(IDS)) for t in range(ROWS))
    rows = [
        [IDS[s], f"{TIMES[t]:{ISO}}", "M30", text(FLOWS[t, s]), "3", "17", text(SPEEDS[t, s]), "N"] for t, s in cells
    ]
    return [lines(folder / "a.csv", [[f'"{cell}"' for cell in row] for row in [head, *rows]], ";")]


@export("a title, date and time of day apart, half days, a footer")
def _(folder: Path) -> Sequence[str | Path]:
    rows = [[f"{t:%m/%d/%Y}", f"{t:%I:%M %p}", *map(text, row)] for t, row in zip(TIMES, SPEEDS, strict=True)]
    path = lines(folder / "a.csv", [["Date", "Time", *IDS], *rows])
    path.write_text(f"City of Examples, speeds\n\n{path.read_text()}Total,,{text(np.nansum(SPEEDS))},,,\n")
    return [path]


@export("gzip in UTF-16 with tabs, blocks that overlap")
def _(folder: Path) -> Sequence[str | Path]:
    head, *rows = wide_rows(missing="n/a")
    body = "\n".join(map("\t".join, [head, *rows[:40], *rows[30:]]))
    (folder / "a.tsv.gz").write_bytes(gzip.compress(body.encode("utf-16")))
    return [folder / "a.tsv.gz"]


@export("a workbook per month in a zip")
def _(folder: Path) -> Sequence[str | Path]:
    openpyxl = pytest.importorskip("openpyxl")
    with zipfile.ZipFile(folder / "b.zip", "w") as archive:
        for name, part in (("jan.xlsx", range(24)), ("feb.xlsx", range(24, ROWS))):
            book, stored = openpyxl.Workbook(), io.BytesIO()
            book.active.append(["Zeit", *IDS])
            for row in part:
                book.active.append([TIMES[row], *(None if np.isnan(v) else float(v) for v in SPEEDS[row])])
            book.save(stored)
            archive.writestr(name, stored.getvalue())
    return [folder / "b.zip"]


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_of_a_city_is_read_by_one_command(name: str, tmp_path: Path) -> None:
    write, values, times = EXPORTS[name]
    output = tmp_path / "out.h5"
    works("convert", "auto", *write(tmp_path), "--meta-csv", places(tmp_path), "--output-h5", output)
    with h5py.File(output) as file:
        ids = list(file["metadata/vdids"].asstr()[:])
        assert sorted(ids) == sorted(IDS)
        assert [datetime.strptime(t, ISO) for t in file["metadata/timestamps"].asstr()[:]] == times
        written = file["data/features"][:, [ids.index(vdid) for vdid in IDS], 0]
        assert [file[f"metadata/vd_info/{vdid}"].attrs["position_lat"] for vdid in IDS] == [48.11, 48.21, 48.31, 48.41]
    np.testing.assert_array_equal(written, values.astype(np.float32))
